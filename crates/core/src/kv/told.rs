//! What is known of one prompt from events, worker by worker.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::chain::{Chain, seed};
use super::held::Held;
use super::index::KvIndex;
use super::view::{Expected, Trust};
use crate::ask::Ask;
use crate::fleet::Seat;
use crate::time::{Duration, Instant};

/// One prompt in the index.
#[derive(Debug)]
pub struct Told {
    /// For each size of blocks there is.
    found: SmallVec<[(Arc<Chain>, Held); 1]>,
    /// The model is an adapter, whose KV is its own.
    adapter: bool,
    model: Option<String>,
}

/// How much of a prompt a worker holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Of the prompt's tokens.
    pub share: f64,
    pub trust: Trust,
    /// How long ago the worker last told anything.
    pub age: Option<Duration>,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % by events ({}, ", self.share * 100.0, self.trust.as_str())?;
        match self.age {
            Some(age) => write!(f, "last {:.1} s ago)", age.as_secs_f64()),
            None => f.write_str("none so far)"),
        }
    }
}

impl Told {
    /// Does any worker tell its events?
    pub fn any(index: &KvIndex) -> bool {
        index.feeds() > 0 && !index.sizes().is_empty()
    }

    /// Looks the prompt up. `None`: no worker tells its events, or the prompt's tokens are not known for certain.
    pub fn of(index: &KvIndex, ask: &Ask) -> Option<Told> {
        let sizes = if index.feeds() > 0 { index.sizes() } else { SmallVec::new() };
        if sizes.is_empty() {
            return None;
        }
        let (ids, prompt) = (ask.prompt.ids().ok()?, &ask.prompt);
        let (named, salt, model) = (prompt.adapter(), prompt.salt(), ask.model.clone());
        let lora = named.as_deref().or(model.as_deref().filter(|model| index.is_adapter(model)));
        let seed = seed(lora, salt.as_deref());
        let find = |size| {
            let chain = prompt.chains().of(&ids, size, seed);
            let held = index.find(&chain);
            (chain, held)
        };
        Some(Told { found: sizes.into_iter().map(find).collect(), adapter: lora.is_some(), model })
    }

    /// The largest share of it that anybody holds.
    pub fn most(&self) -> f64 {
        let share = |(chain, held): &(Arc<Chain>, Held)| {
            chain.tokens_of(held.most()) as f64 / chain.tokens.max(1) as f64
        };
        self.found.iter().map(share).fold(0.0, f64::max)
    }

    /// What the worker says is worth so much now. `None`: nothing is known of it.
    #[inline]
    pub fn trust(&self, seat: &Seat) -> Option<Trust> {
        let trust = seat.view.trust(seat.pulse.life());
        // A second name of a worker's may be an adapter that nothing was stored for yet.
        let of_its_own = || {
            let own = &seat.worker.models;
            own.is_empty() || own.first() == self.model.as_ref()
        };
        let known = trust != Trust::None && (self.adapter || self.model.is_none() || of_its_own());
        known.then_some(trust)
    }

    /// The share of it that the worker holds or that is on its way there, if what it says can be trusted: less is read
    /// for this than for [`Told::trust`], and of most of a large fleet it is none.
    #[inline]
    pub fn share(&self, seat: &Seat) -> f64 {
        let Some((chain, held)) = self.chain(seat) else { return 0.0 };
        let stored = seat.view.number().map_or(0, |number| held.blocks_of(number));
        let blocks = stored.max(seat.view.awaits(chain));
        if blocks == 0 { 0.0 } else { chain.tokens_of(blocks) as f64 / chain.tokens.max(1) as f64 }
    }

    /// `None`: nothing is known of this worker.
    pub fn by(&self, seat: &Seat, now: Instant) -> Option<Known> {
        let trust = self.trust(seat)?;
        Some(Known { share: self.share(seat), trust, age: seat.view.age(now) })
    }

    /// The prompt is sent to this worker, which will hold it.
    pub fn expect(&self, seat: &Seat) -> Option<Expected> {
        let trust = seat.view.trust(seat.pulse.life());
        let (chain, _) = self.chain(seat).filter(|_| trust != Trust::None)?;
        seat.view.expect(chain)
    }

    /// In blocks of the worker's size; until it has told one, in those of the first size there is.
    #[inline]
    fn chain(&self, seat: &Seat) -> Option<&(Arc<Chain>, Held)> {
        match seat.view.block_tokens() {
            Some(size) => self.found.iter().find(|(chain, _)| chain.block_tokens == size),
            None => self.found.first(),
        }
    }
}
