//! What is read from files of workers and of pods, and what is refused.

use baton_core::fleet::{Engine, Role, Worker};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::configured;
use super::list::{Bad, Listed, read};
use super::pod::Rules;
use crate::clock::Clock;
use crate::config::Config;
use crate::registry::{Registry, Settings, Spec};

fn rules(args: &str) -> Rules {
    let loaded = Config::load(args.split_whitespace().map(Into::into), &|_| None);
    Rules::of(&loaded.unwrap().config)
}

fn list(workers: &Value) -> Result<Listed, Bad> {
    read(&json!({"version": 1, "workers": workers}).to_string(), &rules(""))
}

fn worker(spec: &Spec) -> Worker {
    let mut spec = spec.clone();
    spec.lift_labels();
    spec.worker("i", None)
}

/// The workers of a file.
fn workers(text: &str, args: &str) -> Vec<Worker> {
    read(text, &rules(args)).unwrap().specs.iter().map(worker).collect()
}

fn wrong(text: &str, args: &str) -> String {
    match read(text, &rules(args)) {
        Err(Bad::Malformed(why) | Bad::Invalid(why)) => why,
        Ok(listed) => panic!("{:?}", listed.specs),
    }
}

const SMG: &str = r#"{"version": 1, "workers": [
  {"id": "p-0", "url": "http://10.0.0.1:8000/", "worker_type": "prefill", "bootstrap_port": 8998, "model_id": "m",
   "kv_connector": "MooncakeConnector", "kv_role": "kv_producer", "kv_engine_id": "e0", "priority": 60},
  {"id": "d-0", "url": "http://10.0.0.2:8000", "worker_type": "decode", "labels": {"roleset-name": "r0"}}
]}"#;

const YAML: &str = r#"
version: 1
workers:
  - {id: p-0, url: "http://10.0.0.1:8000/", worker_type: prefill, bootstrap_port: 8998, model_id: m,
     kv_connector: MooncakeConnector, kv_role: kv_producer, kv_engine_id: e0, priority: 60}
  - id: d-0
    url: http://10.0.0.2:8000
    worker_type: decode
    labels:
      roleset-name: r0
"#;

