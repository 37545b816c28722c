//! A tap: a listener between the gateway and one engine that notes each request to the byte, passes it on, or answers
//! it by script.
//!
//! Generation requests are noted and scripted; questions about a prompt (`/tokenize`) are too, apart from them. What
//! probes ask goes through to the engine.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// A request as the gateway sent it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which connection it came on, from 1.
    pub connection: u64,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    gone: Arc<AtomicBool>,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    /// The gateway has closed the connection that the request came on.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Something that a script waits for until the test opens it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Gate {
        Gate(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    pub fn open(&self) {
        self.0.add_permits(Semaphore::MAX_PERMITS / 4);
    }

    /// Lets one script pass, once.
    pub fn pass_one(&self) {
        self.0.add_permits(1);
    }

    async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// One thing that a scripted engine does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes these bytes at once.
    Say(Bytes),
    Wait(Gate),
    Reset,
    Fin,
    /// Keeps the connection open and says nothing more.
    Never,
    /// Lets the engine answer.
    Pass,
}

impl Step {
    pub fn say(text: impl Into<String>) -> Step {
        Step::Say(Bytes::from(text.into()))
    }

    /// A whole JSON answer. `headers` are lines, each with its end.
    pub fn json(status: u16, headers: &str, body: &str) -> Step {
        let length = body.len();
        Step::say(format!(
            "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// The head of a chunked event stream.
    pub fn stream_head(headers: &str) -> Step {
        Step::say(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{headers}transfer-encoding: chunked\r\n\r\n"
        ))
    }

    /// One chunk.
    pub fn chunk(text: &str) -> Step {
        Step::say(format!("{:x}\r\n{text}\r\n", text.len()))
    }

    pub fn last_chunk() -> Step {
        Step::say("0\r\n\r\n")
    }
}

/// A whole chunked event stream, one chunk for each piece.
pub fn sse(pieces: &[&str]) -> Vec<Step> {
    let mut steps = vec![Step::stream_head("")];
    steps.extend(pieces.iter().map(|piece| Step::chunk(piece)));
    steps.push(Step::last_chunk());
    steps
}

pub struct Tap {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    engine: SocketAddr,
    seen: Mutex<Vec<Seen>>,
    /// Requests to drop one, which go through.
    aborts: Mutex<Vec<Seen>>,
    /// Questions about a prompt, and how each is answered that is not passed on.
    questions: Mutex<Vec<Seen>>,
    tokenizes: Mutex<Option<Vec<Step>>>,
    scripts: Mutex<VecDeque<Vec<Step>>>,
    always: Mutex<Option<Vec<Step>>>,
    open: AtomicUsize,
    connections: AtomicU64,
    /// Bytes written by scripts.
    said: AtomicUsize,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tap {
    pub async fn before(engine: SocketAddr) -> Tap {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            engine,
            seen: Mutex::default(),
            aborts: Mutex::default(),
            questions: Mutex::default(),
            tokenizes: Mutex::default(),
            scripts: Mutex::default(),
            always: Mutex::default(),
            open: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            said: AtomicUsize::new(0),
        });
        let own = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tcp.set_nodelay(true).unwrap();
                tokio::spawn(serve(own.clone(), tcp));
            }
        });
        Tap { address, shared, task: task.abort_handle() }
    }

    /// The next generation request that has no script yet is answered so.
    pub fn script(&self, steps: impl Into<Vec<Step>>) {
        self.shared.scripts.lock().unwrap().push_back(steps.into());
    }

    /// Every generation request without a script of its own is answered so.
    pub fn always(&self, steps: impl Into<Vec<Step>>) {
        *self.shared.always.lock().unwrap() = Some(steps.into());
    }

    /// Every question about a prompt is answered so.
    pub fn tokenizes(&self, steps: impl Into<Vec<Step>>) {
        *self.shared.tokenizes.lock().unwrap() = Some(steps.into());
    }

    /// Questions about a prompt, as the gateway put them.
    pub fn questions(&self) -> Vec<Seen> {
        self.shared.questions.lock().unwrap().clone()
    }

    /// No scripts any more.
    pub fn clear(&self) {
        *self.shared.tokenizes.lock().unwrap() = None;
        self.shared.scripts.lock().unwrap().clear();
        *self.shared.always.lock().unwrap() = None;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// What the engine was asked to drop: the bodies.
    pub fn aborts(&self) -> Vec<Value> {
        self.shared.aborts.lock().unwrap().iter().map(Seen::json).collect()
    }

    pub fn count(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    pub fn last(&self) -> Seen {
        self.seen().pop().unwrap()
    }

    /// Bytes that scripts have got rid of.
    pub fn said(&self) -> usize {
        self.shared.said.load(Ordering::Acquire)
    }

    /// Connections of the gateway that are open now.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn serve(shared: Arc<Shared>, tcp: TcpStream) {
    shared.open.fetch_add(1, Ordering::AcqRel);
    let _open = Open(shared.clone());
    let connection = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let (from, to) = tcp.into_split();
    let gone = Arc::default();
    Wire { shared, connection, from, to: Some(to), buffer: BytesMut::new(), engine: None, gone }.run().await;
}

struct Wire {
    shared: Arc<Shared>,
    connection: u64,
    from: OwnedReadHalf,
    /// The way back to the gateway, when no pump has it.
    to: Option<OwnedWriteHalf>,
    buffer: BytesMut,
    engine: Option<Engine>,
    gone: Arc<AtomicBool>,
}

/// The engine's side of a connection.
struct Engine {
    to: OwnedWriteHalf,
    /// Carries answers back. It ends with the way to the gateway, and whether the engine's end was a reset.
    pump: tokio::task::JoinHandle<(OwnedWriteHalf, bool)>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Wire {
    async fn run(mut self) {
        loop {
            let request = match self.engine.take() {
                None => read_request(&mut self.from, &mut self.buffer).await,
                Some(mut engine) => tokio::select! {
                    request = read_request(&mut self.from, &mut self.buffer) => {
                        self.engine = Some(engine);
                        request
                    }
                    ended = &mut engine.pump => {
                        let Ok((to, reset)) = ended else { return };
                        if reset {
                            let _ = to.as_ref().set_zero_linger();
                        }
                        return;
                    }
                },
            };
            let Some((seen, raw)) = request else {
                self.gone.store(true, Ordering::Release);
                return;
            };
            if !self.answer(seen, raw).await {
                return;
            }
        }
    }

    /// False: the connection is over.
    async fn answer(&mut self, mut seen: Seen, raw: Bytes) -> bool {
        seen.connection = self.connection;
        seen.gone = self.gone.clone();
        let generates = seen.headers.get("x-tap-get").is_none();
        let mut steps = vec![Step::Pass];
        if seen.path == "/abort_request" {
            self.shared.aborts.lock().unwrap().push(seen);
        } else if seen.path == "/tokenize" {
            steps = self.shared.tokenizes.lock().unwrap().clone().unwrap_or(steps);
            self.shared.questions.lock().unwrap().push(seen);
        } else if generates {
            let script = self.shared.scripts.lock().unwrap().pop_front();
            steps = script.or_else(|| self.shared.always.lock().unwrap().clone()).unwrap_or(steps);
            self.shared.seen.lock().unwrap().push(seen);
        }
        for step in steps {
            match step {
                Step::Pass => {
                    if !self.pass(&raw).await {
                        return false;
                    }
                }
                step => {
                    if !self.play(step).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    async fn play(&mut self, step: Step) -> bool {
        // A pump that carried an earlier answer gives the way back.
        if let Some(mut engine) = self.engine.take() {
            engine.to.shutdown().await.unwrap_or_default();
            let Ok((to, _)) = (&mut engine.pump).await else { return false };
            self.to = Some(to);
        }
        let Some(to) = self.to.as_mut() else { return false };
        match step {
            Step::Say(bytes) => {
                let written = to.write_all(&bytes).await.is_ok();
                self.shared.said.fetch_add(bytes.len(), Ordering::AcqRel);
                written
            }
            Step::Reset => {
                let _ = to.as_ref().set_zero_linger();
                false
            }
            Step::Fin => {
                let _ = to.shutdown().await;
                false
            }
            Step::Never => {
                let _ = self.from.read_buf(&mut self.buffer).await;
                self.gone.store(true, Ordering::Release);
                false
            }
            Step::Wait(gate) => {
                let mut byte = [0];
                tokio::select! {
                    () = gate.pass() => true,
                    _ = self.from.peek(&mut byte) => {
                        self.gone.store(true, Ordering::Release);
                        false
                    }
                }
            }
            Step::Pass => true,
        }
    }

    /// Sends a request to the engine; its answer goes back by itself.
    async fn pass(&mut self, raw: &[u8]) -> bool {
        if self.engine.is_none() {
            let Ok(tcp) = TcpStream::connect(self.shared.engine).await else {
                let _ = self.to.as_ref().map(|to| to.as_ref().set_zero_linger());
                return false;
            };
            let Some(back) = self.to.take() else { return false };
            tcp.set_nodelay(true).unwrap();
            let (answers, to) = tcp.into_split();
            self.engine = Some(Engine { to, pump: tokio::spawn(pump(answers, back)) });
        }
        let Some(engine) = self.engine.as_mut() else { return false };
        // Where the engine is gone the pump says so.
        let _ = engine.to.write_all(raw).await;
        true
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> (OwnedWriteHalf, bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return (to, false),
            Err(_) => return (to, true),
            Ok(n) => {
                if to.write_all(&buffer[..n]).await.is_err() {
                    return (to, false);
                }
            }
        }
    }
}

/// The next request, and its bytes as they came. `None` at the end of the connection.
async fn read_request(from: &mut OwnedReadHalf, buffer: &mut BytesMut) -> Option<(Seen, Bytes)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if from.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let first: Vec<&str> = lines.next()?.split(' ').collect();
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let name: http::HeaderName = name.parse().unwrap();
        headers.append(name, value.trim().parse().unwrap());
    }
    assert!(
        headers.get("transfer-encoding").is_none(),
        "the gateway knows the length of what it sends: {head}"
    );
    let length = headers.get("content-length").map_or(0, |v| v.to_str().unwrap().parse().unwrap());
    if first[0] == "GET" {
        headers.insert("x-tap-get", "1".parse().unwrap());
    }
    while buffer.len() < end + length {
        if from.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let raw = buffer.split_to(end + length).freeze();
    let mut body = raw.clone();
    body.advance(end);
    Some((Seen { connection: 0, path: first[1].to_owned(), headers, body, gone: Arc::default() }, raw))
}
