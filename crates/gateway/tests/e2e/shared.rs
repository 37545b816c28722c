//! The decode ledger shared between gateways through Redis: what one charges the other sees, and whatever becomes of
//! Redis, requests are served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_core::place::cascade::books::Held;
use baton_core::place::cascade::ledger::Charge;
use baton_core::place::cascade::shared::Remote;
use baton_gateway::gateway::Gateway;
use baton_gateway::ledger::{Attempt, Shown};
use baton_gateway::serve::Running;
use baton_sim::Dialect;
use rustls_pki_types::PrivateKeyDer;
use serde_json::json;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::support::{Ask, Door, House, PROMPT, Page, Plan, Redis, Streamed, Way, until};

fn plan(way: &Way) -> Plan {
    // Engines as slow as real ones: what decodes for 4000 tokens does so until it is dropped.
    let engines = Plan::pairs(Dialect::Vllm, 1, 2).engines(|spec| spec.time_scale = 1.0);
    engines.args(&way.args()).env("POD_NAME", "here").by_tokens()
}

impl Plan {
    fn by_tokens(self) -> Plan {
        self.env("ROUTING_ALGORITHM", "pd").env("AIBRIX_DECODE_SCORE_POLICY", "token_load")
    }
}

/// A second gateway for the same engines, ready to serve.
async fn beside(house: &House, way: &Way) -> Running {
    let running = plan(way).args("--redis-instance there").beside(house).await;
    let gateway = running.gateway.clone();
    until("all workers are ready", || gateway.registry.load_full().seats().all(|s| s.pulse.in_service()))
        .await;
    running
}

fn endless() -> Ask {
    Ask::chat(PROMPT, 4000).with(json!({"ignore_eos": true})).streamed()
}

/// A request that decodes until it is dropped.
async fn decoding(address: SocketAddr) -> Streamed {
    let mut stream = endless().stream(address).await;
    stream.read_events(2).await;
    stream
}

/// A charge on the first decode that stays until it is dropped.
fn hold(house: &House) -> (Held, Held) {
    let charge = Charge {
        prefill: None,
        decode: Some((house.seat(1).slot, 1000)),
        at: house.gateway().clock.now(),
        ttl: Duration::ZERO,
    };
    let books = house.gateway().strategies.cascade().unwrap().books().clone();
    books.charge(&mut books.open(), charge)
}

/// What other gateways have on this engine, as requests see it now.
fn elsewhere(gateway: &Gateway, url: &str) -> Remote {
    let seat = gateway.registry.load_full().seats().find(|s| s.worker.url == url).unwrap().clone();
    let books = gateway.strategies.cascade().unwrap().books();
    let others = books.open().others.clone();
    others.on(seat.slot, gateway.clock.now())
}

fn shown(gateway: &Gateway) -> Shown {
    gateway.ledger.as_ref().and_then(|own| own.show()).unwrap_or_default()
}

async fn up(gateway: &Gateway) {
    until("charges are shared", || shown(gateway).up).await;
}

async fn down(gateway: &Gateway) {
    until("Redis is missed", || !shown(gateway).up).await;
}

/// The engine on which this gateway has a charge, as Redis holds it.
async fn charged(redis: &Redis, house: &House, instance: &str) -> usize {
    let key = |at: usize| format!("aibrix:dtl:default/{}", house.url(at));
    let holds = |at: usize| redis.fields().iter().any(|(k, own, _)| *k == key(at) && own == instance);
    until("the charge is in Redis", || holds(1) || holds(2)).await;
    if holds(1) { 1 } else { 2 }
}

/// Closes everything; nothing of these gateways is left in Redis.
async fn close(redis: &Redis, house: House, others: Option<Running>) {
    if let Some(running) = others {
        running.end().await;
        assert!(redis.fields().iter().all(|(_, own, _)| own != "there"), "{:?}", redis.fields());
        assert!(redis.instances().iter().all(|own| !own.starts_with("there:")));
    }
    house.close().await;
    assert_eq!((redis.fields(), redis.instances(), redis.complaints()), (vec![], vec![], vec![]));
}

