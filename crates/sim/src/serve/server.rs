//! One simulated engine behind its sockets: it starts, is killed, dies by itself, and comes back.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::message::PeerAddr;
use crate::engine::spec::{EngineSpec, Kind, Role};
use crate::engine::stats::Stats;
use crate::serve::fabric::Fabric;
use crate::serve::fault::{Fault, Faults, Happened, Kind as FaultKind, Story};
use crate::serve::node::{Node, lock};
use crate::serve::wire::{self, Orders};
use crate::serve::{http, side};

/// How often a restart tries to get its ports back, and how long it waits in between.
const BIND_TRIES: u32 = 100;
/// Most connections at once on each port.
const MOST_CONNECTIONS: usize = 16_384;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Where an engine listens. Port 0 is any free one; a restart keeps the ports that were given.
#[derive(Clone, Debug)]
pub struct Seat {
    pub spec: EngineSpec,
    pub host: IpAddr,
    pub port: u16,
    /// SGLang or Mooncake prefill: the bootstrap server's port.
    pub bootstrap_port: u16,
    /// The side channel's port: NIXL's, MoRI-IO's for notices, TensorRT-LLM's of a context server.
    pub side_port: u16,
    /// MoRI-IO's port for handshakes.
    pub handshake_port: u16,
    /// Ports of an engine that publishes KV events: of the events, and of what was missed.
    pub events_ports: [u16; 2],
}

impl Seat {
    /// On 127.0.0.1, any ports.
    #[must_use]
    pub fn new(spec: EngineSpec) -> Self {
        Self {
            spec,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            bootstrap_port: 0,
            side_port: 0,
            handshake_port: 0,
            events_ports: [0; 2],
        }
    }

    fn has_bootstrap(&self) -> bool {
        matches!(self.spec.kind(), Kind::Sglang | Kind::Mooncake) && self.spec.role == Role::Prefill
    }

    fn has_side_channel(&self) -> bool {
        match self.spec.kind() {
            Kind::Vllm | Kind::MoriioRead | Kind::MoriioWrite => self.spec.role != Role::Whole,
            Kind::Trtllm => self.spec.role == Role::Prefill,
            Kind::Mooncake | Kind::Sglang => false,
        }
    }

    fn shakes_hands(&self) -> bool {
        matches!(self.spec.kind(), Kind::MoriioRead | Kind::MoriioWrite) && self.spec.role != Role::Whole
    }

    /// Where its side channel listens.
    pub(crate) fn side(&self) -> PeerAddr {
        PeerAddr::new(&self.host.to_string(), self.side_port)
    }
}

/// A simulated engine. Clones are handles to the same one.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) server: Arc<Server>,
}

pub(crate) struct Server {
    /// With the real ports.
    pub seat: Seat,
    pub fabric: Arc<Fabric>,
    pub faults: Faults,
    life: Mutex<Option<Life>>,
    /// What earlier lives counted.
    past: Mutex<Stats>,
    /// HTTP requests that are being answered.
    pub open: AtomicU64,
    pub refused: AtomicU64,
    struck: AtomicU64,
    story: Story,
    /// Open connections of its HTTP port.
    connections: Arc<AtomicU64>,
    kills: AtomicU64,
    deaths: AtomicU64,
    /// Told when a sequence or a request ends.
    pub ended: Arc<Notify>,
}

/// One life: from a start to a kill.
struct Life {
    node: Arc<Node>,
    orders: watch::Sender<Orders>,
    tasks: Vec<JoinHandle<()>>,
}

/// The sockets of one life.
struct Sockets {
    http: TcpListener,
    bootstrap: Option<TcpListener>,
    side: Option<TcpListener>,
    handshake: Option<TcpListener>,
    events: [Option<TcpListener>; 2],
}

impl EngineHandle {
    /// Starts an engine.
    ///
    /// # Errors
    /// When a port cannot be had.
    pub async fn start(mut seat: Seat, fabric: Arc<Fabric>, ended: Arc<Notify>) -> std::io::Result<Self> {
        let sockets = Sockets::bind(&seat).await?;
        seat.port = sockets.http.local_addr()?.port();
        seat.bootstrap_port = port_of(sockets.bootstrap.as_ref())?;
        seat.side_port = port_of(sockets.side.as_ref())?;
        seat.handshake_port = port_of(sockets.handshake.as_ref())?;
        let [events, missed] = &sockets.events;
        seat.events_ports = [port_of(events.as_ref())?, port_of(missed.as_ref())?];
        let server = Arc::new(Server {
            seat,
            fabric,
            faults: Faults::default(),
            life: Mutex::new(None),
            past: Mutex::new(Stats::default()),
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            story: Story::default(),
            connections: Arc::default(),
            kills: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
            ended,
        });
        server.live(sockets);
        Ok(Self { server })
    }

