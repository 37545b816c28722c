//! A model's chat template: the text that an engine makes of a conversation.
//!
//! Templates are Jinja and come with the model, so they are the operator's; what is put into them is a client's. So a
//! rendering has limits of steps, depth and length. The conversation is prepared as engines do it: members that no
//! template sees are left out, arguments of calls are objects, tools have their members in the engines' order.
//!
//! Where engines differ, or would do what is not done here, there is no text but a reason: pictures, several parts of
//! text that a template does not join itself, a clock, a client's own template. What is rendered is compared with
//! the engines' counts (`core::size`), because an engine may have been started with another template.

mod python;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use baton_core::body::Envelope;
use baton_core::body::scalar;
use baton_core::size::{EXACT_BYTES, Unknown};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

/// Steps of one rendering, of which each is some 64 bytes at most.
const FUEL: u64 = 1_000_000;
/// Calls of macros within each other.
const DEPTH: usize = 64;
/// Largest file of a template or of a tokenizer's settings.
const FILE_MAX_BYTES: u64 = 4 << 20;

const NAME: &str = "chat";

/// Tokens that templates name.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];

/// What a template is given besides `chat_template_kwargs`.
const GIVEN: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"];

/// Members of a request that change the prompt in ways that are not done here.
const REFUSED: [&str; 4] = ["chat_template", "truncate_prompt_tokens", "input_ids", "prompt_embeds"];

/// Members of a request that matter if the template has one of these words.
const SPOKEN: [(&str, &[&str]); 2] =
    [("documents", &["documents"]), ("reasoning_effort", &["reasoning_effort", "enable_thinking"])];

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Vec<(&'static str, Value)>,
    /// It makes of a list of one text what it makes of that text.
    joins: bool,
    /// There is another one for conversations with tools.
    not_for_tools: bool,
}

impl ChatTemplate {
    /// The one of a model's directory, if it has one.
    ///
    /// # Errors
    /// One that cannot be read or is no template.
    pub fn of(directory: &Path) -> Result<Option<ChatTemplate>, String> {
        let config = match read(&directory.join("tokenizer_config.json"))? {
            Some(text) => serde_json::from_str(&text).map_err(|e| format!("tokenizer_config.json: {e}"))?,
            None => serde_json::Value::Null,
        };
        let own = read(&directory.join("chat_template.jinja"))?;
        let (source, not_for_tools) = match (own, &config["chat_template"]) {
            (Some(source), _) => (source, false),
            (None, serde_json::Value::String(source)) => (source.clone(), false),
            (None, serde_json::Value::Array(named)) => {
                let of = |name: &str| named.iter().find(|one| one["name"] == name);
                match of("default").and_then(|one| one["template"].as_str()) {
                    Some(source) => (source.to_owned(), of("tool_use").is_some()),
                    None => return Ok(None),
                }
            }
            (None, _) => return Ok(None),
        };
        let template = ChatTemplate::parse(source, &config).map_err(|error| error.to_string())?;
        Ok(Some(ChatTemplate { not_for_tools, ..template }))
    }

