//! What was decided, as JSON and as a table.

use std::fmt::Write;

use baton_core::fault::Fault;
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Placement, Taken};
use baton_core::time::Duration;
use serde_json::{Value, json};

use super::paper::Told;
use crate::explain;

/// One request's decision.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    outcome: &'static str,
    prefill: Option<String>,
    decode: Option<String>,
    receipt: Receipt,
    fault: Option<(u16, &'static str, String)>,
    /// Settings of the cascade that the request's profile changes.
    settings: Vec<(&'static str, String)>,
    /// Nothing about routing is told to the client.
    hidden: bool,
    /// How long it stood in line for room.
    pub waited: Option<Duration>,
    /// The second try, if the first has failed.
    pub retried: Option<Box<Decision>>,
    /// What became of it, where that is told.
    told: Option<Told>,
}

impl Decision {
    pub fn placed(placement: &Placement, receipt: Receipt) -> Decision {
        let name = |taken: &baton_core::place::Taken| Some(taken.seat.worker.id.clone());
        let (outcome, prefill, decode) = match placement {
            Placement::Whole { worker } => ("whole", None, name(worker)),
            Placement::Prefill { worker } => ("prefill", name(worker), None),
            Placement::Pair { prefill, decode } => ("pair", name(prefill), name(decode)),
        };
        Decision { outcome, prefill, decode, receipt, ..Decision::default() }
    }

    /// Another decode for what this prefill has computed.
    pub fn replaced(prefill: &str, decode: &Taken, receipt: Receipt) -> Decision {
        let (prefill, decode) = (Some(prefill.to_owned()), Some(decode.seat.worker.id.clone()));
        Decision { outcome: "pair", prefill, decode, receipt, ..Decision::default() }
    }

    /// Tells what the request's own settings change of everybody's.
    pub fn under(self, all: &Knobs, routing: &Routing) -> Decision {
        let settings = match *routing.knobs == *all {
            true => Vec::new(),
            false => {
                let everybodys = all.shown();
                routing.knobs.shown().into_iter().filter(|own| !everybodys.contains(own)).collect()
            }
        };
        Decision { settings, hidden: routing.hidden, ..self }
    }

    pub fn fault(fault: &Fault, receipt: Receipt) -> Decision {
        let answer = fault.answer();
        let fault = Some((answer.status, fault.code(), answer.message));
        Decision { outcome: "fault", receipt, fault, ..Decision::default() }
    }

    /// The same, but no leg can be sent to the chosen workers.
    pub fn but(self, fault: &Fault) -> Decision {
        Decision::fault(fault, self.receipt)
    }

    /// The same, with what became of it.
    pub fn carried(self, told: Told) -> Decision {
        Decision { told: Some(told), ..self }
    }

    pub fn to_json(&self) -> Value {
        let fault = self
            .fault
            .as_ref()
            .map(|(status, code, message)| json!({"status": status, "code": code, "message": message}));
        let mut all = explain::members(&self.receipt);
        all.insert("outcome".into(), self.outcome.into());
        all.insert("prefill".into(), json!(self.prefill));
        all.insert("decode".into(), json!(self.decode));
        all.insert("fault".into(), json!(fault));
        all.insert("settings".into(), settings(&self.settings));
        all.insert("hidden".into(), self.hidden.into());
        all.insert("waited_ms".into(), json!(self.waited.map(|waited| waited.as_secs_f64() * 1000.0)));
        all.insert("retried".into(), self.retried.as_ref().map_or(Value::Null, |again| again.to_json()));
        if let Some(told) = &self.told {
            told.to_json(&mut all);
        }
        Value::Object(all)
    }

    /// Some lines for people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let workers: Vec<&str> =
            [&self.prefill, &self.decode].into_iter().flatten().map(String::as_str).collect();
        let _ = match &self.fault {
            Some((status, code, message)) => writeln!(out, "{status} {code}: {message}"),
            None => writeln!(out, "{} {}", self.outcome, workers.join(" + ")),
        };
        let receipt = &self.receipt;
        let _ = write!(out, "  strategy  {}", receipt.strategy);
        let _ = match &receipt.profile {
            Some(profile) => writeln!(out, ", profile {profile}"),
            None => writeln!(out),
        };
        for step in &receipt.steps {
            let mark = if step.fired { "*" } else { " " };
            let _ = writeln!(out, "  {mark} {}: {}", step.name, step.detail);
        }
        for (leg, of) in [("prefill", &receipt.prefill), ("decode", &receipt.decode)] {
            for score in &of.scores {
                let chosen = [&self.prefill, &self.decode].into_iter().flatten().any(|w| *w == score.worker);
                let tied = of.tied.contains(&score.worker);
                let mark = if chosen {
                    ">"
                } else if tied {
                    "="
                } else {
                    " "
                };
                let terms: Vec<String> = score.terms.iter().map(|(name, x)| format!("{name} {x}")).collect();
                let skipped =
                    score.skipped.as_ref().map(|why| format!("; skipped: {why}")).unwrap_or_default();
                let _ = writeln!(
                    out,
                    "  {mark} {leg} {}  {}  ({}){skipped}",
                    score.worker,
                    score.score,
                    terms.join(", ")
                );
            }
        }
        for charge in &receipt.charges {
            let _ = writeln!(out, "    charge {}: {} {} tokens", charge.worker, charge.tokens, charge.what);
        }
        if let Some(waited) = self.waited {
            let _ = writeln!(out, "    waited for room: {} ms", waited.as_secs_f64() * 1000.0);
        }
        if let Some(told) = &self.told {
            told.to_text(&mut out);
        }
        if let Some(again) = &self.retried {
            out += &format!("  after its failure: {}", again.to_text());
        }
        out
    }
}

/// Settings by name: numbers and switches as such.
pub fn settings(all: &[(&'static str, String)]) -> Value {
    let read = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
    Value::Object(all.iter().map(|(name, value)| ((*name).to_owned(), read(value))).collect())
}
