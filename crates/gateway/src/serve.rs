//! Starting and stopping: listeners, lanes, the control thread.
//!
//! The control thread's runtime accepts connections, probes workers and answers the metrics port; the lanes
//! serve requests. At the end readiness goes down first, new connections are taken for a little longer so
//! that load balancers can notice, what runs may finish within the grace period, and what is left then gets
//! its error.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::kv::Trust;
use baton_core::place::cascade::books::SWEEP;
use baton_core::preflight::{Board, State};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::config::Config;
use crate::discovery::file::Discovery;
use crate::drive;
use crate::edge;
use crate::entrance::Entrance;
use crate::gateway::{Gateway, admission_rule};
use crate::hearing;
use crate::lane::Lane;
use crate::ledger::{Sharing, Target};
use crate::preflight;
use crate::probe::{self, GaugeRule};
use crate::registry::{self, Registry};
use crate::telemetry::log::Drops;
use crate::telemetry::{self, Charged, Indexes, Live, Policies, Setup, Telemetry};
use crate::tokenizers;

/// Why the gateway could not start; says which setting to change.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// A gateway that serves.
pub struct Running {
    pub address: SocketAddr,
    pub metrics_address: SocketAddr,
    /// Of `--health-check-port`, if it was given.
    pub health_address: Option<SocketAddr>,
    pub gateway: Arc<Gateway>,
    stop: watch::Sender<Stop>,
    /// The pre-flight's board and the task that works at it.
    preflight: Option<(Arc<preflight::Desk>, tokio::task::JoinHandle<()>)>,
    /// Shares the decode ledger with other gateways.
    sharing: Option<Sharing>,
    /// What runs beside the lanes until the end.
    tasks: Vec<tokio::task::JoinHandle<()>>,
    lanes: Vec<(Arc<Lane>, JoinHandle<()>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    No,
    /// Finish what runs.
    Gently,
    Now,
}

/// At most so long new connections are still taken after the signal (SMG 1.13).
const LINGER: Duration = Duration::from_secs(5);
/// At most so long the last errors may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// At most so long trials may take to end: one that is cut off between its legs leaves KV to the engine's lease.
const LAST_TRIALS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

type Handover = (std::net::TcpStream, Option<edge::tls::Acceptor>);

/// Starts a gateway on the current runtime, with its lanes on threads of their own.
///
/// # Errors
/// An address that cannot be listened on, a certificate that cannot be read.
pub async fn start(config: Config, seed: u64, log_drops: Drops) -> Result<Running, StartError> {
    let clock = Clock::start();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let entrance = Arc::new(Entrance::new(admission_rule(&config, cores)));
    let tls = match (&config.tls.cert_path, &config.tls.key_path) {
        (Some(cert), Some(key)) => Some(edge::tls::acceptor(cert, key).map_err(StartError)?),
        _ => None,
    };
    let measure = tokenizers::measure(&config.affinity.tokenizers, config.aibrix.bucketing);
    let measure = measure.map_err(StartError)?;
    let discovery = Discovery::open(&config).map_err(StartError)?;
    let redis = Target::of(&config.redis).map_err(StartError)?;
    let listener = listen(config.server_address(), "--port").await?;
    let metrics = listen(config.metrics_address(), "--prometheus-port").await?;
    let health = match config.health_address() {
        Some(address) => Some(listen(address, "--health-check-port").await?),
        None => None,
    };
    let (address, metrics_address) = (local(&listener)?, local(&metrics)?);
    let health_address = health.as_ref().map(local).transpose()?;
    let registry = Registry::new(registry::Settings::of(&config, clock, seed));
    let house = Arc::new(OnceLock::new());
    let setup = setup(&config, &registry, &entrance, &house, log_drops);
    let telemetry = Arc::new(Telemetry::new(setup).map_err(|e| StartError(e.to_string()))?);
    let mut gateway = Gateway::new(&config, registry.clone(), telemetry.clone(), entrance, clock);
    gateway.measure = Arc::new(measure);
    let gateway = Arc::new(gateway);
    let preflight = attend(&config, &gateway, seed);
    let sharing = Sharing::begin(redis, &config.redis, &gateway, seed);
    registry.start();
    let discovery = discovery.map(|found| found.begin(registry.clone(), telemetry.clone()));
    let hearing = hear(&config, &gateway);
    let gauges = tokio::spawn(probe::gauges::run(registry, GaugeRule::of(&config), seed));
    let metrics = tokio::spawn(telemetry::serve(metrics, telemetry));
    let lanes = lanes(&gateway, config.server.worker_threads.map_or(cores, usize::from), seed)?;
    let _ = house.set((lanes.iter().map(|l| l.lane.clone()).collect(), Arc::downgrade(&gateway)));
    let janitor = tokio::spawn(janitor(gateway.clone()));
    let _ = gateway.lanes.set(lanes.iter().map(|l| l.lane.clone()).collect());
    let (stop, stopped) = watch::channel(Stop::No);
    if let Some(listener) = health {
        tokio::spawn(probes(listener, gateway.clone(), stopped.clone()));
    }
    let max = config.limits.max_connections.get();
    let doors: Vec<_> = lanes.iter().map(|l| (l.lane.clone(), l.door.clone())).collect();
    let acceptor = tokio::spawn(accept(listener, Doors { doors, max, tls }, stopped));
    let lanes = lanes.into_iter().map(|l| (l.lane, l.thread)).collect();
    let tasks = [acceptor, metrics, gauges, janitor, hearing].into_iter().chain(discovery).collect();
    Ok(Running { address, metrics_address, health_address, gateway, stop, preflight, sharing, tasks, lanes })
}

/// Begins the pre-flight, unless it is switched off.
fn attend(
    config: &Config,
    gateway: &Arc<Gateway>,
    seed: u64,
) -> Option<(Arc<preflight::Desk>, tokio::task::JoinHandle<()>)> {
    if !config.workers.preflight {
        return None;
    }
    let board = Board::new(config.workers.preflight_hold, gateway.rules.handoff.clone());
    let desk = Arc::new(preflight::Desk::new(board));
    gateway.registry.attend(desk.clone());
    // Another sequence than any lane's.
    let task = tokio::spawn(preflight::run(gateway.clone(), desk.clone(), Dice::new(!seed)));
    Some((desk, task))
}

/// Hears KV events: from the beginning where the settings name a policy that heeds them, else once a request has.
fn hear(config: &Config, gateway: &Arc<Gateway>) -> tokio::task::JoinHandle<()> {
    let affinity = &config.affinity;
    let ports = hearing::Ports { events: affinity.kv_events_port, replay: affinity.kv_events_replay_port };
    if !gateway.strategies.own.indexes().is_empty() || gateway.knobs.looks_prompts_up() {
        gateway.kv.want();
    }
    tokio::spawn(hearing::hear(gateway.registry.clone(), gateway.kv.clone(), ports))
}

/// The lanes and what they share, once they run.
type House = Arc<OnceLock<(Vec<Arc<Lane>>, Weak<Gateway>)>>;

fn gateway(house: &House) -> Option<Arc<Gateway>> {
    house.get().and_then(|(_, gateway)| gateway.upgrade())
}

/// Looks for charges whose release never came, and for sessions that went quiet.
async fn janitor(gateway: Arc<Gateway>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(cascade) = gateway.strategies.cascade() else { return };
        for stale in cascade.sweep(gateway.clock.now()) {
            let charge = &stale.charge;
            tracing::warn!(prefill = ?charge.prefill, decode = ?charge.decode, "force-releasing stale charge");
        }
    }
}

