//! The file: its forms, and its errors with their lines.

use proptest::prelude::*;

use super::super::file;
use super::{Scratch, load};

fn error(text: &str) -> String {
    match file::parse("f.yaml", text) {
        Ok(_) => panic!("{text}: is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_form_of_a_list_of_workers() {
    let forms = [
        "workers:\n  prefill:\n    - http://a:1 8998\n    - http://b:1 none\n    - http://c:1\n",
        "workers:\n  prefill:\n    - url: http://a:1\n      bootstrap_port: 8998\n    - url: http://b:1\n      bootstrap_port: null\n    - url: http://c:1\n",
        "workers: {prefill: ['http://a:1 8998', 'http://b:1 none', 'http://c:1']}",
    ];
    for (at, form) in forms.iter().enumerate() {
        let scratch = Scratch::new(&format!("form-{at}"), form);
        let config = load(&format!("--config {}", scratch.path())).unwrap().config;
        let legs: Vec<String> = config.workers.prefill.iter().map(ToString::to_string).collect();
        assert_eq!(legs, ["http://a:1 8998", "http://b:1 none", "http://c:1"], "{form}");
    }
}

#[test]
fn pairs_single_items_nulls_and_empty_sections() {
    let text = "discovery:\n  selector: {app: llm, tier: a}\ncors:\n  cors_allowed_origins: '*'\n\
                log:\n  log_dir:\nserver:\n# nothing here\n";
    let scratch = Scratch::new("pairs", text);
    let config = load(&format!("--config {}", scratch.path())).unwrap().config;
    assert_eq!(config.discovery.selector, [("app".into(), "llm".into()), ("tier".into(), "a".into())]);
    assert_eq!(config.cors.allowed_origins, super::super::CorsOrigins::Any);
    assert_eq!(config.log.dir, None);
    assert!(file::parse("f.yaml", "").unwrap().is_empty());
    assert!(file::parse("f.yaml", "# only a remark\n").unwrap().is_empty());
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("server:\n  prot: 1\n", "f.yaml:2: unknown key server.prot: did you mean server.port?"),
        ("\nsrever:\n  port: 1\n", "f.yaml:2: unknown key srever: did you mean server?"),
        ("port: 1\n", "f.yaml:1: unknown key port: write it as server.port"),
        ("server:\n  log-level: info\n", "f.yaml:2: unknown key server.log-level: write it as log.log_level"),
        (
            "server:\n  sticky_sessions: true\n",
            "f.yaml:2: unknown key server.sticky_sessions: write it as policy.routing_key_override",
        ),
        (
            "server:\n  redis_url: r\n",
            "f.yaml:2: unknown key server.redis_url: it is not part of Baton (conversations are not stored)",
        ),
        ("server:\n  xyzzy: 1\n", "f.yaml:2: unknown key server.xyzzy"),
        ("server:\n  port: 1\n  host: '::'\n  port: 2\n", "f.yaml:4: port is given twice, first in line 2"),
        ("server: {}\nserver: {}\n", "f.yaml:2: server is given twice, first in line 1"),
        ("server: 5\n", "f.yaml:1: server must be a mapping of keys to values"),
        ("- a\n", "f.yaml:1: the file must be a mapping of keys to values"),
        ("server:\n  port: [1, 2]\n", "f.yaml:2: server.port takes one value, not a list"),
        ("server:\n  port:\n    a: 1\n", "f.yaml:2: server.port takes no keys of its own"),
        (
            "workers:\n  prefill:\n    - http://a:1\n    - [1]\n",
            "f.yaml:4: workers.prefill must be a single value",
        ),
        (
            "workers:\n  prefill:\n    - url: http://a:1\n      port: 8998\n",
            "f.yaml:4: unknown key port in workers.prefill: url and bootstrap_port are known",
        ),
        (
            "workers:\n  prefill:\n    - bootstrap_port: 8998\n",
            "f.yaml:3: an item of workers.prefill has no url",
        ),
        ("server: &a\n  port: 1\n", "f.yaml:1: anchors, aliases and tags are not read"),
        ("server:\n  port: !!int 1\n", "f.yaml:2: anchors, aliases and tags are not read"),
        ("server: {}\n---\nserver: {}\n", "f.yaml:3: a second document is not read"),
        ("? [a]\n: b\n", "f.yaml:1: a key must be a single word"),
        ("server:\n  port: [[[[[[1]]]]]]\n", "f.yaml:2: is nested too deeply"),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), message, "{text}");
    }
    assert!(error("server:\n  port: 1\n bad\n").starts_with("f.yaml:3: is not YAML: "));
}

#[test]
fn a_wrong_value_names_file_and_line() {
    let scratch = Scratch::new("wrong-value", "server:\n  port: none\n");
    let error = load(&format!("--config {}", scratch.path())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}:2: port none: must be a port between 1 and 65535", scratch.path())
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[ \\n\\-a-c:&*!{}\\[\\],'\"#|>?%0-9~\\\\]{0,80}") {
        let _ = file::parse("f.yaml", &text);
    }
}