    /// `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.server.seat.host, self.server.seat.port)
    }

    #[must_use]
    pub fn spec(&self) -> &EngineSpec {
        &self.server.seat.spec
    }

    #[must_use]
    pub fn role(&self) -> Role {
        self.server.seat.spec.role
    }

    /// Port of the bootstrap server, on an SGLang or Mooncake prefill engine.
    #[must_use]
    pub fn bootstrap_port(&self) -> Option<u16> {
        Some(self.server.seat.bootstrap_port).filter(|port| *port != 0)
    }

    /// Port of the side channel, on an engine that has one.
    #[must_use]
    pub fn side_port(&self) -> Option<u16> {
        Some(self.server.seat.side_port).filter(|port| *port != 0)
    }

    /// Port for handshakes, on an engine with MoRI-IO.
    #[must_use]
    pub fn handshake_port(&self) -> Option<u16> {
        Some(self.server.seat.handshake_port).filter(|port| *port != 0)
    }

    /// Ports of KV events and of those that were missed, on an engine that publishes.
    #[must_use]
    pub fn events_ports(&self) -> Option<[u16; 2]> {
        Some(self.server.seat.events_ports).filter(|ports| ports[0] != 0)
    }

    /// The next batches of KV events reach nobody. With `for_good` they, and all before, cannot be had later either.
    pub fn lose_events(&self, batches: u64, for_good: bool) {
        let node = self.server.node();
        if let Some(publisher) = node.as_ref().and_then(|node| node.publisher()) {
            publisher.lose(batches, for_good);
        }
    }

    /// Batches of KV events of the present life.
    #[must_use]
    pub fn events_published(&self) -> u64 {
        let node = self.server.node();
        node.as_ref().and_then(|node| node.publisher()).map_or(0, |publisher| publisher.published())
    }

    /// The engine id of the present life; `None` while it is down.
    #[must_use]
    pub fn engine_id(&self) -> Option<String> {
        lock(&self.server.life).as_ref().map(|life| life.node.look(|engine| engine.id().to_owned()))
    }

    /// The numbers of all its lives.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.server.stats()
    }

    /// Whether it listens.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.server.node().is_some_and(|node| !node.is_dead())
    }

    /// Kills it: all connections are reset, and its ports refuse until [`EngineHandle::restart`].
    pub async fn kill(&self) {
        self.server.kill().await;
    }

    /// Kills it if need be and starts it again on its ports, with a new engine id and an empty cache.
    ///
    /// # Errors
    /// When its ports cannot be had again.
    pub async fn restart(&self) -> std::io::Result<()> {
        self.server.restart().await
    }

    /// Arms a fault, or carries it out where it is one that happens at once.
    ///
    /// # Errors
    /// When a restart does not get its ports.
    pub async fn fault(&self, fault: Fault) -> std::io::Result<()> {
        self.server.fault(fault).await
    }

    /// What befell it and when, oldest first; the last 4096 things.
    #[must_use]
    pub fn story(&self) -> Vec<(Instant, Happened)> {
        self.server.story.read()
    }

    /// Open connections of its HTTP port, idle ones too.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.server.connections.load(Ordering::Acquire)
    }

    /// Disarms all faults.
    pub fn clear_faults(&self) {
        self.server.faults.clear();
    }
}

fn port_of(listener: Option<&TcpListener>) -> std::io::Result<u16> {
    listener.map_or(Ok(0), |listener| listener.local_addr().map(|addr| addr.port()))
}

impl Sockets {
    async fn bind(seat: &Seat) -> std::io::Result<Self> {
        let bind = async |wanted: bool, port: u16| -> std::io::Result<Option<TcpListener>> {
            if wanted { TcpListener::bind((seat.host, port)).await.map(Some) } else { Ok(None) }
        };
        Ok(Self {
            http: TcpListener::bind((seat.host, seat.port)).await?,
            bootstrap: bind(seat.has_bootstrap(), seat.bootstrap_port).await?,
            side: bind(seat.has_side_channel(), seat.side_port).await?,
            handshake: bind(seat.shakes_hands(), seat.handshake_port).await?,
            events: [
                bind(seat.spec.kv_events.is_some(), seat.events_ports[0]).await?,
                bind(seat.spec.kv_events.is_some(), seat.events_ports[1]).await?,
            ],
        })
    }
}

