//! The configuration, from text to values and back.

mod command_lines;
mod errors;
mod pages;
mod sources;
mod yaml;

use std::collections::HashMap;
use std::ffi::OsString;

use super::{Config, ConfigError, Loaded};

/// Loads from a command line that is split at spaces, without environment.
fn load(line: &str) -> Result<Loaded, ConfigError> {
    load_with(line, &[])
}

fn load_with(line: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    Config::load(words.into_iter(), &|name| env.get(name).map(ToString::to_string))
}

fn config(line: &str) -> Config {
    load(line).unwrap_or_else(|error| panic!("{line}: {error}")).config
}

fn error(line: &str) -> String {
    match load(line) {
        Ok(_) => panic!("{line}: is accepted"),
        Err(error) => error.to_string(),
    }
}

/// A file that is removed when the test ends.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("baton-{}-{name}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
