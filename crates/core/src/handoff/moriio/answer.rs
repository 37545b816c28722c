//! Can a decode engine take this hand-off?
//!
//! The connector reads these members in the engine's scheduler, where a value of the wrong shape stops more
//! than this one request, so each is held to the shape that the page allows. Where 1.13 takes less (lists of
//! lists only, counts as numbers only) the page counts. The host is not compared with anything: the prefill
//! may be known by several.

use bytes::Bytes;

use crate::body::scalar::{self, Kind};
use crate::exchange::Handed;
use crate::fault::Fault;
use crate::handoff::blocks;
use crate::handoff::deliver::Reading;
use crate::record::HandoffResult;

/// What the prefill's answer has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The transfer id that it was given.
    pub(super) transfer: String,
    /// Handshake and notify port, if the decode was told them up front.
    pub(super) told: Option<(u16, u16)>,
}

impl Due {
    pub fn is_told(&self) -> bool {
        self.told.is_some()
    }

    pub(in crate::handoff) fn read(&self, params: Option<Bytes>) -> Reading {
        let judged = params.ok_or("the prefill returned no kv_transfer_params").and_then(|params| {
            self.check(&params)?;
            Ok(params)
        });
        match (judged, self.told) {
            (Ok(params), None) => Reading::over(params),
            (Ok(_), Some(_)) => {
                Reading { edits: vec![], result: HandoffResult::Minted, ..Reading::over(Bytes::new()) }
            }
            (Err(reason), _) => Reading {
                handed: Handed::Dead(Fault::MoriioHandoff { reason }),
                ..Reading::nothing(HandoffResult::Invalid, Some(reason))
            },
        }
    }

    fn check(&self, params: &[u8]) -> Result<(), &'static str> {
        if scalar::kind(params) != Kind::Object {
            return Err("kv_transfer_params is not an object");
        }
        let mut found = Members::default();
        for (key, value) in scalar::members(params) {
            found.note(&key, value, &self.transfer);
        }
        found.judge(self.told)
    }
}

/// What stood in a hand-off, as far as it was right.
#[derive(Default)]
struct Members {
    prefilled: bool,
    turned: bool,
    transfer: bool,
    engine: bool,
    blocks: Option<&'static str>,
    seen_blocks: bool,
    host: bool,
    handshake: Option<u16>,
    notify: Option<u16>,
    bad_count: bool,
}

/// Members that are counts if they are there.
const COUNTS: [&str; 5] =
    ["remote_dp_size", "remote_dp_size_local", "remote_dp_rank", "tp_size", "remote_tp_size"];

impl Members {
    fn note(&mut self, key: &str, value: &[u8], transfer: &str) {
        match key {
            "do_remote_prefill" => self.prefilled = scalar::as_bool(value) == Some(true),
            "do_remote_decode" => self.turned = scalar::as_bool(value) == Some(true),
            "transfer_id" => self.transfer = scalar::as_str(value).is_some_and(|id| id == transfer),
            "remote_engine_id" => self.engine = scalar::as_str(value).is_some_and(|id| !id.is_empty()),
            "remote_block_ids" => (self.seen_blocks, self.blocks) = (true, blocks::check(value).err()),
            "remote_host" => {
                self.host = scalar::as_str(value)
                    .is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace));
            }
            "remote_handshake_port" => self.handshake = port(value),
            "remote_notify_port" => self.notify = port(value),
            count if COUNTS.contains(&count) => {
                self.bad_count |= scalar::kind(value) != Kind::Null && integer(value).is_none();
            }
            _ => {}
        }
    }

    fn judge(&self, told: Option<(u16, u16)>) -> Result<(), &'static str> {
        let ports = self.handshake.zip(self.notify);
        let faults = [
            (!self.prefilled, "do_remote_prefill is not true"),
            (self.turned, "do_remote_decode is true"),
            (!self.transfer, "transfer_id is not the one that the prefill was given"),
            (!self.engine, "remote_engine_id is missing, empty or not a string"),
            (!self.seen_blocks, blocks::NO_LIST),
            (!self.host, "remote_host is missing or no host"),
            (self.handshake.is_none(), "remote_handshake_port is missing or no port"),
            (self.notify.is_none(), "remote_notify_port is missing or no port"),
            (self.bad_count, "a size or rank is not a whole number"),
            (told.is_some() && told != ports, "its ports are not those of the prefill worker's labels"),
        ];
        match faults.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, why)) => Err(why),
            None => self.blocks.map_or(Ok(()), Err),
        }
    }
}

fn port(value: &[u8]) -> Option<u16> {
    integer(value).and_then(|n| u16::try_from(n).ok()).filter(|port| *port != 0)
}