impl Server {
    pub fn node(&self) -> Option<Arc<Node>> {
        lock(&self.life).as_ref().map(|life| life.node.clone())
    }

    /// Begins a life.
    fn live(self: &Arc<Self>, sockets: Sockets) {
        let host = self.seat.host.to_string();
        // MoRI-IO's id is where it listens, in every life.
        let id = match self.seat.handshake_port {
            0 => uuid::Uuid::new_v4().to_string(),
            port => format!("{host}:{port}"),
        };
        let engine = Engine::new(self.seat.spec.clone(), id);
        let loopback = self.seat.host.is_loopback();
        let node = Node::new(engine, self.fabric.clone(), self.ended.clone(), loopback);
        let seat = &self.seat;
        let ports = [seat.side_port, seat.bootstrap_port, seat.handshake_port];
        for port in ports.into_iter().filter(|port| *port != 0) {
            self.fabric.listen(PeerAddr::new(&host, port), &node);
        }
        let (orders, listen) = watch::channel(Orders::default());
        let mut tasks = vec![tokio::spawn(node.clone().run())];
        let server = self.clone();
        let front = http::Front::new(&server, &node);
        let (told, connections) = (listen.clone(), self.connections.clone());
        tasks.push(tokio::spawn(accept(sockets.http, told, move |stream, orders| {
            let front = front.clone();
            let open = OneMore::of(&connections);
            async move {
                let _open = open;
                wire::serve(stream, orders, move |request, wire| front.clone().answer(request, wire)).await
            }
        })));
        tasks.extend(publish(&node, sockets.events, &listen));
        let door = side::Front::new(&self.seat, &node, &self.fabric);
        if let Some(listener) = sockets.bootstrap {
            let door = door.clone();
            tasks.push(tokio::spawn(accept(listener, listen.clone(), move |stream, orders| {
                let door = door.clone();
                async move {
                    wire::serve(stream, orders, move |request, _| door.clone().any_bootstrap(request)).await
                }
            })));
        }
        for listener in [sockets.side, sockets.handshake].into_iter().flatten() {
            let door = door.clone();
            tasks.push(tokio::spawn(accept(listener, listen.clone(), move |stream, orders| {
                let door = door.clone();
                async move {
                    wire::serve(stream, orders, move |request, _| door.clone().side_channel(request)).await
                }
            })));
        }
        let watched = Arc::downgrade(self);
        let mourned = node.clone();
        // Not in `tasks`: it ends a life, and must not be waited for while it does.
        tokio::spawn(async move {
            tokio::select! {
                () = mourned.death.notified() => {}
                () = gone(listen) => return,
            }
            if let Some(server) = watched.upgrade() {
                server.deaths.fetch_add(1, Ordering::Relaxed);
                // TensorRT-LLM's process ends itself, and nobody gets an answer any more.
                let kill = server.seat.spec.kind() == Kind::Trtllm;
                server.end_life(Orders { finish: !kill, kill, ..Orders::default() }).await;
            }
        });
        *lock(&self.life) = Some(Life { node, orders, tasks });
        self.story.tell(Happened::Up);
    }

    /// A fault comes up.
    pub fn strikes(&self, fault: &Fault) {
        self.struck.fetch_add(1, Ordering::Relaxed);
        self.story.tell(Happened::Struck(fault.clone()));
    }

    async fn end_life(&self, orders: Orders) {
        let Some(life) = lock(&self.life).take() else { return };
        self.story.tell(Happened::Down);
        self.fabric.detach(&life.node);
        let _ = life.orders.send(orders);
        for task in life.tasks {
            task.abort();
            // The error says that it was aborted, which is what was asked.
            let _ = task.await;
        }
        let mut stats = life.node.look(Engine::stats);
        stats.blocks = crate::engine::stats::BlockStats::default();
        stats.requests.running = 0;
        stats.requests.waiting = 0;
        stats.engines = 0;
        lock(&self.past).merge(&stats);
        self.ended.notify_waiters();
    }

