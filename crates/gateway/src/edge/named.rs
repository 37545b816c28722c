//! Headers that tell the client who served it, and why them.
//!
//! By Baton's id, by SMG's header, and by AIBrix's, of which a model's config may hide some from clients
//! (`authoritativeRoutingPolicy`).

use baton_core::fleet::Worker;
use baton_core::place::cascade::words::Way;
use baton_core::place::whole::session;
use baton_core::record::Record;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::answer;

const DECODE: HeaderName = HeaderName::from_static("x-baton-decode");
const PREFILL: HeaderName = HeaderName::from_static("x-baton-prefill");
const ROUTED_WORKER: HeaderName = HeaderName::from_static("x-smg-routed-worker-id");
const POD: HeaderName = HeaderName::from_static("target-pod");
const POD_IP: HeaderName = HeaderName::from_static("target-pod-ip");
const PREFILL_POD: HeaderName = HeaderName::from_static("prefill-target-pod");
const PREFILL_POD_IP: HeaderName = HeaderName::from_static("prefill-target-pod-ip");
const STRATEGY: HeaderName = HeaderName::from_static("routing-strategy");
const PROFILE: HeaderName = HeaderName::from_static("x-aibrix-config-profile");
const SESSION: HeaderName = HeaderName::from_static("x-session-id");

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Which workers served, and what AIBrix's settings had to do with it.
pub fn workers(headers: &mut HeaderMap, record: &Record) {
    if let Some(answering) = record.decode.as_ref().or(record.prefill.as_ref()) {
        set(headers, ROUTED_WORKER, &answering.url);
    }
    let hidden = record.routing.as_ref().is_some_and(|routing| routing.hidden);
    if let Some(decode) = &record.decode {
        set(headers, DECODE, &decode.id);
        if let Some(pod) = decode.pod.as_ref().filter(|_| !hidden) {
            set(headers, POD, &pod.name);
            set(headers, POD_IP, &format!("{}:{}", pod.ip, port(decode)));
        }
    }
    if let Some(prefill) = &record.prefill {
        set(headers, PREFILL, &prefill.id);
        if let Some(pod) = &prefill.pod {
            set(headers, PREFILL_POD, &pod.name);
            set(headers, PREFILL_POD_IP, &pod.ip);
        }
    }
    routing(headers, record, hidden);
}

fn routing(headers: &mut HeaderMap, record: &Record, hidden: bool) {
    let (Some(routing), Some(ways)) = (&record.routing, record.ways()) else { return };
    set(headers, answer::AIBRIX_ID, &record.request_id);
    if !hidden {
        set(headers, STRATEGY, &ways.to_string());
        if let Some(profile) = routing.profile.as_ref().filter(|_| routing.auto) {
            set(headers, PROFILE, profile);
        }
    }
    if let Some(worker) = record.decode.as_ref().filter(|_| ways.has(Way::SessionAffinity)) {
        set(headers, SESSION, &session::id(worker));
    }
}

fn port(worker: &Worker) -> &str {
    worker.base_url().rsplit(':').next().unwrap_or("")
}
