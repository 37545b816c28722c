//! The decode ledger shared between gateways: what is written, what a reading means, and how it changes a choice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use baton_core::fleet::{Fleet, FleetChange, Role, Worker};
use baton_core::place::Placement;
use baton_core::place::cascade::books::Books;
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::ledger::Charge;
use baton_core::place::cascade::score::{self, Batch};
use baton_core::place::cascade::shared::{
    Decodes, Field, INSTANCES_MAX, Orphans, Others, Posted, Reading, RedisClock, Remote, Write, key, keys,
};
use baton_core::place::cascade::sight::Sight;
use baton_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::desk::*;

const OWN: &[u8] = b"self:1";
/// What Redis' clock shows at [`NOW`], in seconds.
const REDIS_NOW: i64 = 2_000_000_000;

fn clock() -> RedisClock {
    RedisClock::measured(REDIS_NOW as u64 * 1_000_000, NOW, NOW)
}

fn load() -> Knobs {
    Knobs { decode_score: DecodeScore::TokenLoad, ..Knobs::default() }
}

fn later(ms: u64) -> Instant {
    NOW.after(Duration::from_millis(ms))
}

/// A field of charges that are so many seconds old together.
fn value(tokens: u64, charges: u32, secs: f64) -> String {
    let since_secs = f64::from(charges) * REDIS_NOW as f64 - secs;
    Field { tokens: tokens as f64, charges, since_secs }.to_string()
}

/// What Redis holds: of each pod, instances with the milliseconds since they were seen, and their fields.
fn others(fleet: &Fleet, pods: &[(&str, &[(&str, i64, &str)])]) -> Others {
    Others::of(&reading(fleet, pods), OWN, &keys(fleet), clock())
}

fn reading(fleet: &Fleet, pods: &[(&str, &[(&str, i64, &str)])]) -> Reading {
    let mut reading = Reading::default();
    for (id, fields) in pods {
        for (instance, age_ms, _) in *fields {
            reading.seen.insert(instance.as_bytes().to_vec(), REDIS_NOW * 1000 - age_ms);
        }
        let fields = fields.iter().map(|(i, _, value)| (i.as_bytes().to_vec(), value.as_bytes().to_vec()));
        reading.hashes.push((key(&seat(fleet, id).worker), fields.collect()));
    }
    reading
}

fn on(others: &Others, fleet: &Fleet, id: &str, now: Instant) -> (f64, f64) {
    let Remote { tokens, secs } = others.on(seat(fleet, id).slot, now);
    (tokens, (secs * 1000.0).round() / 1000.0)
}

#[test]
fn h28_the_score_with_what_others_have_there() {
    let seen = |throughput, remote| Sight {
        count: 1,
        observed: true,
        throughput: Some(throughput),
        decode_tokens: 1000,
        remote,
        ..Sight::default()
    };
    let remote = Remote { tokens: 300.0, secs: 10.0 };
    let score = |sight: Sight, knobs: &Knobs| score::decode(&sight, &Batch::of(&[sight]), knobs).unwrap();
    let still = Knobs { output_growth: false, ..load() };
    assert_eq!(score(seen(50.0, remote), &load()).score, 1800.0);
    assert_eq!(score(seen(0.0, remote), &load()).score, 1300.0);
    assert_eq!(score(seen(50.0, Remote::default()), &load()).score, 1000.0);
    assert_eq!(score(seen(50.0, remote), &still).score, 1300.0, "no growth, here or there");
    let terms = score(seen(50.0, remote), &load()).terms;
    assert_eq!(terms[2..], [("remote_tokens", 300.0), ("remote_generated", 500.0)]);
    let plain = score(seen(50.0, remote), &Knobs::default());
    assert!(plain.terms.iter().all(|(name, _)| !name.starts_with("remote")), "{plain:?}");
}

