//! What a fault says to the client: what happened, and what to do about it.

use super::Fault;
use crate::place::cascade::words::Way;
use crate::watchdog::Silence;

impl Fault {
    pub(super) fn message(&self) -> String {
        match self {
            Fault::Refused { .. }
            | Fault::Proxied { .. }
            | Fault::Unreachable { .. }
            | Fault::Broken { .. }
            | Fault::Deadline { .. }
            | Fault::DecodeSilent { .. } => self.of_a_leg(),
            Fault::NoModels
            | Fault::TrtContext
            | Fault::NoWorker { .. }
            | Fault::NoPair { .. }
            | Fault::Unroutable { .. }
            | Fault::FilteredOut { .. }
            | Fault::Shed { .. }
            | Fault::QueueFull { .. }
            | Fault::QueueTimeout { .. }
            | Fault::Draining => self.of_the_gateway(),
            Fault::MoriioPair { .. }
            | Fault::MoriioRoute
            | Fault::MoriioFanout
            | Fault::MoriioRequestId
            | Fault::MoriioHandoff { .. } => self.of_moriio().to_owned(),
            Fault::InvalidJson { .. }
            | Fault::RepeatedMember { .. }
            | Fault::InvalidType { .. }
            | Fault::InvalidValue { .. }
            | Fault::BodyTooLarge { .. }
            | Fault::BodyStalled
            | Fault::BodyBroken
            | Fault::UnknownUrl { .. }
            | Fault::MethodNotAllowed { .. }
            | Fault::Unauthorized { .. }
            | Fault::NotServed { .. }
            | Fault::ModelNotFound { .. }
            | Fault::ZeroTokens
            | Fault::UnknownStrategy(_)
            | Fault::BadFilter { .. }
            | Fault::ClientGone => self.of_the_request(),
        }
    }

    fn of_the_request(&self) -> String {
        match self {
            Fault::InvalidJson { message } => message.clone(),
            Fault::RepeatedMember { key } => {
                format!("The request body has the member \"{key}\" more than once. Send it once.")
            }
            Fault::InvalidType { param, expected } => {
                format!("Invalid type for '{param}': expected {expected}.")
            }
            Fault::InvalidValue { message, .. } => (*message).to_owned(),
            Fault::BodyTooLarge { limit_bytes } => {
                format!(
                    "The request body is larger than the limit of {limit_bytes} bytes (--max-payload-size)."
                )
            }
            Fault::BodyStalled => {
                "The request body stopped arriving. Send it without long pauses.".to_owned()
            }
            Fault::BodyBroken => "The request body ended before it was complete.".to_owned(),
            Fault::UnknownUrl { method, path } => format!("Invalid URL ({method} {path})"),
            Fault::MethodNotAllowed { allow } => format!("This path takes {allow} only."),
            Fault::Unauthorized { given: true } => "Incorrect API key provided.".to_owned(),
            Fault::Unauthorized { given: false } => {
                "No API key provided. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.".to_owned()
            }
            Fault::NotServed { route, advice } => {
                format!("{route} is not implemented by a prefill/decode gateway. {advice}")
            }
            Fault::ZeroTokens => {
                "max_tokens is 0, and engines generate at least one token. Count a prompt with POST \
                 /v1/messages/count_tokens."
                    .to_owned()
            }
            Fault::UnknownStrategy(unknown) => {
                let known: Vec<&str> = Way::ALL.into_iter().map(Way::as_str).collect();
                format!("{unknown}. Served are: {}.", known.join(", "))
            }
            Fault::BadFilter { reason } => format!(
                "filter pods by label selector failed: {reason}. Send external-filter as a Kubernetes label \
                 selector, like tier=gold,zone in (a,b)."
            ),
            Fault::ModelNotFound { model, known } => {
                format!("The model `{model}` does not exist. Models served here: {known}.")
            }
            Fault::ClientGone => "The client left.".to_owned(),
            _ => String::new(),
        }
    }

    fn of_the_gateway(&self) -> String {
        match self {
            Fault::NoModels => "No worker has reported a model yet.".to_owned(),
            Fault::TrtContext => {
                "The context worker has not told where its KV can be fetched (/server_info). \
                 generation_first needs the Python transceiver on both workers."
                    .to_owned()
            }
            Fault::QueueFull { .. } => "Too many requests are waiting. Try again later.".to_owned(),
            Fault::QueueTimeout { .. } => {
                "The request waited too long for its turn. Try again later.".to_owned()
            }
            Fault::Draining => "The gateway is shutting down. Send the request to another one.".to_owned(),
            Fault::NoWorker { leg, registered } => no_worker(leg.as_str(), *registered),
            Fault::NoPair { detail } => {
                format!("No prefill/decode pair shares a KV transfer protocol: {detail}")
            }
            Fault::FilteredOut { selector } => format!(
                "no ready pods for routing: workers serve the model, and external-filter {selector:?} selects none \
                 of those that are well. Widen it, or look at the workers' labels (GET /workers)."
            ),
            Fault::Unroutable { reason } => format!("error on selecting target pod: {reason}"),
            Fault::Shed { leg, widest: None, .. } => {
                format!("Every {} worker runs as many requests as it can. Try again later.", leg.as_str())
            }
            Fault::Shed { leg, rooms, widest: Some(widest) } => {
                let leg = leg.as_str();
                format!(
                    "The request makes {rooms} sequences, and no {leg} worker runs more than {widest} at once."
                )
            }
            _ => String::new(),
        }
    }

    fn of_a_leg(&self) -> String {
        match self {
            Fault::Refused { refusal, .. } | Fault::Proxied { refusal } => refusal.message.clone(),
            Fault::Unreachable { leg, cause } => {
                format!("The {} worker could not be reached: {}", leg.as_str(), cause.words)
            }
            Fault::Broken { leg, cause } => {
                format!("The {} worker's answer broke off: {cause}", leg.as_str())
            }
            Fault::Deadline { leg, seconds } => {
                format!("No complete answer within {seconds} s; waiting for the {} worker.", leg.as_str())
            }
            Fault::DecodeSilent { leg, phase, limit, stream } => {
                let leg = leg.as_str();
                match (phase, stream) {
                    (Silence::FirstResponse, true) => {
                        format!("The {leg} worker did not start responding within {limit:?}.")
                    }
                    (Silence::FirstResponse, false) => {
                        format!("The {leg} worker did not finish responding within {limit:?}.")
                    }
                    (Silence::StreamIdle, _) => {
                        format!("The {leg} worker fell silent for {limit:?} in the middle of its answer.")
                    }
                }
            }
            _ => String::new(),
        }
    }

    fn of_moriio(&self) -> &'static str {
        match self {
            Fault::MoriioPair { .. } => {
                "The selected prefill/decode pair is not configured for MoRI-IO. The gateway's log says why."
            }
            Fault::MoriioRoute => "MoRI-IO workers serve /v1/chat/completions and /v1/completions only.",
            Fault::MoriioFanout => {
                "MoRI-IO workers answer one prompt with one sample: send no n, list or beam search."
            }
            Fault::MoriioRequestId => {
                "The request id holds a MoRI-IO peer address marker. Send another X-Request-Id or request_id."
            }
            Fault::MoriioHandoff { .. } => "The MoRI-IO prefill returned no usable KV handoff. Try again.",
            _ => "",
        }
    }
}

fn no_worker(leg: &str, registered: bool) -> String {
    if registered {
        format!("No available {leg} workers (all circuits open or unhealthy). See GET /workers.")
    } else {
        format!("No {leg} workers available: none is registered. Add one with POST /workers or --{leg}.")
    }
}
