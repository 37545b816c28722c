//! Tokenizers of models: read from files when the gateway starts, or built in.
//!
//! A file is Hugging Face's `tokenizer.json`, by itself or in a model's directory. What a request's tokens are needed for
//! says core ([`baton_core::size`]); nothing here is called unless a policy asks.
//!
//! A model's directory also has its chat template (`template`), with which the tokens of conversations are known.

mod template;

use std::path::Path;
use std::sync::Arc;

use baton_core::body::Envelope;
use baton_core::size::{Measure, Tokenizer, Unknown};
use template::ChatTemplate;

use crate::config::TokenizerPath;

/// The name that stands for the tokenizer that is built in: OpenAI's `cl100k_base`, which AIBrix counts prompts with.
pub const BUILT_IN: &str = "cl100k_base";

/// The name that stands for the engines' own, which are asked at `/tokenize`.
pub const ENGINE: &str = "engine";

/// Largest file that is read. Those of large models have some ten megabytes.
pub const FILE_MAX_BYTES: u64 = 256 << 20;

/// How prompts are counted, with these tokenizers. `counts_as_aibrix`: models of which nothing is said are counted with
/// the tokenizer that is built in.
///
/// # Errors
/// A file that is not there, is too large or is no tokenizer.
pub fn measure(paths: &[TokenizerPath], counts_as_aibrix: bool) -> Result<Measure, String> {
    let (mut all, mut asks) = (Vec::with_capacity(paths.len()), Vec::new());
    for TokenizerPath { model, path } in paths {
        if path == ENGINE {
            asks.push(model.clone());
            continue;
        }
        let wrong = |why: &dyn std::fmt::Display| format!("--tokenizer-path {path}: {why}");
        all.push((model.clone(), read(path).map_err(|why| wrong(&why))?));
    }
    if counts_as_aibrix && all.iter().all(|(model, _)| model.is_some()) && !asks.contains(&None) {
        all.push((None, Arc::new(Cl100k)));
    }
    Ok(Measure::new(all).asking(asks))
}

fn read(path: &str) -> Result<Arc<dyn Tokenizer>, String> {
    if path == BUILT_IN {
        return Ok(Arc::new(Cl100k));
    }
    let given = Path::new(path);
    let file = if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() };
    let about = std::fs::metadata(&file).map_err(|error| match given.exists() {
        true => format!("{}: {error}", file.display()),
        false => format!(
            "{error}; give a tokenizer.json, a model's directory that has one, {BUILT_IN} or {ENGINE}"
        ),
    })?;
    if about.len() > FILE_MAX_BYTES {
        return Err(format!("{} is larger than {FILE_MAX_BYTES} bytes", file.display()));
    }
    let text = std::fs::read(&file).map_err(|error| error.to_string())?;
    let own = HuggingFace::parse(&text)?;
    if !given.is_dir() {
        return Ok(Arc::new(own));
    }
    // Without it all else is as it was.
    let template = ChatTemplate::of(given).inspect_err(|why| {
        tracing::warn!(path, "the tokens of conversations are not known: chat template: {why}");
    });
    Ok(Arc::new(HuggingFace { template: template.ok().flatten(), ..own }))
}

/// One of Hugging Face's.
#[derive(Debug)]
struct HuggingFace {
    own: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
}

impl HuggingFace {
    fn parse(text: &[u8]) -> Result<HuggingFace, String> {
        let mut own = tokenizers::Tokenizer::from_bytes(text).map_err(|error| error.to_string())?;
        // A prompt is what it is, however long.
        own.with_truncation(None).map_err(|error| error.to_string())?;
        own.with_padding(None);
        Ok(HuggingFace { own, template: None })
    }
}

impl Tokenizer for HuggingFace {
    fn count(&self, text: &str) -> usize {
        let guess = text.len().div_ceil(baton_core::prompt::TOKEN_BYTES);
        self.own.encode_fast(text, false).map_or(guess, |encoded| encoded.len())
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        self.own.encode_fast(text, true).ok().map(|encoded| encoded.get_ids().to_vec())
    }

    fn chat(&self, body: &Envelope) -> Result<Vec<u32>, Unknown> {
        let template = self.template.as_ref().ok_or("the model's chat template is not at hand")?;
        let text = template.render(body)?;
        // A template writes all special tokens itself.
        let encoded = self.own.encode_fast(text, false).map_err(|_| "the tokenizer failed")?;
        Ok(encoded.get_ids().to_vec())
    }
}

/// The one that is built in. No engine's own, so it counts and no more.
#[derive(Debug)]
struct Cl100k;

impl Tokenizer for Cl100k {
    fn count(&self, text: &str) -> usize {
        bpe_openai::cl100k_base().count(text)
    }