#[test]
fn h29_others_charges_change_the_choice() {
    let fleet = fleet(["p", "d0", "d1"].map(|id| of(id, "rs")));
    let mut desk = Desk::new(load());
    let books = desk.cascade().books().clone();
    let charge =
        Charge { prefill: None, decode: Some((seat(&fleet, "d0").slot, 1000)), at: NOW, ttl: Duration::ZERO };
    let held = books.charge(&mut books.open(), charge);
    assert!(!books.was_wanted());
    assert_eq!(desk.chosen(&fleet, &ask(40, None)), "p+d1", "local");
    assert!(books.was_wanted() && !books.was_wanted(), "it was asked for once");
    books.hear(Arc::new(others(&fleet, &[("d1", &[("gw-b:1", 0, &value(5000, 1, 0.0))])])));
    assert_eq!(desk.chosen(&fleet, &ask(40, None)), "p+d0", "shared");
    desk.now = later(3000);
    assert_eq!(desk.chosen(&fleet, &ask(40, None)), "p+d0", "seen 3 s ago");
    desk.now = later(3001);
    assert_eq!(desk.chosen(&fleet, &ask(40, None)), "p+d1", "an old look counts no more");
    drop(held);
    at_rest(&fleet);
    desk.knobs = Arc::new(Knobs { prefill_score: PrefillScore::TokenLoad, ..Knobs::default() });
    books.was_wanted();
    drop(desk.place(&fleet, &ask(40, None)).unwrap());
    assert!(!books.was_wanted(), "another policy does not ask");
}

#[test]
fn h30_what_is_ignored() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let good = value(300, 2, 10.0);
    let rows: [(&str, &[(&str, i64, &str)], (f64, f64)); 12] = [
        ("alive", &[("b", 0, &good)], (300.0, 10.0)),
        ("seen 3 s ago", &[("b", 3000, &good)], (300.0, 10.0)),
        ("not seen for 3 s", &[("b", 3001, &good)], (0.0, 0.0)),
        ("its clock is ahead", &[("b", -5000, &good)], (300.0, 10.0)),
        ("malformed", &[("b", 0, "abc")], (0.0, 0.0)),
        ("no charges", &[("b", 0, "300,0,0")], (0.0, 0.0)),
        ("charges below 0", &[("b", 0, "300,-1,0")], (0.0, 0.0)),
        ("its own", &[("self:1", 0, &good)], (0.0, 0.0)),
        ("another of the same pod", &[("self:2", 0, &good)], (300.0, 10.0)),
        ("the sum of those alive", &[("a", 0, &good), ("b", 9, &good), ("c", 4000, &good)], (600.0, 20.0)),
        ("no tokens, but time", &[("b", 0, &value(0, 1, 8.0))], (0.0, 8.0)),
        ("charged in the future", &[("b", 0, &value(7, 1, -8.0))], (7.0, 0.0)),
    ];
    for (case, fields, due) in rows {
        assert_eq!(on(&others(&fleet, &[("d", fields)]), &fleet, "d", NOW), due, "{case}");
    }
    let both = others(&fleet, &[("d", &[("b", 0, &good)])]);
    assert_eq!(on(&both, &fleet, "d", later(1500)), (300.0, 13.0), "two charges, 1.5 s older");
    let mut unseen = reading(&fleet, &[("d", &[("b", 0, &good)])]);
    unseen.seen.clear();
    assert_eq!(on(&Others::of(&unseen, OWN, &keys(&fleet), clock()), &fleet, "d", NOW), (0.0, 0.0));
    assert_eq!(
        reading(&fleet, &[("d", &[("b", 0, ""), ("c", 3001, ""), ("self:1", 0, "")])]).alive(
            OWN,
            clock(),
            NOW
        ),
        1
    );
}

