//! `baton launch` and `baton check`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub struct LaunchArgs {}

#[derive(clap::Args)]
pub struct CheckArgs {}

pub fn run(_args: LaunchArgs) -> ExitCode {
    ExitCode::FAILURE
}

pub fn check(_args: CheckArgs) -> ExitCode {
    ExitCode::FAILURE
}
