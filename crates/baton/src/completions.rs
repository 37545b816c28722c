//! `baton completions`.

use std::io::{self, Write};
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
    // A reader that has seen enough and closed the pipe is no failure of ours.
    match io::stdout().write_all(&script) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