/// What pods are charged with: those that still have a worker.
fn charged(gateway: &Gateway) -> Vec<Charged> {
    let fleet = gateway.registry.load_full();
    let rows = gateway.strategies.cascade().map(|c| c.books().rows()).unwrap_or_default();
    let told = rows.into_iter().filter_map(|(slot, tokens)| {
        let worker = &fleet.seat(slot)?.worker;
        let partly = tokens.active > 0 || tokens.kv > 0;
        let of_prefill = fleet.prefill().iter().any(|p| p.seat.slot == slot);
        Some(Charged {
            namespace: worker.namespace().unwrap_or_default().to_owned(),
            pod: worker.pod_name().to_owned(),
            prefill: (of_prefill || partly).then_some((tokens.active, tokens.kv)),
            decode: (!of_prefill || tokens.decode > 0).then_some(tokens.decode),
        })
    });
    told.collect()
}

fn setup(
    config: &Config,
    registry: &Registry,
    entrance: &Arc<Entrance>,
    house: &House,
    log_drops: Drops,
) -> Setup {
    let (fleet, checked, entrance, house) =
        (registry.clone(), registry.clone(), entrance.clone(), house.clone());
    let engine_metrics = config.load.engine_metrics;
    let live = move || Live {
        engine_metrics,
        now: checked.clock().now(),
        inflight: entrance.running(),
        queued: entrance.waiting(),
        connections: house.get().map_or(0, |(lanes, _)| lanes.iter().map(|l| l.open()).sum()),
        checks: checked.tally().all().to_vec(),
        looks: checked.tally().looks(),
        preflight: standings(&checked),
        charged: gateway(&house).map(|g| charged(&g)).unwrap_or_default(),
        shared: gateway(&house).and_then(|g| g.ledger.as_ref()?.show()),
        bands: gateway(&house)
            .and_then(|g| Some(g.strategies.cascade()?.band_maxima(&g.registry.load_full())))
            .unwrap_or_default(),
        indexes: gateway(&house).map(|g| indexes(&g)).unwrap_or_default(),
    };
    Setup {
        duration_buckets: config.metrics.duration_buckets_secs.clone(),
        policies: Policies {
            prefill: config.prefill_policy().as_str(),
            decode: config.decode_policy().as_str(),
            whole: config.policy.default.as_str(),
        },
        fleet: Box::new(move || fleet.load_full()),
        live: Box::new(live),
        log_drops,
    }
}