#[tokio::test]
async fn gateways_see_each_others_charges() {
    let redis = Redis::default();
    let way = redis.way().await;
    let house = plan(&way).open().await;
    let other = beside(&house, &way).await;
    up(house.gateway()).await;
    up(&other.gateway).await;
    let stream = decoding(house.address).await;
    let busy = charged(&redis, &house, "here").await;
    let idle = 3 - busy;
    let tokens = (endless().body.to_string().len() / 4) as f64;
    let (_, _, value) = redis.fields().pop().unwrap();
    assert!(value.starts_with(&format!("{tokens},1,")), "{value}");
    until("the other sees it", || elsewhere(&other.gateway, &house.url(busy)).tokens == tokens).await;
    assert_eq!(elsewhere(house.gateway(), &house.url(busy)), Remote::default(), "its own is its own");
    let age = elsewhere(&other.gateway, &house.url(busy)).secs;
    assert!((0.0..20.0).contains(&age), "{age}");
    let home = other.gateway.registry.load_full();
    let home = home.seats().find(|s| s.worker.url == house.url(idle)).unwrap().worker.id.clone();
    for _ in 0..6 {
        let reply = Ask::chat(PROMPT, 3).served(other.address).await;
        assert_eq!(reply.header("x-baton-decode"), home);
    }
    let theirs = decoding(other.address).await;
    assert_eq!(charged(&redis, &house, "there").await, idle);
    until("and the first sees that", || elsewhere(house.gateway(), &house.url(idle)).tokens == tokens).await;
    let page = Page::fetch(other.metrics_address).await;
    assert_eq!(page.sum("baton_shared_ledger_up", &[]), 1.0);
    assert_eq!(page.sum("baton_shared_ledger_instances", &[]), 1.0);
    assert_eq!(page.sum("baton_shared_ledger_failures_total", &[]), 0.0);
    assert!(page.sum("baton_shared_ledger_age_seconds", &[]) < 3.0);
    stream.leave();
    theirs.leave();
    until("all is given back", || redis.fields().is_empty()).await;
    close(&redis, house, Some(other)).await;
}

#[tokio::test]
async fn charges_of_a_gateway_that_ends_are_taken_back() {
    let redis = Redis::default();
    let way = redis.way().await;
    let house = plan(&way).open().await;
    let other = beside(&house, &way).await;
    up(&other.gateway).await;
    let stream = decoding(other.address).await;
    charged(&redis, &house, "there").await;
    // It ends at once, and what it decodes with it.
    close(&redis, house, Some(other)).await;
    drop(stream);
}

#[tokio::test]
async fn a_gateway_that_was_not_seen_for_three_seconds_is_ignored() {
    let redis = Redis::default();
    let (way, own) = (redis.way().await, redis.way().await);
    let house = plan(&way).open().await;
    let other = beside(&house, &own).await;
    up(&other.gateway).await;
    let held = hold(&house);
    let busy = house.url(charged(&redis, &house, "here").await);
    until("the other sees it", || elsewhere(&other.gateway, &busy).tokens == 1000.0).await;
    way.set(Door::Shut);
    down(house.gateway()).await;
    redis.put_forward(3001);
    until("it is as good as dead", || elsewhere(&other.gateway, &busy) == Remote::default()).await;
    assert_eq!(redis.fields().len(), 1, "though it is still there");
    let quick = Ask::chat(PROMPT, 3);
    quick.served(house.address).await;
    quick.served(other.address).await;
    way.set(Door::Open);
    up(house.gateway()).await;
    until("it is back", || elsewhere(&other.gateway, &busy).tokens == 1000.0).await;
    drop(held);
    close(&redis, house, Some(other)).await;
}

#[tokio::test]
async fn what_aibrix_has_written_counts_and_what_is_broken_does_not() {
    let redis = Redis::default();
    let way = redis.way().await;
    let house = plan(&way).open().await;
    up(house.gateway()).await;
    let key = |at: usize| format!("aibrix:dtl:default/{}", house.url(at));
    let now = redis.now_ms() as f64 / 1000.0;
    redis.charge(&key(1), "aibrix-gateway-0:17", &format!("1.5e+03,2,{:e}", 2.0 * now - 20.0));
    redis.charge(&key(2), "aibrix-gateway-0:17", "abc");
    until("it is seen", || elsewhere(house.gateway(), &house.url(1)).tokens == 1500.0).await;
    let age = elsewhere(house.gateway(), &house.url(1)).secs;
    assert!((19.0..60.0).contains(&age), "{age}");
    let idle = house.seat(2).worker.id.clone();
    for _ in 0..4 {
        redis.charge(&key(1), "aibrix-gateway-0:17", "1500,2,0");
        assert_eq!(Ask::chat(PROMPT, 3).served(house.address).await.header("x-baton-decode"), idle);
    }
    house.close().await;
    assert_eq!(redis.fields().len(), 2, "what belongs to others stays");
    assert_eq!(redis.complaints(), Vec::<String>::new());
}

/// Others write to this Redis, and what they do to one worker's key is about that worker alone.
#[tokio::test]
async fn a_key_that_holds_something_else_is_no_outage() {
    let redis = Redis::default();
    let way = redis.way().await;
    let house = plan(&way).open().await;
    up(house.gateway()).await;
    let key = |at: usize| format!("aibrix:dtl:default/{}", house.url(at));
    redis.spoil(&key(1));
    let held = hold(&house);
    redis.charge(&key(2), "aibrix-gateway-0:17", &format!("1500,1,{}", redis.now_ms() / 1000));
    until("the other worker's is seen", || elsewhere(house.gateway(), &house.url(2)).tokens == 1500.0).await;
    Ask::chat(PROMPT, 3).served(house.address).await;
    drop(held);
    assert_eq!((shown(house.gateway()).up, shown(house.gateway()).failures), (true, [0; 3]));
    house.close().await;
    // And the instances' own key is about everybody.
    redis.spoil("aibrix:rrq:gateways");
    let house = plan(&way).open().await;
    until("looks fail", || shown(house.gateway()).failures[Attempt::Look as usize] > 0).await;
    assert!(!shown(house.gateway()).up);
    Ask::chat(PROMPT, 3).served(house.address).await;
    house.close().await;
}

