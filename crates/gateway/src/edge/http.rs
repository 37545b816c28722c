//! A request's way in: route, key, body, admission, driver; and the answer's way out.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyError, Envelope};
use baton_core::exchange::Outcome;
use baton_core::fan;
use baton_core::fault::{Fault, Shape};
use baton_core::place::cascade::resolve::{self, Routing, resolve};
use baton_core::record::Record;
use baton_core::sse::Flavour;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version, header};
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::answer::{self, AnswerBody, Reply, Served};
use super::client::{Line, Phase};
use super::{Door, hints, intake, named, plain};
use crate::drive::{self, Drive, Entry, Turn};
use crate::entrance::Permit;
use crate::explain;
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::relay::{Form, Relay};
use crate::tokenize;
use crate::upstream::Head;

/// Client headers that both legs get (SMG 1.13). `Authorization` has a rule of its own.
const FORWARDED: [&str; 6] = [
    "anthropic-version",
    "anthropic-beta",
    "x-correlation-id",
    "traceparent",
    "tracestate",
    "x-smg-routing-key",
];

/// Headers of one hop, and those the gateway sets itself.
const DROPPED: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    answer::ERROR_CODE,
];

/// One connection's view of the gateway.
#[derive(Clone)]
pub struct Desk {
    pub gateway: Arc<Gateway>,
    pub lane: Arc<Lane>,
    pub line: Arc<Line>,
    pub door: Door,
}

impl Desk {
    /// The connection has a request now.
    pub fn begin(&self, request: &Request<Incoming>) {
        self.line.set_interim_ok(request.version() >= Version::HTTP_11);
        self.line.work(Phase::Busy);
    }

