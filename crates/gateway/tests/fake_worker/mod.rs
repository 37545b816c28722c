//! A worker that says what a test tells it to say, and counts what it was asked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What is said on a path.
#[derive(Clone)]
pub enum Says {
    Page(u16, String),
    /// The head comes, the body never does.
    Stalls,
}

/// One question as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
}

#[derive(Default)]
struct Book {
    pages: BTreeMap<String, Says>,
    asked: Vec<Asked>,
}

pub struct FakeWorker {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    life: Option<JoinHandle<()>>,
}

impl FakeWorker {
    /// A worker that is well and says nothing of itself.
    pub async fn start() -> FakeWorker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut worker = FakeWorker { address, book: Arc::default(), life: None };
        worker.page("/health", 200, "");
        worker.live(listener);
        worker
    }

    pub async fn vllm(model: &str) -> FakeWorker {
        let worker = FakeWorker::start().await;
        worker.models("vllm", model);
        worker.page("/version", 200, r#"{"version":"0.32.0"}"#);
        worker
    }

    pub fn models(&self, owner: &str, model: &str) {
        let list = serde_json::json!({"object": "list", "data": [
            {"id": model, "object": "model", "owned_by": owner, "max_model_len": 2048}]});
        self.page("/v1/models", 200, &list.to_string());
    }

    pub fn page(&self, path: &str, status: u16, body: &str) {
        self.says(path, Says::Page(status, body.to_owned()));
    }

    pub fn says(&self, path: &str, says: Says) {
        self.book.lock().unwrap().pages.insert(path.to_owned(), says);
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.book.lock().unwrap().asked.clone()
    }

    /// How often this path was asked for.
    pub fn asked_for(&self, path: &str) -> usize {
        self.asked().iter().filter(|a| a.path == path).count()
    }

    /// The port is closed, as when the engine died.
    pub async fn stop(&mut self) {
        if let Some(life) = self.life.take() {
            life.abort();
            let _ = life.await;
        }
    }

    /// The engine is back at the same address.
    pub async fn resume(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.live(listener);
    }

    fn live(&mut self, listener: TcpListener) {
        let book = self.book.clone();
        self.life = Some(tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, book.clone()));
            }
        }));
    }
}

async fn serve(stream: TcpStream, book: Arc<Mutex<Book>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, &book);
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn answer(request: &Request<Incoming>, book: &Mutex<Book>) -> Response<BoxBody<Bytes, Infallible>> {
    let path = request.uri().path_and_query().unwrap().to_string();
    let authorization = request.headers().get(header::AUTHORIZATION);
    let mut book = book.lock().unwrap();
    book.asked.push(Asked {
        method: request.method().to_string(),
        path: path.clone(),
        authorization: authorization.map(|v| v.to_str().unwrap().to_owned()),
    });
    let (status, body) = match book.pages.get(&path).cloned() {
        Some(Says::Page(status, body)) => (status, Full::new(Bytes::from(body)).boxed()),
        Some(Says::Stalls) => (200, Stalled.boxed()),
        None => (404, Empty::new().boxed()),
    };
    Response::builder().status(status).body(body).unwrap()
}

/// A body that is announced and does not come.
struct Stalled;

impl http_body::Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Pending
    }
}
