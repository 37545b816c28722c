//! One engine: asked again and again, and what it says put where placement reads it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::fleet::{Engine as Kind, Seat, Status};
use baton_core::gauges::loads;
use baton_core::gauges::page::Page;
use baton_core::gauges::rates::{Busy, Drain, Pace, Tokens};
use baton_core::time::Instant;
use tokio::sync::{Semaphore, watch};

use super::super::get::{ANSWER_MAX_BYTES, Silence};
use super::line::{Line, Question};
use super::{GaugeRule, Seats};
use crate::config::WorkerMetrics;
use crate::registry::Registry;

/// Longest pause after an engine that did not answer (AIBrix).
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause after the first time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Where a short account of the load is served, the long page is asked for only so often. It has what changes slowly.
const SELDOM: u32 = 10;

/// Share of the interval that is left to chance, either way.
const JITTER: f64 = 0.1;

/// A page that an engine may have.
#[derive(Clone, Copy)]
struct Source {
    path: &'static str,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Prometheus text.
    Text,
    /// A list of loads.
    Loads,
}

const METRICS: Source = Source { path: "/metrics", form: Form::Text };
const TRT_METRICS: Source = Source { path: "/prometheus/metrics", form: Form::Text };
const LOADS: Source = Source { path: "/v1/loads?include=core,disagg,queues", form: Form::Loads };
const OLD_LOADS: Source = Source { path: "/get_load", form: Form::Loads };

/// Where to look, in this order.
fn sources(kind: Kind) -> &'static [Source] {
    match kind {
        Kind::Sglang => &[LOADS, METRICS, OLD_LOADS],
        // Its `/metrics` is a list of iterations.
        Kind::Trtllm => &[TRT_METRICS],
        Kind::Vllm => &[METRICS],
        _ => &[METRICS, TRT_METRICS, LOADS],
    }
}

/// What is remembered of one rank.
#[derive(Default)]
struct Rank {
    life: u32,
    /// Requests that had been placed on it when it was asked.
    placed: u64,
    tokens: Tokens,
    drain: Drain,
    pace: Pace,
    busy: Busy,
}

pub(super) struct Engine {
    line: Line,
    seats: watch::Receiver<Seats>,
    rule: Arc<GaugeRule>,
    registry: Registry,
    ranks: HashMap<u32, Rank>,
    /// Which source answered last.
    at: usize,
    rounds: u32,
    failed: u32,
    /// When it last answered.
    heard: Option<Instant>,
    /// What the long page said when it was last asked for.
    slow: Option<Page>,
    /// And when that was.
    slow_at: Instant,
}

impl Engine {
    pub fn new(
        base: String,
        seats: watch::Receiver<Seats>,
        rule: Arc<GaugeRule>,
        registry: Registry,
    ) -> Engine {
        Engine {
            line: Line::new(base),
            seats,
            rule,
            registry,
            ranks: HashMap::new(),
            at: 0,
            rounds: 0,
            failed: 0,
            heard: None,
            slow: None,
            slow_at: Instant::ZERO,
        }
    }

    pub async fn run(mut self, turns: Arc<Semaphore>, mut dice: Dice) {
        let mut pause = self.rule.interval.mul_f64(dice.fraction());
        loop {
            tokio::time::sleep(pause).await;
            let seats = self.seats.borrow_and_update().clone();
            self.count(&seats);
            pause = dice.jitter(self.rule.interval, JITTER);
            let well = seats.iter().any(|seat| seat.pulse.status() == Status::Ready);
            if self.rule.when == WorkerMetrics::Never || !well {
                self.forget(&seats);
                continue;
            }
            let Ok(_turn) = turns.acquire().await else { return };
            let asked = tokio::time::timeout(self.rule.timeout, self.ask(&seats)).await;
            let asked = asked.unwrap_or(Err(Silence::Late(self.rule.timeout)));
            self.registry.tally().looked(asked.is_ok());
            match asked {
                Ok(page) => self.heard(&seats, &page),
                Err(silence) => pause = pause.max(self.unheard(&seats, &silence)),
            }
        }
    }

