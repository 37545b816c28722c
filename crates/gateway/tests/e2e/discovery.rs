//! `--discovery-file`: workers come, change and go with a file, and requests do not notice.

use std::os::unix::fs::symlink;

use baton_core::fleet::{Fleet, Status};
use baton_gateway::config::Config;
use baton_gateway::serve;
use baton_gateway::telemetry::log::Drops;
use baton_sim::{Dialect, Fault, FaultKind, FleetSpec};
use http::Method;
use serde_json::{Value, json};

use crate::support::{
    Ask, BOUND, Gate, House, List, PROMPT, Plan, Reply, Step, fault, request, until, within,
};

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 6)
}

/// Workers of a file, by name, address and what else.
fn list(workers: &[Value]) -> String {
    json!({"version": 1, "workers": workers}).to_string()
}

fn leg(id: &str, url: &str, role: &str) -> Value {
    json!({"id": id, "url": url, "worker_type": role, "kv_connector": "NixlConnector"})
}

fn whole(id: &str, url: &str) -> Value {
    json!({"id": id, "url": url})
}

fn first_alone(urls: &[String]) -> String {
    list(&[whole("w0", &urls[0])])
}

fn fleet(house: &House) -> std::sync::Arc<Fleet> {
    house.gateway().registry.load_full()
}

/// Waits until exactly these addresses are there and get requests.
async fn there(house: &mut House, urls: &[String]) {
    let gateway = house.gateway().clone();
    let mut wanted = urls.to_vec();
    wanted.sort();
    let arrived = || {
        let fleet = gateway.registry.load_full();
        let mut there: Vec<String> = fleet.seats().map(|seat| seat.worker.url.clone()).collect();
        there.sort();
        there == wanted && fleet.seats().all(|seat| seat.pulse.in_service())
    };
    until("the workers of the file are there", arrived).await;
    house.note_seats();
}

