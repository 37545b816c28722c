//! `baton sim`: simulated engines on real sockets, alone or many in one process.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use baton_sim::{EngineHandle, EngineSpec, Fleet, FleetSpec, Form, Kind, LoadFailure, Profile, Role, Seat};
use clap::{Args, Subcommand, ValueEnum};

/// `baton sim`.
#[derive(Args)]
#[command(after_help = "\
The engines speak vLLM's (with NIXL, Mooncake or MoRI-IO), SGLang's or TensorRT-LLM's
HTTP dialect, account for every KV block, refuse what the engines refuse, and fail on
demand: by the header
`x-sim-fault: where=decode; kind=reset; chunks=2` or by POST /sim/fault.
GET /sim/stats tells whether each hand-off was right and each block is free.

  baton sim fleet --engine vllm --prefill 2 --decode 2 --base-port 18100
  baton sim engine --engine sglang --role prefill --port 18001 --bootstrap-port 18998")]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Run one engine, in the foreground.
    Engine(EngineArgs),
    /// Run many engines in one process. Prints one line for each: role, url, bootstrap port.
    Fleet(FleetArgs),
    /// List the timing profiles.
    Profiles,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum EngineName {
    /// vLLM with NIXL.
    Vllm,
    /// vLLM with Mooncake.
    Mooncake,
    /// vLLM with MoRI-IO, whose decode side reads.
    MoriioRead,
    /// vLLM with MoRI-IO, whose prefill side writes.
    MoriioWrite,
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl EngineName {
    pub fn kind(self) -> Kind {
        match self {
            Self::Vllm => Kind::Vllm,
            Self::Mooncake => Kind::Mooncake,
            Self::MoriioRead => Kind::MoriioRead,
            Self::MoriioWrite => Kind::MoriioWrite,
            Self::Sglang => Kind::Sglang,
            Self::Trtllm => Kind::Trtllm,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleName {
    Prefill,
    Decode,
    /// Both phases, no hand-off.
    Whole,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoadFailureName {
    Fail,
    Recompute,
}

#[derive(Clone, Copy, ValueEnum)]
enum EventsForm {
    Map,
    List,
}

#[derive(Args)]
struct EngineArgs {
    #[arg(long, value_enum)]
    engine: EngineName,
    #[arg(long, value_enum)]
    role: RoleName,
    /// HTTP port; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Port of the bootstrap server (SGLang or Mooncake prefill); 0 is any free one.
    #[arg(long, default_value_t = 8998)]
    bootstrap_port: u16,
    /// Port of the side channel (vLLM with NIXL, MoRI-IO's for notices, TensorRT-LLM prefill); 0 is any free one.
    #[arg(long, default_value_t = 0)]
    side_port: u16,
    /// Port for MoRI-IO's handshakes; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    handshake_port: u16,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Args)]
struct FleetArgs {
    #[arg(long, value_enum)]
    engine: EngineName,
    /// Number of prefill engines.
    #[arg(long, default_value_t = 0, value_name = "N")]
    prefill: u16,
    /// Number of decode engines.
    #[arg(long, default_value_t = 0, value_name = "N")]
    decode: u16,
    /// Number of engines that do both phases.
    #[arg(long, default_value_t = 0, value_name = "N")]
    whole: u16,
    /// HTTP port of the first engine, counting up; 0 is any free ports. Side channels and bootstrap servers count up
    /// from 1000 above it, ports for MoRI-IO's handshakes from 2000 above it.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    base_port: u16,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Args)]
struct ModelArgs {
    /// Address to listen on, and to tell to the other half.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Served model name.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Timing profile (see `baton sim profiles`).
    #[arg(long, value_parser = find_profile, default_value = Profile::default_one().name, value_name = "NAME")]
    profile: &'static Profile,
    /// Factor on computing and transfer times; 0 is as fast as possible.
    #[arg(long, default_value_t = 1.0, value_parser = not_negative, value_name = "F")]
    time_scale: f64,
    /// Factor on protocol timeouts (lease 30 s, bootstrap 300 s, handshake 5 s).
    #[arg(long, default_value_t = 1.0, value_parser = not_negative, value_name = "F")]
    timeout_scale: f64,
    /// How long a prefill engine keeps KV that nobody comes for, in seconds before scaling [default: the connector's].
    #[arg(long, value_parser = not_negative, value_name = "SECS")]
    lease_secs: Option<f64>,
    /// Data-parallel ranks of an engine: SGLang, or vLLM with Mooncake.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    dp_size: u32,
    /// Publish KV events on any free ports, which are printed, written as newer engines do or as older ones.
    #[arg(long, value_enum, value_name = "FORM")]
    kv_events: Option<EventsForm>,
    /// KV blocks of each engine.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=16_777_216), value_name = "N")]
    kv_blocks: u32,
    /// Tokens in a KV block (SGLang: page size).
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536), value_name = "N")]
    block_size: u32,
    /// Most sequences in a step.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576), value_name = "N")]
    max_running: u32,
    /// Most tokens in a step.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    max_batched_tokens: u32,
    /// Context length in tokens; never more than the KV blocks hold.
    #[arg(long, default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    max_model_len: u32,
    /// The model ends by itself after this many tokens; 0 is never.
    #[arg(long, default_value_t = 256, value_name = "N")]
    natural_tokens: u32,
    /// What a vLLM decode engine does when KV cannot be loaded.
    #[arg(long, value_enum, default_value_t = LoadFailureName::Fail, value_name = "POLICY")]
    kv_load_failure_policy: LoadFailureName,
    /// Seed of the jitter on step times.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

fn find_profile(name: &str) -> Result<&'static Profile, String> {
    Profile::find(name).ok_or_else(|| {
        let names = baton_sim::PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>();
        format!("there is no such profile; there are {}", names.join(", "))
    })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number >= 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err("must be a finite number, 0 or more".into())
    }
}

impl ModelArgs {
    fn seat(&self, engine: EngineName, role: Role) -> Seat {
        let spec = EngineSpec {
            model: self.model.clone(),
            profile: self.profile,
            time_scale: self.time_scale,
            timeout_scale: self.timeout_scale,
            lease_secs: self.lease_secs,
            dp_size: self.dp_size,
            kv_blocks: self.kv_blocks,
            block_size: self.block_size,
            max_running: usize::try_from(self.max_running).unwrap_or(usize::MAX),
            max_batched_tokens: self.max_batched_tokens,
            max_model_len: self.max_model_len,
            load_failure: match self.kv_load_failure_policy {
                LoadFailureName::Fail => LoadFailure::Fail,
                LoadFailureName::Recompute => LoadFailure::Recompute,
            },
            kv_events: self.kv_events.map(|form| match form {
                EventsForm::Map => Form::Map,
                EventsForm::List => Form::List,
            }),
            natural_tokens: Some(self.natural_tokens).filter(|tokens| *tokens > 0),
            seed: self.seed,
            ..EngineSpec::new(engine.kind(), role)
        };
        Seat { host: self.host, ..Seat::new(spec) }
    }
}

impl EngineArgs {
    fn fleet(&self) -> FleetSpec {
        let role = match self.role {
            RoleName::Prefill => Role::Prefill,
            RoleName::Decode => Role::Decode,
            RoleName::Whole => Role::Whole,
        };
        let seat = self.model.seat(self.engine, role);
        let ports = Seat {
            port: self.port,
            bootstrap_port: self.bootstrap_port,
            side_port: self.side_port,
            handshake_port: self.handshake_port,
            ..seat
        };
        FleetSpec { seats: vec![ports] }
    }
}

impl FleetArgs {
    fn fleet(&self) -> Result<FleetSpec, String> {
        let roles = [(Role::Prefill, self.prefill), (Role::Decode, self.decode), (Role::Whole, self.whole)];
        let mut seats = Vec::new();
        for (role, count) in roles {
            for _ in 0..count {
                let mut seat = self.model.seat(self.engine, role);
                if self.base_port > 0 {
                    let number = u16::try_from(seats.len()).map_err(|error| error.to_string())?;
                    let port = self.base_port.checked_add(number);
                    seat.port = port.ok_or("there are not that many ports above --base-port")?;
                    let other = seat.port.checked_add(1000);
                    seat.bootstrap_port = other.ok_or("--base-port leaves no room for the side channels")?;
                    seat.side_port = seat.bootstrap_port;
                    let other = seat.port.checked_add(2000);
                    seat.handshake_port = other.ok_or("--base-port leaves no room for the handshakes")?;
                }
                seats.push(seat);
            }
        }
        if seats.is_empty() {
            return Err("nothing to start: give --prefill, --decode or --whole".into());
        }
        Ok(FleetSpec { seats })
    }
}

pub fn run(args: SimArgs) -> ExitCode {
    let spec = match args.command {
        SimCommand::Engine(args) => Ok(args.fleet()),
        SimCommand::Fleet(args) => args.fleet(),
        SimCommand::Profiles => return list_profiles(),
    };
    let spec = match spec {
        Ok(spec) => spec,
        Err(problem) => {
            anstream::eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}")),
    };
    runtime.block_on(serve(spec))
}

fn fail(problem: &str) -> ExitCode {
    anstream::eprintln!("error: {problem}");
    ExitCode::FAILURE
}

/// Runs until Ctrl-C or SIGTERM.
async fn serve(spec: FleetSpec) -> ExitCode {
    let fleet = match Fleet::start(spec).await {
        Ok(fleet) => fleet,
        Err(error) => return fail(&format!("cannot listen: {error}")),
    };
    for engine in fleet.engines() {
        anstream::println!("{}", line(engine));
    }
    // Whoever reads the lines from a pipe wants them now.
    let _ = std::io::stdout().flush();
    if let Err(error) = wait_for_the_end().await {
        return fail(&format!("cannot wait for a signal: {error}"));
    }
    fleet.stop().await;
    ExitCode::SUCCESS
}

async fn wait_for_the_end() -> std::io::Result<()> {
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = term.recv() => Ok(()),
    }
}

fn line(engine: &EngineHandle) -> String {
    let spec = engine.spec();
    let mut line = format!("{} {} {}", spec.kind().name(), spec.role.name(), engine.url());
    if let Some(port) = engine.bootstrap_port() {
        line.push_str(&format!(" bootstrap-port={port}"));
    }
    if let Some((handshake, notify)) = engine.handshake_port().zip(engine.side_port()) {
        line.push_str(&format!(" handshake-port={handshake} notify-port={notify}"));
    }
    if let Some([events, missed]) = engine.events_ports() {
        line.push_str(&format!(" kv-events-port={events} kv-events-replay-port={missed}"));
    }
    line
}

fn list_profiles() -> ExitCode {
    anstream::println!(
        "{:<26} {:>12} {:>14} {:>12}",
        "profile",
        "prefill 4k",
        "decode at 16",
        "KV per token"
    );
    for profile in &baton_sim::PROFILES {
        let mut prefill = baton_sim::StepWork { prompts: 1, ..Default::default() };
        prefill.add_prompt(0, 4096);
        let decode = baton_sim::StepWork { decoding: 16, context: 16 * 2048, ..Default::default() };
        anstream::println!(
            "{:<26} {:>9.0} ms {:>11.1} ms {:>9.0} KiB",
            profile.name,
            profile.step_ms(&prefill),
            profile.step_ms(&decode),
            profile.bytes_per_token / 1024.0
        );
    }
    ExitCode::SUCCESS
}