#[test]
fn a_list_is_the_same_in_json_and_yaml() {
    let (json, yaml) = (read(SMG, &rules("")).unwrap(), read(YAML, &rules("")).unwrap());
    assert_eq!(json.specs, yaml.specs);
    let [p, d] = json.specs.as_slice() else { panic!("{json:?}") };
    assert_eq!(
        (p.url.as_str(), p.role, p.bootstrap_port),
        ("http://10.0.0.1:8000", Role::Prefill, Some(8998))
    );
    assert_eq!((p.priority, p.models[0].id.as_str()), (60, "m"));
    let connector = (p.kv_connector.as_deref(), p.kv_role.as_deref(), p.kv_engine_id.as_deref());
    assert_eq!(connector, (Some("MooncakeConnector"), Some("kv_producer"), Some("e0")));
    assert_eq!((d.role, d.labels["roleset-name"].as_str()), (Role::Decode, "r0"));
    let shown = worker(d);
    assert_eq!(shown.label("smg.ai/discovery-provider"), Some("file"));
    assert_eq!(shown.label("smg.ai/discovery-id"), Some("d-0"));
    assert_eq!(shown.label("smg.ai/discovery-spec-hash").unwrap().len(), 16);
    assert!(read(r#"{"version": 1, "workers": []}"#, &rules("")).unwrap().specs.is_empty());
}

#[test]
fn what_a_list_cannot_say_is_refused_and_says_where() {
    let one = json!({"id": "a", "url": "http://h:1"});
    for (workers, why) in [
        (json!([{"url": "http://h:1"}]), "workers[0]: id is missing"),
        (json!([{"id": "", "url": "http://h:1"}]), "worker \"\": id must be a text"),
        (json!([{"id": 5, "url": "http://h:1"}]), "workers[0]: id must be a text"),
        (json!([{"id": "a"}]), "worker \"a\": missing field `url`"),
        (json!([{"id": "a", "url": "grpc://h:1"}]), "worker \"a\": url: "),
        (json!([{"id": "a", "url": "http://h:1", "worker_tpye": "decode"}]), "did you mean worker_type?"),
        (
            json!([{"id": "a", "url": "http://h:1", "health": {"timeout": 1}}]),
            "unknown field \"health.timeout\"",
        ),
        (json!([{"id": "a", "url": "http://h:1", "model_id": "m", "models": ["m"]}]), "not both"),
        (json!([{"id": "a", "url": "http://h:1", "labels": {"a": 1}}]), "must be a text, in quotes"),
        (json!([one, one]), "two workers have the id \"a\""),
        (json!([one, {"id": "b", "url": "http://h:1/"}]), "workers \"a\" and \"b\" have one url: http://h:1"),
        (json!(["http://h:1"]), "workers[0]: must be a mapping"),
        (
            json!([{"id": "a", "url": "http://h:1", "labels": {"n": 8}}]),
            "worker \"a\": labels: \"n\" must be a text, in quotes, and is 8",
        ),
        (json!({"a": 1}), "workers must be a list"),
    ] {
        let Err(Bad::Invalid(told)) = list(&workers) else { panic!("{workers}") };
        assert!(told.contains(why), "{told}\n{why}");
    }
    for (text, why) in [
        ("", "it is empty"),
        ("# nothing\n---\n", "it is empty"),
        ("{", "it is no JSON: "),
        (&SMG[..200], "it is no JSON: "),
        (r#"{"version": 1, "workers": [], "workers": []}"#, "\"workers\" is given twice"),
        (
            r#"{"version": 1, "workers": [{"id": "a", "url": "http://h:1", "url": "http://h:2"}]}"#,
            "\"url\" is given twice",
        ),
        ("version: 1\nversion: 1\n", "line 2: version is given twice"),
        ("a: &x 1\nb: *x\n", "anchors, aliases and tags"),
        ("{\"workers\": []}", "version is missing"),
        ("version: 2\nworkers: []\n", "version must be 1"),
        ("version: 1\nworkers: []\nmore: 1\n", "unknown field \"more\""),
        ("hello", "it is neither a list of workers"),
        ("kind: Service\n", "it is neither a list of workers"),
        ("kind: List\n", "items of a List must be a list"),
    ] {
        assert!(wrong(text, "").contains(why), "{text}: {}", wrong(text, ""));
    }
    let many: Vec<Value> =
        (0..4097).map(|n| json!({"id": n.to_string(), "url": format!("http://h:1/{n}")})).collect();
    assert_eq!(list(&json!(many)).unwrap_err(), Bad::Invalid("it has more than 4096 workers".into()));
}

#[test]
fn with_pd_disaggregation_a_listed_worker_is_a_leg() {
    let pd = "--pd-disaggregation";
    assert_eq!(workers(SMG, pd).len(), 2);
    for fields in ["", "worker_type: regular,", "labels: {role-name: all},"] {
        let text = format!("version: 1\nworkers: [{{{fields} id: a, url: 'http://h:1'}}]");
        assert_eq!(
            wrong(&text, pd),
            "worker \"a\": worker_type must be prefill or decode, with --pd-disaggregation"
        );
        assert_eq!(workers(&text, "")[0].role, Role::Whole);
    }
    let told = "version: 1\nworkers: [{labels: {role-name: decode}, id: a, url: 'http://h:1'}]";
    assert_eq!(workers(told, pd)[0].role, Role::Decode);
}

#[test]
fn fields_without_effect_are_told() {
    let listed = list(&json!([{"id": "a", "url": "http://h:1", "provider": "x", "resilience": {}}])).unwrap();
    assert_eq!(listed.odd, ["worker \"a\": these fields have no effect: provider, resilience"]);
}

/// Pods as AIBrix's page writes them, with what a cluster adds, or an operator in a file.
const AIBRIX: &str = r#"
metadata:
  name: prefill-0
  labels:
    model.aibrix.ai/name: my-model
    model.aibrix.ai/port: "8001"
    model.aibrix.ai/engine: sglang
    role-name: prefill
    roleset-name: group-0
  annotations:
    model.aibrix.ai/sglang-bootstrap-port: "9000"
    kubectl.kubernetes.io/last-applied-configuration: "{}"
status:
  podIP: 10.0.0.1
---
apiVersion: v1
kind: Pod
metadata:
  name: standard-0
  namespace: llm
  labels:
    model.aibrix.ai/name: my-model
  annotations:
    model.aibrix.ai/config: |
      {
        "profiles": {
          "default": {"routingStrategy": "pd", "routingConfig": {"combined": true}}
        }
      }
    baton/address: standard-0.llm
---
kind: Service
"#;

#[test]
fn aibrix_pods_are_what_their_labels_say() {
    let found = workers(AIBRIX, "");
    let [p, w] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((p.url.as_str(), p.role, p.engine), ("http://10.0.0.1:8001", Role::Prefill, Engine::Sglang));
    assert_eq!((p.models.as_slice(), p.bootstrap_port), (["my-model".to_owned()].as_slice(), Some(9000)));
    assert_eq!(
        (p.label("roleset-name"), p.label("smg.ai/discovery-id")),
        (Some("group-0"), Some("default/prefill-0:8001"))
    );
    assert_eq!(
        p.pod.as_ref().map(|pod| (pod.name.as_str(), pod.ip.as_str())),
        Some(("prefill-0", "10.0.0.1"))
    );
    assert_eq!(p.annotations.keys().collect::<Vec<_>>(), ["model.aibrix.ai/sglang-bootstrap-port"]);
    assert_eq!((w.url.as_str(), w.role, w.engine), ("http://standard-0.llm:8000", Role::Whole, Engine::Vllm));
    assert!(w.annotation("model.aibrix.ai/config").unwrap().contains("combined"));
    assert_eq!(w.label("pod_namespace"), Some("llm"));
    assert_eq!(workers(AIBRIX, "--service-discovery-namespace llm").len(), 1);
    assert_eq!(
        workers(AIBRIX, "--pd-disaggregation").len(),
        2,
        "standard pods beside pairs are AIBrix's way"
    );
}

fn pod(name: &str, labels: Value, annotations: Value, status: Value) -> Value {
    let metadata = json!({
        "name": name, "uid": format!("uid-{name}"), "labels": labels, "annotations": annotations,
        "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": []});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": status})
}

fn well(ip: &str) -> Value {
    let conditions = json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]);
    json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions})
}