#[test]
fn one_pod_heeds_so_many_instances() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let names: Vec<String> = (0..INSTANCES_MAX + 5).map(|i| format!("gw:{i}")).collect();
    let one = value(1, 1, 0.0);
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), 0, one.as_str())).collect();
    assert_eq!(on(&others(&fleet, &[("d", &fields)]), &fleet, "d", NOW).0, INSTANCES_MAX as f64);
}

#[test]
fn fields_as_aibrix_writes_them() {
    let field = |tokens, charges, since_secs| Some(Field { tokens, charges, since_secs });
    for (text, due) in [
        ("1500,3,306", field(1500.0, 3, 306.0)),
        ("1234.5,3,5.25e+09", field(1234.5, 3, 5.25e9)),
        ("0,1,1.7329632001234e+09", field(0.0, 1, 1_732_963_200.123_4)),
        ("-4,1,7", field(0.0, 1, 7.0)),
        ("", None),
        ("1,2", None),
        ("1,2,3,4", None),
        ("x,1,1", None),
        ("1,y,1", None),
        ("1,1,z", None),
        ("1,1.5,1", None),
        ("1,0,1", None),
        (" 1,1,1", None),
        ("NaN,1,1", None),
        ("inf,1,1", None),
        ("-inf,1,1", None),
        ("1,1,NaN", None),
        ("1,1,-inf", None),
        ("1e300,1,1", None),
        ("1,99999999999,1", None),
    ] {
        assert_eq!(Field::parse(text.as_bytes()), due, "{text:?}");
    }
    assert_eq!(Field::parse(b"1,1,\xff"), None);
}

proptest! {
    #[test]
    fn any_bytes_are_a_usable_field_or_none(text in "[0-9,.eE+\\-infNa]{0,24}", raw: Vec<u8>) {
        for bytes in [text.as_bytes(), &raw] {
            if let Some(field) = Field::parse(bytes) {
                prop_assert!(field.tokens.is_finite() && field.tokens >= 0.0);
                prop_assert!(field.since_secs.is_finite() && field.charges > 0);
                prop_assert_eq!(Field::parse(field.to_string().as_bytes()), Some(field));
            }
        }
    }

    /// What one gateway writes is what another one reads, whatever their own clocks show.
    #[test]
    fn written_and_read(
        charges in prop::collection::vec((0_u64..100_000, 0_u64..60_000_000), 1..20),
        ahead in 0_u64..1_000_000_000,
    ) {
        let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
        let slot = seat(&fleet, "d").slot;
        let there = Instant::from_micros(NOW.as_micros() + ahead);
        let theirs = RedisClock::measured(REDIS_NOW as u64 * 1_000_000, there, there);
        let mut own = Decodes::default();
        let mut age = 0.0;
        for (tokens, age_us) in &charges {
            own.tokens += tokens;
            own.charges += 1;
            own.since_us += u128::from(there.as_micros() - age_us);
            age += *age_us as f64 / 1e6;
        }
        let due = Posted::default().due(&[(slot, own)], &fleet, theirs, false);
        let [Write::Set { key, value }] = &due.writes[..] else { panic!("{due:?}") };
        let mut reading = Reading::default();
        reading.seen.insert(b"b".to_vec(), REDIS_NOW * 1000);
        reading.hashes.push((key.clone(), vec![(b"b".to_vec(), value.clone().into_bytes())]));
        let read = Others::of(&reading, OWN, &keys(&fleet), clock()).on(slot, NOW);
        prop_assert_eq!(read.tokens, own.tokens as f64);
        prop_assert!((read.secs - age).abs() < 1e-3, "{} {}", read.secs, age);
    }
}

fn decodes(tokens: u64, charges: u64) -> Decodes {
    Decodes { tokens, charges, since_us: u128::from(NOW.as_micros()) * u128::from(charges) }
}

fn set(id: &str, value: &str) -> Write {
    Write::Set { key: format!("aibrix:dtl:default/http://{id}:8000"), value: value.to_owned() }
}

fn delete(id: &str) -> Write {
    Write::Delete { key: format!("aibrix:dtl:default/http://{id}:8000") }
}