    fn parse(source: String, config: &serde_json::Value) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.add_function("raise_exception", |said: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, said))
        });
        python::teach(&mut environment);
        environment.add_template_owned(NAME, source.clone())?;
        let token = |name: &'static str| {
            let said = &config[name];
            let text = said.as_str().or_else(|| said["content"].as_str())?;
            Some((name, Value::from(text)))
        };
        let tokens = TOKENS.into_iter().filter_map(token).collect();
        let mut own = ChatTemplate { environment, source, tokens, joins: false, not_for_tools: false };
        let probe = |content: Value| {
            let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
            own.write(&[message], Value::from(()), true, Vec::new()).ok()
        };
        let part = Value::from_pairs([("type", "text"), ("text", "probe")]);
        let as_text = probe(Value::from("probe"));
        own.joins = as_text.is_some() && probe(Value::from_iter([part])) == as_text;
        Ok(own)
    }

    /// What an engine makes of the conversation in this body.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn render(&self, body: &Envelope) -> Result<String, Unknown> {
        let member = |name: &str| body.get(name).filter(|raw| scalar::kind(raw) != scalar::Kind::Null);
        if let Some(name) = REFUSED.into_iter().find(|name| member(name).is_some()) {
            return Err(format!("the request has {name}").into());
        }
        let spoken = |(name, words): &(&str, &[&str])| {
            member(name).is_some() && words.iter().any(|word| self.source.contains(word))
        };
        if let Some((name, _)) = SPOKEN.into_iter().find(spoken) {
            return Err(format!("the chat template heeds {name}, and engines differ in it").into());
        }
        let raw = |name| member(name).unwrap_or_default();
        // An escape makes a text shorter, hardly ever to less than half.
        if raw("messages").len() + raw("tools").len() > 2 * EXACT_BYTES {
            return Err("the conversation is too long to be tokenised".into());
        }
        let flag = |name, default| member(name).map_or(Some(default), scalar::as_bool);
        let flags = (flag("add_generation_prompt", true), flag("continue_final_message", false));
        let (Some(prompts), Some(goes_on)) = flags else { return Err(odd("add_generation_prompt")) };
        if flag("add_special_tokens", false) != Some(false) || prompts && goes_on {
            return Err("special tokens are added, or a message goes on and another begins".into());
        }
        let messages = parse(raw("messages")).ok_or_else(|| odd("messages"))?;
        let messages = messages.try_iter().map_err(|_| odd("messages"))?;
        let messages: Vec<Value> = messages.map(|m| self.message(&m)).collect::<Result<_, _>>()?;
        let tools = self.tools(member("tools"), member("tool_choice"))?;
        let more = self.kwargs(member("chat_template_kwargs"))?;
        let text = self.write(&messages, tools, prompts, more).map_err(|error| {
            let said = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            Unknown::from(format!("the chat template failed: {}", short(&said)))
        })?;
        if goes_on { cut(text, messages.last()) } else { Ok(text) }
    }

    fn write(
        &self,
        messages: &[Value],
        tools: Value,
        add_generation_prompt: bool,
        more: Vec<(String, Value)>,
    ) -> Result<String, Error> {
        let own = [
            ("messages", messages.iter().cloned().collect()),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        let own = own.into_iter().chain(self.tokens.iter().cloned());
        let all = own.map(|(name, value)| (name.to_owned(), value)).chain(more);
        let mut page = Page(Vec::new());
        self.environment.get_template(NAME)?.render_captured_to(Value::from_pairs(all), &mut page)?;
        String::from_utf8(page.0).map_err(|_| Error::new(ErrorKind::BadSerialization, "no UTF-8"))
    }

    /// A message as a template sees it.
    fn message(&self, message: &Value) -> Result<Value, Unknown> {
        let member = |name: &str| message.get_attr(name).ok().filter(|v| !v.is_none() && !v.is_undefined());
        let role = member("role").ok_or_else(|| odd("messages"))?;
        if role.as_str() == Some("developer") && !self.source.contains("developer") {
            return Err("the chat template does not know the role developer".into());
        }
        let reasons = member("reasoning").or_else(|| member("reasoning_content"));
        if reasons.is_some() && self.source.contains("reasoning") {
            return Err("the chat template heeds the reasoning of messages, and engines differ in it".into());
        }
        let content = member("content").map_or_else(|| Ok(Value::from("")), |said| self.content(&said))?;
        let mut seen = vec![("role", role), ("content", content)];
        if let Some(calls) = member("tool_calls") {
            let calls = calls.try_iter().map_err(|_| odd("tool_calls"))?;
            let calls: Vec<Value> = calls.map(|call| with_arguments(&call)).collect::<Result<_, _>>()?;
            seen.push(("tool_calls", Value::from(calls)));
        }
        seen.extend(["tool_call_id", "name"].into_iter().filter_map(|name| Some((name, member(name)?))));
        Ok(Value::from_pairs(seen))
    }

    fn content(&self, said: &Value) -> Result<Value, Unknown> {
        if said.kind() == ValueKind::String {
            return Ok(said.clone());
        }
        let mut texts = Vec::new();
        for part in said.try_iter().map_err(|_| odd("content"))? {
            let text = part.get_attr("text").ok().filter(|text| text.kind() == ValueKind::String);
            let kind = part.get_attr("type").ok();
            match (kind.as_ref().and_then(Value::as_str), text) {
                (Some("text"), Some(text)) => texts.push(text),
                _ => return Err("a message has a part that is no text".into()),
            }
        }
        if self.joins {
            let part = |text: Value| Value::from_pairs([("type", Value::from("text")), ("text", text)]);
            return Ok(texts.into_iter().map(part).collect());
        }
        match texts.pop() {
            Some(only) if texts.is_empty() => Ok(only),
            _ => Err("a message has several parts, and engines differ in how they join them".into()),
        }
    }

    /// Tools, with their members in the order in which engines have them.
    fn tools(&self, tools: Option<&[u8]>, choice: Option<&[u8]>) -> Result<Value, Unknown> {
        let Some(tools) = tools else { return Ok(Value::from(())) };
        let none = choice.and_then(scalar::as_str).as_deref() == Some("none");
        if self.not_for_tools || none {
            return Err("engines differ in what they do with these tools".into());
        }
        let tools = parse(tools).ok_or_else(|| odd("tools"))?;
        let tools: Vec<Value> = tools.try_iter().map_err(|_| odd("tools"))?.collect();
        if tools.is_empty() {
            return Ok(Value::from(()));
        }
        let ordered = |tool: &Value| {
            let function = tool.get_attr("function").ok().filter(|f| f.kind() == ValueKind::Map)?;
            let of = |name: &'static str| Some((name, function.get_attr(name).ok()?));
            let known = |(name, value): (&'static str, Value)| match value.is_undefined() {
                true if name == "strict" => None,
                true => Some((name, Value::from(()))),
                false => Some((name, value)),
            };
            let names = ["name", "description", "parameters", "strict"];
            let function = Value::from_pairs(names.into_iter().filter_map(of).filter_map(known));
            Some(Value::from_pairs([("type", tool.get_attr("type").ok()?), ("function", function)]))
        };
        let ordered: Option<Vec<Value>> = tools.iter().map(ordered).collect();
        ordered.map(Value::from).ok_or_else(|| odd("tools"))
    }

    fn kwargs(&self, given: Option<&[u8]>) -> Result<Vec<(String, Value)>, Unknown> {
        let Some(given) = given else { return Ok(Vec::new()) };
        let refused = |name: &str| GIVEN.contains(&name) || TOKENS.contains(&name) || name == "tokenize";
        let mut all = Vec::new();
        for (name, value) in scalar::members(given) {
            if refused(&name) {
                return Err(format!("chat_template_kwargs has {}", short(&name)).into());
            }
            all.push((name.into_owned(), parse(value).ok_or_else(|| odd("chat_template_kwargs"))?));
        }
        Ok(all)
    }
}

