//! SGLang's bootstrap server: the HTTP door through which halves of a pair find each other.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;

use crate::serve::body::{Body, BreakOff};
use crate::serve::node::Node;
use crate::serve::server::Seat;

/// What the bootstrap server answers with.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

struct Shared {
    seat: Seat,
    #[expect(dead_code, reason = "the rendezvous between processes goes through it")]
    node: Arc<Node>,
}

impl Front {
    pub fn new(seat: &Seat, node: &Arc<Node>) -> Self {
        Self { shared: Arc::new(Shared { seat: seat.clone(), node: node.clone() }) }
    }

    pub async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, BreakOff> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let query = request.uri().query().unwrap_or("").to_owned();
        Ok(match (method, path.as_str()) {
            (Method::GET, "/health") => text(200, "OK".into()),
            (Method::GET, "/route") => self.route(&query),
            (Method::PUT, "/route") => text(200, "OK".into()),
            _ => text(404, "404: Not Found".into()),
        })
    }

    fn route(&self, query: &str) -> Response<Body> {
        let get = |name: &str| -> Option<i64> {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
            pair.parse().ok()
        };
        let names = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];
        let ranks: Option<Vec<i64>> = names.iter().map(|name| get(name)).collect();
        let Some(ranks) = ranks else { return text(400, "Missing inputs for bootstrap server.".into()) };
        if ranks.iter().all(|rank| *rank == -1) {
            return json(self.server_info());
        }
        if ranks.iter().all(|rank| *rank == 0) {
            let seat = &self.shared.seat;
            return json(format!(r#"{{"rank_ip":"{}","rank_port":{}}}"#, seat.host, seat.bootstrap_port));
        }
        let [dp, cp, tp, pp] = ranks[..] else {
            return text(400, "Missing inputs for bootstrap server.".into());
        };
        text(404, format!("Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"))
    }

    fn server_info(&self) -> String {
        let seat = &self.shared.seat;
        format!(
            r#"{{"attn_tp_size":1,"attn_cp_size":1,"dp_size":1,"pp_size":1,"page_size":{},"kv_cache_dtype":"auto","follow_bootstrap_room":true,"prefill_http_port":{},"decode_allocation_policy":"early"}}"#,
            seat.spec.block_size, seat.port
        )
    }
}

fn respond(status: u16, content_type: &str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::Full(Bytes::from(body)));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    if let Ok(value) = http::HeaderValue::from_str(content_type) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    }
    response
}

fn text(status: u16, body: String) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", body)
}

fn json(body: String) -> Response<Body> {
    respond(200, "application/json; charset=utf-8", body)
}