#[tokio::test]
async fn streams_run_on_while_workers_come_change_and_go() {
    let pairs = |urls: &[String]| {
        list(&[
            leg("p0", &urls[0], "prefill"),
            leg("p1", &urls[1], "prefill"),
            leg("d0", &urls[2], "decode"),
            leg("d1", &urls[3], "decode"),
        ])
    };
    let plan = Plan::pairs(Dialect::Vllm, 2, 2).engines(|spec| spec.time_scale = 0.2);
    let mut house = plan.args("--pd-disaggregation --policy round_robin").listed(pairs).open().await;
    let urls = [0, 1, 2, 3].map(|at| house.url(at));
    let [p0, p1, d0, d1] = urls.clone();
    let address = house.address;
    // Two at a time, for as long as the file changes.
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..2)
        .map(|client| {
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let mut served = 0;
                while !*stopped.borrow() {
                    let ask = Ask::completion(&format!("{PROMPT} {client} {served}"), 40).streamed();
                    ask.check(&ask.stream(address).await.rest().await);
                    served += 1;
                }
                served
            })
        })
        .collect();
    let [two, labelled, other] = [
        [leg("p0", &p0, "prefill"), leg("d0", &d0, "decode")],
        [leg("p0", &p0, "prefill"), leg("d0", &d0, "decode")].map(|mut w| {
            w["labels"] = json!({"tier": "a"});
            w
        }),
        [leg("p1", &p1, "prefill"), leg("d1", &d1, "decode")],
    ];
    for _ in 0..3 {
        house.list().write(&list(&two));
        there(&mut house, &[p0.clone(), d0.clone()]).await;
        let slots: Vec<u32> = fleet(&house).seats().map(|seat| seat.slot).collect();
        house.list().overwrite(&list(&labelled));
        until("labels are there", || fleet(&house).seats().all(|s| s.worker.label("tier") == Some("a")))
            .await;
        let after: Vec<u32> = fleet(&house).seats().map(|seat| seat.slot).collect();
        assert_eq!(after, slots, "described anew in place");
        // All at once others take their places: nobody is turned away, the old ones go when the new ones are well.
        house.list().write(&list(&other));
        there(&mut house, &[p1.clone(), d1.clone()]).await;
    }
    house.list().write(&list(&[two.as_slice(), other.as_slice()].concat()));
    there(&mut house, &urls).await;
    stop.send_replace(true);
    for client in clients {
        let served: usize = within(BOUND, "a client ends", client).await.unwrap();
        assert!(served > 0);
    }
    let page = house.page().await;
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="failed""#]), 0.0);
    assert_eq!(page.sum("smg_discovery_workers_discovered", &[r#"source="file""#]), 4.0);
    assert!(page.sum("smg_discovery_registrations_total", &[r#"result="success""#]) >= 10.0);
    assert!(page.sum("smg_discovery_deregistrations_total", &[r#"reason="removed""#]) >= 10.0);
    house.close().await;
}

#[tokio::test]
async fn a_stream_outlives_the_entry_of_its_worker() {
    const FIRST: &str = "data: {\"choices\":[]}\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).tapped();
    let mut house = plan.listed(first_alone).open().await;
    let [first, second] = [0, 1].map(|at| house.url(at));
    let gate = Gate::default();
    house.taps[0].script([
        Step::stream_head(""),
        Step::chunk(FIRST),
        Step::Wait(gate.clone()),
        Step::chunk(DONE),
        Step::last_chunk(),
    ]);
    let mut stream = ask(0).streamed().stream(house.address).await;
    stream.read_until(FIRST).await;
    let old = house.seat(0);
    house.list().write(&list(&[whole("w1", &second)]));
    until("it gets no more", || old.pulse.status() == Status::Draining).await;
    house.note_seats();
    for at in 1..4 {
        ask(at).served(house.address).await;
    }
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (1, 3));
    assert_eq!(old.load.in_flight(), 1);
    gate.open();
    assert_eq!(stream.rest().await.text(), format!("{FIRST}{DONE}"));
    there(&mut house, &[second]).await;
    assert_ne!(house.url(1), first);
    house.close().await;
}

#[tokio::test]
async fn whoever_serves_alone_waits_for_the_one_that_takes_its_place() {
    let quick = "--worker-startup-check-interval 0.02 --health-success-threshold 1";
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).args(quick).no_retries();
    let mut house = plan.listed(first_alone).open().await;
    let [first, second] = [0, 1].map(|at| house.url(at));
    let sick = Fault { times: 1000, ..fault(FaultKind::UnwellHealth) };
    house.arm(1, sick).await;
    house.list().write(&list(&[whole("w1", &second)]));
    until("the new one joined", || fleet(&house).len() == 2).await;
    for at in 0..4 {
        let reply = ask(at).served(house.address).await;
        assert_eq!(reply.header("x-smg-routed-worker-id"), first);
    }
    house.engine(1).clear_faults();
    there(&mut house, std::slice::from_ref(&second)).await;
    assert_eq!(ask(9).served(house.address).await.header("x-smg-routed-worker-id"), second);
    house.close().await;
}

#[tokio::test]
async fn a_broken_file_changes_nothing_until_it_is_mended() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).args("--discovery-check-interval-secs 0.05");
    let mut house = plan.listed(first_alone).open().await;
    let [first, second] = [0, 1].map(|at| house.url(at));
    let good = list(&[whole("w1", &second)]);
    let twice = list(&[whole("w1", &second), whole("w1", &first)]);
    for (text, reason) in
        [(&good[..good.len() - 9], "malformed"), ("", "malformed"), (twice.as_str(), "invalid")]
    {
        house.list().overwrite(text);
        let label = format!("reason=\"{reason}\"");
        // Twice: the second reading was begun after the text was there.
        let before = house.page().await.sum("smg_discovery_snapshot_errors_total", &[&label]);
        within(BOUND, "the trouble is counted", async {
            while house.page().await.sum("smg_discovery_snapshot_errors_total", &[&label]) < before + 2.0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        there(&mut house, std::slice::from_ref(&first)).await;
        ask(0).served(house.address).await;
    }
    std::fs::remove_file(house.list().path()).unwrap();
    within(BOUND, "it is missed", async {
        let missing = [r#"reason="missing""#];
        while house.page().await.sum("smg_discovery_snapshot_errors_total", &missing) < 1.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    there(&mut house, &[first]).await;
    house.list().write(&good);
    there(&mut house, &[second]).await;
    let page = house.page().await;
    assert!(page.sum("baton_discovery_last_good_timestamp_seconds", &[r#"source="file""#]) > 1.7e9);
    assert!(page.sum("baton_discovery_looks_total", &[r#"result="failed""#]) >= 7.0);
    house.close().await;
}

/// As Kubernetes mounts a ConfigMap: the directory of each state is new, and one link is turned.
#[tokio::test]
async fn a_link_that_is_turned_is_a_change() {
    let lists = List::new();
    let state = |name: &str, text: &str| {
        std::fs::create_dir(lists.home().join(name)).unwrap();
        std::fs::write(lists.home().join(name).join("workers"), text).unwrap();
        symlink(name, lists.home().join("..data_tmp")).unwrap();
        std::fs::rename(lists.home().join("..data_tmp"), lists.home().join("..data")).unwrap();
    };
    state("..v1", r#"{"version": 1, "workers": []}"#);
    symlink("..data/workers", lists.path()).unwrap();
    // Only what is told counts here.
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).args("--discovery-check-interval-secs 3600");
    let plan = plan.arg("--discovery-file", lists.path().to_str().unwrap());
    let mut house = plan.empty().open().await;
    let [first, second] = [0, 1].map(|at| house.url(at));
    for (name, url) in [("..v2", &first), ("..v3", &second), ("..v4", &first)] {
        state(name, &list(&[whole("w", url)]));
        there(&mut house, std::slice::from_ref(url)).await;
        ask(0).served(house.address).await;
    }
    house.close().await;
}

#[tokio::test]
async fn workers_added_by_hand_are_not_touched() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 3)).args("--discovery-check-interval-secs 0.05");
    let mut house = plan.listed(first_alone).open().await;
    let urls = [0, 1, 2].map(|at| house.url(at));
    let added = Reply::post(house.address, "/workers", &json!({"url": urls[1]})).await;
    assert_eq!(added.status, 202, "{}", added.text());
    let by_hand = added.json()["worker_id"].as_str().unwrap().to_owned();
    house.list().write(&list(&[whole("w1", &urls[1]), whole("w2", &urls[2])]));
    there(&mut house, &urls[1..]).await;
    let shown = Reply::get(house.address, "/workers").await.json();
    let labels = |url: &str| {
        let workers = shown["workers"].as_array().unwrap();
        workers.iter().find(|w| w["url"] == url).unwrap()["labels"].clone()
    };
    assert_eq!(labels(&urls[1])["smg.ai/discovery-provider"], Value::Null, "it is still the operator's");
    assert_eq!(labels(&urls[2])["smg.ai/discovery-provider"], "file");
    assert_eq!(labels(&urls[2])["smg.ai/discovery-id"], "w2");
    assert_eq!(labels(&urls[2])["smg.ai/discovery-spec-hash"].as_str().unwrap().len(), 16);
    house.list().write(&list(&[]));
    there(&mut house, &urls[1..2]).await;
    ask(0).served(house.address).await;
    // Once it is gone the file has its way.
    house.list().write(&list(&[whole("w1", &urls[1])]));
    let gone = request(Method::DELETE, &format!("/workers/{by_hand}"), &[], bytes::Bytes::new());
    assert_eq!(Reply::send(house.address, gone).await.status, 202);
    let found = || fleet(&house).seats().any(|s| s.worker.label("smg.ai/discovery-id") == Some("w1"));
    until("the file's worker is there", found).await;
    there(&mut house, &urls[1..2]).await;
    house.close().await;
}

#[tokio::test]
async fn a_file_may_come_later_and_must_not_be_broken_at_the_start() {
    let lists = List::new();
    let path = lists.path();
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).args("--discovery-check-interval-secs 3600");
    let mut house = plan.arg("--discovery-file", path.to_str().unwrap()).empty().open().await;
    assert_eq!(Reply::get(house.address, "/readiness").await.status, 503);
    let url = house.url(0);
    lists.write(&list(&[whole("w", &url)]));
    there(&mut house, &[url]).await;
    house.close().await;

    lists.write("{\"version\": 1");
    let args = ["--port", "9", "--prometheus-port", "10", "--discovery-file", path.to_str().unwrap()];
    let config = Config::load(args.map(Into::into).into_iter(), &|_| None).unwrap().config;
    let Err(refused) = serve::start(config, 1, Drops::default()).await else { panic!("it started") };
    let told = refused.to_string();
    assert!(told.starts_with(&format!("--discovery-file {}: it is no JSON: EOF", path.display())), "{told}");
}

#[tokio::test]
async fn a_listed_worker_that_is_down_is_taken_in_anew() {
    let quick = "--discovery-check-interval-secs 0.05 --health-check-interval-secs 0.02 --health-failure-threshold 1 \
        --worker-startup-check-interval 0.02";
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).args(quick);
    let mut house = plan.listed(first_alone).open().await;
    let old = house.seat(0);
    let sick = Fault { times: 1000, ..fault(FaultKind::UnwellHealth) };
    house.arm(0, sick).await;
    until("it was given up", || fleet(&house).seats().any(|seat| seat.slot != old.slot)).await;
    assert_eq!(old.pulse.status(), Status::Draining);
    house.engine(0).clear_faults();
    let url = house.url(0);
    there(&mut house, &[url]).await;
    ask(0).served(house.address).await;
    house.close().await;
}