/// Engines give arguments as objects, and clients as JSON in a string.
fn with_arguments(call: &Value) -> Result<Value, Unknown> {
    let of = |value: &Value, name: &str| value.get_attr(name).map_err(|_| odd("tool_calls"));
    let function = of(call, "function")?;
    let arguments = match of(&function, "arguments")? {
        said if said.as_str() == Some("") || said.is_undefined() => Value::from_pairs::<_, &str, Value>([]),
        said => match said.as_str() {
            Some(text) => parse(text.as_bytes()).ok_or_else(|| odd("tool_calls"))?,
            None => said,
        },
    };
    let function = Value::from_pairs([("name", of(&function, "name")?), ("arguments", arguments)]);
    let members = [("id", of(call, "id")?), ("type", of(call, "type")?), ("function", function)];
    Ok(Value::from_pairs(members.into_iter().filter(|(_, value)| !value.is_undefined())))
}

/// The text up to the end of the last message, which is to go on (`continue_final_message`).
fn cut(mut text: String, last: Option<&Value>) -> Result<String, Unknown> {
    let said = last.and_then(|message| message.get_attr("content").ok());
    let said = said.as_ref().and_then(Value::as_str).filter(|said| !said.trim().is_empty());
    let said = said.ok_or("the last message has no text that could go on")?;
    let at = text.rfind(said.trim()).ok_or("the chat template changes the last message")?;
    let whole = if text[at..].starts_with(said.trim_start()) { said.trim_start() } else { said.trim() };
    text.truncate(at + whole.len());
    Ok(text)
}

fn parse(raw: &[u8]) -> Option<Value> {
    serde_json::from_slice(raw).ok()
}

fn odd(member: &'static str) -> Unknown {
    Cow::Owned(format!("{member} is not as engines know it"))
}

/// What goes into receipts is a client's, or a template's.
fn short(said: &str) -> String {
    said.chars().filter(|c| !c.is_control()).take(120).collect()
}

/// A text file that may be missing.
fn read(file: &Path) -> Result<Option<String>, String> {
    let about = match std::fs::metadata(file) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    if about.len() > FILE_MAX_BYTES {
        return Err(format!("{} is larger than {FILE_MAX_BYTES} bytes", file.display()));
    }
    std::fs::read_to_string(file).map(Some).map_err(|error| format!("{}: {error}", file.display()))
}

/// As much of a text as is tokenised.
struct Page(Vec<u8>);

impl io::Write for Page {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.0.len() + more.len() > EXACT_BYTES {
            return Err(io::Error::other("the prompt is too long to be tokenised"));
        }
        self.0.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod styles;

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::body::BodyLimits;
    use serde_json::json;

    const SMALL: &str = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{% if m.tool_calls %}\
        {% for call in m.tool_calls %}!{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}\
        {% endif %}{{ eos_token }}\n{% endfor %}{% if tools is not none %}{% for tool in tools %}{{ tool | tojson }}\
        {% endfor %}{% endif %}{% if thinks is defined and thinks %}?{% endif %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";

    const JOINS: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for part in m.content %}{{ part.text.strip() }};{% endfor %}{% endif %}{% endfor %}";