fn pods(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}})
        .to_string()
}

const SELECTORS: &str = "--selector app=s role=all --prefill-selector app=s role=prefill --decode-selector app=s role=decode \
    --encode-selector app=s role=encode --service-discovery-port 8000";

#[test]
fn smg_pods_are_what_selectors_and_annotations_say() {
    let of = |role: &str| json!({"app": "s", "role": role, "moriio_mode": "write"});
    let annotations = json!({
        "smg.ai/worker-ports": "8000, 8001,8000", "sglang.ai/bootstrap-port": "9000,9001",
        "smg.ai/kv-connector": "MooncakeConnector", "smg.ai/kv-engine-id": "e0,e1"});
    let text = pods(&[
        pod("p", of("prefill"), annotations.clone(), well("10.0.0.1")),
        pod("d", of("decode"), annotations, well("fd00::2")),
        pod("w", of("all"), json!({}), well("10.0.0.3")),
        pod("e", of("encode"), json!({}), well("10.0.0.4")),
        pod("x", json!({"app": "s"}), json!({}), well("10.0.0.5")),
        pod("a", json!({"model.aibrix.ai/name": "m"}), json!({}), well("10.0.0.6")),
    ]);
    let found = workers(&text, SELECTORS);
    let urls: Vec<(&str, Role)> = found.iter().map(|w| (w.url.as_str(), w.role)).collect();
    assert_eq!(
        urls,
        [
            ("http://10.0.0.1:8000", Role::Prefill),
            ("http://10.0.0.1:8001", Role::Prefill),
            ("http://[fd00::2]:8000", Role::Decode),
            ("http://[fd00::2]:8001", Role::Decode),
            ("http://10.0.0.3:8000", Role::Whole),
        ]
    );
    let ports: Vec<_> = found.iter().map(|w| w.bootstrap_port).collect();
    assert_eq!(ports, [Some(9000), Some(9001), None, None, None], "of prefill pods alone");
    let ids: Vec<_> = found.iter().map(|w| w.kv_engine_id.as_deref()).collect();
    assert_eq!(ids, [Some("e0"), Some("e1"), Some("e0"), Some("e1"), None]);
    assert_eq!(found[1].kv_connector.as_deref(), Some("MooncakeConnector"));
    assert_eq!(
        (found[1].label("smg.ai/discovery-id"), found[1].label("moriio_mode")),
        (Some("uid-p:8001"), Some("write"))
    );
    assert_eq!(
        (found[1].label("smg.ai/pod-name"), found[1].label("smg.ai/pod-uid")),
        (Some("p"), Some("uid-p"))
    );
    let passed = read(&text, &rules(SELECTORS)).unwrap().passed_over;
    let named: Vec<&str> = passed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, ["default/e", "default/x", "default/a"]);
    let pd = workers(&text, &format!("{SELECTORS} --pd-disaggregation"));
    assert!(pd.len() == 4 && pd.iter().all(Worker::is_leg), "with PD only legs");
}

