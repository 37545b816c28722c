//! The pages that describe the settings say what the table says.

use std::path::PathBuf;

use super::super::{file, page, settings};

fn docs(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

#[test]
fn flags_page_is_made_from_the_table() {
    let path = docs("flags.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, page::flags()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page::flags(),
        "docs/flags.md is not what the table says: UPDATE_EXPECT=1 cargo test -p baton-gateway config"
    );
}

#[test]
fn every_yaml_example_of_the_config_page_is_accepted() {
    let text = std::fs::read_to_string(docs("config.md")).unwrap();
    let examples: Vec<&str> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        if let Err(error) = file::parse("docs/config.md", example) {
            panic!("{error} in\n{example}");
        }
    }
}

#[test]
fn every_section_is_explained() {
    let text = std::fs::read_to_string(docs("config.md")).unwrap();
    for setting in settings() {
        assert!(text.contains(&format!("`{}`", setting.group)), "section {} is missing", setting.group);
        assert!(setting.help.trim().ends_with('.'), "--{}: help is no sentence", setting.flag);
    }
}
