//! `baton completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Shell to write for.
    shell: Shell,
}

pub fn run(args: CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    generate(args.shell, &mut crate::Cli::command(), "baton", &mut script);
    crate::launch::print(&script)
}
