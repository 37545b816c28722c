//! `baton demo`: a fleet and the gateway on one machine, and one request that shows what they do.
//!
//! Everything is real but the models: the engines listen on sockets, the workers are registered and probed, the request
//! comes in over HTTP. Whether the KV moved is not taken from the gateway, which would praise itself, but from the
//! engines' own counters ([`proof`]).

mod chat;
mod engines;
mod proof;
mod say;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

use baton_core::fleet::{Engine, Role};
use baton_gateway::clock::{self, Clock};
use baton_gateway::config::Config;
use baton_gateway::registry::{Registry, Spec};
use baton_gateway::serve::{self, Running};
use baton_gateway::telemetry::log::Drops;
use baton_sim::{EngineHandle, Kind};
use clap::Args;

use crate::sim::EngineName;
use chat::Chat;
use engines::Engines;

/// Prefill workers, and as many decode workers.
const PAIRS: usize = 2;
/// Longest time until the gateway calls all workers ready.
const READY_WAIT: Duration = Duration::from_secs(30);
/// Longest time for the request.
const CHAT_WAIT: Duration = Duration::from_secs(60);
/// Where `baton launch` serves its metrics as well.
const METRICS_PORT: u16 = 29000;
/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Start a simulated fleet and the gateway on this machine and send a request through it.
///
/// Starts two prefill and two decode workers, which need no GPU, and the gateway on 127.0.0.1. Runs until Ctrl-C.
#[derive(Args)]
pub struct DemoArgs {
    /// Whose engines the workers imitate.
    #[arg(long, value_enum, default_value_t = EngineName::Vllm)]
    engine: EngineName,
    /// Port of the gateway; 0 is any free one.
    #[arg(long, default_value_t = 30000)]
    port: u16,
    /// End after the request, with status 0 if the KV moved from prefill to decode, and 1 if not.
    #[arg(long)]
    once: bool,
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Vllm => "vLLM",
        Kind::Mooncake => "vLLM with Mooncake",
        Kind::MoriioRead => "vLLM with MoRI-IO (READ)",
        Kind::MoriioWrite => "vLLM with MoRI-IO (WRITE)",
        Kind::Sglang => "SGLang",
        Kind::Trtllm => "TensorRT-LLM",
    }
}

/// A vLLM engine does not tell over HTTP how its KV moves, so its worker is registered with it.
fn connector(kind: Kind) -> Option<String> {
    match kind {
        Kind::Vllm => Some("NixlConnector".into()),
        Kind::Mooncake => Some("MooncakeConnector".into()),
        Kind::MoriioRead | Kind::MoriioWrite => Some("MoRIIOConnector".into()),
        Kind::Sglang | Kind::Trtllm => None,
    }
}

pub fn run(args: DemoArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return say::failed(&format!("cannot start the runtime: {error}")),
    };
    runtime.block_on(demo(&args)).unwrap_or_else(|reason| say::failed(&reason))
}

/// From the first engine to the last port given back.
async fn demo(args: &DemoArgs) -> Result<ExitCode, String> {
    let engines = Engines::start(args.engine.kind(), PAIRS).await?;
    let running = match gateway(args.port).await {
        Ok(running) => running,
        Err(reason) => {
            engines.stop().await;
            return Err(reason);
        }
    };
    let mut signals = serve::Signals::listen();
    let shown = tokio::select! {
        shown = show(args, &engines, &running) => Some(shown),
        () = signals.next() => None,
    };
    let ended = match shown {
        Some(Ok(())) if args.once => Ok(ExitCode::SUCCESS),
        Some(Ok(())) => {
            say::invite(running.address, &engines.model());
            signals.next().await;
            Ok(ExitCode::SUCCESS)
        }
        Some(Err(reason)) => Err(reason),
        None => Ok(ExitCode::from(INTERRUPTED)),
    };
    running.end().await;
    engines.stop().await;
    ended
}

