//! Writes docs/flags.md from the table, so that the page cannot fall behind.

use std::fmt::Write;

use serde_json::Value;

use super::flags::plain;
use super::left_out::LEFT_OUT;
use super::setting::{Effect, Setting, Shape};
use super::settings;

const HEAD: &str = "\
# Flags

`baton launch` takes SMG's flags under SMG's names, with SMG's meaning and defaults, and some of its own. `baton check`
takes the same flags and prints what would be run, each value with its source. This page is written from the table of
settings in `crates/gateway/src/config/groups`: `UPDATE_EXPECT=1 cargo test -p baton-gateway config` writes it anew.

- Every flag is also an environment variable: `--log-level` is `BATON_LOG_LEVEL`. Items of a list are separated by
  commas. A variable without text counts as not given, except for a key.
- Every flag is also a key of the YAML file that `--config FILE` (or `BATON_CONFIG`) names: `--log-level` is
  `log_level` in the section that its heading names. See [config.md](config.md).
- A flag wins over the environment, that over the file, that over the default.
- A switch may be given a value: `--dp-aware=false` turns off what a file turned on.
- Times are numbers in the unit that the name or the value's name says; `0.5` is fine.
- An unknown flag, key or value, or a contradiction, ends the launch with exit code 2 and one sentence on standard error.

The only difference in defaults: `--policy` is `least_load`, where SMG's is `cache_aware`.
Two differences in meaning: `power_of_two` is refused with exactly one worker on its leg and accepted with none (they
may be added later), and `--decode` takes several URLs at once.
";

const LATER: &str = "
## Read, without effect yet

These flags of SMG are read and checked, so that a command line made for SMG starts. Each belongs to a part that Baton
does not have yet; giving one with a value that is not its default prints a warning.
";

const OTHERWISE: &str = "
## Read, without effect

These flags of SMG are read and checked, too, and choose something that Baton does otherwise on purpose
([Differences](differences.md)). Giving one with a value that is not its default prints a warning.
";

const REFUSED: &str = "
## Refused for now

Running on without what these ask for would mislead, so `baton launch` stops with a message. `baton check` accepts
them, prints the configuration, and names what is missing.
";

const LEFT: &str = "
## Left out

Flags of SMG that are no part of Baton. Giving one is an error that says so.
";

/// The whole page.
pub fn flags() -> String {
    let mut page = String::from(HEAD);
    section(
        &mut page,
        "Configuration",
        "",
        &["| `--config FILE` | - | YAML file with any of these settings. |".to_owned()],
    );
    let mut titles: Vec<&str> = Vec::new();
    for setting in settings().filter(|setting| setting.note.effect == Effect::Now) {
        if !titles.contains(&setting.title) {
            titles.push(setting.title);
        }
    }
    for title in titles {
        let in_group = || settings().filter(move |s| s.title == title && s.note.effect == Effect::Now);
        let group = in_group().next().map(|setting| setting.group).unwrap_or_default();
        let rows: Vec<String> = in_group().map(row).collect();
        section(&mut page, title, group, &rows);
    }
    page += LATER;
    waiting(&mut page, "waits for", |effect| match effect {
        Effect::Later(part) => Some(part),
        Effect::Now | Effect::Otherwise(_) | Effect::Refused(_) => None,
    });
    page += OTHERWISE;
    waiting(&mut page, "why", |effect| match effect {
        Effect::Otherwise(why) => Some(why),
        Effect::Now | Effect::Later(_) | Effect::Refused(_) => None,
    });
    page += REFUSED;
    waiting(&mut page, "waits for", |effect| match effect {
        Effect::Refused(part) => Some(part),
        Effect::Now | Effect::Later(_) | Effect::Otherwise(_) => None,
    });
    page += LEFT;
    page += "\n| part | why | flags |\n|---|---|---|\n";
    for left_out in LEFT_OUT {
        let names: Vec<String> = left_out.flags.iter().map(|flag| format!("`--{flag}`")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| {} | {} | {} |", left_out.part, left_out.reason, names.join(" "));
    }
    page
}

fn section(page: &mut String, title: &str, group: &str, rows: &[String]) {
    let section = if group.is_empty() { String::new() } else { format!(" (`{group}`)") };
    *page += &format!(
        "\n## {title}{section}\n\n| flag | default | meaning |\n|---|---|---|\n{}\n",
        rows.join("\n")
    );
}

fn row(setting: &'static Setting) -> String {
    format!("| {} | {} | {} |", name(setting), default(setting), meaning(setting))
}

fn waiting(page: &mut String, column: &str, part_of: fn(Effect) -> Option<&'static str>) {
    *page += &format!("\n| flag | section | default | meaning | {column} |\n|---|---|---|---|---|\n");
    for setting in settings() {
        if let Some(part) = part_of(setting.note.effect) {
            let (name, default, meaning) = (name(setting), default(setting), meaning(setting));
            // Writing to a String cannot fail.
            let _ = writeln!(page, "| {name} | `{}` | {default} | {meaning} | {part} |", setting.group);
        }
    }
}

fn name(setting: &Setting) -> String {
    let value = match setting.shape {
        Shape::Switch => String::new(),
        Shape::One | Shape::Word(_) => format!(" {}", setting.value_name),
        Shape::List | Shape::Pairs => format!(" {} ...", setting.value_name),
        Shape::Leg => " URL [PORT]".into(),
    };
    format!("`--{}{value}`", setting.flag)
}

fn default(setting: &Setting) -> String {
    match setting.default_value() {
        Value::Null => "-".into(),
        Value::Bool(false) => "off".into(),
        Value::Bool(true) => "on".into(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::Array(items) => {
            items.iter().map(|item| format!("`{}`", plain(item))).collect::<Vec<_>>().join(" ")
        }
        value => format!("`{}`", plain(&value)),
    }
}

fn meaning(setting: &Setting) -> String {
    let mut text = setting.help.trim().to_owned();
    if let Shape::Word(words) = setting.shape {
        text += &format!(" One of {}.", words.join(", "));
    }
    if !setting.note.aliases.is_empty() {
        let aliases: Vec<String> = setting.note.aliases.iter().map(|alias| format!("`--{alias}`")).collect();
        text += &format!(" Also {}.", aliases.join(", "));
    }
    if let Some(name) = setting.note.env {
        text += &format!(" Also from `{name}`.");
    }
    text
}