#[tokio::test]
async fn whatever_becomes_of_redis_requests_are_served() {
    let redis = Redis::default();
    let way = redis.way().await;
    let house = plan(&way).open().await;
    up(house.gateway()).await;
    let held = hold(&house);
    for (door, what) in [(Door::Hangs, Attempt::Connect), (Door::Shut, Attempt::Connect)] {
        let what = what as usize;
        let before = shown(house.gateway()).failures;
        way.set(door);
        down(house.gateway()).await;
        for ask in [Ask::chat(PROMPT, 3), Ask::chat(PROMPT, 3).streamed()] {
            ask.served(house.address).await;
        }
        until("attempts fail", || shown(house.gateway()).failures[what] > before[what]).await;
        // It may have been restarted meanwhile, and know nothing.
        redis.forget();
        way.set(Door::Open);
        up(house.gateway()).await;
        assert_eq!(charged(&redis, &house, "here").await, 1);
    }
    let page = house.page().await;
    assert!(page.sum("baton_shared_ledger_failures_total", &["attempt=\"connect\""]) >= 2.0);
    drop(held);
    close(&redis, house, None).await;
}

#[tokio::test]
async fn a_password_is_asked_for_and_never_shown() {
    let redis = Redis::default();
    redis.demand("open-sesame");
    let way = redis.way().await;
    for (args, env) in [("", ""), ("--redis-password open-barley", ""), ("", "open-rye")] {
        let mut plan = plan(&way).args(args);
        if !env.is_empty() {
            plan = plan.env("REDIS_PASSWORD", env);
        }
        let house = plan.open().await;
        until("it is not let in", || shown(house.gateway()).failures[0] > 0).await;
        Ask::chat(PROMPT, 3).served(house.address).await;
        assert!(!shown(house.gateway()).up);
        house.close().await;
    }
    let house = plan(&way).env("REDIS_PASSWORD", "open-sesame").open().await;
    up(house.gateway()).await;
    assert!(!house.gateway().description.to_string().contains("sesame"));
    close(&redis, house, None).await;
}

#[tokio::test]
async fn redis_may_be_spoken_to_over_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let folder = std::env::temp_dir().join(format!("baton-redis-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cert = folder.join("ca.pem");
    std::fs::write(&cert, made.cert.pem()).unwrap();
    let redis = Redis::default();
    let way = redis.way_through(Some(TlsAcceptor::from(Arc::new(config)))).await;
    let port = way.address.port().to_string();
    let encrypted = || {
        let plan = Plan::pairs(Dialect::Vllm, 1, 1).args("--redis-host localhost --redis-tls").by_tokens();
        plan.arg("--redis-port", &port)
    };
    let house = encrypted().arg("--redis-ca-path", cert.to_str().unwrap()).open().await;
    up(house.gateway()).await;
    Ask::chat(PROMPT, 3).served(house.address).await;
    close(&redis, house, None).await;
    let house = encrypted().open().await;
    until("a stranger's certificate is refused", || shown(house.gateway()).failures[0] > 0).await;
    house.close().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn redis_is_not_spoken_to_without_need() {
    let redis = Redis::default();
    let way = redis.way().await;
    let other =
        Plan::pairs(Dialect::Vllm, 1, 1).args(&way.args()).env("ROUTING_ALGORITHM", "pd").open().await;
    Ask::chat(PROMPT, 3).served(other.address).await;
    assert!(other.gateway().ledger.as_ref().is_some_and(|own| own.show().is_none()), "another policy");
    assert!(!other.page().await.has("baton_shared_ledger_up"));
    other.close().await;
    for house in [
        plan(&way).env("AIBRIX_TOKEN_LOAD_SHARED_LEDGER", "false").open().await,
        Plan::pairs(Dialect::Vllm, 1, 1).by_tokens().open().await,
    ] {
        decoding(house.address).await.leave();
        assert!(house.gateway().ledger.is_none());
        house.close().await;
    }
    close(&redis, Plan::pairs(Dialect::Vllm, 1, 1).open().await, None).await;
}

#[tokio::test]
async fn the_first_request_scored_by_tokens_begins_it() {
    let config = r#"{"profiles":{"default":{"routingStrategy":"pd",
        "routingConfig":{"decodeScorePolicy":"token_load"}}}}"#;
    let redis = Redis::default();
    let way = redis.way().await;
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args(&way.args()).registered(move |spec| {
        spec.annotations = [("model.aibrix.ai/config".to_owned(), config.to_owned())].into();
    });
    let house = house.open().await;
    assert_eq!(house.gateway().ledger.as_ref().unwrap().show(), None);
    Ask::chat(PROMPT, 3).served(house.address).await;
    up(house.gateway()).await;
    assert_eq!(redis.instances().len(), 1);
    close(&redis, house, None).await;
}
