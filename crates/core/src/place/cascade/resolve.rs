//! Which strategy, profile and knobs does a request get?
//!
//! Worked out once for each request and carried with it, so that what outlives the request, and every retry, still
//! goes by its own values. Precedence of the strategy: `lockedRoutingStrategy`, the header `routing-strategy`, the
//! profile's `routingStrategy`, `ROUTING_ALGORITHM`; of every knob: the profile, the environment, the default. A model
//! whose config says `authoritativeRoutingPolicy` does not hear its clients. A client's `external-filter` counts whoever
//! serves the request: a restriction that is ignored without a word is worse than none.

use std::borrow::Cow;
use std::sync::Arc;

use super::knobs::{Knobs, UnknownScore};
use super::profile::{Features, is_auto};
use super::tokens;
use super::words::{Named, Ways};
use crate::ask::Ask;
use crate::fault::Fault;
use crate::fleet::Fleet;
use crate::place::sieve::Sieve;
use crate::selector::BadSelector;
use crate::time::Duration;

/// What AIBrix's settings come to for one request.
#[derive(Clone, Debug)]
pub struct Routing {
    /// The strategy. `None`: nobody names one, and the gateway's own policies serve the request.
    pub ways: Option<Ways>,
    /// The name of the profile that it gets.
    pub profile: Option<String>,
    /// The client asked for the profile that fits, and this is it: it is told in `x-aibrix-config-profile`.
    pub auto: bool,
    /// Nothing about routing is told to the client.
    pub hidden: bool,
    pub knobs: Arc<Knobs>,
    /// The session that the request belongs to.
    pub session_key: Option<String>,
    /// Only workers that the client's filter selects may serve. `None`: any.
    pub sieve: Option<Arc<Sieve>>,
}

impl Routing {
    /// Of a request about which nobody says anything.
    pub fn plain(knobs: &Arc<Knobs>) -> Routing {
        let knobs = knobs.clone();
        Routing {
            ways: None,
            profile: None,
            auto: false,
            hidden: false,
            knobs,
            session_key: None,
            sieve: None,
        }
    }

    /// Goes through the cascade.
    pub fn is_pd(&self) -> bool {
        self.ways.as_ref().is_some_and(Ways::is_pd)
    }

    /// How long a prefill may take, where AIBrix's strategy gives it a time of its own.
    pub fn prefill_limit(&self) -> Option<Duration> {
        self.is_pd().then_some(self.knobs.prefill_timeout)
    }
}

/// Does the profile that the request gets depend on how many tokens its prompt is?
pub fn counts(fleet: &Fleet, ask: &Ask) -> bool {
    let wanted = ask.wishes.as_deref().and_then(|wishes| wishes.profile.as_deref());
    let config = || fleet.yard().config(ask.model.as_deref());
    let auto = ask.prompt_tokens.is_none() && wanted.is_some_and(is_auto);
    auto && config().is_some_and(|config| !config.authoritative)
}

/// What the request gets, by this picture of the fleet.
///
/// # Errors
/// [`Fault::UnknownStrategy`] for a name that nobody knows, whoever gave it; [`Fault::BadFilter`] for a filter that is no
/// selector; [`Fault::Unroutable`] for a profile of the cascade that names an unknown decode policy.
pub fn resolve(fleet: &Fleet, ask: &Ask, knobs: &Arc<Knobs>) -> Result<Routing, Fault> {
    let config = fleet.yard().config(ask.model.as_deref());
    let mut routing = Routing::plain(knobs);
    let authoritative = config.is_some_and(|c| c.authoritative);
    routing.hidden = authoritative;
    let wishes = ask.wishes.as_deref();
    routing.session_key = wishes.and_then(|w| w.session_key.clone());
    let heard = wishes.filter(|_| !authoritative);
    if let Some(text) = heard.and_then(|w| w.filter.as_deref()) {
        let bad = |bad: BadSelector| Fault::BadFilter { reason: bad.to_string() };
        routing.sieve = Sieve::of(text).map_err(bad)?;
    }
    let wanted = heard.and_then(|w| w.profile.as_deref());
    let found = config.and_then(|config| {
        let fits = wanted
            .filter(|name| is_auto(name))
            .map(|_| config.auto(Features { prompt_tokens: Some(tokens(ask)), max_tokens: ask.max_tokens }));
        routing.auto = fits.is_some();
        config.profile(fits.unwrap_or(wanted))
    });
    let named = Named {
        locked: config.and_then(|c| c.locked.as_deref()),
        header: heard.and_then(|w| w.strategy.as_deref()),
        authoritative,
        profile: found.and_then(|(_, p)| p.strategy.as_deref()),
        everywhere: knobs.routing_algorithm.as_deref(),
    };
    if let Some(word) = named.word() {
        routing.ways = Some(Ways::parse(word).map_err(Fault::UnknownStrategy)?);
    }
    if let Some((name, profile)) = found {
        routing.profile = Some(name.to_owned());
        match knobs.under(Some(profile)) {
            Ok(Cow::Borrowed(_)) => {}
            Ok(Cow::Owned(own)) => routing.knobs = Arc::new(own),
            Err(UnknownScore(_)) if !routing.is_pd() => {}
            Err(unknown) => return Err(Fault::Unroutable { reason: unknown.to_string() }),
        }
    }
    Ok(routing)
}