    pub async fn serve(self, request: Request<Incoming>) -> Response<Served> {
        let origin = request.headers().get(header::ORIGIN).and_then(|o| self.gateway.allows(o));
        let mut reply = self.route(request).await;
        if let Some(origin) = origin {
            cors(reply.headers_mut(), origin);
        }
        let (line, clock) = (self.line.clone(), self.lane.clock);
        if self.gateway.is_draining() {
            reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        reply.map(|body| Served::new(body, line, clock))
    }

    async fn route(&self, request: Request<Incoming>) -> Reply {
        let (parts, body) = request.into_parts();
        if self.door == Door::Probes {
            return plain::probe(self, &parts);
        }
        if parts.method == Method::OPTIONS
            && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        {
            return preflight(self.gateway.refuses_browsers());
        }
        match Api::of_path(parts.uri.path()) {
            Some(api) => self.generate(api, parts, body).await,
            None => plain::route(self, parts, body).await,
        }
    }

    /// A generation request.
    async fn generate(&self, api: Api, parts: http::request::Parts, body: Incoming) -> Reply {
        let gateway = &self.gateway;
        let mut record = Record {
            request_id: self.request_id(api.id_prefix(), &parts.headers),
            api: Some(api),
            method: "POST",
            path: as_asked(api, parts.uri.path()),
            ..Record::default()
        };
        record.moments.received = self.lane.clock.now();
        let entry = match self.enter(api, &parts, body, record).await {
            Ok(entry) => entry,
            Err(refused) => return refused,
        };
        let id = entry.record.request_id.clone();
        let parts = fan::parts(&gateway.registry.fleet(), &entry.ask);
        if parts > 1 {
            return drive::fan::run(self, entry, parts).await;
        }
        let drive = Drive::new(gateway.clone(), self.lane.clone(), entry);
        let (drive, turn) = drive.run().await;
        match turn {
            Turn::Fail(fault) => {
                let mut reply = answer::fault(&fault, api.shape(), &id);
                drive.explain(reply.headers_mut());
                reply
            }
            Turn::Start(head) => self.start(api, drive, head),
            Turn::Tell(body) => {
                let comment = drive.comment().filter(|_| drive.record.stream).unwrap_or_default();
                let body = if comment.is_empty() { body } else { [comment, body].concat().into() };
                let mut reply = told(api, &drive.record, body);
                drive.explain(reply.headers_mut());
                reply
            }
        }
    }

    /// Everything before the driver. A refusal is recorded here.
    async fn enter(
        &self,
        api: Api,
        parts: &http::request::Parts,
        body: Incoming,
        mut record: Record,
    ) -> Result<Entry, Reply> {
        match self.unless_stopping(self.admit(api, parts, body, &mut record)).await {
            Ok(Admitted { mut ask, body, routing, permit }) => {
                let now = self.lane.clock.now();
                record.moments.admitted = Some(now);
                self.line.expect_end(now.after(self.gateway.rules.exchange.request_timeout));
                record.routing = Some(routing.clone());
                if self.gateway.strategies.counts(&routing, &ask) {
                    self.tokenize(&mut ask, &mut record).await;
                }
                let forward = forwarded(&parts.headers, self.gateway.api_key.is_some());
                let line = Some(self.line.clone());
                let explains = self.gateway.explains && explain::is_asked(&parts.headers);
                Ok(Entry { ask, body, forward, record, routing, explains, permit: Some(permit), line })
            }
            Err(fault) => {
                let reply = answer::fault(&fault, api.shape(), &record.request_id);
                record.outcome = Outcome::Failed;
                record.status = fault.status();
                record.blame(&fault);
                record.moments.ended = self.lane.clock.now();
                self.gateway.telemetry.record(&record);
                self.lane.recent.keep(&record);
                Err(reply)
            }
        }
    }

    async fn admit(
        &self,
        api: Api,
        parts: &http::request::Parts,
        body: Incoming,
        record: &mut Record,
    ) -> Result<Admitted, Fault> {
        let gateway = &self.gateway;
        if parts.method != Method::POST {
            return Err(Fault::MethodNotAllowed { allow: "POST" });
        }
        self.authorize(&parts.headers)?;
        let max = gateway.rules.body.max_bytes as u64;
        let bytes = intake::collect(body, max, gateway.timeouts.body_stall, &self.line).await?;
        record.request_bytes = bytes.len() as u64;
        let body = Envelope::parse(bytes, &gateway.rules.body).map_err(|e| malformed(&e, max))?;
        let mut ask = Ask::read(api, &body)?;
        ask.prompt.measure_by(&gateway.measure);
        for id in parts.headers.get_all(answer::REQUEST_ID) {
            ask.hear_request_id(id.as_bytes());
        }
        hints::hear(&gateway.routing_key_headers, &parts.headers, &mut ask);
        ask.wishes = hints::wishes(&parts.headers);
        (record.model, record.stream) = (ask.model.clone(), ask.stream);
        if resolve::counts(&gateway.registry.fleet(), &ask) {
            self.tokenize(&mut ask, record).await;
        }
        let routing = Arc::new(resolve(&gateway.registry.fleet(), &ask, &gateway.knobs)?);
        let permit = gateway.entrance.enter().await?;
        Ok(Admitted { ask, body, routing, permit })
    }

    /// Asks an engine what it makes of the prompt, once for each request.
    async fn tokenize(&self, ask: &mut Ask, record: &mut Record) {
        let asking = async { Ok(tokenize::ask(&self.gateway, &self.lane, ask).await) };
        let asked = self.unless_stopping(asking).await.ok().flatten();
        record.asked = record.asked.or(asked);
    }

    /// Gives up what is awaited before there is a driver, which would see the end by itself.
    ///
    /// # Errors
    /// [`Fault::Draining`] once the gateway stops; those of `work`.
    pub async fn unless_stopping<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let mut work = pin!(work);
        poll_fn(|cx| match self.lane.is_stopping() {
            true => Poll::Ready(Err(Fault::Draining)),
            false => work.as_mut().poll(cx),
        })
        .await
    }

    /// # Errors
    /// [`Fault::Unauthorized`] if the gateway has a key and this is not it.
    pub fn authorize(&self, headers: &HeaderMap) -> Result<(), Fault> {
        if self.gateway.api_key.is_none() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.as_bytes().strip_prefix(b"Bearer "));
        // Anthropic's SDK sends its key so, and a token beside it if it has one.
        let given = [bearer, headers.get("x-api-key").map(HeaderValue::as_bytes)];
        if given.iter().flatten().any(|key| self.gateway.is_key(key.trim_ascii())) {
            return Ok(());
        }
        Err(Fault::Unauthorized { given: given.iter().any(Option::is_some) })
    }

    /// The client's id if it is one that may stand in a header, else a fresh one.
    pub fn request_id(&self, prefix: &str, headers: &HeaderMap) -> String {
        let given = given_id(&self.gateway.request_id_headers, headers);
        given.map_or_else(|| self.lane.dice().id(prefix), str::to_owned)
    }

    /// The decode's head becomes the client's.
    fn start(&self, api: Api, drive: Box<Drive>, head: Head) -> Reply {
        let length = head.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_stream = kind.get(..17).is_some_and(|k| k.eq_ignore_ascii_case(b"text/event-stream"));
        let mut headers = outward(head.headers);
        let record = &drive.record;
        named::workers(&mut headers, record);
        drive.explain(&mut headers);
        answer::id(&mut headers, &record.request_id, api.shape());
        let form = Form {
            shape: api.shape(),
            flavour: flavour(api),
            is_stream,
            length: length.filter(|_| !is_stream && !drive.lengthens()),
            keepalive: self.gateway.timeouts.keepalive,
            comment: drive.comment().filter(|_| is_stream),
        };
        let status = head.status;
        let relay = Relay::new(drive, self.line.clone(), self.lane.clock, form);
        let mut reply = Response::new(AnswerBody::Relay(Box::new(relay)));
        *reply.status_mut() = answer::status(status);
        *reply.headers_mut() = headers;
        reply
    }
}

