//! Label values: from a closed list, or bounded by it.
//!
//! A label whose value the client chooses would let the client choose how many series there are. Paths are therefore
//! route templates, methods those of HTTP, models those that some worker lists; everything else is `other`.

use baton_core::ask::Api;
use baton_core::exchange::Outcome;
use baton_core::fault::LegName;
use baton_core::fleet::{Fleet, Worker};
use baton_core::record::Record;

use super::family::OTHER;

/// A route as the `path` label and as the access log's level know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route(u8);

/// Routes besides the inference ones. `:id` stands for one segment; no braces, which simple readers of the format trip over.
const TEMPLATES: [&str; 18] = [
    "/v1/models",
    "/health",
    "/liveness",
    "/readiness",
    "/metrics",
    "/workers",
    "/workers/:id",
    "/get_server_info",
    "/server_info",
    "/get_model_info",
    "/model_info",
    "/health_generate",
    "/loads",
    "/get_loads",
    "/flush_cache",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/responses/:id",
];

const PROBES: [&str; 4] = ["/health", "/liveness", "/readiness", "/health_generate"];

const ELSEWHERE: Route = Route(u8::MAX);

impl Route {
    pub fn of(record: &Record) -> Route {
        let at = match record.api {
            Some(api) => Api::ALL.iter().position(|a| *a == api),
            None => TEMPLATES.iter().position(|t| fits(t, &record.path)).map(|at| at + Api::ALL.len()),
        };
        at.and_then(|at| u8::try_from(at).ok()).map_or(ELSEWHERE, Route)
    }

    pub fn as_str(self) -> &'static str {
        let at = usize::from(self.0);
        match Api::ALL.get(at) {
            Some(api) => api.path(),
            None => TEMPLATES.get(at - Api::ALL.len()).copied().unwrap_or(OTHER),
        }
    }

    /// Asked again and again by machines that want to know whether the gateway is well.
    pub fn is_probe(self) -> bool {
        PROBES.contains(&self.as_str())
    }
}

fn fits(template: &str, path: &str) -> bool {
    match template.strip_suffix(":id") {
        None => template == path,
        Some(stem) => path.strip_prefix(stem).is_some_and(|rest| !rest.is_empty() && !rest.contains('/')),
    }
}

const METHODS: [&str; 7] = ["POST", "GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"];

pub fn method(said: &str) -> &'static str {
    METHODS.into_iter().find(|m| *m == said).unwrap_or(OTHER)
}

/// APIs whose series are exported at zero before their first request.
pub const USUAL: [Api; 3] = [Api::Chat, Api::Completions, Api::Generate];

/// SMG's `endpoint`.
pub fn endpoint(api: Api) -> &'static str {
    match api {
        Api::Chat => "chat",
        Api::Completions => "completions",
        Api::Generate => "generate",
        Api::Messages => "messages",
        Api::Responses => "responses",
        Api::CountTokens => "count_tokens",
        Api::Rerank => "rerank",
    }
}

pub fn backend_type(pd: bool) -> &'static str {
    if pd { "pd" } else { "regular" }
}

/// Labels of an inference request, in the order of smg_router_requests_total.
pub fn router(pd: bool, model: &str, api: Api, stream: bool) -> [&str; 6] {
    let streaming = if stream { "true" } else { "false" };
    ["http", backend_type(pd), "http", model, endpoint(api), streaming]
}

pub const LEGS: [LegName; 3] = [LegName::Prefill, LegName::Decode, LegName::Whole];

/// SMG's `worker_type` of the leg's worker.
pub fn worker_type(leg: Option<LegName>) -> &'static str {
    match leg {
        Some(LegName::Prefill) => "prefill",
        Some(LegName::Decode) => "decode",
        Some(LegName::Whole) => "regular",
        None => OTHER,
    }
}