/// A whole number, or one as a string.
fn integer(value: &[u8]) -> Option<u64> {
    match scalar::as_str(value) {
        Some(text) => text.trim().parse().ok(),
        None => scalar::as_u64(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"tx-1","remote_engine_id":"10.0.0.4:6301","remote_block_ids":[[4,5]],"remote_host":"10.0.0.4","remote_handshake_port":6301,"remote_notify_port":61005,"remote_dp_size":1,"tp_size":8,"zz":[null]}"#;

    fn check(params: &str, told: Option<(u16, u16)>) -> Result<(), &'static str> {
        Due { transfer: "tx-1".into(), told }.check(params.as_bytes())
    }

    #[test]
    fn c56_what_no_decode_could_take() {
        for (from, to) in [
            (r#""transfer_id":"tx-1","#, ""),
            ("\"tx-1\"", "\"tx-2\""),
            ("\"tx-1\"", "1"),
            ("\"10.0.0.4:6301\"", "\"\""),
            ("\"10.0.0.4:6301\"", "null"),
            (r#""remote_engine_id":"10.0.0.4:6301","#, ""),
            (r#""remote_block_ids":[[4,5]],"#, ""),
            ("[[4,5]]", "null"),
            ("[[4,5]]", "[]"),
            ("[[4,5]]", "[[],[]]"),
            ("[[4,5]]", "[[\"4\"]]"),
            ("[[4,5]]", "[4,\"5\"]"),
            ("[[4,5]]", "[4,[5]]"),
            ("[[4,5]]", "[[4],5]"),
            ("[[4,5]]", "[[4.5]]"),
            ("[[4,5]]", "[[-1]]"),
            ("[[4,5]]", "[[[4]]]"),
            ("[[4,5]]", "7"),
            ("\"10.0.0.4\"", "\"\""),
            ("\"10.0.0.4\"", "\"10.0.0.4 \""),
            ("\"10.0.0.4\"", "\"a b\""),
            ("\"10.0.0.4\"", "null"),
            ("6301,", "0,"),
            ("6301,", "\"x\","),
            ("6301,", "null,"),
            ("61005", "70000"),
            ("61005", "\"\""),
            ("61005", "61005.0"),
            ("\"remote_dp_size\":1", "\"remote_dp_size\":1.5"),
            ("\"remote_dp_size\":1", "\"remote_dp_rank\":-1"),
            ("\"remote_dp_size\":1", "\"remote_tp_size\":\"eight\""),
            ("\"remote_dp_size\":1", "\"remote_dp_size_local\":[1]"),
            ("\"tp_size\":8", "\"tp_size\":true"),
            ("\"do_remote_prefill\":true", "\"do_remote_prefill\":false"),
            ("\"do_remote_prefill\":true", "\"do_remote_prefill\":\"true\""),
            (r#""do_remote_prefill":true,"#, ""),
            ("\"do_remote_decode\":false", "\"do_remote_decode\":true"),
        ] {
            let odd = GOOD.replacen(from, to, 1);
            assert_ne!(odd, GOOD, "{from}");
            assert!(check(&odd, None).is_err(), "{from} -> {to}");
        }
        assert!(check("[]", None).is_err() && check("\"x\"", None).is_err());
    }

    #[test]
    fn c56_what_the_page_allows() {
        for (from, to) in [
            ("", ""),
            ("6301,", "\"6301\","),
            ("61005", "\" 61005 \""),
            ("\"remote_dp_size\":1", "\"remote_dp_size\":null"),
            ("\"remote_dp_size\":1", "\"remote_dp_size\":\"1\""),
            (r#""remote_dp_size":1,"#, ""),
            ("\"tp_size\":8", "\"tp_size\":\"8\",\"remote_dp_rank\":0"),
            ("[[4,5]]", "[4,5]"),
            ("[[4,5]]", "[[4],[]]"),
            ("\"10.0.0.4\"", "\"another-name\""),
            (r#""do_remote_decode":false,"#, ""),
        ] {
            assert_eq!(check(&GOOD.replacen(from, to, 1), None), Ok(()), "{from} -> {to}");
        }
    }

    #[test]
    fn c57_a_decode_that_was_told_ports_must_have_been_told_the_right_ones() {
        assert_eq!(check(GOOD, Some((6301, 61005))), Ok(()));
        assert!(check(GOOD, Some((6302, 61005))).is_err());
        assert!(check(GOOD, Some((6301, 61006))).is_err());
        assert_eq!(check(&GOOD.replacen("6301,", "\"6301\",", 1), Some((6301, 61005))), Ok(()));
    }
}
