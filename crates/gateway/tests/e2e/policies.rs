//! Policies on simulated engines: like requests go to like workers, and load is spread all the same.

use std::collections::BTreeSet;

use baton_sim::Dialect;

use crate::support::{Ask, House, Plan};

const PREFILLS: usize = 3;
const DECODES: usize = 2;

/// Three prefills and two decodes.
async fn house(args: &str) -> House {
    Plan::pairs(Dialect::Sglang, PREFILLS, DECODES).args(args).open().await
}

/// Words that no other seed gives, five letters each.
fn words(seed: u64, count: usize) -> String {
    let mut dice = baton_core::dice::Dice::new(seed);
    let mut word = |_| (0..5).map(|_| char::from(b'a' + dice.below(26) as u8)).collect::<String>();
    (0..count).map(&mut word).collect::<Vec<_>>().join(" ")
}

fn taken(house: &House) -> Vec<u64> {
    (0..PREFILLS + DECODES).map(|at| house.seat(at).load.taken()).collect()
}

/// Serves it, and says which engines had a part in it, the prefill first.
async fn served(house: &House, ask: &Ask, headers: &[(&str, &str)]) -> Vec<usize> {
    let before = taken(house);
    let reply = ask.post_with(house.address, headers).await;
    ask.check(&reply);
    let after = taken(house);
    let pair: Vec<usize> = (0..after.len()).filter(|at| after[*at] > before[*at]).collect();
    assert!(pair.len() == 2 && pair[0] < PREFILLS && pair[1] >= PREFILLS, "{before:?} {after:?}");
    assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(pair[1]));
    pair
}

#[tokio::test]
async fn cache_aware_keeps_a_conversation_where_its_turns_are_known() {
    let house = house("--policy cache_aware").await;
    let mut said: Vec<String> = (0..3).map(|i| words(i, 300)).collect();
    let mut homes: Vec<Vec<usize>> = vec![];
    for (i, said) in said.iter().enumerate() {
        homes.push(served(&house, &Ask::chat(said, 4), &[]).await);
        assert!(homes[..i].iter().all(|other| other[0] != homes[i][0]), "each is new to all: {homes:?}");
    }
    for turn in 0..6 {
        for (i, said) in said.iter_mut().enumerate() {
            said.push(' ');
            said.push_str(&words(100 + turn * 10 + i as u64, 40));
            assert_eq!(served(&house, &Ask::chat(said, 4), &[]).await, homes[i], "turn {turn} of {i}");
        }
    }
    house.close().await;
}

/// A beginning that ends where engines keep a prefix decides, however long the rest is.
#[tokio::test]
async fn prompts_are_cut_where_engines_keep_a_prefix() {
    let args = "--cache-index hash --cache-boundaries 100,100000";
    for policy in ["cache_aware", "prefix_hash"] {
        let house = house(&format!("--policy {policy} {args}")).await;
        // A hundred tokens are 400 bytes, and the first words of the heads differ.
        for head in 0..3 {
            let head = words(head, 80);
            let home = served(&house, &Ask::chat(&head, 4), &[]).await;
            for tail in 0..4 {
                let ask = Ask::chat(&format!("{head} {}", words(100 + tail, 600)), 4);
                assert_eq!(served(&house, &ask, &[]).await, home, "{policy}");
            }
        }
        let page = house.page().await;
        let remembered = page.sum("baton_prefix_index_bytes", &["leg=\"prefill\""]);
        assert_eq!(remembered > 0.0, policy == "cache_aware");
        house.close().await;
    }
}

#[tokio::test]
async fn cache_aware_spreads_many_at_once_though_all_begin_alike() {
    let house = house("--policy cache_aware").await;
    let head = words(1, 100);
    let first = Ask::chat(&head, 4);
    first.served(house.address).await;
    let before = taken(&house);
    let asks: Vec<Ask> = (0..90).map(|i| Ask::chat(&format!("{head} {}", words(i, 20)), 4)).collect();
    let mut all = tokio::task::JoinSet::new();
    for ask in asks {
        let address = house.address;
        all.spawn(async move { drop(ask.served(address).await) });
    }
    all.join_all().await;
    let got: Vec<u64> = taken(&house).iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!((got[..PREFILLS].iter().sum::<u64>(), got[PREFILLS..].iter().sum::<u64>()), (90, 90));
    // A sixth of the even share at least, whoever knew the beginning first.
    assert!(got[..PREFILLS].iter().all(|n| (5..=60).contains(n)), "{got:?}");
    house.close().await;
}

#[tokio::test]
async fn prefix_hash_goes_by_the_beginning_of_the_prompt() {
    let house = house("--prefill-policy prefix_hash --decode-policy least_load").await;
    let mut prefills = BTreeSet::new();
    for i in 0..12 {
        let head = words(i, 300);
        let home = served(&house, &Ask::chat(&head, 2), &[]).await[0];
        for tail in ["one end", "another end of it"] {
            let ask = Ask::chat(&format!("{head} {tail}"), 2);
            assert_eq!(served(&house, &ask, &[]).await[0], home, "prompt {i}");
        }
        prefills.insert(home);
    }
    assert_eq!(prefills.len(), PREFILLS, "different prompts spread");
    house.close().await;
}