#[test]
fn a_selector_leaves_the_role_to_aibrix() {
    let labels = json!({"app": "s", "role-name": "decode"});
    let text = pods(&[pod("d", labels, json!({}), well("10.0.0.1"))]);
    assert_eq!(workers(&text, "--selector app=s")[0].role, Role::Decode);
    assert_eq!(workers(&text, "--selector app=s --decode-selector app=t")[0].url, "http://10.0.0.1:80");
}

#[test]
fn only_pods_that_serve_are_workers() {
    let labels = || json!({"model.aibrix.ai/name": "m"});
    let status = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod("a", labels(), json!({}), well("10.0.0.1"));
        change(&mut pod);
        read(&pods(&[pod]), &rules("")).unwrap()
    };
    let ready = status(&|_| {});
    assert_eq!((ready.specs.len(), ready.passed_over.len()), (1, 0));
    for (change, why) in [
        (
            &(|pod: &mut Value| pod["status"]["phase"] = "Pending".into()) as &dyn Fn(&mut Value),
            "not running",
        ),
        (&|pod| pod["status"]["conditions"][1]["status"] = "False".into(), "not ready"),
        (&|pod| pod["status"]["conditions"] = json!([]), "not ready"),
        (&|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(), "terminating"),
        (&|pod| pod["status"]["podIP"] = Value::Null, "no IP address yet"),
        (&|pod| pod["metadata"]["labels"] = json!({}), "model.aibrix.ai/name"),
        (&|pod| pod["metadata"]["labels"] = Value::Null, "model.aibrix.ai/name"),
    ] {
        let told = status(change);
        assert!(told.specs.is_empty() && told.passed_over[0].1.contains(why), "{told:?}");
    }
    for (index, serves) in [("0", true), ("1", false), ("", false), ("-1", false)] {
        let name = "stormservice.orchestration.aibrix.ai/pod-group-index";
        let told = status(&|pod| pod["metadata"]["labels"][name] = index.into());
        assert_eq!(told.specs.len() == 1, serves, "{index:?}");
    }
}

#[test]
fn a_pod_that_cannot_be_meant_is_refused_by_name() {
    let labels = || json!({"model.aibrix.ai/name": "m"});
    for (pod, why) in [
        (
            pod("a", labels(), json!({}), json!({})),
            "pod default/a: nothing says where it is: give status.podIP",
        ),
        (pod("a", labels(), json!({}), json!({"podIP": "h"})), "status.podIP: \"h\" is no IP address"),
        (pod("a", labels(), json!({"baton/address": "h:1"}), json!({})), "\"h:1\""),
        (pod("a", labels(), json!({"baton/address": "h/x"}), json!({})), "\"h/x\""),
        (pod("", labels(), json!({}), well("10.0.0.1")), "metadata.name is missing"),
        (
            pod("a", json!({"model.aibrix.ai/name": "m", "port": 1}), json!({}), well("10.0.0.1")),
            "pod a: labels: \"port\" must be a text, in quotes, and is 1",
        ),
        (
            pod("a", labels(), json!({"x": true}), well("10.0.0.1")),
            "pod a: annotations: \"x\" must be a text, in quotes, and is true",
        ),
        (
            pod("a", json!({"model.aibrix.ai/name": "m", "max_num_seqs": "x"}), json!({}), well("10.0.0.1")),
            "max_num_seqs",
        ),
    ] {
        let told = wrong(&pods(&[pod]), "");
        assert!(told.contains(why), "{told}\n{why}");
    }
    let twice =
        [pod("a", labels(), json!({}), well("10.0.0.1")), pod("b", labels(), json!({}), well("10.0.0.1"))];
    assert!(wrong(&pods(&twice), "").contains("have one url: http://10.0.0.1:8000"));
}