/// The words for what the pre-flight knows, for the metrics.
fn standings(registry: &Registry) -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    for (seat, standing) in registry.standings() {
        let url = &seat.worker.url;
        let degraded = State::Degraded.as_str();
        let also = standing.degraded_with.is_some() && standing.state != State::Degraded;
        all.extend(also.then(|| (url.clone(), degraded)));
        all.push((url.clone(), standing.state.as_str()));
    }
    all
}

fn indexes(gateway: &Gateway) -> Indexes {
    let sent = gateway.strategies.indexes().into_iter();
    let sent = sent.map(|(leg, index)| (leg, index.bytes(), index.budget(), index.evictions()));
    let kv = &gateway.kv;
    Indexes {
        sent: sent.collect(),
        told: [kv.bytes(), kv.budget(), kv.entries()],
        choices: Trust::ALL.map(|trust| kv.choices(trust)),
    }
}

impl Running {
    /// Finishes what runs, within the grace period, then ends the rest. `hurry` ends the wait early.
    pub async fn stop(self, hurry: impl Future<Output = ()>) {
        let grace = self.gateway.timeouts.shutdown_grace;
        self.gateway.drain();
        self.gateway.registry.drain();
        let linger = LINGER.min(grace / 2);
        let gentle = async {
            tokio::time::sleep(linger).await;
            self.stop.send_replace(Stop::Gently);
            self.lanes.iter().for_each(|(lane, _)| lane.close_idle());
            let _ = tokio::time::timeout(grace.saturating_sub(linger), self.quiet()).await;
        };
        tokio::select! {
            () = gentle => {}
            () = hurry => {}
        }
        self.end().await;
    }

    /// Ends at once: what runs gets its error.
    pub async fn end(self) {
        self.gateway.drain();
        self.gateway.registry.drain();
        self.stop.send_replace(Stop::Gently);
        self.lanes.iter().for_each(|(lane, _)| lane.stop());
        let _ = tokio::time::timeout(LAST_WORDS, self.quiet()).await;
        if let Some((desk, task)) = &self.preflight {
            let _ = tokio::time::timeout(LAST_TRIALS, idle(desk)).await;
            task.abort();
        }
        if let Some(sharing) = self.sharing {
            sharing.leave().await;
        }
        self.stop.send_replace(Stop::Now);
        self.gateway.registry.shutdown();
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.lanes.iter().for_each(|(lane, _)| lane.pool.close());
        let threads = self.lanes.into_iter().map(|(_, thread)| thread);
        let joined = tokio::task::spawn_blocking(move || threads.for_each(|t| drop(t.join())));
        let _ = tokio::time::timeout(LAST_WORDS, joined).await;
    }

