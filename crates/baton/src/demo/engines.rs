//! The demo's engines: a thread and a runtime of their own, so that they and the gateway meet over sockets alone.

use std::thread::JoinHandle;

use baton_sim::{EngineHandle, Fleet, FleetSpec, Kind, Stats};
use tokio::sync::{mpsc, oneshot};

/// Running engines. They end with [`Engines::stop`].
pub struct Engines {
    handles: Vec<EngineHandle>,
    /// Who sends here is answered when the engines are at rest; closed, it ends them.
    asks: mpsc::Sender<oneshot::Sender<()>>,
    thread: JoinHandle<()>,
}

/// One engine's counters, when it was at rest.
pub struct Numbers {
    pub url: String,
    pub stats: Stats,
}

impl Numbers {
    /// What was counted from `before` to these: what is held and under way is as it is now.
    pub fn since(mut self, before: &[Numbers]) -> Numbers {
        let Some(was) = before.iter().find(|n| n.url == self.url).map(|n| &n.stats) else { return self };
        let (handoffs, tokens) = (&mut self.stats.handoffs, &mut self.stats.tokens);
        for (now, was) in [
            (&mut handoffs.made, was.handoffs.made),
            (&mut handoffs.right, was.handoffs.right),
            (&mut handoffs.wrong, was.handoffs.wrong),
            (&mut handoffs.failed, was.handoffs.failed),
            (&mut tokens.computed, was.tokens.computed),
            (&mut tokens.transferred, was.tokens.transferred),
            (&mut tokens.generated, was.tokens.generated),
        ] {
            *now = now.saturating_sub(was);
        }
        self
    }
}

type Started = Result<Vec<EngineHandle>, String>;

impl Engines {
    /// `pairs` prefill and `pairs` decode engines on free ports of 127.0.0.1, that take the time of their profile.
    ///
    /// # Errors
    /// No thread or no port could be had.
    pub async fn start(kind: Kind, pairs: usize) -> Result<Engines, String> {
        let spec = FleetSpec::pairs(kind, pairs, pairs).with(|spec| spec.time_scale = 1.0);
        let (tell, started) = oneshot::channel();
        let (asks, asked) = mpsc::channel(1);
        let thread = std::thread::Builder::new()
            .name("engines".into())
            .spawn(move || live(spec, tell, asked))
            .map_err(|error| format!("cannot start a thread for the engines: {error}"))?;
        let handles = started.await.map_err(|_| "the engines' thread ended".to_owned())??;
        Ok(Engines { handles, asks, thread })
    }

    pub fn all(&self) -> &[EngineHandle] {
        &self.handles
    }

    pub fn model(&self) -> String {
        self.handles.first().map(|engine| engine.spec().model.clone()).unwrap_or_default()
    }

    /// The name of the measured machine whose time they take.
    pub fn profile(&self) -> &'static str {
        self.handles.first().map_or("", |engine| engine.spec().profile.name)
    }

    /// Tokens in a KV block.
    pub fn block_size(&self) -> u64 {
        self.handles.first().map_or(1, |engine| engine.spec().block_size.into())
    }

    /// Every engine's counters, once they are at rest or ten seconds have passed.
    ///
    /// # Errors
    /// The engines are gone.
    pub async fn settle(&self) -> Result<Vec<Numbers>, String> {
        let gone = || "the engines are gone".to_owned();
        let (tell, settled) = oneshot::channel();
        self.asks.send(tell).await.map_err(|_| gone())?;
        settled.await.map_err(|_| gone())?;
        Ok(self.handles.iter().map(|engine| Numbers { url: engine.url(), stats: engine.stats() }).collect())
    }

    /// Ends them and gives their ports back.
    pub async fn stop(self) {
        drop(self.asks);
        // An engine thread that panicked has said so already.
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

/// The thread's life.
fn live(spec: FleetSpec, tell: oneshot::Sender<Started>, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(tell.send(Err(format!("cannot start the engines' runtime: {error}")))),
    };
    runtime.block_on(async {
        let fleet = match Fleet::start(spec).await {
            Ok(fleet) => fleet,
            Err(error) => return drop(tell.send(Err(format!("cannot start the engines: {error}")))),
        };
        drop(tell.send(Ok(fleet.engines().to_vec())));
        while let Some(asker) = asked.recv().await {
            fleet.settle().await;
            let _ = asker.send(());
        }
        fleet.stop().await;
    });
}