    fn encode(&self, _: &str) -> Option<Vec<u32>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a small vocabulary; one token stands in front of each prompt. It would cut after two.
    const SMALL: &str = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
        "padding":null,"normalizer":null,"decoder":null,
        "added_tokens":[{"id":9,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "pre_tokenizer":{"type":"Whitespace"},
        "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
            "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":0}}],
            "special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":["<s>"]}}},
        "model":{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"b":2},"unk_token":"<unk>"}}"#;

    fn path(model: Option<&str>, path: &str) -> TokenizerPath {
        TokenizerPath { model: model.map(str::to_owned), path: path.to_owned() }
    }

    #[test]
    fn a_file_and_a_directory_give_the_same_tokenizer() {
        let directory = std::env::temp_dir().join(format!("baton-tokenizer-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("tokenizer.json");
        std::fs::write(&file, SMALL).unwrap();
        let paths = [path(Some("m"), directory.to_str().unwrap()), path(None, file.to_str().unwrap())];
        let measure = measure(&paths, true);
        std::fs::remove_dir_all(&directory).unwrap();
        let measure = measure.unwrap();
        for model in [Some("m"), Some("other"), None] {
            let own = measure.tokenizer(model).unwrap();
            assert_eq!((own.count("a b c a"), own.encode("a b x")), (4, Some(vec![9, 1, 2, 0])), "{model:?}");
        }
    }

    #[test]
    fn a_directory_with_a_chat_template_knows_the_tokens_of_conversations() {
        let body = r#"{"messages":[{"role":"user","content":"a b"},{"role":"user","content":"a"}]}"#;
        let body = Envelope::parse(body.into(), &baton_core::body::BodyLimits::default()).unwrap();
        // In this vocabulary the added token is the number 3.
        let own = "{{ bos_token }}{% for m in messages %} {{ m.content }}{% endfor %}";
        let other = "{% for m in messages %}b{% endfor %}";
        let config = |template: serde_json::Value| {
            serde_json::json!({"bos_token": "<s>", "chat_template": template}).to_string()
        };
        let named = serde_json::json!([{"name": "tool_use", "template": other}, {"name": "default", "template": own}]);
        let cases = [
            (config(own.into()), None, Ok(vec![3, 1, 2, 1])),
            (config(named), None, Ok(vec![3, 1, 2, 1])),
            // The file of its own is the newer way.
            (config(other.into()), Some(own), Ok(vec![3, 1, 2, 1])),
            (config("{% if".into()), None, Err("the model's chat template is not at hand")),
            (config(serde_json::Value::Null), None, Err("the model's chat template is not at hand")),
        ];
        for (at, (config, file, expected)) in cases.into_iter().enumerate() {
            let name = format!("baton-chat-template-{}-{at}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("tokenizer.json"), SMALL).unwrap();
            std::fs::write(directory.join("tokenizer_config.json"), config).unwrap();
            if let Some(file) = file {
                std::fs::write(directory.join("chat_template.jinja"), file).unwrap();
            }
            let measure = measure(&[path(None, directory.to_str().unwrap())], false);
            std::fs::remove_dir_all(&directory).unwrap();
            let ids = measure.unwrap().tokenizer(None).unwrap().chat(&body);
            assert_eq!(ids, expected.map_err(Unknown::from), "{at}");
        }
    }

    #[test]
    fn what_is_built_in_counts_as_aibrix_does_and_knows_no_engines_tokens() {
        let named = measure(&[path(Some("m"), BUILT_IN)], false).unwrap();
        let own = named.tokenizer(Some("m")).unwrap();
        // As tiktoken counts them.
        assert_eq!(
            (own.count("hello world"), own.count("antidisestablishmentarianism"), own.count("")),
            (2, 6, 0)
        );
        assert_eq!(own.encode("hello"), None);
        assert!(named.tokenizer(Some("other")).is_none());
        assert!(measure(&[], true).unwrap().tokenizer(Some("other")).is_some());
        assert!(measure(&[], false).unwrap().tokenizer(None).is_none());
    }

    #[test]
    fn engines_are_asked_where_they_are_named_and_no_other_tokenizer_is() {
        let prompt = |model: &str| {
            let body = format!(r#"{{"model":"{model}","prompt":"a"}}"#);
            let body = Envelope::parse(body.into(), &baton_core::body::BodyLimits::default()).unwrap();
            baton_core::prompt::Prompt::of(baton_core::ask::Api::Completions, body)
        };
        let one = measure(&[path(Some("m"), ENGINE)], false).unwrap();
        assert!(one.asks(&prompt("m")) && !one.asks(&prompt("other")));
        // AIBrix's default is left out: what engines have counted before is nearer.
        let all = measure(&[path(None, ENGINE), path(Some("own"), BUILT_IN)], true).unwrap();
        assert!(all.asks(&prompt("m")) && !all.asks(&prompt("own")));
        assert!(all.tokenizer(Some("m")).is_none() && all.tokenizer(Some("own")).is_some());
        // One beside it stands in for engines that say nothing.
        let both = measure(&[path(None, ENGINE), path(None, BUILT_IN)], false).unwrap();
        assert!(both.asks(&prompt("m")) && both.tokenizer(Some("m")).is_some());
    }

    #[test]
    fn a_path_that_is_no_tokenizer_says_so() {
        let wrong = measure(&[path(None, "/nowhere")], false).unwrap_err();
        assert!(
            wrong.starts_with("--tokenizer-path /nowhere: ") && wrong.contains("tokenizer.json"),
            "{wrong}"
        );
        assert!(HuggingFace::parse(b"{}").is_err());
    }
}
