//! `baton demo`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub struct DemoArgs {}

pub fn run(_args: DemoArgs) -> ExitCode {
    ExitCode::FAILURE
}