#[test]
fn only_what_has_changed_is_written() {
    let fleet = fleet(["p", "d1", "d2"].map(|id| of(id, "rs")));
    let slots = ["d1", "d2"].map(|id| seat(&fleet, id).slot);
    let mut posted = Posted::default();
    let mut due = |held: &[(u32, Decodes)], again| {
        let due = posted.due(held, &fleet, clock(), again);
        let writes = due.writes.clone();
        posted.written(due);
        writes
    };
    assert_eq!(due(&[], false), []);
    let two = [(slots[0], decodes(1500, 3)), (slots[1], decodes(0, 1))];
    let both = [set("d1", "1500,3,6000000000"), set("d2", "0,1,2000000000")];
    assert_eq!(due(&two, false), both);
    assert_eq!(due(&two, false), [], "nothing new");
    assert_eq!(due(&two, true), both, "once a second all the same");
    let less = [(slots[0], decodes(500, 1)), two[1]];
    assert_eq!(due(&less, false), [set("d1", "500,1,2000000000")]);
    assert_eq!(due(&[two[1]], false), [delete("d1")]);
    assert_eq!(due(&[two[1]], true), [both[1].clone()], "it is deleted once");
    assert_eq!(due(&[], true), [delete("d2")]);
    assert_eq!(due(&[], true), []);
}

#[test]
fn what_may_not_have_arrived_is_written_again() {
    let fleet = fleet(["p", "d1", "d2"].map(|id| of(id, "rs")));
    let slots = ["d1", "d2"].map(|id| seat(&fleet, id).slot);
    let held = [(slots[0], decodes(500, 1))];
    let mut posted = Posted::default();
    drop(posted.due(&held, &fleet, clock(), false));
    assert_eq!(posted.hashes().count(), 1, "something may be there");
    let due = posted.due(&[], &fleet, clock(), false);
    assert_eq!(due.writes, [delete("d1")], "even if it is held no more");
    let due = posted.due(&[(slots[1], decodes(7, 1))], &fleet, clock(), false);
    assert_eq!(due.writes, [set("d2", "7,1,2000000000"), delete("d1")]);
    posted.written(due);
    posted.uncertain();
    let due = posted.due(&[(slots[1], decodes(7, 1))], &fleet, clock(), false);
    assert_eq!(due.writes, [set("d2", "7,1,2000000000")], "Redis was restarted");
    posted.written(due);
    assert_eq!(posted.hashes().collect::<Vec<_>>(), ["aibrix:dtl:default/http://d2:8000"]);
}

#[test]
fn a_worker_that_left_is_told_of_until_its_requests_are_over() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let slot = seat(&fleet, "d").slot;
    let mut posted = Posted::default();
    let due = posted.due(&[(slot, decodes(9, 2))], &fleet, clock(), false);
    posted.written(due);
    let left = fleet.with([FleetChange::Leave { slot }]);
    let due = posted.due(&[(slot, decodes(4, 1))], &left, clock(), false);
    assert_eq!(due.writes, [set("d", "4,1,2000000000")]);
    posted.written(due);
    let due = posted.due(&[], &left, clock(), false);
    assert_eq!(due.writes, [delete("d")]);
    let unknown = posted.due(&[(77, decodes(4, 1))], &left, clock(), false);
    assert_eq!(unknown.writes, [delete("d")], "one that nobody knew has no name");
}

