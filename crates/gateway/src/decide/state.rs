//! What is left when a scenario is over: requests in flight and charges of each worker, sessions, traffic, plans.

use std::fmt::Write;

use baton_core::fleet::Fleet;
use baton_core::place::Strategies;
use baton_core::place::cascade::bands::{Group, segments};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::ledger::{Stale, Tokens};
use baton_core::place::cascade::serve::{Plan, Serving};
use baton_core::place::cascade::traffic::{BINS, centre};
use baton_core::time::Instant;
use serde_json::{Value, json};

use super::output::settings;

/// The state of a described fleet at one moment.
#[derive(Clone, Debug, Default)]
pub struct State {
    workers: Vec<Worker>,
    sessions: usize,
    /// Charges that were taken back by force.
    taken_back: Vec<TakenBack>,
    /// Traffic and plans of each model.
    models: Vec<(String, Value)>,
    settings: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
struct Worker {
    id: String,
    in_flight: u32,
    /// `None`: it has no row in the ledger.
    charged: Option<Tokens>,
    /// Requests may go there.
    open: bool,
}

#[derive(Clone, Debug)]
struct TakenBack {
    worker: String,
    leg: &'static str,
    tokens: u64,
}

impl State {
    pub fn of(
        fleet: &Fleet,
        (strategies, knobs): (&Strategies, &Knobs),
        stale: &[Stale],
        now: Instant,
    ) -> State {
        let mut state = State { settings: knobs.shown(), ..State::default() };
        let mut rows = Vec::new();
        if let Some(cascade) = strategies.cascade() {
            rows = cascade.books().rows();
            state.sessions = cascade.books().open().sessions.len();
            cascade.each_serving(|model, own| state.models.push((model.to_owned(), serving(own))));
        }
        for seat in fleet.seats() {
            let row = rows.iter().find(|(slot, _)| *slot == seat.slot);
            state.workers.push(Worker {
                id: seat.worker.id.clone(),
                in_flight: seat.load.in_flight(),
                charged: row.map(|(_, tokens)| *tokens),
                open: seat.pulse.available(now),
            });
        }
        for Stale { charge, .. } in stale {
            for (leg, charged) in [("prefill", charge.prefill), ("decode", charge.decode)] {
                let Some((slot, tokens)) = charged else { continue };
                let worker = fleet.seat(slot).map_or_else(String::new, |seat| seat.worker.id.clone());
                state.taken_back.push(TakenBack { worker, leg, tokens });
            }
        }
        state
    }

    pub fn to_json(&self) -> Value {
        let charged = |t: &Tokens| json!({"active": t.active, "kv": t.kv, "decode": t.decode});
        let worker = |w: &Worker| {
            json!({
                "worker": w.id,
                "in_flight": w.in_flight,
                "charged": w.charged.as_ref().map(charged),
                "open": w.open,
            })
        };
        let taken = |t: &TakenBack| json!({"worker": t.worker, "leg": t.leg, "tokens": t.tokens});
        json!({
            "workers": self.workers.iter().map(worker).collect::<Value>(),
            "sessions": self.sessions,
            "taken_back": self.taken_back.iter().map(taken).collect::<Value>(),
            "models": Value::Object(self.models.iter().cloned().collect()),
            "settings": settings(&self.settings),
        })
    }

    /// Some lines for people: who still has something.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for w in &self.workers {
            let tokens = w.charged.unwrap_or_default();
            if w.in_flight == 0 && tokens == Tokens::default() && w.open {
                continue;
            }
            let Tokens { active, kv, decode, .. } = tokens;
            let shut = if w.open { "" } else { "; gets no requests" };
            let _ = writeln!(
                out,
                "at the end {}: {} in flight; charged {active} active, {kv} kv, {decode} decode tokens{shut}",
                w.id, w.in_flight
            );
        }
        out
    }
}

/// One model's: what was seen of its prompts, and who is to serve which lengths.
fn serving(own: &Serving) -> Value {
    let (requests, tokens) = (own.traffic().weights(false), own.traffic().weights(true));
    let bin = |bin: usize| json!({"bin": bin, "centre": centre(bin), "requests": requests[bin], "tokens": tokens[bin]});
    let seen = (0..BINS).filter(|bin| requests[*bin] > 0.0);
    json!({
        "traffic": seen.map(bin).collect::<Value>(),
        "plans": own.plans().map(plan).collect::<Value>(),
    })
}

fn plan(plan: &Plan) -> Value {
    let name = |at: usize| plan.groups.get(at).map(|group| group.name.as_str());
    let group = |g: &Group| json!({"roleset": g.name, "min": g.min, "max": g.max, "replicas": g.replicas});
    let segments = segments(&plan.groups).into_iter().map(|s| {
        let rolesets: Value = s.groups.iter().map(|at| json!(name(*at))).collect();
        json!({"min": s.min, "max": s.max, "rolesets": rolesets})
    });
    let mut bands: Vec<_> = plan.bands.iter().collect();
    bands.sort_by_key(|band| band.min);
    let bands = bands.into_iter().map(|b| json!({"roleset": name(b.group), "min": b.min, "max": b.max}));
    json!({
        "mode": plan.mode.as_str(),
        "groups": plan.groups.iter().map(group).collect::<Value>(),
        "segments": segments.collect::<Value>(),
        "bands": bands.collect::<Value>(),
    })
}