/// The gateway as `baton launch` starts it, on the loopback alone.
async fn gateway(port: u16) -> Result<Running, String> {
    let with_metrics_on = |metrics_port| {
        let mut config = Config::default();
        config.server.host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        config.server.port = port;
        config.metrics.host = Some(config.server.host);
        config.metrics.port = metrics_port;
        config.workers.pd_disaggregation = true;
        Box::pin(serve::start(config, clock::seed(), Drops::default()))
    };
    // Whoever lets the port of the gateway be any one does not count on that of the metrics either.
    let usual = if port == 0 { 0 } else { METRICS_PORT };
    let started = match with_metrics_on(usual).await {
        Err(_) => with_metrics_on(0).await,
        started => started,
    };
    started.map_err(|error| {
        format!("{error}\nTry `baton demo --port 8080`, or --port 0 for any port that is free.")
    })
}

/// Registers the workers, sends the request, prints what became of it.
///
/// # Errors
/// What went wrong, also when the answer came and the KV did not move.
async fn show(args: &DemoArgs, engines: &Engines, running: &Running) -> Result<(), String> {
    let clock = Clock::start();
    say::title(title(args.engine.kind()), PAIRS, engines.profile());
    let registry = &running.gateway.registry;
    for engine in engines.all() {
        registry.add(worker(engine)).map_err(|refused| refused.to_string())?;
        say::line(engine.role().name(), &engine.url());
    }
    say::line("gateway", &format!("http://{}", running.address));
    say::line("metrics", &format!("http://{}/metrics", running.metrics_address));
    let all = engines.all().len();
    ready(registry, all).await?;
    say::line(
        "ready",
        &format!("{all} workers, after {} ms", say::millis(clock.now().since(Default::default()))),
    );

    // The pre-flight has sent its own requests.
    let before = engines.settle().await?;
    let chat = Chat::example(&engines.model());
    say::sending(&chat);
    let told = tokio::time::timeout(CHAT_WAIT, chat.send(running.address, clock)).await;
    let told = told.map_err(|_| format!("no complete answer within {} s", CHAT_WAIT.as_secs()))??;
    let numbers = engines.settle().await?.into_iter().map(|n| n.since(&before)).collect::<Vec<_>>();
    let url = |id: &Option<String>| {
        let listed = registry.list().into_iter().find(|w| Some(&w.id) == id.as_ref());
        listed.map(|w| w.spec.url.clone())
    };
    let route = proof::Route { prefill: url(&told.prefill), decode: url(&told.decode) };
    let seen = proof::look(&route, &numbers, engines.block_size())?;
    say::told(&told, &seen);
    proof::check(&seen, &chat.expected(told.pieces), &told.text)?;
    say::moved();
    Ok(())
}

/// An engine as the admin API or the command line would register it.
fn worker(engine: &EngineHandle) -> Spec {
    let role = match engine.role() {
        baton_sim::Role::Prefill => Role::Prefill,
        baton_sim::Role::Decode => Role::Decode,
        baton_sim::Role::Whole => Role::Whole,
    };
    let kind = engine.spec().kind();
    let mut spec = Spec::new(engine.url(), role);
    (spec.kv_connector, spec.bootstrap_port) = (connector(kind), engine.bootstrap_port());
    if kind == Kind::Trtllm {
        spec.engine = Some(Engine::Trtllm);
    }
    if let Some((handshake, notify)) = engine.handshake_port().zip(engine.side_port()) {
        let mode = if kind == Kind::MoriioWrite { "write" } else { "read" };
        let labels = [
            ("moriio_mode", mode.to_owned()),
            ("moriio_handshake_port", handshake.to_string()),
            ("moriio_notify_port", notify.to_string()),
        ];
        spec.labels.extend(labels.map(|(name, value)| (name.to_owned(), value)));
    }
    spec
}

/// Waits until the gateway found out what all workers are, and that they are well.
async fn ready(registry: &Registry, all: usize) -> Result<(), String> {
    let mut changes = registry.changes();
    let count = || registry.fleet().seats().filter(|seat| seat.pulse.in_service()).count();
    let waiting = async { while count() < all && changes.changed().await.is_ok() {} };
    let _ = tokio::time::timeout(READY_WAIT, waiting).await;
    match count() {
        ready if ready == all => Ok(()),
        ready => Err(format!("{ready} of {all} workers were ready after {} s", READY_WAIT.as_secs())),
    }
}
