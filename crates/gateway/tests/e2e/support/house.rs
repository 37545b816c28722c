//! A gateway and its engines, and the check that every test ends with.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_core::breaker::BreakerState;
use baton_core::fleet::{Role, Seat, Status};
use baton_gateway::config::Config;
use baton_gateway::gateway::Gateway;
use baton_gateway::registry::Spec;
use baton_gateway::serve::{self, Running};
use baton_gateway::telemetry::log::Drops;
use baton_sim::{EngineHandle, Fault, FaultKind, Fleet, FleetSpec, Kind, Stats, Where};

use super::{Ask, BOUND, List, Page, Tap, until, until_within, within};

/// Gauges that count what is under way.
const GAUGES: [&str; 6] = [
    "smg_worker_requests_active",
    "baton_detached_legs",
    "baton_handoffs_outstanding",
    "smg_admission_inflight",
    "smg_admission_queue_depth",
    "smg_http_connections_active",
];

/// Settings that make tests quick, where a test does not say otherwise.
const QUICK: [(&str, &str); 4] = [
    ("--runtime-worker-threads", "1"),
    ("--retry-initial-backoff-ms", "1"),
    ("--retry-max-backoff-ms", "5"),
    ("--decode-abort-retry-delay-secs", "0.01"),
];

/// A fault of the simulated engines, once, on whichever leg.
pub fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind)
}

/// The same for one leg only.
pub fn on(place: Where, kind: FaultKind) -> Fault {
    Fault { place, ..Fault::new(kind) }
}

/// The text of a file, made from the addresses of engines.
type Text = Box<dyn FnOnce(&[String]) -> String + Send>;

/// What a house is made of.
pub struct Plan {
    engines: FleetSpec,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    tapped: bool,
    health_port: bool,
    change: Box<dyn FnMut(&mut Spec) + Send>,
    list: Option<Text>,
    join: bool,
    wait: bool,
}

impl Plan {
    pub fn new(engines: FleetSpec) -> Plan {
        Plan {
            engines,
            args: Vec::new(),
            env: BTreeMap::new(),
            tapped: false,
            health_port: false,
            change: Box::new(|_| {}),
            list: None,
            join: true,
            wait: true,
        }
    }

    /// Prefill and decode engines of one kind.
    pub fn pairs(kind: impl Into<Kind>, prefill: usize, decode: usize) -> Plan {
        Plan::new(FleetSpec::pairs(kind, prefill, decode))
    }

