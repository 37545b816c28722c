//! What a user can set, scrape or receive is documented on its page.
//!
//! The words are read out of the source where they are defined, never from a list kept beside it, so that a new flag is
//! seen the day it is written. The rules ask that a word stands on its page; whether the sentence about it is true is for
//! its reviewer.

use super::code::{Code, Mention};
use super::tree::File;
use super::{Finding, Rule, Tree};

pub const RULES: [Rule; 5] = [
    Rule {
        name: "flags-documented",
        why: "A flag that is not on docs/flags.md is found by reading source or not at all.",
        check: |tree| check(tree, &FLAGS),
    },
    Rule {
        name: "environment-documented",
        why: "A variable that is read but written down nowhere changes behaviour by surprise.",
        check: |tree| check(tree, &ENVIRONMENT),
    },
    Rule {
        name: "metrics-documented",
        why: "Dashboards and alerts are written from docs/metrics.md.",
        check: |tree| check(tree, &METRICS),
    },
    Rule {
        name: "fault-codes-documented",
        why: "Clients act on error codes: docs/errors.md says what each means and what to do.",
        check: |tree| check(tree, &FAULTS),
    },
    Rule {
        name: "limits-documented",
        why: "A limit that nobody knows of looks like a bug when it is reached: docs/limits.md names them all.",
        check: |tree| check(tree, &LIMITS),
    },
];

/// Where words of a kind are defined, how to find them, and the pages of which one must have them.
struct Kind {
    noun: &'static str,
    sources: &'static [&'static str],
    words: fn(&Code) -> Vec<Mention>,
    pages: &'static [&'static str],
}

const FLAGS: Kind = Kind {
    noun: "flag",
    sources: &["crates/gateway/src/config/", "crates/baton/src/"],
    words: flags,
    pages: &["docs/flags.md", "docs/simulated-engines.md", "docs/decide.md", "README.md"],
};

const ENVIRONMENT: Kind = Kind {
    noun: "variable",
    sources: &["crates/gateway/src/", "crates/baton/src/"],
    words: |code| strings(code, is_variable),
    pages: &["docs/"],
};

const METRICS: Kind = Kind {
    noun: "metric",
    sources: &["crates/gateway/src/telemetry/"],
    words: |code| strings(code, is_metric),
    pages: &["docs/metrics.md"],
};

const FAULTS: Kind = Kind {
    noun: "fault code",
    sources: &["crates/core/src/fault.rs", "crates/core/src/fault/"],
    words: codes,
    pages: &["docs/errors.md"],
};

const LIMITS: Kind = Kind {
    noun: "limit",
    sources: &["crates/core/src/", "crates/gateway/src/"],
    words: limits,
    pages: &["docs/limits.md"],
};

fn check(tree: &Tree, kind: &Kind) -> Vec<Finding> {
    let on_page = |file: &&File| kind.pages.iter().any(|page| file.path.starts_with(page));
    let pages: Vec<&str> = tree.files.iter().filter(on_page).map(|file| file.text.as_str()).collect();
    let mut found = Vec::new();
    for (file, code) in tree.code(kind.sources) {
        let mut words = (kind.words)(code);
        words.retain(|word| !word.test);
        words.sort_by(|a, b| a.text.cmp(&b.text).then(a.line.cmp(&b.line)));
        words.dedup_by(|a, b| a.text == b.text);
        for word in words.iter().filter(|word| !pages.iter().any(|page| mentions(page, &word.text))) {
            let message =
                format!("{} `{}` is not documented: add it to {}", kind.noun, word.text, kind.pages[0]);
            found.push(Finding::new(&file.path, word.line, message));
        }
    }
    found
}

/// Whether `page` has `word` as a word of its own. The endings that the metrics format adds may follow it.
fn mentions(page: &str, word: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    page.match_indices(word).any(|(at, _)| {
        let after = &page[at + word.len()..];
        let after =
            ["_total", "_seconds", "_bytes"].iter().find_map(|end| after.strip_prefix(end)).unwrap_or(after);
        !page[..at].ends_with(inside) && !after.starts_with(inside)
    })
}

fn strings(code: &Code, wanted: fn(&str) -> bool) -> Vec<Mention> {
    code.strings().filter(|string| wanted(&string.text)).collect()
}

