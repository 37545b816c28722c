//! The `baton` binary: argument parsing and wiring, nothing else.

mod completions;
mod decide;
mod demo;
mod launch;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A gateway for prefill/decode disaggregated LLM serving.
#[derive(Parser)]
#[command(name = "baton", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the gateway.
    #[command(alias = "start")]
    Launch(launch::LaunchArgs),
    /// Print the effective configuration and where each value comes from.
    Check(launch::LaunchArgs),
    /// Say who would serve requests on a described fleet, and why.
    Decide(decide::DecideArgs),
    /// Start a simulated fleet and the gateway on this machine and send a request through it.
    Demo(demo::DemoArgs),
    /// Run simulated engines.
    Sim(sim::SimArgs),
    /// Print a shell completion script.
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    let args = launch::with_launch(std::env::args_os().collect());
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if launch::is_launch(&args) => return launch::usage(&error),
        Err(error) => error.exit(),
    };
    match cli.command {
        Command::Launch(args) => launch::run(args),
        Command::Check(args) => launch::check(args),
        Command::Decide(args) => decide::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Completions(args) => completions::run(args),
    }
}