#[test]
fn odd_annotations_are_told_and_left_out() {
    let odd = |name: &str, text: &str| {
        let mut annotations = json!({"smg.ai/worker-ports": "8000,8001"});
        annotations[name] = text.into();
        let pod = pod("p", json!({"app": "s", "role": "prefill"}), annotations, well("10.0.0.1"));
        let listed = read(&pods(&[pod]), &rules(SELECTORS)).unwrap();
        let all: Vec<_> = listed.specs.iter().map(|s| (s.bootstrap_port, s.kv_engine_id.clone())).collect();
        (all, listed.odd.len())
    };
    let none = (None, None);
    assert_eq!(odd("smg.ai/worker-ports", "8000,x"), (vec![none.clone()], 1));
    assert_eq!(odd("smg.ai/worker-ports", "0"), (vec![none.clone()], 1));
    for (name, text) in [
        ("sglang.ai/bootstrap-port", "9000,9001,9002"),
        ("sglang.ai/bootstrap-port", "x"),
        ("smg.ai/kv-engine-id", "e0"),
        ("smg.ai/kv-engine-id", "e0,e0"),
        ("smg.ai/kv-engine-id", "e0,"),
        ("note", &"x".repeat(70_000)),
    ] {
        assert_eq!(odd(name, text), (vec![none.clone(), none.clone()], 1), "{name} {text:.20}");
    }
    let one_for_all = vec![(Some(9000), None), (Some(9000), None)];
    assert_eq!(odd("sglang.ai/bootstrap-port", "9000"), (one_for_all, 0));
}

#[test]
fn a_pods_model_is_where_the_operator_keeps_it() {
    let labels = json!({"model.aibrix.ai/name": "m", "team": "t"});
    let text = pods(&[pod("a", labels, json!({"served": "s"}), well("10.0.0.1"))]);
    for (args, model) in [
        ("", "m"),
        ("--model-id-from namespace", "default"),
        ("--model-id-from label:team", "t"),
        ("--model-id-from annotation:served", "s"),
        ("--model-id-from label:none", "m"),
    ] {
        assert_eq!(workers(&text, args)[0].models, [model], "{args}");
    }
    let by_annotation = pods(&[pod("a", json!({}), json!({"model.aibrix.ai/name": "m"}), well("10.0.0.1"))]);
    assert_eq!(workers(&by_annotation, "")[0].models, ["m"]);
}

#[test]
fn each_list_has_its_role() {
    let args = "--prefill http://p:1 9 --prefill http://p:2 none --prefill http://p:3 \
        --decode http://d:1 --worker-urls http://w:1";
    let loaded = Config::load(args.split_whitespace().map(Into::into), &|_| None).unwrap();
    let configured = configured(&loaded.config).into_iter();
    let found: Vec<_> = configured.map(|s| (s.url, s.role, s.bootstrap_port, s.no_bootstrap)).collect();
    let expected = [
        ("http://p:1", Role::Prefill, Some(9), false),
        ("http://p:2", Role::Prefill, None, true),
        ("http://p:3", Role::Prefill, None, false),
        ("http://d:1", Role::Decode, None, false),
        ("http://w:1", Role::Whole, None, false),
    ];
    assert_eq!(found, expected.map(|(url, role, port, none)| (url.to_owned(), role, port, none)));
}

/// The page's examples are what it says they are.
#[test]
fn the_examples_of_the_page_are_read() {
    let page = include_str!("../../../../docs/discovery.md");
    let examples = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let roles: Vec<Vec<Role>> =
        examples.map(|text| workers(text, "").iter().map(|w| w.role).collect()).collect();
    let pair = [Role::Prefill, Role::Decode];
    assert_eq!(roles, [pair.to_vec(), [&pair[..], &[Role::Whole]].concat()]);
}

proptest! {
    /// A file that is cut, spoilt or put together of others is read or refused in words, and what was read is followed:
    /// a second time there is nothing left to do.
    #[test]
    fn any_text_is_read_or_refused(
        which in 0..4usize, from in 0..1000usize, cut in 0..40usize, put in "[ -~\n]{0,12}", pd in any::<bool>(),
    ) {
        let kubectl = pods(&[pod("p", json!({"app": "s", "role": "prefill"}), json!({}), well("10.0.0.1"))]);
        let text = [SMG, YAML, AIBRIX, &kubectl][which];
        let from = from % text.len();
        let text = [&text[..from], &put, &text[(from + cut).min(text.len())..]].concat();
        let rules = rules(if pd { "--pd-disaggregation" } else { SELECTORS });
        match read(&text, &rules) {
            Err(Bad::Malformed(why) | Bad::Invalid(why)) => prop_assert!(!why.is_empty()),
            Ok(listed) => {
                let registry = Registry::new(Settings::of(&Config::default(), Clock::start(), 1));
                let first = registry.roll("file", &listed.specs).unwrap();
                prop_assert_eq!((first.joined.len(), first.refused.len()), (listed.specs.len(), 0));
                let second = registry.roll("file", &listed.specs).unwrap();
                prop_assert!(second.joined.is_empty() && second.changed.is_empty() && second.left.is_empty());
            }
        }
    }
}
