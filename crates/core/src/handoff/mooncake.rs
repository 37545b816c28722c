//! vLLM with Mooncake: prefill first, tagged with a transfer id; the decode is told by the gateway.
//!
//! The prefill pushes its KV and returns nothing, so the gateway says to the decode what NIXL's prefill
//! would have said: the transfer id, the address of the prefill's bootstrap server, and the id of the
//! engine that holds the KV (page, "Connector Modes"). That id changes whenever the prefill restarts without
//! a pinned one, and is another for each data-parallel rank, so what the bootstrap server says of the
//! running engines goes before what was registered. Without an id nothing can be told: the prefill is not
//! tagged and the decode computes the prompt itself.
//!
//! What is told is put together only when the prefill has answered: what was known of the engine when the
//! leg was sent may be about one that is gone. A prefill that ended with its first token has dropped its KV
//! (vLLM 0.33), and a decode that waits for it would wait for minutes: then too the decode computes the
//! prompt itself.

use std::collections::BTreeMap;

use super::deliver::{Deliver, Reading};
use super::nixl::{IN_TURN, hands_over};
use super::{Mint, Plan, finish, quoted, shape};
use crate::ask::{Api, Ask};
use crate::body::{Edit, Envelope, scalar};
use crate::exchange::{Course, Leg};
use crate::fleet::Worker;
use crate::record::HandoffResult;

/// Where a prefill's bootstrap server listens when nothing else was registered (the page's default).
const BOOTSTRAP_PORT: u16 = 8998;

/// Most ranks of one engine that are remembered.
const RANKS_MAX: usize = 1024;

pub fn plan(prefill: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, Some("mooncake"), mint);
    if !hands_over(ask) {
        return plan;
    }
    let rank = rank(prefill, mint);
    let source = Source { live: prefill.kv_engine_ids.is_some(), rank };
    let tagged = source.engine(prefill).is_some();
    if !tagged && ask.has.thinking {
        // A leg without a tag is refused for a thinking budget above its cap, see passthrough.rs.
        return plan;
    }
    plan.prefill.clone_from(&plan.decode);
    shape::one_token(ask, &mut plan.prefill);
    let transfer = tagged.then(|| format!("xfer-{}", mint.dashed_uuid7()));
    if let Some(id) = &transfer {
        plan.ranks[Leg::Prefill as usize] = rank;
        let tag = format!(r#"{{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"{id}"}}"#);
        plan.prefill.push(Edit::set("kv_transfer_params", tag));
    }
    plan.course = Course { release: tagged, ..IN_TURN };
    plan.deliver = Deliver::Mooncake(Due { api: ask.api, transfer, source });
    plan
}

/// `http://host:port` of the prefill's bootstrap server.
pub(super) fn bootstrap(prefill: &Worker) -> String {
    let port = prefill.bootstrap_port.unwrap_or(BOOTSTRAP_PORT);
    match prefill.bootstrap_host.as_str() {
        bare if bare.contains(':') && !bare.starts_with('[') => format!("http://[{bare}]:{port}"),
        host => format!("http://{host}:{port}"),
    }
}

/// Reads the bootstrap server's answer to `GET /query`: engine ids by data-parallel rank. Anything in it that
/// is something else is left out.
pub fn engine_ids(answer: &Envelope) -> BTreeMap<u32, String> {
    let read = |(rank, entry): (std::borrow::Cow<'_, str>, &[u8])| {
        let id = scalar::member(entry, "engine_id").and_then(scalar::as_str)?;
        (!id.trim().is_empty()).then_some((rank.parse().ok()?, id.into_owned()))
    };
    answer.members().filter_map(read).take(RANKS_MAX).collect()
}

/// The rank that the prefill is pinned to: the worker's own, or one that the gateway picks where the engine
/// itself told of several.
fn rank(prefill: &Worker, mint: &mut Mint<'_>) -> Option<u32> {
    let own = prefill.dp_rank.filter(|_| dp_size(prefill).is_none_or(|size| size > 1));
    let live = prefill.kv_engine_ids.iter().flatten();
    own.or_else(|| match live.count() {
        0 | 1 => None,
        n => prefill.kv_engine_ids.as_ref()?.keys().nth(mint.dice.below(n)).copied(),
    })
}

