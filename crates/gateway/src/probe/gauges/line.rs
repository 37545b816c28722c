//! A connection to a worker that is kept from one question to the next, and answers read piece by piece.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use baton_core::fleet::Secret;
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::super::get::{Silence, bearer, dial};

/// One question.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub path: &'a str,
    pub key: Option<&'a Secret>,
    /// Longest answer.
    pub max_bytes: usize,
}

/// Takes an answer piece by piece.
type Take<'a> = &'a mut (dyn FnMut(&[u8]) + Send);

/// Where a worker is asked, and the connection to it if there is one.
pub struct Line {
    base: String,
    open: Option<Open>,
}

struct Open {
    send: http1::SendRequest<Empty<Bytes>>,
    /// Moves the bytes; over when it is gone.
    conn: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Open {
    /// Waits for `answer` while the connection moves its bytes.
    async fn drive<T>(
        conn: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
        answer: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(answer);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = answer.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            let over = conn.as_mut().is_some_and(|conn| conn.as_mut().poll(cx).is_ready());
            if !over {
                return Poll::Pending;
            }
            // What it brought last may be the answer's end.
            *conn = None;
            answer.as_mut().poll(cx)
        })
        .await
    }
}

impl Line {
    pub fn new(base: String) -> Line {
        Line { base, open: None }
    }

    /// Asks for a page and passes its pieces on. False: there is no such page.
    ///
    /// # Errors
    /// The worker cannot be reached, or its answer is too long or breaks off.
    pub async fn get(&mut self, question: Question<'_>, take: Take<'_>) -> Result<bool, Silence> {
        // A connection that was kept may have been closed meanwhile; then nothing of an answer has come.
        if let Some(open) = self.open.take()
            && let Ok(found) = self.ask(open, question, take).await?
        {
            return Ok(found);
        }
        let open = connect(&self.base).await?;
        self.ask(open, question, take).await?
    }

    /// Asks on this connection. The inner error: it was lost before an answer began.
    async fn ask(
        &mut self,
        mut open: Open,
        question: Question<'_>,
        take: Take<'_>,
    ) -> Result<Result<bool, Silence>, Silence> {
        let request = self.request(question)?;
        let Question { path, max_bytes, .. } = question;
        let Open { send, conn } = &mut open;
        let lost = |e: hyper::Error| Silence::Refused(e.to_string());
        let head = Open::drive(conn, async {
            send.ready().await?;
            send.send_request(request).await
        });
        let response = match head.await {
            Ok(response) => response,
            Err(error) => return Ok(Err(lost(error))),
        };
        if !response.status().is_success() {
            return Ok(Ok(false));
        }
        let mut body = response.into_body();
        let read = Open::drive(conn, async {
            let mut left = max_bytes;
            while let Some(frame) = body.frame().await {
                let Ok(piece) = frame.map_err(lost)?.into_data() else { continue };
                let long = || Silence::Unusable(format!("{path} is longer than {max_bytes} bytes"));
                left = left.checked_sub(piece.len()).ok_or_else(long)?;
                take(&piece);
            }
            Ok(true)
        });
        let found: Result<bool, Silence> = read.await;
        if found.is_ok() && open.conn.is_some() {
            self.open = Some(open);
        }
        found.map(Ok)
    }

    fn request(&self, question: Question<'_>) -> Result<Request<Empty<Bytes>>, Silence> {
        let unusable = |e: http::Error| Silence::Unusable(e.to_string());
        let uri = address(&self.base, question.path)?;
        let mut request = Request::builder()
            .uri(uri.path_and_query().map_or("/", |p| p.as_str()))
            .header(header::HOST, uri.authority().map_or("", |a| a.as_str()));
        if let Some(key) = question.key {
            request = request.header(header::AUTHORIZATION, bearer(key).map_err(unusable)?);
        }
        request.body(Empty::new()).map_err(unusable)
    }
}

async fn connect(base: &str) -> Result<Open, Silence> {
    let stream = dial(&address(base, "")?).await?;
    let lost = |e: hyper::Error| Silence::Refused(e.to_string());
    let (send, conn) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let conn = Box::pin(async move { drop(conn.await) });
    Ok(Open { send, conn: Some(conn) })
}

fn address(base: &str, path: &str) -> Result<Uri, Silence> {
    format!("{base}{path}").parse().map_err(|e: http::uri::InvalidUri| Silence::Unusable(e.to_string()))
}