    fn template(source: &str) -> ChatTemplate {
        let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>"});
        ChatTemplate::parse(source.to_owned(), &config).unwrap()
    }

    fn rendered(source: &str, body: &str) -> Result<String, Unknown> {
        let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
        template(source).render(&body)
    }

    #[test]
    fn a_conversation_is_rendered_as_engines_render_it() {
        let user = r#"{"role":"user","content":"a \"b\"","extra":1}"#;
        let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[true,\"<é\"]}"}}]}"#;
        let last = r#"{"role":"assistant","content":" so "}"#;
        let tool = r#"{"function":{"parameters":{"z":1,"a":2},"name":"f"},"type":"function"}"#;
        for (members, expected) in [
            (format!(r#""messages":[{user}]"#), "<s>[user]a \"b\"</s>\n[assistant]"),
            (
                format!(r#""messages":[{user}],"add_generation_prompt":false,"tools":null"#),
                "<s>[user]a \"b\"</s>\n",
            ),
            (
                format!(r#""messages":[{user},{call}]"#),
                "<s>[user]a \"b\"</s>\n[assistant]!f{\"z\": 1, \"a\": [true, \"<é\"]}</s>\n[assistant]",
            ),
            (
                format!(r#""messages":[],"tools":[{tool}],"chat_template_kwargs":{{"thinks":true}}"#),
                "<s>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \
                 \"parameters\": {\"z\": 1, \"a\": 2}}}?[assistant]",
            ),
            (
                format!(
                    r#""messages":[{user},{last}],"continue_final_message":true,"add_generation_prompt":false"#
                ),
                "<s>[user]a \"b\"</s>\n[assistant] so ",
            ),
            (
                r#""messages":[{"role":"user","content":[{"type":"text","text":"one"}]}]"#.into(),
                "<s>[user]one</s>\n[assistant]",
            ),
        ] {
            assert_eq!(rendered(SMALL, &format!("{{{members}}}")).as_deref(), Ok(expected), "{members}");
        }
    }

    #[test]
    fn what_engines_would_do_otherwise_has_a_reason() {
        let user = r#"{"role":"user","content":"a"}"#;
        let parts = r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        let picture = r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#;
        for (members, why) in [
            (format!(r#""messages":[{parts}]"#), "several parts"),
            (format!(r#""messages":[{picture}]"#), "no text"),
            (format!(r#""messages":[{user}],"chat_template":"x""#), "has chat_template"),
            (
                format!(r#""messages":[{user}],"chat_template_kwargs":{{"messages":[]}}"#),
                "kwargs has messages",
            ),
            (format!(r#""messages":[{user}],"add_special_tokens":true"#), "special tokens"),
            (format!(r#""messages":[{user}],"add_generation_prompt":7"#), "add_generation_prompt"),
            (format!(r#""messages":[{user}],"continue_final_message":true"#), "goes on"),
            (format!(r#""messages":[{user}],"tools":[1]"#), "tools"),
            (r#""messages":[{"role":"developer","content":"a"}]"#.into(), "developer"),
            (r#""messages":7"#.into(), "messages"),
            (r#""model":"m""#.into(), "messages"),
            (
                format!(r#""messages":[{{"role":"user","content":"{}"}}]"#, "x".repeat(EXACT_BYTES)),
                "chat template failed",
            ),
            (
                format!(r#""messages":[{{"role":"user","content":"{}"}}]"#, "x".repeat(2 * EXACT_BYTES)),
                "too long",
            ),
        ] {
            let said = rendered(SMALL, &format!("{{{members}}}")).unwrap_err();
            assert!(said.contains(why), "{why}: {said}");
        }
        let effort = r#"{"messages":[],"reasoning_effort":"low"}"#;
        assert_eq!(rendered(SMALL, effort).as_deref(), Ok("<s>[assistant]"));
        assert!(rendered("{{ reasoning_effort }}", effort).unwrap_err().contains("reasoning_effort"));
    }

    #[test]
    fn a_template_that_joins_parts_gets_them() {
        let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]}]}"#;
        let joins = JOINS.replace("};{", "}{");
        assert_eq!(rendered(&joins, body).as_deref(), Ok("ab"));
        assert!(rendered(JOINS, body).is_err());
    }

    #[test]
    fn a_template_has_limits_and_may_refuse() {
        for (source, why) in [
            ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "fuel"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ strftime_now('%Y') }}", "strftime_now"),
        ] {
            let said = rendered(source, r#"{"messages":[]}"#).unwrap_err();
            assert!(said.starts_with("the chat template failed: ") && said.contains(why), "{why}: {said}");
        }
        assert!(ChatTemplate::parse("{% if %}".into(), &json!({})).is_err());
    }
}