    /// What the gateway knows by itself, and whether a rank is another process than it was.
    fn count(&mut self, seats: &Seats) {
        let now = self.registry.clock().now();
        self.ranks.retain(|slot, _| seats.iter().any(|seat| seat.slot == *slot));
        for seat in seats.iter() {
            let rank = self.ranks.entry(seat.slot).or_default();
            rank.placed = seat.load.taken();
            let life = seat.pulse.life();
            if rank.life != life {
                (rank.life, rank.tokens) = (life, Tokens::default());
                (rank.pace, rank.busy) = (Pace::default(), Busy::default());
                seat.gauges.pace.set(None);
                (self.at, self.failed, self.slow) = (0, 0, None);
                seat.gauges.forget();
            }
            seat.gauges.drain_rate.set(rank.drain.rate(seat.load.finished(), now));
        }
    }

    async fn ask(&mut self, seats: &Seats) -> Result<Page, Silence> {
        let Some(first) = seats.first() else { return Err(Silence::Unusable("it has no ranks".into())) };
        let sources = sources(first.worker.engine);
        let mut found = None;
        for step in 0..sources.len() {
            let at = (self.at + step) % sources.len();
            let page = self.read(first, sources[at]).await?;
            if let Some(page) = page {
                (self.at, found) = (at, Some((sources[at], page)));
                break;
            }
        }
        let Some((source, page)) = found else {
            return Err(Silence::Unusable("it shows no metrics that are known".into()));
        };
        if source.form == Form::Loads && self.rounds.is_multiple_of(SELDOM) {
            let long = sources.iter().find(|source| source.form == Form::Text);
            self.slow = match long {
                Some(long) => self.read(first, *long).await?,
                None => None,
            };
            self.slow_at = self.registry.clock().now();
        }
        self.rounds = self.rounds.wrapping_add(1);
        Ok(page)
    }

    /// `None`: there is no such page, or it says nothing that is known.
    async fn read(&mut self, seat: &Seat, source: Source) -> Result<Option<Page>, Silence> {
        let key = seat.worker.api_key.as_ref();
        let ask = |max_bytes| Question { path: source.path, key, max_bytes };
        let page = match source.form {
            Form::Text => {
                let mut page = Page::default();
                let most = self.rule.page_max_bytes;
                let found = self.line.get(ask(most), &mut |piece| page.feed(piece)).await?;
                page.end();
                found.then_some(page)
            }
            Form::Loads => {
                let mut json = Vec::new();
                let most = self.rule.page_max_bytes.min(ANSWER_MAX_BYTES);
                let mut take = |piece: &[u8]| json.extend_from_slice(piece);
                let found = self.line.get(ask(most), &mut take).await?;
                found.then(|| loads::read(&json))
            }
        };
        Ok(page.filter(|page| !page.reading(None).is_empty()))
    }

    fn heard(&mut self, seats: &Seats, page: &Page) {
        let now = self.registry.clock().now();
        (self.failed, self.heard) = (0, Some(now));
        for seat in seats.iter() {
            let rank = seat.worker.dp_rank;
            let mut said = page.reading(rank);
            let read = if said.busy_seconds.is_some() { now } else { self.slow_at };
            if let Some(slow) = &self.slow {
                said = said.or(&slow.reading(rank));
            }
            if let Some(known) = self.ranks.get_mut(&seat.slot) {
                known.tokens.fill(&mut said, now);
                said.busy = said.busy.or(known.busy.share(said.busy_seconds, read));
                seat.gauges.pace.set(known.pace.learn(said.throughput, now));
                seat.gauges.asked_after(known.placed);
            }
            seat.gauges.ours.set(Some(f64::from(seat.load.in_flight())));
            seat.gauges.show(&said);
        }
    }

    /// Gives the pause before it is asked again.
    fn unheard(&mut self, seats: &Seats, silence: &Silence) -> Duration {
        let now = self.registry.clock().now();
        let stale = self.heard.is_none_or(|heard| now.since(heard) >= self.rule.stale);
        if stale || matches!(silence, Silence::Refused(_)) {
            self.forget(seats);
        }
        if let Some(seat) = seats.first() {
            tracing::debug!(url = seat.worker.url, %silence, "the worker did not tell its load");
        }
        if !stale {
            return self.rule.interval;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failed.min(5)).min(LONGEST_PAUSE);
        self.failed = self.failed.saturating_add(1);
        pause
    }

    fn forget(&mut self, seats: &Seats) {
        (self.heard, self.slow) = (None, None);
        seats.iter().for_each(|seat| seat.gauges.forget());
    }
}