/// Which engine will hold the KV.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    /// The engines themselves told their ids.
    live: bool,
    /// Where there are several.
    rank: Option<u32>,
}

impl Source {
    /// Its id, as far as it is known of the worker now.
    fn engine(&self, prefill: &Worker) -> Option<String> {
        if self.live {
            let ids = prefill.kv_engine_ids.as_ref()?;
            let id = match self.rank {
                Some(rank) => ids.get(&rank),
                None => ids.values().next().filter(|_| ids.len() == 1),
            };
            return id.cloned();
        }
        let base = prefill.kv_engine_id.as_deref().map(str::trim).filter(|id| !id.is_empty())?;
        match dp_size(prefill)? {
            1 => Some(base.to_owned()),
            _ => Some(format!("{base}_dp{}", self.rank?)),
        }
    }
}

/// How many ranks there are. `None`: the label is no number, so an id made from it would be a guess.
fn dp_size(prefill: &Worker) -> Option<u32> {
    match (prefill.dp_size, prefill.label("dp_size")) {
        (Some(size), _) => Some(size),
        (None, None) => Some(1),
        (None, Some(label)) => label.parse().ok().filter(|size| *size > 0),
    }
}

/// What the decode is still to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    api: Api,
    /// `None`: nothing, the engine's id was not known when the prefill was sent.
    transfer: Option<String>,
    source: Source,
}

impl Due {
    pub(super) fn is_live(&self) -> bool {
        self.source.live && self.transfer.is_some()
    }