    /// Flags of `baton launch`, separated by blanks.
    pub fn args(mut self, args: &str) -> Plan {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    pub fn arg(mut self, name: &str, value: &str) -> Plan {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// A variable of the gateway's environment.
    pub fn env(mut self, name: &str, value: &str) -> Plan {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// One attempt for each request.
    pub fn no_retries(self) -> Plan {
        self.args("--disable-retries")
    }

    pub fn engines(mut self, change: impl FnMut(&mut baton_sim::EngineSpec)) -> Plan {
        self.engines = self.engines.with(change);
        self
    }

    /// With a tap before each engine.
    pub fn tapped(mut self) -> Plan {
        self.tapped = true;
        self
    }

    pub fn with_health_port(mut self) -> Plan {
        self.health_port = true;
        self
    }

    /// Changes how each worker is registered.
    pub fn registered(mut self, change: impl FnMut(&mut Spec) + Send + 'static) -> Plan {
        self.change = Box::new(change);
        self
    }

    /// Does not wait for the workers to be ready.
    pub fn unready(mut self) -> Plan {
        self.wait = false;
        self
    }

    /// Workers are read from a file with this text, which is made from the addresses of the engines.
    pub fn listed(mut self, text: impl FnOnce(&[String]) -> String + Send + 'static) -> Plan {
        self.list = Some(Box::new(text));
        self.join = false;
        self
    }

    /// Registers no worker: see [`House::join`].
    pub fn empty(mut self) -> Plan {
        (self.join, self.wait) = (false, false);
        self
    }

    pub async fn open(mut self) -> House {
        let fleet = Fleet::start(self.engines.clone()).await.unwrap();
        let mut taps = Vec::new();
        if self.tapped {
            for engine in fleet.engines() {
                taps.push(Tap::before(engine.addr()).await);
            }
        }
        let list = self.list.take().map(|text| {
            let list = List::new();
            let engines = fleet.engines().iter().enumerate();
            list.write(&text(&engines.map(|(at, engine)| url_of(&taps, engine, at)).collect::<Vec<_>>()));
            self.args.extend(["--discovery-file".to_owned(), list.path().display().to_string()]);
            list
        });
        let running = serve::start(self.config(), 7, Drops::default()).await.unwrap();
        let mut house = House {
            fleet,
            taps,
            list,
            address: running.address,
            running: Some(running),
            seats: BTreeMap::new(),
            expired: Some(0),
            after: true,
            closed: false,
        };
        let joining = if self.join { house.fleet.engines().len() } else { 0 };
        for at in 0..joining {
            let mut spec = house.spec(at);
            (self.change)(&mut spec);
            house.gateway().registry.add(spec).unwrap();
        }
        if self.wait {
            house.ready().await;
        }
        house.note_seats();
        house
    }

    /// One more gateway for the engines of this house, which it knows as the first one does. Its own do not count.
    pub async fn beside(self, house: &House) -> Running {
        let running = serve::start(self.config(), 8, Drops::default()).await.unwrap();
        for at in 0..house.fleet.engines().len() {
            running.gateway.registry.add(house.spec(at)).unwrap();
        }
        running
    }

    fn config(&self) -> Config {
        let mut args = self.args.clone();
        for (flag, quick) in QUICK.iter().filter(|(flag, _)| !self.args.iter().any(|a| a == flag)) {
            args.extend([(*flag).to_owned(), (*quick).to_owned()]);
        }
        // Tests count what their engines are sent. Those of the pre-flight switch it on.
        if !self.args.iter().any(|a| a == "--pd-preflight" || a.starts_with("--pd-preflight=")) {
            args.push("--pd-preflight=false".to_owned());
        }
        let mut config =
            Config::load(args.into_iter().map(OsString::from), &|name| self.env.get(name).cloned())
                .unwrap()
                .config;
        let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
        (config.server.host, config.server.port) = (home, 0);
        (config.metrics.host, config.metrics.port) = (Some(home), 0);
        config.server.health_check_port = self.health_port.then_some(0);
        config
    }
}

fn url_of(taps: &[Tap], engine: &EngineHandle, at: usize) -> String {
    taps.get(at).map_or_else(|| engine.url(), |tap| format!("http://{}", tap.address))
}

/// A gateway that serves, with its engines. It must be closed, which checks that nothing is left behind.
pub struct House {
    pub fleet: Fleet,
    /// One for each engine, in their order, if the plan has taps.
    pub taps: Vec<Tap>,
    /// The file of workers, if the plan has one.
    list: Option<List>,
    pub address: SocketAddr,
    running: Option<Running>,
    seats: BTreeMap<u32, Arc<Seat>>,
    /// `None`: any number.
    expired: Option<u64>,
    after: bool,
    closed: bool,
}

impl Drop for House {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.closed, "every house is closed, and so checked");
        }
    }
}

impl House {
    /// One prefill and one decode engine.
    pub async fn pair(kind: impl Into<Kind>) -> House {
        Plan::pairs(kind, 1, 1).open().await
    }

    /// A second gateway for the same engines, which it knows as the first one does.
    pub async fn beside(house: &House, args: &str) -> Running {
        Plan::new(FleetSpec::default()).args(args).beside(house).await
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.running().gateway
    }