#[test]
fn names_of_hashes() {
    let pod = |labels: &[(&str, &str)], rank: Option<u32>, name: Option<&str>| {
        let mut worker = Worker::new("id", "http://h:1", Role::Decode);
        worker.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        worker.dp_rank = rank;
        let pod = |name: &str| baton_core::fleet::Pod { name: name.to_owned(), ip: String::new() };
        worker.pod = name.map(pod);
        key(&worker)
    };
    assert_eq!(pod(&[("pod_namespace", "ns")], None, Some("d-0")), "aibrix:dtl:ns/d-0");
    assert_eq!(pod(&[("namespace", "ns")], None, Some("d-0")), "aibrix:dtl:ns/d-0");
    assert_eq!(pod(&[], None, Some("d-0")), "aibrix:dtl:default/d-0");
    assert_eq!(pod(&[], Some(3), Some("d-0")), "aibrix:dtl:default/d-0@3");
    assert_eq!(pod(&[], None, None), "aibrix:dtl:default/http://h:1");
}

#[test]
fn workers_of_one_pod_add_up_and_each_sees_the_others() {
    let both = |id: &str| {
        let mut worker = of(id, "rs");
        worker.pod = Some(baton_core::fleet::Pod { name: "d-0".into(), ip: String::new() });
        worker
    };
    let fleet = fleet([of("p", "rs"), both("d1"), both("d2")]);
    let held = ["d1", "d2"].map(|id| (seat(&fleet, id).slot, decodes(10, 1)));
    let due = Posted::default().due(&held, &fleet, clock(), false);
    let key = "aibrix:dtl:default/d-0".to_owned();
    assert_eq!(due.writes, [Write::Set { key, value: "20,2,4000000000".into() }]);
    let others = others(&fleet, &[("d1", &[("b", 0, &value(5, 1, 0.0))])]);
    assert_eq!(["d1", "d2"].map(|id| on(&others, &fleet, id, NOW).0), [5.0, 5.0]);
}

#[test]
fn only_fields_that_stay_orphans_are_pruned() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let fields: [(&str, i64, &str); 3] = [("dead", 0, "x"), ("quiet", 500_000, "x"), ("self:1", 0, "x")];
    let mut at_first = reading(&fleet, &[("d", &fields)]);
    at_first.seen.retain(|instance, _| instance == b"quiet");
    let mut orphans = Orphans::default();
    assert_eq!(orphans.look(&at_first, OWN), [], "it may have begun just now");
    let mut begun = at_first.clone();
    begun.seen.insert(b"dead".to_vec(), REDIS_NOW * 1000);
    assert_eq!(orphans.look(&begun, OWN), [], "it had");
    assert_eq!(orphans.look(&at_first, OWN), []);
    let due = [("aibrix:dtl:default/http://d:8000".to_owned(), b"dead".to_vec())];
    assert_eq!(orphans.look(&at_first, OWN), due);
}

struct Rung(AtomicUsize);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_watches_is_woken_once_for_many_changes() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let mut desk = Desk::new(load());
    let books: Arc<Books> = desk.cascade().books().clone();
    let rung = Arc::new(Rung(AtomicUsize::new(0)));
    let count = || rung.0.load(Ordering::Relaxed);
    drop(desk.place(&fleet, &ask(40, None)).unwrap());
    books.watch(Waker::from(rung.clone()));
    assert_eq!((books.decodes(), count()), (vec![], 0));
    let held: Vec<Placement> = (0..5).map(|_| desk.place(&fleet, &ask(40, None)).unwrap().0).collect();
    assert_eq!(count(), 1);
    let tokens = (ask(40, None).size / 4) as u64 * 5;
    let slot = seat(&fleet, "d").slot;
    let told: BTreeMap<u32, u64> =
        books.decodes().into_iter().map(|(slot, own)| (slot, own.tokens)).collect();
    assert_eq!(told, [(slot, tokens)].into());
    drop(held);
    assert_eq!((count(), books.decodes()), (2, vec![]));
    let charge = Charge { prefill: None, decode: Some((slot, 5)), at: NOW, ttl: Duration::from_secs(1) };
    std::mem::forget(books.charge(&mut books.open(), charge));
    books.decodes();
    let seen = count();
    desk.cascade().sweep(later(1500));
    assert_eq!((count(), books.decodes()), (seen + 1, vec![]), "taken back by force");
}
