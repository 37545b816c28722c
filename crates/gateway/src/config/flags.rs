//! The command line, made from the table.
//!
//! clap splits the words and writes help and completions; what a value means is left to the table, so that a value is
//! read in the same way from a flag, the environment and a file.

use std::ffi::OsString;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::error::nearest;
use super::setting::{Effect, Setting, Shape};
use super::{ConfigError, Given, Source, left_out, settings};

/// Adds `--config` and a flag for each setting.
pub fn augment(command: Command) -> Command {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("YAML file with any of these settings [env: BATON_CONFIG]")
        .help_heading("Configuration");
    command.arg(file).args(settings().map(flag))
}

fn flag(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.flag)
        .long(setting.flag)
        .visible_aliases(setting.note.aliases.iter().copied())
        .value_name(setting.value_name)
        .help(help(setting))
        .help_heading(setting.title)
        .hide(setting.note.effect != Effect::Now);
    match setting.shape {
        Shape::Switch => arg.num_args(0..=1).default_missing_value("true"),
        Shape::One => arg.allow_negative_numbers(true),
        Shape::Word(words) => arg
            .value_parser(PossibleValuesParser::new(words.iter().copied()))
            // The long lists are those of policies, most of which are not served.
            .hide_possible_values(words.len() > 5),
        Shape::List | Shape::Pairs => arg.num_args(0..).action(ArgAction::Append),
        Shape::Leg => arg.num_args(1..=2).value_names(["URL", "PORT"]).action(ArgAction::Append),
    }
}

fn help(setting: &Setting) -> String {
    let default = match setting.default_value() {
        Value::Null | Value::Bool(false) => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        value => Some(plain(&value)),
    };
    let mut text = setting.help.trim().trim_end_matches('.').to_owned();
    if let Some(default) = default {
        text += &format!(" [default: {default}]");
    }
    if let Some(name) = setting.note.env {
        text += &format!(" [env: {name}]");
    }
    text
}

/// A JSON scalar without quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Splits the arguments of `launch`.
///
/// # Errors
/// See [`explain`].
pub(super) fn parse(args: impl Iterator<Item = OsString>) -> Result<ArgMatches, ConfigError> {
    augment(Command::new("launch").no_binary_name(true))
        .try_get_matches_from(args)
        .map_err(|error| explain(&error))
}

/// The file that `--config` names.
pub(super) fn file(matches: &ArgMatches) -> Option<String> {
    matches.get_one::<String>("config").cloned()
}

/// What the flags say about one setting.
pub(super) fn given(setting: &'static Setting, matches: &ArgMatches) -> Option<Given> {
    let occurrences = matches.get_occurrences::<String>(setting.flag)?;
    let items = match setting.shape {
        Shape::Leg => occurrences.map(|words| words.cloned().collect::<Vec<_>>().join(" ")).collect(),
        _ => occurrences.flatten().cloned().collect(),
    };
    Some(Given { items, source: Source::Flag(setting.flag) })
}

/// Says in Baton's words what clap found wrong with the arguments of `launch` or `check`.
pub fn explain(error: &clap::Error) -> ConfigError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    // clap names an argument with its value: `--port <PORT>`.
    let name = argument.split([' ', '=', '[']).next().unwrap_or_default();
    let known = settings().find(|setting| name.strip_prefix("--") == Some(setting.flag));
    match (error.kind(), known) {
        (ErrorKind::UnknownArgument, _) if argument.starts_with('-') => unknown_flag(argument),
        (ErrorKind::UnknownArgument, _) => ConfigError::StrayWord { word: argument.into() },
        (ErrorKind::ArgumentConflict, Some(_)) => {
            ConfigError::Misused { flag: name.into(), reason: "is given more than once" }
        }
        (ErrorKind::InvalidValue, Some(setting)) => invalid_value(setting, text(ContextKind::InvalidValue)),
        (ErrorKind::TooManyValues, Some(_)) => {
            ConfigError::Misused { flag: name.into(), reason: "is given too many values" }
        }
        _ => ConfigError::Usage(error.render().to_string()),
    }
}

fn unknown_flag(argument: &str) -> ConfigError {
    let flag = argument.split('=').next().unwrap_or(argument).to_owned();
    let bare = flag.trim_start_matches('-').replace('_', "-");
    if let Some(reason) = left_out::reason(&bare) {
        return ConfigError::LeftOut { flag, reason };
    }
    let known = settings()
        .flat_map(|setting| std::iter::once(setting.flag).chain(setting.note.aliases.iter().copied()));
    let hint = nearest(&bare, known.chain(["config", "help"])).map(|near| format!("did you mean --{near}?"));
    ConfigError::UnknownFlag { flag, hint }
}

fn invalid_value(setting: &'static Setting, value: Option<&str>) -> ConfigError {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return ConfigError::Misused { flag: format!("--{}", setting.flag), reason: "needs a value" };
    };
    let given = Given { items: vec![value.to_owned()], source: Source::Flag(setting.flag) };
    let mut scratch = super::Config::default();
    let reason =
        (setting.store)(&mut scratch, &given.items).err().unwrap_or_else(|| "is not accepted here".into());
    ConfigError::bad_value(setting, &given, reason)
}