    /// The engine as a worker is registered.
    pub fn spec(&self, at: usize) -> Spec {
        let engine = &self.fleet.engines()[at];
        let role = match engine.role() {
            baton_sim::Role::Prefill => Role::Prefill,
            baton_sim::Role::Decode => Role::Decode,
            baton_sim::Role::Whole => Role::Whole,
        };
        let mut spec = Spec::new(self.url(at), role);
        spec.bootstrap_port = engine.bootstrap_port();
        spec.kv_connector = match engine.spec().kind() {
            Kind::Vllm => Some("NixlConnector".into()),
            Kind::Mooncake => Some("MooncakeConnector".into()),
            Kind::MoriioRead | Kind::MoriioWrite => Some("MoRIIOConnector".into()),
            Kind::Sglang | Kind::Trtllm => None,
        };
        spec.kv_connector = spec.kv_connector.filter(|_| role != Role::Whole);
        if engine.spec().kind() == Kind::Trtllm {
            spec.engine = Some(baton_core::fleet::Engine::Trtllm);
        }
        let mode = if engine.spec().kind() == Kind::MoriioWrite { "write" } else { "read" };
        if let Some((handshake, notify)) = engine.handshake_port().zip(engine.side_port()) {
            let labels = [("moriio_handshake_port", handshake), ("moriio_notify_port", notify)];
            spec.labels.extend(labels.map(|(name, port)| (name.to_owned(), port.to_string())));
            spec.labels.insert("moriio_mode".into(), mode.into());
        }
        // SGLang tells by itself.
        if let Some(ports) = engine.events_ports().filter(|_| engine.spec().kind() != Kind::Sglang) {
            let names = ["kv_events_endpoint", "kv_events_replay_endpoint"].into_iter();
            spec.labels.extend(names.zip(ports).map(|(name, port)| (name.into(), format!("tcp://*:{port}"))));
        }
        spec
    }

    /// Registers an engine.
    pub fn join(&mut self, at: usize) {
        self.gateway().registry.add(self.spec(at)).unwrap();
        self.note_seats();
    }

    /// Where the gateway reaches the engine.
    pub fn url(&self, at: usize) -> String {
        url_of(&self.taps, self.engine(at), at)
    }

    /// The file of workers.
    pub fn list(&self) -> &List {
        self.list.as_ref().unwrap()
    }

    pub fn engine(&self, at: usize) -> &EngineHandle {
        &self.fleet.engines()[at]
    }

    /// Waits until every worker is ready.
    pub async fn ready(&mut self) {
        let gateway = self.gateway().clone();
        until("all workers are ready", || gateway.registry.load_full().seats().all(|s| s.pulse.in_service()))
            .await;
        self.note_seats();
    }

    /// Remembers the workers there are, so that those that leave are checked too.
    pub fn note_seats(&mut self) {
        let fleet = self.gateway().registry.load_full();
        self.seats.extend(fleet.seats().map(|s| (s.slot, s.clone())));
    }

    /// The worker of this engine, as last noted.
    pub fn seat(&self, at: usize) -> Arc<Seat> {
        let url = self.url(at);
        self.seats.values().rfind(|s| s.worker.url == url).unwrap().clone()
    }

    pub fn status(&self, at: usize) -> Status {
        self.seat(at).pulse.status()
    }

    /// Failures in a row that the breaker of this engine's worker has counted.
    pub fn blamed(&self, at: usize) -> u32 {
        self.seat(at).pulse.breaker().bad_in_a_row()
    }

    /// How often this engine's breaker changed its state.
    pub fn transitions(&self, at: usize) -> u32 {
        self.seat(at).pulse.breaker().transitions()
    }

    pub fn in_flight(&self, at: usize) -> u32 {
        self.seat(at).load.in_flight()
    }

    pub async fn arm(&self, at: usize, fault: Fault) {
        self.engine(at).fault(fault).await.unwrap();
    }

    pub async fn page(&self) -> Page {
        Page::fetch(self.running().metrics_address).await
    }

    /// The engines' numbers once nothing is under way any more.
    pub async fn stats(&self) -> Stats {
        self.fleet.settle_when(BOUND, Stats::idle).await
    }