    pub(super) fn read(&self, answer: Option<&Envelope>, prefill: &Worker) -> Reading {
        let lost = |why| Reading::nothing(HandoffResult::Missing, Some(why));
        let known = self.transfer.as_ref().zip(self.source.engine(prefill));
        let Some((id, engine)) = known else { return lost("the prefill's KV engine id is not known") };
        if answer.and_then(|answer| finish::at_cap(self.api, answer)) == Some(false) {
            return lost("the prefill ended with its first token, and Mooncake keeps no KV then");
        }
        let (engine, addr) = (quoted(&engine), quoted(&bootstrap(prefill)));
        let params = format!(
            r#"{{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"{id}","remote_engine_id":{engine},"remote_bootstrap_addr":{addr}}}"#
        );
        Reading { result: HandoffResult::Minted, ..Reading::over(params.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::body::BodyLimits;
    use crate::dice::Dice;
    use crate::fleet::Role;

    fn worker(set: impl FnOnce(&mut Worker)) -> Worker {
        let mut worker = Worker::new("p", "http://10.0.0.4:8000", Role::Prefill);
        set(&mut worker);
        worker
    }

    fn ids(list: &[(u32, &str)]) -> Option<BTreeMap<u32, String>> {
        Some(list.iter().map(|(rank, id)| (*rank, (*id).to_owned())).collect())
    }

    #[test]
    fn the_engine_that_holds_the_kv() {
        type Row = (&'static str, fn(&mut Worker), Option<(&'static str, Option<u32>)>);
        let rows: [Row; 15] = [
            ("nothing registered", |_| {}, None),
            ("an empty id", |w| w.kv_engine_id = Some(" ".into()), None),
            ("one rank", |w| w.kv_engine_id = Some("e".into()), Some(("e", None))),
            (
                "B43: rank 1 of two",
                |w| (w.kv_engine_id, w.dp_size, w.dp_rank) = (Some("e".into()), Some(2), Some(1)),
                Some(("e_dp1", Some(1))),
            ),
            ("B43: two, unpinned", |w| (w.kv_engine_id, w.dp_size) = (Some("e".into()), Some(2)), None),
            (
                "rank 0 of one",
                |w| (w.kv_engine_id, w.dp_size, w.dp_rank) = (Some("e".into()), Some(1), Some(0)),
                Some(("e", None)),
            ),
            (
                "two by label",
                |w| {
                    w.kv_engine_id = Some("e".into());
                    w.labels.insert("dp_size".into(), "2".into());
                },
                None,
            ),
            (
                "a label that is no number",
                |w| {
                    w.kv_engine_id = Some("e".into());
                    w.labels.insert("dp_size".into(), "two".into());
                },
                None,
            ),
            (
                "a label of 0",
                |w| {
                    w.kv_engine_id = Some("e".into());
                    w.labels.insert("dp_size".into(), "0".into());
                },
                None,
            ),
            (
                "a restarted engine",
                |w| (w.kv_engine_id, w.kv_engine_ids) = (Some("e-1".into()), ids(&[(0, "e-2")])),
                Some(("e-2", None)),
            ),
            (
                "its second rank",
                |w| {
                    (w.dp_rank, w.dp_size, w.kv_engine_ids) =
                        (Some(1), Some(2), ids(&[(0, "e-2_dp0"), (1, "e-2_dp1")]))
                },
                Some(("e-2_dp1", Some(1))),
            ),
            (
                "a rank that is not there",
                |w| (w.dp_rank, w.dp_size, w.kv_engine_ids) = (Some(3), Some(4), ids(&[(0, "e-2_dp0")])),
                None,
            ),
            ("any rank will do", |w| w.kv_engine_ids = ids(&[(4, "a"), (5, "a")]), Some(("a", Some(5)))),
            (
                "it told its id once and does not now",
                |w| (w.kv_engine_id, w.kv_engine_ids) = (Some("e-1".into()), ids(&[])),
                None,
            ),
            ("one rank, not the first", |w| w.kv_engine_ids = ids(&[(3, "e_dp3")]), Some(("e_dp3", None))),
        ];
        for (name, set, expected) in rows {
            let prefill = worker(set);
            let (mut dice, serial) = (Dice::new(1), AtomicU64::new(0));
            let rank = rank(&prefill, &mut Mint { dice: &mut dice, unix_ms: 0, serial: &serial });
            let engine = Source { live: prefill.kv_engine_ids.is_some(), rank }.engine(&prefill);
            assert_eq!(engine.as_deref().map(|id| (id, rank)), expected, "{name}");
        }
    }

    #[test]
    fn the_bootstrap_server_has_a_port_and_brackets() {
        let at = |url: &str, port| {
            let mut w = Worker::new("p", url, Role::Prefill);
            w.bootstrap_port = port;
            bootstrap(&w)
        };
        assert_eq!(at("http://10.0.0.4:8000", Some(8999)), "http://10.0.0.4:8999");
        assert_eq!(at("http://p-0:8000", None), "http://p-0:8998");
        assert_eq!(at("http://[fd00::4]:8000", None), "http://[fd00::4]:8998");
        let mut bare = Worker::new("p", "http://x:1", Role::Prefill);
        bare.bootstrap_host = "fd00::4".into();
        assert_eq!(bootstrap(&bare), "http://[fd00::4]:8998");
    }

    #[test]
    fn what_the_bootstrap_server_says() {
        let read = |text: &str| {
            let answer = Envelope::parse(text.to_owned().into(), &BodyLimits::default()).unwrap();
            engine_ids(&answer).into_iter().collect::<Vec<_>>()
        };
        let addr = r#""worker_addr":{"0":{"0":"tcp://10.0.0.4:41234"}}"#;
        let two = format!(r#"{{"1":{{"engine_id":"b",{addr}}},"0":{{{addr},"engine_id":"a"}}}}"#);
        assert_eq!(read(&two), [(0, "a".to_owned()), (1, "b".to_owned())]);
        for odd in [
            "{}",
            r#"{"x":{"engine_id":"a"}}"#,
            r#"{"0":{"engine_id":""}}"#,
            r#"{"0":{"engine_id":7}}"#,
            r#"{"0":"a"}"#,
            r#"{"-1":{"engine_id":"a"}}"#,
        ] {
            assert_eq!(read(odd), [], "{odd}");
        }
    }
}