#[tokio::test]
async fn equal_keys_get_equal_pairs_by_hash_by_hand_and_by_sticking() {
    for policy in
        ["consistent_hashing", "manual", "round_robin --sticky-sessions", "cache_aware --sticky-sessions"]
    {
        let house = house(&format!("--policy {policy}")).await;
        let mut pairs = BTreeSet::new();
        // So many that a worker without any is no matter of luck: ports, and with them hashes, are drawn.
        for key in 0..40 {
            let session = format!("session-{key}");
            let home =
                served(&house, &Ask::chat(&words(key, 9), 2), &[("x-smg-routing-key", &session)]).await;
            for turn in 1..3 {
                // Turns of one session are one key, whatever is asked.
                let numbered = format!("{session}_t{turn}");
                let ask = Ask::chat(&words(1000 * turn + key, 9), 2);
                let key = [("x-smg-routing-key", numbered.as_str())];
                assert_eq!(served(&house, &ask, &key).await, home, "{policy}: {session}");
            }
            pairs.insert(home);
        }
        let prefills: BTreeSet<_> = pairs.iter().map(|pair| pair[0]).collect();
        assert!(prefills.len() == PREFILLS && pairs.len() > PREFILLS, "{policy}: {pairs:?}");
        house.close().await;
    }
}

#[tokio::test]
async fn keys_come_from_the_headers_that_are_named_and_a_named_worker_is_taken() {
    let house = house("--policy consistent_hashing --routing-key-headers x-user x-session").await;
    let ask = Ask::chat("hello there", 2);
    let home = served(&house, &ask, &[("x-session", "ann")]).await;
    assert_eq!(
        served(&house, &ask, &[("x-user", "ann"), ("x-session", "bob")]).await,
        home,
        "the first wins"
    );
    for at in 0..DECODES {
        let index = at.to_string();
        // The same place among the candidates of each leg.
        assert_eq!(served(&house, &ask, &[("x-smg-target-worker", &index)]).await, [at, PREFILLS + at]);
    }
    let nobody = ask.post_with(house.address, &[("x-smg-target-worker", "7")]).await;
    assert_eq!(nobody.error(), (503, "no_available_workers".to_owned()));
    house.close().await;
}

#[tokio::test]
async fn bucket_keeps_short_prompts_from_long_ones() {
    let house = house("--prefill-policy bucket --decode-policy least_load").await;
    let mut of = BTreeSet::new();
    let (short, long) = (Ask::chat(&words(1, 8), 2), Ask::chat(&words(2, 1500), 2));
    let (for_short, for_long) = (served(&house, &short, &[]).await[0], served(&house, &long, &[]).await[0]);
    assert_ne!(for_short, for_long);
    for i in 10..16 {
        assert_eq!(served(&house, &Ask::chat(&words(i, 6 + i as usize), 2), &[]).await[0], for_short);
        of.insert(served(&house, &Ask::chat(&words(i, 900 + 100 * i as usize), 2), &[]).await[0]);
    }
    assert_eq!(of.into_iter().collect::<Vec<_>>(), [for_long]);
    house.close().await;
}

#[tokio::test]
async fn tokens_that_a_client_names_stand_for_its_prompt() {
    let house = house("--policy cache_aware").await;
    let list = |from: u32| (from..from + 200).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let mut homes = vec![];
    for i in 0..3 {
        let (tokens, text) = (list(i * 1000), words(u64::from(i), 30));
        homes.push(served(&house, &Ask::chat(&text, 2), &[("x-smg-routing-tokens", &tokens)]).await);
    }
    for (i, home) in (0..).zip(&homes) {
        let (tokens, text) = (list(i * 1000), words(100 + u64::from(i), 300));
        assert_eq!(&served(&house, &Ask::chat(&text, 2), &[("x-smg-routing-tokens", &tokens)]).await, home);
    }
    let all: BTreeSet<_> = homes.iter().map(|home| home[0]).collect();
    assert_eq!(all.len(), PREFILLS);
    house.close().await;
}

/// Workers are asked for their load where a setting says what to make of it, and not otherwise.
#[tokio::test]
async fn workers_are_asked_for_their_load_where_it_counts() {
    for (args, asked) in [
        ("", false),
        ("--disable-worker-overload-protection --power-of-two-load-metric requests", false),
        ("--worker-metrics always", true),
        ("--worker-overload-shed", true),
        ("--least-load-max-waiting-requests 50", true),
        ("--overload-token-usage-threshold 0.9 --worker-metrics never", false),
        ("--worker-overload-shed --disable-load-monitoring", false),
        ("--least-load-max-waiting-requests 50 --disable-load-monitoring", true),
        ("--engine-metrics", false),
    ] {
        let house = house(&format!("--policy least_load {args}")).await;
        served(&house, &Ask::chat("hello there", 2), &[]).await;
        assert_eq!(house.gateway().registry.load_full().gauges_wanted(), asked, "{args}");
        house.close().await;
    }
}

/// A worker that is gone keeps no key, and one that comes back is where its keys were.
#[tokio::test]
async fn a_session_moves_when_its_worker_fails_and_stays_where_it_moved() {
    let house = house("--policy manual --health-check-interval-secs 1 --health-failure-threshold 1").await;
    let key = [("x-smg-routing-key", "ann")];
    let ask = Ask::chat("hello there", 2);
    let home = served(&house, &ask, &key).await;
    house.seat(home[0]).pulse.set_status(baton_core::fleet::Status::NotReady);
    let moved = served(&house, &ask, &key).await;
    assert_ne!(moved[0], home[0]);
    assert_eq!(moved[1], home[1], "the other leg has no reason to move");
    house.seat(home[0]).pulse.set_status(baton_core::fleet::Status::Ready);
    assert_eq!(served(&house, &ask, &key).await, moved);
    house.close().await;
}
