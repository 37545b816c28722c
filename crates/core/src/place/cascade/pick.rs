//! The cascade itself: bucket matches in, one pair or one combined worker out.
//!
//! Works on plain numbers, so that a decision can be repeated from its inputs. Ties fall to the dice among equals
//! in the order of their names: the order in which workers are listed decides nothing.

use smallvec::{SmallVec, smallvec};

use super::fast::{self, Check, Most};
use super::knobs::Knobs;
use super::score::{self, Batch, Prompt, Scored};
use super::sight::{Candidate, Sight};
use crate::dice::Dice;
use crate::place::receipt::{OfLeg, Receipt, Score};

/// Those that can serve a request of this length.
#[derive(Clone, Debug, Default)]
pub struct Pool<'a> {
    pub prefill: Vec<Candidate<'a>>,
    pub decode: Vec<Candidate<'a>>,
    pub combined: Vec<Candidate<'a>>,
}

/// Who it is, by [`Candidate::at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    Pair { prefill: usize, decode: usize },
    Combined(usize),
}

/// What else the choice depends on.
pub struct Terms<'a> {
    pub knobs: &'a Knobs,
    /// Length of the text that the index looks up, in bytes.
    pub bytes: u64,
    /// The roleset that adaptive bucket serving has for this length.
    pub band: Option<u32>,
}

/// `None`: every prefill was skipped.
pub fn pick(mut pool: Pool<'_>, terms: &Terms<'_>, dice: &mut Dice, receipt: &mut Receipt) -> Option<Picked> {
    for list in [&mut pool.prefill, &mut pool.decode, &mut pool.combined] {
        list.sort_unstable_by(|a, b| a.name.cmp(b.name).then(a.at.cmp(&b.at)));
    }
    pick_of_sorted(&mut pool, terms, dice, receipt)
}