    pub async fn kill(&self) {
        if lock(&self.life).is_some() {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        self.end_life(Orders { kill: true, ..Orders::default() }).await;
    }

    pub async fn restart(self: &Arc<Self>) -> std::io::Result<()> {
        self.kill().await;
        let mut tries = 0;
        let sockets = loop {
            match Sockets::bind(&self.seat).await {
                Ok(sockets) => break sockets,
                // A client's socket can sit on the port for a moment.
                Err(_) if tries < BIND_TRIES => {
                    tries += 1;
                    tokio::time::sleep(BIND_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        self.live(sockets);
        Ok(())
    }

    /// Kills in the background: the caller may be one of the tasks that end.
    pub fn kill_later(self: &Arc<Self>, again: bool) {
        let server = self.clone();
        tokio::spawn(async move {
            if again {
                let _ = server.restart().await;
            } else {
                server.kill().await;
            }
        });
    }

    pub async fn fault(self: &Arc<Self>, fault: Fault) -> std::io::Result<()> {
        match fault.kind {
            FaultKind::Kill if fault.chunks.is_none() => {
                self.strikes(&fault);
                self.kill().await;
            }
            FaultKind::Restart => {
                self.strikes(&fault);
                self.restart().await?;
            }
            FaultKind::CloseIdle => {
                self.strikes(&fault);
                self.close_idle();
            }
            _ => self.faults.arm(fault),
        }
        Ok(())
    }

    pub fn close_idle(&self) {
        if let Some(life) = lock(&self.life).as_ref() {
            life.orders.send_modify(|orders| orders.close_idle += 1);
        }
    }

    pub fn stats(&self) -> Stats {
        let mut stats = *lock(&self.past);
        match self.node() {
            Some(node) => stats.merge(&node.look(Engine::stats)),
            None => {
                // Down: nothing is held.
                stats.engines = 1;
                stats.blocks.total = self.seat.spec.kv_blocks.into();
                stats.blocks.free = stats.blocks.total;
            }
        }
        stats.requests.open = self.open.load(Ordering::Acquire);
        stats.requests.refused = self.refused.load(Ordering::Relaxed);
        stats.faults = self.struck.load(Ordering::Relaxed);
        stats.kills = self.kills.load(Ordering::Relaxed);
        stats.deaths = self.deaths.load(Ordering::Relaxed);
        stats
    }

    /// Sets all counters to zero and disarms all faults; what runs goes on.
    pub fn reset(&self) {
        self.faults.clear();
        for counter in [&self.refused, &self.struck, &self.kills, &self.deaths] {
            counter.store(0, Ordering::Relaxed);
        }
        *lock(&self.past) = Stats::default();
        if let Some(node) = self.node() {
            node.with(|engine, _| engine.reset_counters());
        }
    }

    /// Ends everything without waiting; for when nobody can wait.
    pub fn drop_life(&self) {
        if let Some(life) = lock(&self.life).take() {
            self.fabric.detach(&life.node);
            let _ = life.orders.send(Orders { kill: true, ..Orders::default() });
            for task in &life.tasks {
                task.abort();
            }
        }
    }
}

/// One open connection, for as long as it lives.
struct OneMore(Arc<AtomicU64>);

impl OneMore {
    fn of(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Resolves when the server that gives the orders is gone or kills.
async fn gone(mut orders: watch::Receiver<Orders>) {
    let _ = orders.wait_for(|orders| orders.kill).await;
}

/// Serves who wants to hear KV events, and who missed some.
fn publish(
    node: &Arc<Node>,
    listeners: [Option<TcpListener>; 2],
    listen: &watch::Receiver<Orders>,
) -> Vec<JoinHandle<()>> {
    let Some(publisher) = node.publisher() else { return Vec::new() };
    let serve = |listener: TcpListener, again: bool| {
        let publisher = publisher.clone();
        tokio::spawn(accept(listener, listen.clone(), move |stream, orders| {
            let publisher = publisher.clone();
            async move {
                // Whoever hangs up is done; there is nobody to tell.
                tokio::select! {
                    _ = publisher.serve(stream, again) => {}
                    () = gone(orders) => {}
                }
            }
        }))
    };
    let both = listeners.into_iter().zip([false, true]);
    both.filter_map(|(listener, again)| Some(serve(listener?, again))).collect()
}

/// Accepts connections until the task is aborted.
async fn accept<F, S>(listener: TcpListener, orders: watch::Receiver<Orders>, serve: F)
where
    F: Fn(tokio::net::TcpStream, watch::Receiver<Orders>) -> S,
    S: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = serve(stream, orders.clone());
                tokio::spawn(async move {
                    served.await;
                    drop(slot);
                });
            }
            // Out of sockets: let some go first.
            Err(_) => tokio::time::sleep(BIND_PAUSE).await,
        }
    }
}