/// AIBrix's labels of a pod: namespace, pod, model, engine_type, roleset.
pub fn pod<'a>(worker: &'a Worker, model: &'a str) -> [&'a str; 5] {
    let (namespace, roleset) = (worker.namespace(), worker.label("roleset-name"));
    let engine = worker.engine.as_str();
    [namespace.unwrap_or_default(), worker.pod_name(), model, engine, roleset.unwrap_or_default()]
}

/// `connection_mode`: how the worker is spoken to.
pub fn connection_mode(worker: &Worker) -> &'static str {
    if worker.url.starts_with("grpc") { "grpc" } else { "http" }
}

/// SMG's five `error_type`s, and `rejected` for a request that was not let in. The fault's own code, which is finer, is
/// the `error_code` of smg_http_responses_total.
pub fn error_type(code: &str, leg: Option<LegName>) -> &'static str {
    match code {
        "no_available_workers" | "no_compatible_pd_pair" | "no_models_available" | "service_unavailable" => {
            "no_workers"
        }
        "request_timeout" | "admission_queue_timeout" => "timeout",
        "admission_queue_full" | "draining" => "rejected",
        _ if leg.is_some() || code.starts_with("server_") => "backend_error",
        _ => "validation_error",
    }
}

/// AIBrix's `status` of a failed request: its own word where it has one.
pub fn failure(code: &'static str, leg: Option<LegName>) -> &'static str {
    if leg == Some(LegName::Prefill) { "pd_prefill_failure" } else { code }
}

/// `error_code` of an answer. Empty: no error.
pub fn error_code(code: Option<&'static str>, outcome: Outcome) -> &'static str {
    match (code, outcome) {
        (Some(code), _) => code,
        (None, Outcome::ClientGone) => "client_gone",
        (None, _) => "",
    }
}

/// `reason` of a request that was not let in.
pub fn queue_reason(code: &str) -> Option<&'static str> {
    code.strip_prefix("admission_").and_then(|reason| QUEUE_REASONS.into_iter().find(|r| *r == reason))
}

pub const QUEUE_REASONS: [&str; 2] = ["queue_full", "queue_timeout"];

/// SMG's `mode`s.
pub const MODES: [&str; 5] = ["nixl", "mooncake", "moriio", "store", "passthrough"];

/// The nth retry, from 0.
pub fn attempt(n: usize) -> &'static str {
    ["1", "2", "3", "4", "5", "6", "7", "8", "9"].get(n).copied().unwrap_or("10+")
}

/// The model that the request names, or else the one that its worker has.
pub fn said_model(record: &Record) -> &str {
    let answering = record.decode.as_ref().or(record.prefill.as_ref());
    let of_worker = || answering.and_then(|w| w.models.first());
    record.model.as_ref().or_else(of_worker).map_or(OTHER, String::as_str)
}

/// `said` if some worker lists it. A worker that would take any model lists none.
pub fn known_model<'a>(said: &'a str, fleet: &Fleet) -> &'a str {
    let listed = fleet.seats().any(|seat| seat.worker.models.iter().any(|model| model == said));
    if listed { said } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_route_or_other() {
        for (path, route) in [
            ("/workers/7f3c", "/workers/:id"),
            ("/workers/", "other"),
            ("/workers/a/b", "other"),
            ("/workers", "/workers"),
            ("/v1/models", "/v1/models"),
            ("/wp-login.php", "other"),
        ] {
            let record = Record { path: path.into(), ..Record::default() };
            assert_eq!(Route::of(&record).as_str(), route, "{path}");
        }
        for api in Api::ALL {
            let record = Record { api: Some(api), path: "/odd".into(), ..Record::default() };
            assert_eq!(Route::of(&record).as_str(), api.path());
        }
        assert_eq!((method("POST"), method("BREW")), ("POST", "other"));
        assert_eq!((attempt(0), attempt(8), attempt(400)), ("1", "9", "10+"));
    }

    #[test]
    fn probes_are_known_as_such() {
        let probe =
            |path: &'static str| Route::of(&Record { path: path.into(), ..Record::default() }).is_probe();
        assert!(probe("/health") && probe("/readiness") && !probe("/v1/models") && !probe("/x"));
    }
}
