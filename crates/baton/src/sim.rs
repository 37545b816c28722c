//! `baton sim`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub struct SimArgs {}

pub fn run(_args: SimArgs) -> ExitCode {
    ExitCode::FAILURE
}
