//! baton-gateway: the shell. Everything that touches the world: sockets, clock, log, metrics.
//!
//! It decides nothing about a request: `baton-core` does, and this crate carries it out. ARCHITECTURE.md
//! tells a request's way through it.

mod alarm;
pub mod clock;
pub mod config;
pub mod decide;
pub mod discovery;
pub mod drive;
pub mod edge;
pub mod entrance;
mod explain;
pub mod gateway;
pub mod hearing;
pub mod lane;
pub mod ledger;
pub mod preflight;
pub mod probe;
mod recent;
pub mod registry;
pub mod relay;
pub mod rooms;
pub mod serve;
pub mod telemetry;
pub mod tokenize;
pub mod tokenizers;
pub mod upstream;
mod yaml;

use std::process::ExitCode;

use config::Config;

/// Serves until told to stop. The exit code is zero after a clean shutdown.
pub fn run(config: Config) -> ExitCode {
    let logging = match telemetry::log::init(&config.log) {
        Ok(logging) => logging,
        Err(reason) => return failed(&reason),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return failed(&format!("cannot start the runtime: {e}")),
    };
    runtime.block_on(async {
        let mut signals = serve::Signals::listen();
        let running = match serve::start(config, clock::seed(), logging.drops()).await {
            Ok(running) => running,
            Err(e) => return failed(&e),
        };
        tracing::info!(address = %running.address, metrics = %running.metrics_address, "serving");
        signals.next().await;
        tracing::info!("stopping: requests under way may finish; a second signal ends them");
        running.stop(signals.next()).await;
        ExitCode::SUCCESS
    })
}

fn failed(reason: &dyn std::fmt::Display) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "Error: {reason}");
    ExitCode::FAILURE
}
