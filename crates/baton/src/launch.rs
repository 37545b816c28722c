//! `baton launch` and `baton check`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anstream::eprintln;
use anstyle::{AnsiColor, Style};
use baton_gateway::config::{self, Config, ConfigError, Loaded, flags};
use baton_gateway::discovery::file::Discovery;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The exit code of a command line or configuration that is refused.
const REFUSED: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  SGLang legs, the prefill worker's bootstrap server on port 8998:
    baton launch --pd-disaggregation --prefill http://p:8000 8998 --decode http://d:8000

  vLLM legs that are added later with POST /workers:
    baton launch --pd-disaggregation --port 8080

  Settings from a file, one of them changed:
    baton launch --config baton.yaml --log-level debug

  What would be run, and where each value comes from:
    baton check --config baton.yaml

A flag wins over the environment, that over the file, that over the default.
Every flag is also an environment variable: --log-level is BATON_LOG_LEVEL.

docs/flags.md lists all flags, also those of SMG that are read and have no
effect yet, and those that are left out. docs/config.md has the file.";

/// The arguments of `launch` and `check`: the table of settings.
pub struct LaunchArgs(ArgMatches);

impl FromArgMatches for LaunchArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(LaunchArgs(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

impl Args for LaunchArgs {
    fn augment_args(command: Command) -> Command {
        flags::augment(command).after_help(EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

pub fn run(args: LaunchArgs) -> ExitCode {
    let loaded = match load(&args) {
        Ok(loaded) => loaded,
        Err(error) => return refuse(&error.to_string()),
    };
    if let [first, ..] = loaded.refusals().as_slice() {
        return refuse(first);
    }
    warn(&loaded);
    baton_gateway::run(loaded.config)
}

pub fn check(args: LaunchArgs) -> ExitCode {
    let loaded = match load(&args) {
        Ok(loaded) => loaded,
        Err(error) => return refuse(&error.to_string()),
    };
    let printed = print(loaded.to_yaml().as_bytes());
    warn(&loaded);
    let mut refusals = loaded.refusals();
    match Discovery::open(&loaded.config) {
        Err(refusal) => refusals.push(refusal),
        Ok(discovery) if discovery.as_ref().is_some_and(Discovery::waits) => {
            advise("the --discovery-file is not there: baton launch would wait for it");
        }
        Ok(_) => {}
    }
    match refusals.as_slice() {
        [] => printed,
        refusals => refuse(&refusals.join("\n")),
    }
}

/// Writes a whole text to standard output.
pub fn print(text: &[u8]) -> ExitCode {
    // A reader that has seen enough and closed the pipe is no failure of ours.
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn load(args: &LaunchArgs) -> Result<Loaded, ConfigError> {
    Config::from_matches(&args.0, &|name| std::env::var(name).ok())
}

fn warn(loaded: &Loaded) {
    let set = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    loaded.warnings().into_iter().chain(config::unread(set)).for_each(|warning| advise(&warning));
}

fn advise(warning: &str) {
    say("warning", AnsiColor::Yellow.on_default().bold(), warning);
}

/// Says why it cannot be done.
pub fn refuse(reason: &str) -> ExitCode {
    say("error", AnsiColor::Red.on_default().bold(), reason);
    ExitCode::from(REFUSED)
}

fn say(word: &str, style: Style, text: &str) {
    eprintln!("{style}{word}:{style:#} {text}");
}

/// Ends after a command line of `launch` or `check` that clap refused, or that asks for help.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    match flags::explain(error) {
        ConfigError::Usage(_) => error.exit(),
        explained => refuse(&explained.to_string()),
    }
}

/// SMG takes the flags of `launch` also without the word; so does Baton.
pub fn with_launch(mut args: Vec<OsString>) -> Vec<OsString> {
    let first = args.get(1).map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let own = matches!(first.as_str(), "--help" | "--version");
    if first.starts_with("--") && !own {
        args.insert(1, "launch".into());
    }
    args
}

/// Whether the arguments are those of `launch` or `check`.
pub fn is_launch(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|word| ["launch", "start", "check"].iter().any(|own| word == own))
}