    /// Nothing runs any more. Idle connections are closed as they become idle.
    async fn quiet(&self) {
        loop {
            self.lanes.iter().for_each(|(lane, _)| lane.close_idle());
            if self.lanes.iter().all(|(lane, _)| lane.open() == 0) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn idle(desk: &preflight::Desk) {
    while !desk.is_idle() {
        tokio::time::sleep(LOOK).await;
    }
}

async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, StartError> {
    let failed = |e: io::Error| StartError(format!("cannot listen on {address} ({flag}): {e}"));
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
    let socket = socket.map_err(failed)?;
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    socket.listen(4096).map_err(failed)
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|e| StartError(e.to_string()))
}

struct LaneHandle {
    lane: Arc<Lane>,
    door: mpsc::UnboundedSender<Handover>,
    thread: JoinHandle<()>,
}

fn lanes(gateway: &Arc<Gateway>, n: usize, seed: u64) -> Result<Vec<LaneHandle>, StartError> {
    let n = n.max(1);
    let pool = gateway.rules.pool.share_of(n);
    (0..n)
        .map(|i| {
            let seed = seed.wrapping_add(i as u64 + 1);
            let lane = Arc::new(Lane::new(pool.clone(), gateway.clock, seed, gateway.debug_requests));
            // Bounded by the acceptor, which counts open connections.
            let (door, arrivals) = mpsc::unbounded_channel();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| StartError(format!("cannot start a serving thread: {e}")))?;
            let (own, shared) = (lane.clone(), gateway.clone());
            let thread = std::thread::Builder::new()
                .name(format!("lane-{i}"))
                .spawn(move || runtime.block_on(work(shared, own, arrivals)))
                .map_err(|e| StartError(format!("cannot start a serving thread: {e}")))?;
            Ok(LaneHandle { lane, door, thread })
        })
        .collect()
}

/// A lane's life: it ends when the acceptor has closed its door.
async fn work(gateway: Arc<Gateway>, lane: Arc<Lane>, mut arrivals: mpsc::UnboundedReceiver<Handover>) {
    let sweeper = tokio::spawn(drive::sweep(gateway.clone(), lane.clone()));
    while let Some((tcp, tls)) = arrivals.recv().await {
        match TcpStream::from_std(tcp) {
            Ok(tcp) => drop(tokio::spawn(edge::connection(
                gateway.clone(),
                lane.clone(),
                tcp,
                tls,
                edge::Door::Clients,
            ))),
            Err(_) => lane.turned_away(),
        }
    }
    sweeper.abort();
}

struct Doors {
    doors: Vec<(Arc<Lane>, mpsc::UnboundedSender<Handover>)>,
    max: usize,
    tls: Option<edge::tls::Acceptor>,
}

/// Gives each new connection to the lane that has the fewest. Keeps the lanes' doors open until the end.
async fn accept(listener: TcpListener, doors: Doors, mut stop: watch::Receiver<Stop>) {
    let gently = async {
        let _ = stop.wait_for(|s| *s != Stop::No).await;
    };
    tokio::pin!(gently);
    loop {
        let accepted = tokio::select! {
            () = &mut gently => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((tcp, _)) => doors.admit(tcp),
            // Out of descriptors, most likely: the pause lets some be given back.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    std::future::pending::<()>().await;
}

impl Doors {
    fn admit(&self, tcp: TcpStream) {
        let open: usize = self.doors.iter().map(|(lane, _)| lane.open()).sum();
        if open >= self.max {
            tracing::warn!(open, "too many client connections (--max-connections): one is refused");
            return;
        }
        let Some((lane, door)) = self.doors.iter().min_by_key(|(lane, _)| lane.open()) else { return };
        if let Ok(tcp) = tcp.into_std() {
            lane.expect_one();
            if door.send((tcp, self.tls.clone())).is_err() {
                lane.turned_away();
            }
        }
    }
}

/// The extra listener for probes: it shares nothing with the serving lanes, so it answers when they are busy.
async fn probes(listener: TcpListener, gateway: Arc<Gateway>, mut stop: watch::Receiver<Stop>) {
    let lane = Arc::new(Lane::new(gateway.rules.pool.clone(), gateway.clock, 0, 0));
    loop {
        tokio::select! {
            _ = stop.wait_for(|s| *s == Stop::Now) => return,
            accepted = listener.accept() => {
                if let Ok((tcp, _)) = accepted {
                    lane.expect_one();
                    let door = edge::Door::Probes;
                    tokio::spawn(edge::connection(gateway.clone(), lane.clone(), tcp, None, door));
                }
            }
        }
    }
}

/// SIGTERM and SIGINT, heard from the first wait to the last: one that comes between two waits is not lost.
pub struct Signals(Option<[tokio::signal::unix::Signal; 2]>);

impl Signals {
    /// Starts to listen. Where that is impossible none ever comes.
    pub fn listen() -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        let both = signal(SignalKind::terminate()).and_then(|t| Ok([t, signal(SignalKind::interrupt())?]));
        Signals(both.ok())
    }

    /// The next one.
    pub async fn next(&mut self) {
        let Some([term, int]) = &mut self.0 else { return std::future::pending().await };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    }
}
