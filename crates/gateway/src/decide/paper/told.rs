//! What is told of a request that is carried out: its legs as they are sent, what happened when, what the client got.

use std::fmt::Write;

use baton_core::ask::Api;
use baton_core::body::Envelope;
use baton_core::exchange::Leg;
use baton_core::fleet::Worker;
use baton_core::handoff::{Edits, Plan};
use baton_core::record::Record;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde_json::{Map, Value, json};

use super::house::{Around, millis};
use crate::drive::legs::Original;
use crate::upstream::{Address, LegRequest};

/// What came of a request, for the output.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// As many requests to engines are made of it, each of them like this one.
    pub parts: Option<u32>,
    legs: Vec<Value>,
    events: Vec<Value>,
    client: Option<Value>,
    end: Option<Value>,
    /// Workers that still hold a place for it.
    held: Option<Vec<String>>,
}

/// What legs are made of.
pub struct Source<'a> {
    pub api: Api,
    pub forward: &'a [(HeaderName, HeaderValue)],
    pub body: &'a Envelope,
}

/// One leg as it is sent.
pub struct Sent<'a> {
    pub name: &'static str,
    pub worker: &'a Worker,
    pub edits: &'a Edits,
    pub request_id: &'a str,
    pub rank: Option<u32>,
}

impl<'a> Sent<'a> {
    pub fn of(plan: &'a Plan, leg: Leg, worker: &'a Worker) -> Sent<'a> {
        let edits = match leg {
            Leg::Prefill => &plan.prefill,
            Leg::Decode => &plan.decode,
        };
        let (name, rank) = (plan.course.name(leg).as_str(), plan.ranks[leg as usize]);
        Sent { name, worker, edits, request_id: &plan.request_id, rank }
    }

    /// Where it goes, with which headers, and its body to the byte.
    pub fn to_json(&self, source: &Source<'_>) -> Map<String, Value> {
        let original = Original { api: source.api, forward: source.forward, body: source.body };
        let request = LegRequest { rank: self.rank, ..original.with(self.edits, self.request_id) };
        let body = source.body.splice(self.edits).to_bytes();
        let mut all = Map::new();
        all.insert("leg".into(), self.name.into());
        all.insert("worker".into(), self.worker.id.as_str().into());
        if let Ok(address) = Address::of(self.worker) {
            let request = request.to(&address);
            all.insert("url".into(), url(self.worker, request.uri()).into());
            all.insert("headers".into(), headers(request.headers()));
        }
        all.insert("body".into(), String::from_utf8_lossy(&body).into());
        all
    }
}

fn url(worker: &Worker, route: &Uri) -> String {
    let base: Option<Uri> = worker.base_url().parse().ok();
    let scheme = base.as_ref().and_then(Uri::scheme_str).unwrap_or_default();
    let host = base.as_ref().and_then(Uri::authority).map_or("", |authority| authority.as_str());
    format!("{scheme}://{host}{route}")
}

/// Headers by name; a key is not shown.
pub fn headers(map: &HeaderMap) -> Value {
    let mut all = Map::new();
    for name in map.keys() {
        let values = map.get_all(name).iter().map(|value| match value.is_sensitive() {
            true => "(not shown)".into(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        });
        all.insert(name.as_str().to_owned(), values.collect::<Vec<_>>().join(", ").into());
    }
    Value::Object(all)
}

impl Told {
    /// A leg that was sent, or one that would be.
    pub fn leg(&mut self, leg: Map<String, Value>) {
        self.legs.push(Value::Object(leg));
    }

    /// Something happened: `what` is an object.
    pub fn event(&mut self, around: &Around<'_>, who: &str, does: &str, what: Value) {
        let mut all = Map::new();
        all.insert("at_ms".into(), around.house.at_ms(around.now));
        all.insert("who".into(), who.into());
        all.insert("does".into(), does.into());
        if let Value::Object(what) = what {
            all.extend(what.into_iter().filter(|(_, value)| !value.is_null()));
        }
        self.events.push(Value::Object(all));
    }

    /// What the client gets, as far as it has got it.
    pub fn client(&mut self, client: Value) {
        self.client = Some(client);
    }

    /// The exchange is over.
    pub fn end(&mut self, record: &Record, around: &Around<'_>) {
        let id = |worker: &Option<std::sync::Arc<Worker>>| worker.as_ref().map(|worker| worker.id.clone());
        let retried = record.retried.iter().map(|retried| {
            json!({"code": retried.code, "class": retried.class.map(|c| c.as_str()), "wait_ms": millis(retried.wait),
                "prefill": id(&retried.prefill), "decode": id(&retried.decode)})
        });
        self.end = Some(json!({
            "at_ms": around.house.at_ms(around.now),
            "outcome": record.outcome.as_str(),
            "status": record.status,
            "code": record.code,
            "leg": record.leg.map(|leg| leg.as_str()),
            "class": record.class.or(record.odd).map(|class| class.as_str()),
            "silence": record.silence.map(|silence| silence.as_str()),
            "handoff": record.handoff.as_str(),
            "mode": record.mode,
            "attempts": record.attempts,
            "retried": retried.collect::<Value>(),
            "prefill": id(&record.prefill),
            "decode": id(&record.decode),
        }));
    }

    /// The play is over, and these workers still hold a place.
    pub fn held(&mut self, workers: Vec<String>) {
        self.held = Some(workers);
    }

    /// Adds what there is to tell to a request's output.
    pub fn to_json(&self, all: &mut Map<String, Value>) {
        all.insert("legs".into(), self.legs.clone().into());
        for (key, value) in [("client", &self.client), ("end", &self.end)] {
            if let Some(value) = value {
                all.insert(key.into(), value.clone());
            }
        }
        if let Some(held) = &self.held {
            all.insert("events".into(), self.events.clone().into());
            all.insert("held".into(), json!(held));
        }
        if let Some(parts) = self.parts {
            all.insert("parts".into(), parts.into());
        }
    }

    /// Some lines for people.
    pub fn to_text(&self, out: &mut String) {
        for leg in &self.legs {
            let text = |key: &str| leg[key].as_str().unwrap_or_default();
            let after = leg["after"].as_str().map(|after| format!(", after the {after}'s answer"));
            let _ = writeln!(out, "    leg {} to {}{}", text("leg"), text("url"), after.unwrap_or_default());
            let _ = writeln!(out, "      {}", text("body"));
        }
        for event in &self.events {
            let said = ["at_ms", "who", "does"].map(|key| plain(&event[key]));
            let rest = event.as_object().into_iter().flatten();
            let rest = rest.filter(|(key, _)| !["at_ms", "who", "does"].contains(&key.as_str()));
            let rest: String = rest.map(|(key, value)| format!(" {key}={}", plain(value))).collect();
            let _ = writeln!(out, "    {:>8} ms {} {}{rest}", said[0], said[1], said[2]);
        }
        if let Some(client) = &self.client {
            let status =
                client["status"].as_u64().map_or_else(|| "nothing".to_owned(), |status| status.to_string());
            let bytes = client["body"].as_str().unwrap_or_default().len();
            let bytes = if client["complete"] == true && client["error"].is_object() {
                String::new()
            } else {
                format!(", {bytes} bytes")
            };
            let cut = if client["complete"] == true { "" } else { ", not whole" };
            let _ = write!(out, "    client gets {status}{bytes}{cut}");
            let error = client["error"].as_object();
            let error =
                error.map(|error| format!(": {}: {}", plain(&error["code"]), plain(&error["message"])));
            let _ = writeln!(out, "{}", error.unwrap_or_default());
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