fn is_variable(text: &str) -> bool {
    let ours = ["BATON_", "SMG_", "AIBRIX_"]
        .iter()
        .any(|prefix| text.starts_with(prefix) && text.len() > prefix.len());
    ours && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn is_metric(text: &str) -> bool {
    ["smg_", "baton_", "aibrix_"].iter().any(|prefix| text.starts_with(prefix)) && is_snake(text)
}

/// Words with an underscore, and words that a match arm gives.
fn codes(code: &Code) -> Vec<Mention> {
    let is_arm = |at: usize| at > 0 && code.tokens[at - 1].text == "=>";
    let mut found = strings(code, |text| text.contains('_') && is_snake(text));
    for (at, token) in code.tokens.iter().enumerate().filter(|(at, _)| is_arm(*at)) {
        let text = token.text.trim_matches('"');
        if token.text.starts_with('"') && code.tokens[at - 1].line == token.line && is_snake(text) {
            found.push(Mention { text: text.to_owned(), ..token.clone() });
        }
    }
    found
}

fn is_snake(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_lowercase());
    starts
        && !text.ends_with('_')
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Literals such as `"--port"`, and the fields that clap turns into long flags.
fn flags(code: &Code) -> Vec<Mention> {
    let is_flag = |text: &str| {
        let name = text.strip_prefix("--").unwrap_or_default();
        let everywhere = ["help", "version"].contains(&name);
        !everywhere
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let mut found: Vec<Mention> = code.strings().filter(|string| is_flag(&string.text)).collect();
    found.extend(settings(code).into_iter().map(|(_, flag)| flag));
    for field in fields(code) {
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("arg") || a.path().is_ident("clap"))
        {
            if let Some(name) = long_name(attribute, field) {
                let line = field.ident.as_ref().map_or(0, |ident| ident.span().start().line);
                found.push(Mention { text: format!("--{name}"), line, test: false });
            }
        }
    }
    found
}

/// The flag's name in `#[arg(long)]` or `#[arg(long = "name")]`.
fn long_name(attribute: &syn::Attribute, field: &syn::Field) -> Option<String> {
    let syn::Meta::List(list) = &attribute.meta else { return None };
    let mut tokens = list.tokens.clone().into_iter().skip_while(|token| token.to_string() != "long").skip(1);
    let given = matches!(tokens.next(), Some(token) if token.to_string() == "=");
    let literal = tokens.next().map(|token| token.to_string());
    let is_long = list.tokens.clone().into_iter().any(|token| token.to_string() == "long");
    let from_field = || field.ident.as_ref().map(|ident| ident.to_string().replace('_', "-"));
    let name = if given { literal.map(|literal| literal.trim_matches('"').to_owned()) } else { from_field() };
    name.filter(|_| is_long)
}

/// Limits have three homes: fields of a struct called `...Limits`, the config's groups of limits and times, and constants
/// with MAX, MOST or LIMIT in their name, which no setting changes.
fn limits(code: &Code) -> Vec<Mention> {
    let rows =
        settings(code).into_iter().filter(|(group, _)| ["limits", "timeouts"].contains(&group.as_str()));
    let mut found: Vec<Mention> = rows.map(|(_, flag)| flag).collect();
    let mut add = |ident: &syn::Ident| {
        found.push(Mention { text: ident.to_string(), line: ident.span().start().line, test: false });
    };
    for item in &code.ast.items {
        match item {
            syn::Item::Struct(item) if item.ident.to_string().ends_with("Limits") => {
                item.fields.iter().filter_map(|field| field.ident.as_ref()).for_each(&mut add);
            }
            syn::Item::Const(item) => {
                let name = item.ident.to_string();
                if name.split('_').any(|word| ["MAX", "MOST", "LIMIT"].contains(&word)) {
                    add(&item.ident);
                }
            }
            _ => {}
        }
    }
    found
}

/// (group, `--flag`) of the rows in a `group!` table of settings, aliases included. A row ends in `KIND, "flag";` or
/// `KIND, "flag", NOTE...;`.
fn settings(code: &Code) -> Vec<(String, Mention)> {
    let mut found = Vec::new();
    let mut group = String::new();
    let text = |at: usize| code.tokens.get(at).map_or("", |token| token.text.as_str());
    let mut inside_alias = false;
    for (at, token) in code.tokens.iter().enumerate() {
        if text(at + 1) == ":" && text(at + 3) == "{" && text(at.wrapping_sub(1)).starts_with('"') {
            group.clone_from(&token.text);
        }
        inside_alias = token.text == "alias" || (inside_alias && token.text != "]");
        let Some(name) = token.text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
            continue;
        };
        let ends_row = text(at.wrapping_sub(1)) == "," && (text(at + 1) == ";" || text(at + 2) == "NOTE");
        if !group.is_empty() && (ends_row || inside_alias) {
            found.push((group.clone(), Mention { text: format!("--{name}"), ..token.clone() }));
        }
    }
    found
}

/// Named fields of every struct that stands at the top of the file.
fn fields(code: &Code) -> impl Iterator<Item = &syn::Field> {
    code.ast.items.iter().flat_map(|item| match item {
        syn::Item::Struct(item) => item.fields.iter().collect::<Vec<_>>(),
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_must_stand_alone_but_for_metric_endings() {
        assert!(mentions("| `--port` |", "--port"));
        assert!(!mentions("| `--port-range` |", "--port"));
        assert!(mentions("baton_requests_total", "baton_requests"));
        assert!(!mentions("baton_requests_active", "baton_requests"));
    }

    #[test]
    fn settings_are_read_from_the_rows_of_a_group() {
        let source = "group! {\n /// D.\n \"Title\" limits: Limits {\n /// H.\n a: u8 = 1, COUNT, \"a-b\";\n \
                      c: Vec<H> = vec![h(\"x\"), h(\"y\")], LIST, \"c\", NOTE.alias(&[\"d\", \"e\"]).later(\"z\");\n }\n}";
        let code = Code::parse(source, false).unwrap();
        let names: Vec<String> =
            settings(&code).into_iter().map(|(group, flag)| group + &flag.text).collect();
        assert_eq!(names, ["limits--a-b", "limits--c", "limits--d", "limits--e"]);
    }

    #[test]
    fn flags_are_read_from_clap_and_from_literals() {
        let source = "#[derive(Args)]\nstruct A {\n #[arg(long, default_value_t = 3)]\n pool_idle: u8,\n \
                      #[arg(short, long = \"to-where\")]\n to: u8,\n #[arg(short)]\n s: u8 }\n\
                      const B: &str = \"--other\";";
        let code = Code::parse(source, false).unwrap();
        let mut names: Vec<String> = flags(&code).into_iter().map(|flag| flag.text).collect();
        names.sort();
        assert_eq!(names, ["--other", "--pool-idle", "--to-where"]);
    }
}
