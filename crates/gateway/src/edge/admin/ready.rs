//! May requests be sent here? (SMG 1.13)
//!
//! SMG counts healthy workers of each role. Here a pair is asked for that can really serve: two healthy
//! workers that cannot hand over to each other are no reason to send requests.

use serde_json::json;

use super::Reply;
use crate::registry::Registry;

/// `GET /readiness`.
pub fn readiness(registry: &Registry) -> Reply {
    let fleet = registry.fleet();
    let reason = if registry.is_draining() {
        "draining"
    } else if fleet.ready() {
        let healthy = fleet.seats().filter(|s| s.pulse.in_service()).count();
        let body = json!({"status": "ready", "healthy_workers": healthy, "total_workers": fleet.len()});
        return Reply::json(200, &body);
    } else if fleet.no_pair().is_some() {
        "no compatible prefill/decode pair"
    } else if fleet.seats().any(|s| s.pulse.is_held()) {
        "workers wait for their pre-flight"
    } else {
        "insufficient healthy workers"
    };
    Reply::json(503, &json!({"status": "not ready", "reason": reason}))
}
