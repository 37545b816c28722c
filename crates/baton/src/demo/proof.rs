//! Did the KV move? The engines' counters say so, or nobody does.
//!
//! The fleet serves one request, so what it has counted since that was sent is that request's.

use baton_sim::Stats;

use super::engines::Numbers;

/// Where the gateway says that the request went, by URL.
pub struct Route {
    pub prefill: Option<String>,
    pub decode: Option<String>,
}

/// What the engines say.
pub struct Seen {
    pub prefill: Side,
    pub decode: Side,
    /// Blocks that the moved tokens fill.
    pub blocks: u64,
    /// The whole fleet.
    pub fleet: Stats,
}

/// One worker of the request.
pub struct Side {
    pub url: String,
    pub stats: Stats,
}

/// Finds the two workers' counters.
///
/// # Errors
/// The gateway named no worker for a leg, or one that is not there.
pub fn look(route: &Route, numbers: &[Numbers], block_size: u64) -> Result<Seen, String> {
    let side = |leg: &str, url: &Option<String>| {
        let found = numbers.iter().find(|n| Some(&n.url) == url.as_ref());
        found.map(|n| Side { url: n.url.clone(), stats: n.stats }).ok_or_else(|| {
            format!(
                "KV did not move: the answer names no {leg} worker, so the request was not served by a pair"
            )
        })
    };
    let (prefill, decode) = (side("prefill", &route.prefill)?, side("decode", &route.decode)?);
    let mut fleet = Stats::default();
    numbers.iter().for_each(|n| fleet.merge(&n.stats));
    let blocks = decode.stats.tokens.transferred.div_ceil(block_size.max(1));
    Ok(Seen { prefill, decode, blocks, fleet })
}

/// Whether it is all as it should be.
///
/// # Errors
/// The first thing that is not.
pub fn check(seen: &Seen, expected: &str, text: &str) -> Result<(), String> {
    let (prefill, decode, fleet) = (&seen.prefill.stats, &seen.decode.stats, &seen.fleet);
    let (handed, got) = (prefill.handoffs, decode.handoffs);
    let wrong = if decode.tokens.computed > 0 {
        format!(
            "KV did not move: {} computed {} prompt tokens itself",
            seen.decode.url, decode.tokens.computed
        )
    } else if handed.made != 1 {
        format!("KV did not move: {} handed over {} prompts, not 1", seen.prefill.url, handed.made)
    } else if got.right != 1 || decode.tokens.transferred == 0 {
        format!(
            "KV did not move: {} got {} tokens in {} right hand-offs, {} wrong ones and {} failed ones",
            seen.decode.url, decode.tokens.transferred, got.right, got.wrong, got.failed
        )
    } else if fleet.handoffs.made != 1 || fleet.handoffs.wrong + fleet.handoffs.failed > 0 {
        format!("the fleet saw more than one right hand-off: {:?}", fleet.handoffs)
    } else if text != expected {
        format!("the KV moved, but the text is not the prompt's own, which is:\n{expected}")
    } else if !fleet.idle() || !fleet.all_free() {
        format!("the KV moved, but something is left behind: {:?} {:?}", fleet.blocks, fleet.requests)
    } else {
        return Ok(());
    };
    Err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two engines of a fleet count when a prompt of 20 tokens went from one to the other.
    fn good() -> Vec<Numbers> {
        let (mut p, mut d) = (Stats::default(), Stats::default());
        p.handoffs.made = 1;
        p.tokens.computed = 20;
        d.handoffs.right = 1;
        d.tokens.transferred = 20;
        [("p", p), ("d", d)].map(|(url, stats)| Numbers { url: url.into(), stats }).into()
    }

    type Change = fn(&mut Stats, &mut Stats);

    fn verdict(change: Change) -> Result<(), String> {
        let mut numbers = good();
        let (p, d) = numbers.split_at_mut(1);
        change(&mut p[0].stats, &mut d[0].stats);
        let route = Route { prefill: Some("p".into()), decode: Some("d".into()) };
        let seen = look(&route, &numbers, 16)?;
        check(&seen, "text", "text")
    }

    #[test]
    fn only_engines_that_counted_one_right_handoff_are_believed() {
        assert_eq!(verdict(|_, _| ()), Ok(()));
        let cases: [(&str, Change); 8] = [
            ("d computed 20", |_, d| d.tokens.computed = 20),
            ("p handed over 0", |p, _| p.handoffs.made = 0),
            ("p handed over 2", |p, _| p.handoffs.made = 2),
            ("d got 0 tokens", |_, d| d.tokens.transferred = 0),
            ("1 wrong ones", |_, d| (d.handoffs.right, d.handoffs.wrong) = (0, 1)),
            ("more than one", |p, _| p.handoffs.failed = 1),
            ("left behind", |p, _| (p.blocks.total, p.blocks.pinned) = (2, 2)),
            ("left behind", |_, d| d.requests.running = 1),
        ];
        for (part, change) in cases {
            let reason = verdict(change).unwrap_err();
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }

    #[test]
    fn a_request_that_no_pair_served_moved_nothing() {
        for (prefill, decode, leg) in [(None, Some("d"), "prefill"), (Some("p"), Some("elsewhere"), "decode")]
        {
            let route = Route { prefill: prefill.map(String::from), decode: decode.map(String::from) };
            let reason = look(&route, &good(), 16).err().unwrap();
            assert!(reason.contains(&format!("names no {leg} worker")), "{reason}");
        }
    }

    #[test]
    fn another_text_is_noticed() {
        let route = Route { prefill: Some("p".into()), decode: Some("d".into()) };
        let seen = look(&route, &good(), 16).unwrap();
        assert_eq!(seen.blocks, 2);
        assert!(check(&seen, "slate cedar", "slate slate").unwrap_err().ends_with("slate cedar"));
    }
}