/// A request that may go to workers.
struct Admitted {
    ask: Ask,
    body: Envelope,
    routing: Arc<Routing>,
    permit: Permit,
}

/// The client's own id of its request, if it may stand in a header. `names`: where it is looked for, in order.
pub(crate) fn given_id<'a>(names: &[HeaderName], headers: &'a HeaderMap) -> Option<&'a str> {
    // Few headers came, so it is cheaper to look at each than to look each name up.
    let rank = |name| names.iter().position(|n| n == name);
    let given = headers.iter().filter_map(|(n, v)| Some((rank(n)?, v))).min_by_key(|(rank, _)| *rank);
    let given = given.map(|(_, value)| value);
    let given =
        given.filter(|v| (1..=128).contains(&v.len()) && v.as_bytes().iter().all(u8::is_ascii_graphic));
    given.and_then(|value| value.to_str().ok())
}

/// What the legs get of the client's headers. A gateway with a key of its own takes the client's `Authorization` for
/// itself; it never reaches an engine. `x-api-key` never does: no engine reads it, so it can only be meant for a gateway. A
/// header given several times is a list and stays one.
pub(crate) fn forwarded(headers: &HeaderMap, own_key: bool) -> Vec<(HeaderName, HeaderValue)> {
    let mut out: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for (name, value) in headers {
        let passes = match name {
            &header::AUTHORIZATION => !own_key && !out.iter().any(|(seen, _)| seen == name),
            name => FORWARDED.contains(&name.as_str()),
        };
        if passes {
            out.push((name.clone(), value.clone()));
        }
    }
    out
}

/// The route as the client wrote it: two routes may be one API.
fn as_asked(api: Api, path: &str) -> Cow<'static, str> {
    if path == api.path() { api.path().into() } else { path.to_owned().into() }
}

/// An answer that is there as a whole.
fn told(api: Api, record: &Record, body: Bytes) -> Reply {
    let mut headers = HeaderMap::new();
    named::workers(&mut headers, record);
    answer::id(&mut headers, &record.request_id, api.shape());
    let kind = if record.stream { "text/event-stream" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let mut reply = Response::new(AnswerBody::text(body));
    *reply.headers_mut() = headers;
    reply
}

pub(crate) fn flavour(api: Api) -> Flavour {
    match api {
        Api::Generate => Flavour::Generate,
        Api::Responses => Flavour::Responses,
        Api::Messages | Api::CountTokens => Flavour::Messages,
        Api::Chat | Api::Completions | Api::Rerank => Flavour::OpenAi,
    }
}

/// What is wrong with a body that is none.
pub fn malformed(error: &BodyError, limit_bytes: u64) -> Fault {
    match error {
        BodyError::TooLarge { .. } => Fault::BodyTooLarge { limit_bytes },
        BodyError::Repeated { key } => Fault::RepeatedMember { key: key.clone() },
        other => Fault::InvalidJson { message: other.to_string() },
    }
}

/// An engine's headers without those of its own hop: the fixed ones and those that `Connection` names.
pub fn outward(mut headers: HeaderMap) -> HeaderMap {
    let mut gone: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for (name, value) in &headers {
        if DROPPED.contains(name) {
            gone.push(name.clone());
        }
        if name == header::CONNECTION {
            gone.extend(value.to_str().unwrap_or("").split(',').filter_map(|name| name.trim().parse().ok()));
        }
    }
    for name in &gone {
        headers.remove(name);
    }
    headers
}

fn preflight(refused: bool) -> Reply {
    if refused {
        return answer::fault(&Fault::MethodNotAllowed { allow: "GET, POST" }, Shape::OpenAi, "");
    }
    let mut reply = answer::text(answer::NO_CONTENT, "");
    reply.headers_mut().remove(header::CONTENT_TYPE);
    let set = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE, OPTIONS"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "*, authorization"),
        (header::ACCESS_CONTROL_MAX_AGE, "3600"),
    ];
    for (name, value) in set {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

fn cors(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}