    /// This many hand-offs are expected to be left to their lease.
    pub fn may_expire(&mut self, hand_offs: u64) {
        self.expired = Some(hand_offs);
    }

    /// Any number of hand-offs may be left to their lease.
    pub fn expire_what_was_stranded(&mut self) {
        self.expired = None;
    }

    /// No request is sent to see whether one more is served.
    pub fn no_after(&mut self) {
        self.after = false;
    }

    /// Nothing of any request is under way any more, within a bound.
    pub async fn quiet(&mut self) {
        self.note_seats();
        let gateway = self.gateway().clone();
        // A request that ends may leave a leg in the background, and that holds a lease.
        until("nobody is in the entrance", || {
            gateway.entrance.running() == 0 && gateway.entrance.waiting() == 0
        })
        .await;
        let limit = baton_gateway::config::Config::default().limits.max_detached_legs.get();
        until("no leg lives in the background", || gateway.background.available_permits() == limit).await;
        until("the leases are back", || self.seats.values().all(|s| s.load.in_flight() == 0)).await;
    }

    /// Checks that nothing was left behind, and ends.
    pub async fn close(mut self) {
        self.fleet.engines().iter().for_each(EngineHandle::clear_faults);
        self.taps.iter().for_each(Tap::clear);
        if self.after && self.can_serve() {
            let model = self.engine(0).spec().model.clone();
            let ask = Ask::chat("Does one more request get through?", 4);
            ask.with(serde_json::json!({"model": model})).served(self.address).await;
        }
        self.quiet().await;
        self.check_gauges().await;
        let stats = self.fleet.settle_when(BOUND, |s| s.idle() && s.all_free()).await;
        assert!(stats.idle(), "the engines still work: {stats:?}");
        assert!(stats.all_free(), "KV blocks are left: {stats:?}");
        let guilty =
            self.fleet.engines().iter().filter(|e| e.stats().handoffs.wrong + e.stats().handoffs.reused > 0);
        let guilty: Vec<_> = guilty.map(|e| (e.spec().kind(), e.role(), e.stats().handoffs)).collect();
        assert!(guilty.is_empty(), "hand-offs used wrongly, or twice: {guilty:?}");
        if let Some(expired) = self.expired {
            assert_eq!(stats.handoffs.expired, expired, "hand-offs left to their lease: {stats:?}");
        }
        assert_eq!(stats.deaths, 0, "an engine died of a request: {stats:?}");
        self.end().await;
    }

    /// Every worker is up and trusted, so that a request must succeed.
    fn can_serve(&mut self) -> bool {
        self.note_seats();
        let fleet = self.gateway().registry.load_full();
        let well = |s: &Arc<Seat>| {
            s.pulse.status() == Status::Ready && s.pulse.breaker().state() == BreakerState::Closed
        };
        fleet.ready() && fleet.seats().all(well) && self.fleet.engines().iter().all(EngineHandle::is_up)
    }

    async fn check_gauges(&self) {
        let mut left = vec!["unknown".to_owned()];
        for _ in 0..1000 {
            let page = self.page().await;
            assert!(GAUGES.iter().all(|gauge| page.has(gauge) || *gauge == GAUGES[0]));
            left = page.not_zero(&GAUGES);
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(super::LOOK).await;
        }
        panic!("gauges are not zero: {left:?}");
    }

    async fn end(mut self) {
        self.closed = true;
        if let Some(running) = self.running.take() {
            within(BOUND, "the end of the gateway", running.end()).await;
        }
        let taps = std::mem::take(&mut self.taps);
        until_within(BOUND, "the gateway's connections are closed", || taps.iter().all(|t| t.open() == 0))
            .await;
    }

    /// Gives the gateway away, to be stopped by the test.
    pub fn take_running(&mut self) -> Running {
        self.closed = true;
        self.running.take().unwrap()
    }
}
