//! `baton completions`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub struct CompletionsArgs {}

pub fn run(_args: CompletionsArgs) -> ExitCode {
    ExitCode::FAILURE
}