/// The same, of candidates that are in the order of their names. Who is chosen is left in the pool, and perhaps others.
pub fn pick_of_sorted(
    pool: &mut Pool<'_>,
    terms: &Terms<'_>,
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<Picked> {
    if overflows(pool, receipt)
        && let Some(at) = idlest(&pool.combined, false, dice, receipt)
    {
        return Some(Picked::Combined(at));
    }
    let tied = OfTies::default();
    let tied = OfTies { prefill: spread_prefill(pool, terms, dice, receipt), ..tied };
    // What decodes are scored as shares of is the largest of all that step 2 looks at, whoever is left after it.
    let most = Most::of(sights(&pool.decode));
    let tied = OfTies { decode: spread_decode(pool, terms, dice, receipt), ..tied };
    keep_band(pool, terms, receipt);
    let picked = best_pair(pool, (terms, most), dice, receipt);
    if receipt.is_on() && picked.is_some() {
        // Where a fast path drew, nothing was left to draw for later.
        for (drawn, leg) in [(tied.prefill, &mut receipt.prefill), (tied.decode, &mut receipt.decode)] {
            if let Some(drawn) = drawn {
                leg.tied = drawn;
            }
        }
    }
    picked
}

#[derive(Default)]
struct OfTies {
    prefill: Option<Vec<String>>,
    decode: Option<Vec<String>>,
}

/// A combined worker whose queue is shorter than this many seconds is idle; a leg above the other is saturated.
const IDLE_S: f64 = 0.25;
const SATURATED_S: f64 = 1.0;

/// Is a leg saturated while a combined worker is idle? Where rates are not known nothing is.
fn overflows(pool: &Pool<'_>, receipt: &mut Receipt) -> bool {
    if pool.combined.is_empty() {
        return false;
    }
    let saturated = |c: &Candidate<'_>| c.sight.queue_s() > SATURATED_S;
    let busy = pool.prefill.iter().any(saturated) || pool.decode.iter().any(saturated);
    let idle = pool.combined.iter().any(|c| c.sight.queue_s() < IDLE_S);
    receipt.step("overflow", busy && idle, || {
        let seconds = |list: &[Candidate<'_>]| list.iter().map(|c| c.sight.queue_s()).collect::<Vec<_>>();
        let longest = |list| seconds(list).into_iter().fold(0.0, f64::max);
        format!(
            "seconds to drain: prefills {} at most, decodes {} at most, combined {} at least",
            longest(&pool.prefill),
            longest(&pool.decode),
            seconds(&pool.combined).into_iter().fold(f64::INFINITY, f64::min)
        )
    });
    busy && idle
}

/// The combined worker with the shortest queue. Where a queue's time is not known, `any` says whether it will do.
pub fn idlest(
    combined: &[Candidate<'_>],
    any: bool,
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<usize> {
    let seconds = |c: &Candidate<'_>| Some(c.sight.queue_s()).filter(|s| !s.is_nan());
    let least = combined.iter().filter_map(seconds).fold(f64::INFINITY, f64::min);
    let known = combined.iter().any(|c| seconds(c).is_some());
    if !known && !any {
        return None;
    }
    let best = |c: &&Candidate<'_>| !known || seconds(c) == Some(least);
    let mut equals: Vec<&Candidate<'_>> = combined.iter().filter(best).collect();
    equals.sort_unstable_by(|a, b| a.name.cmp(b.name).then(a.at.cmp(&b.at)));
    let chosen = equals.get(dice.below(equals.len()))?;
    if receipt.is_on() {
        let terms = |c: &Candidate<'_>| vec![("waiting", c.sight.waiting)];
        receipt.decode = OfLeg {
            scores: combined.iter().map(|c| told(c, c.sight.queue_s(), terms(c))).collect(),
            tied: equals.iter().map(|c| c.name.to_owned()).collect(),
        };
    }
    Some(chosen.at)
}

fn told(c: &Candidate<'_>, score: f64, terms: Vec<(&'static str, f64)>) -> Score {
    Score { worker: c.name.to_owned(), score, terms, skipped: None }
}

fn names(list: &[Candidate<'_>], of: &[usize]) -> Vec<String> {
    of.iter().map(|i| list[*i].name.to_owned()).collect()
}

/// Step 1: the least loaded prefill alone, and the decodes of its roleset. Gives those among which it was drawn.
fn spread_prefill(
    pool: &mut Pool<'_>,
    terms: &Terms<'_>,
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<Vec<String>> {
    let counts: Vec<u32> = pool.prefill.iter().map(|c| c.sight.count).collect();
    let found = fast::prefill(&counts, terms.knobs.prefill_spread);
    receipt.step("prefill_load_imbalance", found.is_some(), || {
        let (least, most) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
        format!("{least} to {most} requests; fires above a spread of {}", terms.knobs.prefill_spread)
    });
    let equals = found?;
    let drawn = pool.prefill[equals[dice.below(equals.len())]];
    let tied = receipt.is_on().then(|| names(&pool.prefill, &equals));
    pool.prefill = vec![drawn];
    pool.decode.retain(|c| c.roleset == drawn.roleset);
    tied
}

/// Step 2: one decode alone, and the prefills of its roleset if any are left.
fn spread_decode(
    pool: &mut Pool<'_>,
    terms: &Terms<'_>,
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<Vec<String>> {
    let found = fast::decode(sights(&pool.decode), terms.knobs);
    receipt.step("decode_load_imbalance", found.is_some(), || {
        let check = found.as_ref().map_or_else(
            || "no check fired".to_owned(),
            |(check, _)| {
                let (least, most) = fast::extremes(sights(&pool.decode), *check);
                format!("{}, {least} to {most}", Check::as_str(*check))
            },
        );
        let Most { requests, throughput, free_pct } = Most::of(sights(&pool.decode));
        format!("{check}; at most {requests} requests, {throughput} tokens a second, {free_pct} % free")
    });
    let (_, equals) = found?;
    let drawn = pool.decode[equals[dice.below(equals.len())]];
    let tied = receipt.is_on().then(|| names(&pool.decode, &equals));
    pool.decode = vec![drawn];
    if pool.prefill.iter().any(|c| c.roleset == drawn.roleset) {
        pool.prefill.retain(|c| c.roleset == drawn.roleset);
    }
    tied
}

/// Step 2b: the roleset of the prompt's band, if both legs still have somebody there.
fn keep_band(pool: &mut Pool<'_>, terms: &Terms<'_>, receipt: &mut Receipt) {
    let Some(band) = terms.band else { return };
    let own = |list: &[Candidate<'_>]| list.iter().any(|c| c.roleset == band);
    let fires = own(&pool.prefill) && own(&pool.decode);
    if fires {
        pool.prefill.retain(|c| c.roleset == band);
        pool.decode.retain(|c| c.roleset == band);
    }
    receipt.banded = fires;
    receipt.step("bucket_serve", fires, || {
        if fires { "the band's roleset alone" } else { "the band's roleset has no pair left" }.to_owned()
    });
}

/// Rolesets whose sums are told, the lowest.
const SUMS_TOLD: usize = 8;

/// Equals on one leg of one roleset.
struct Best {
    roleset: u32,
    score: f64,
    equals: SmallVec<[usize; 4]>,
}

/// The lowest of each roleset, and the largest score of all. Rolesets are found by their numbers, so that many cost no
/// more than few.
#[derive(Default)]
struct Bests {
    found: Vec<Best>,
    /// Where in `found` each roleset is, and one more. 0: nowhere.
    places: Vec<u32>,
    most: f64,
}

impl Bests {
    fn of(list: &[Candidate<'_>], scores: &[Option<f64>], floor: f64) -> Bests {
        let rolesets = list.iter().map(|c| c.roleset as usize + 1).max().unwrap_or_default();
        let mut bests = Bests { places: vec![0; rolesets], most: floor, ..Bests::default() };
        for (i, (c, score)) in list.iter().zip(scores).enumerate() {
            let Some(score) = *score else { continue };
            bests.most = bests.most.max(score);
            let place = &mut bests.places[c.roleset as usize];
            let own = (*place as usize).checked_sub(1).and_then(|at| bests.found.get_mut(at));
            match own {
                None => {
                    bests.found.push(Best { roleset: c.roleset, score, equals: smallvec![i] });
                    *place = bests.found.len() as u32;
                }
                Some(b) if score < b.score => (b.score, b.equals) = (score, smallvec![i]),
                Some(b) if score == b.score => b.equals.push(i),
                Some(_) => {}
            }
        }
        bests
    }

    fn get(&self, roleset: u32) -> Option<&Best> {
        let place = self.places.get(roleset as usize)?.checked_sub(1)?;
        self.found.get(place as usize)
    }
}

/// Steps 3, 4 and 5.
fn best_pair(
    pool: &Pool<'_>,
    (terms, most): (&Terms<'_>, Most),
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<Picked> {
    let prefill = prefill_scores(pool, terms, receipt);
    let decode = decode_scores(pool, (terms, most), receipt);
    let p = Bests::of(&pool.prefill, &prefill, 1.0);
    let d = Bests::of(&pool.decode, &decode, 0.01);
    let (most_p, most_d) = (p.most, d.most);
    let mut lowest = f64::INFINITY;
    let mut equals: Vec<(&Best, &Best)> = Vec::new();
    let mut sums: Vec<(f64, &Best)> = Vec::new();
    for p in &p.found {
        let Some(d) = d.get(p.roleset) else { continue };
        let sum = p.score / most_p + d.score / most_d;
        // Two infinite scores have no share of each other: no reason to choose them, none to refuse.
        let sum = if sum.is_nan() { f64::INFINITY } else { sum };
        if receipt.is_on() {
            sums.push((sum, p));
        }
        if sum < lowest || equals.is_empty() {
            (lowest, equals) = (sum, vec![(p, d)]);
        } else if sum == lowest {
            equals.push((p, d));
        }
    }
    receipt.step("pair", !equals.is_empty(), || {
        sums.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let named = |(sum, best): &(f64, &Best)| format!("{} {sum}", pool.prefill[best.equals[0]].name);
        let lowest: Vec<String> = sums.iter().take(SUMS_TOLD).map(named).collect();
        format!("{} rolesets with both legs, by their prefill: {}", sums.len(), lowest.join(", "))
    });
    if receipt.is_on() {
        let all = |list: &[Candidate<'_>], of: fn(&(&Best, &Best)) -> SmallVec<[usize; 4]>| {
            names(list, &equals.iter().flat_map(of).collect::<Vec<_>>())
        };
        receipt.prefill.tied = all(&pool.prefill, |(p, _)| p.equals.clone());
        receipt.decode.tied = all(&pool.decode, |(_, d)| d.equals.clone());
    }
    let (p, d) = *equals.get(dice.below(equals.len()))?;
    Some(Picked::Pair {
        prefill: pool.prefill[p.equals[dice.below(p.equals.len())]].at,
        decode: pool.decode[d.equals[dice.below(d.equals.len())]].at,
    })
}

/// Steps 2 and 4 among these decodes, where the prefill is chosen already.
pub fn decode_alone(
    list: &[Candidate<'_>],
    knobs: &Knobs,
    dice: &mut Dice,
    receipt: &mut Receipt,
) -> Option<usize> {
    let terms = Terms { knobs, bytes: 0, band: None };
    let mut pool = Pool { decode: list.to_vec(), ..Pool::default() };
    receipt.decode = OfLeg::default();
    let most = Most::of(sights(&pool.decode));
    let drawn = spread_decode(&mut pool, &terms, dice, receipt);
    let scores = decode_scores(&pool, (&terms, most), receipt);
    let least = scores.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let equals: Vec<usize> = (0..scores.len()).filter(|i| scores[*i] == Some(least)).collect();
    if receipt.is_on() {
        receipt.decode.tied = drawn.unwrap_or_else(|| names(&pool.decode, &equals));
    }
    Some(pool.decode[*equals.get(dice.below(equals.len()))?].at)
}

fn keep(receipt: &mut OfLeg, c: &Candidate<'_>, scored: Scored, skipped: Option<&'static str>) {
    let line = told(c, scored.score, scored.terms.into_vec());
    receipt.scores.push(Score { skipped: skipped.map(Into::into), ..line });
}

/// `None` for one that is skipped.
fn prefill_scores(pool: &Pool<'_>, terms: &Terms<'_>, receipt: &mut Receipt) -> Vec<Option<f64>> {
    let counts: Vec<u32> = pool.prefill.iter().map(|c| c.sight.count).collect();
    let limit = score::limit(&counts, terms.knobs.deviations);
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    let prompt = Prompt { bytes: terms.bytes, most: f64::from(most) };
    let each = |c: &Candidate<'_>| {
        let skipped = f64::from(c.sight.count) > limit;
        let scored = score::prefill(&c.sight, prompt, terms.knobs);
        let score = (!skipped).then_some(scored.score);
        if receipt.is_on() {
            keep(&mut receipt.prefill, c, scored, skipped.then_some("far more requests than the others"));
        }
        score
    };
    let scores: Vec<_> = pool.prefill.iter().map(each).collect();
    let skipped = scores.iter().filter(|s| s.is_none()).count();
    receipt.step("prefill_score", skipped > 0, || {
        format!("{}; {skipped} skipped above {limit} requests", terms.knobs.prefill_score.as_str())
    });
    scores
}

fn sights<'c>(list: &'c [Candidate<'_>]) -> impl Iterator<Item = &'c Sight> + Clone {
    list.iter().map(|c| &c.sight)
}

fn decode_scores(
    pool: &Pool<'_>,
    (terms, most): (&Terms<'_>, Most),
    receipt: &mut Receipt,
) -> Vec<Option<f64>> {
    let batch = Batch::with(most, sights(&pool.decode));
    let each = |c: &Candidate<'_>| {
        let scored = score::decode(&c.sight, &batch, terms.knobs);
        let score = scored.as_ref().map(|s| s.score);
        if receipt.is_on() {
            let skipped = scored.is_none().then_some("no score can be worked out");
            let scored = scored.unwrap_or(Scored { score: f64::NAN, terms: score::Terms::new() });
            keep(&mut receipt.decode, c, scored, skipped);
        }
        score
    };
    let scores: Vec<_> = pool.decode.iter().map(each).collect();
    let skipped = scores.iter().filter(|s| s.is_none()).count();
    receipt.step("decode_score", skipped > 0, || {
        format!("{}; {skipped} skipped", terms.knobs.decode_score.as_str())
    });
    scores
}
