//! `vtc-basic`: users who take much are kept together, apart from those who take little (AIBrix).
//!
//! Workers stand in a row, and a user's place in it is by the tokens that it has used lately: those who use little at its
//! beginning, those who use much at its end. A worker is worse by its distance from the user's place, and by its load.
//! What a user has used is known when its request is placed: tokens of the prompt, and of an answer half as long again,
//! as AIBrix guesses them.
//!
//! Users are remembered within bounds, by a hash of their name: for a new one too many, the one that has used least is
//! forgotten, which is who loses the least by it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::rules::Vtc;
use super::score::{Values, Worth};
use crate::dice::Dice;
use crate::fleet::Seat;
use crate::time::{Duration, Instant};

/// Users remembered at once.
pub const USERS_MAX: usize = 10_000;
/// The window moves on in so many steps.
const STEPS: u32 = 60;
/// Bytes of a prompt for each of its tokens, and tokens of an answer for each of them (AIBrix).
const TOKEN_BYTES: f64 = 4.0;
const ANSWER_RATIO: f64 = 1.5;
/// Chance makes up to so much of a score (AIBrix).
const CHANCE: f64 = 0.1;

/// What a request of so many bytes takes.
pub fn cost(prompt_bytes: u64, vtc: &Vtc) -> f64 {
    let input = (prompt_bytes as f64 / TOKEN_BYTES).ceil();
    let output = (input * ANSWER_RATIO).ceil();
    input * vtc.input_weight + output * vtc.output_weight
}

/// Tokens that one user has used, and those that are one step along the row of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub tokens: f64,
    pub step: f64,
}

#[derive(Debug, Default)]
struct User {
    /// By when they began; the oldest first.
    slices: VecDeque<(Instant, f64)>,
    total: f64,
}

/// What users have used within the window.
#[derive(Debug, Default)]
pub struct Users {
    users: HashMap<u64, User>,
    /// Totals are above 0, where bits are in the order of the numbers.
    by_total: BTreeSet<(u64, u64)>,
    /// By the oldest that each has.
    by_age: BTreeSet<(Instant, u64)>,
}

impl Users {
    pub fn usage(&mut self, user: u64, vtc: &Vtc, window: Duration, now: Instant) -> Usage {
        self.forget(window, now);
        let tokens = self.users.get(&user).map_or(0.0, |user| user.total);
        let total = |end: Option<&(u64, u64)>| end.map(|(bits, _)| f64::from_bits(*bits));
        let least = total(self.by_total.first()).unwrap_or(vtc.min_tokens);
        let most = total(self.by_total.last()).unwrap_or(vtc.max_tokens);
        Usage { tokens, step: vtc.min_tokens.max((least + most) / 2.0) }
    }

    pub fn spend(&mut self, user: u64, tokens: f64, window: Duration, now: Instant) {
        if !(tokens > 0.0 && tokens.is_finite()) {
            return;
        }
        self.forget(window, now);
        if !self.users.contains_key(&user) && self.users.len() >= USERS_MAX {
            let least = self.by_total.first().map(|(_, user)| *user);
            least.into_iter().for_each(|least| drop(self.take_out(least)));
        }
        let mut own = self.take_out(user).unwrap_or_default();
        match own.slices.back_mut() {
            Some((began, sum)) if now.since(*began) < window / STEPS => *sum += tokens,
            _ => own.slices.push_back((now, tokens)),
        }
        self.put_in(user, own);
    }

    /// Drops what has left the window.
    fn forget(&mut self, window: Duration, now: Instant) {
        while let Some((_, user)) = self.by_age.first().copied().filter(|(at, _)| now.since(*at) >= window) {
            let Some(mut own) = self.take_out(user) else { return };
            own.slices.retain(|(at, _)| now.since(*at) < window);
            self.put_in(user, own);
        }
    }

    fn take_out(&mut self, user: u64) -> Option<User> {
        let own = self.users.remove(&user)?;
        self.by_total.remove(&(own.total.to_bits(), user));
        if let Some((at, _)) = own.slices.front() {
            self.by_age.remove(&(*at, user));
        }
        Some(own)
    }

    fn put_in(&mut self, user: u64, mut own: User) {
        let Some((at, _)) = own.slices.front().copied() else { return };
        own.total = own.slices.iter().map(|(_, tokens)| tokens).sum();
        self.by_age.insert((at, user));
        self.by_total.insert((own.total.to_bits(), user));
        self.users.insert(user, own);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        assert!(self.users.len() == self.by_total.len() && self.users.len() == self.by_age.len());
        self.users.len()
    }
}

/// What each is worth to a user who has used so much. Nothing is known of anybody without a user.
///
/// The row is in the order of the workers' URLs, so that gateways side by side agree.
pub fn row(
    seats: &[&Arc<Seat>],
    loads: &[u32],
    (usage, vtc): (Option<Usage>, &Vtc),
    dice: &mut Dice,
    explain: bool,
) -> Worth {
    let Some(usage) = usage else {
        return Worth { values: Values::from_elem(None, seats.len()), lowest: true, parts: Vec::new() };
    };
    let mut order: Vec<usize> = (0..seats.len()).collect();
    order.sort_by(|a, b| seats[*a].worker.url.cmp(&seats[*b].worker.url));
    let mut places = vec![0.0; seats.len()];
    order.iter().enumerate().for_each(|(place, at)| places[*at] = place as f64);
    let own = (usage.tokens / usage.step).min(seats.len().saturating_sub(1) as f64);
    let fairness: Values = places.iter().map(|place| Some((place - own).abs())).collect();
    let utilization: Values =
        loads.iter().map(|load| Some((f64::from(*load) / vtc.max_load).min(1.0))).collect();
    let weighed = |(fair, used): (&Option<f64>, &Option<f64>)| {
        Some(vtc.fairness_weight * (*fair)? + vtc.utilization_weight * (*used)? + CHANCE * dice.fraction())
    };
    let values = fairness.iter().zip(&utilization).map(weighed).collect();
    let parts = match explain {
        true => {
            let tokens = Values::from_elem(Some(usage.tokens), seats.len());
            vec![("user_tokens", tokens), ("fairness", fairness), ("utilization", utilization)]
        }
        false => Vec::new(),
    };
    Worth { values, lowest: true, parts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};

    const WINDOW: Duration = Duration::from_secs(300);

    fn at(secs: u64) -> Instant {
        Instant::from_micros(secs * 1_000_000)
    }

    fn vtc() -> Vtc {
        super::super::rules::Rules::default().vtc
    }

    #[test]
    fn a_request_costs_what_aibrix_guesses() {
        assert_eq!(cost(0, &vtc()), 0.0);
        assert_eq!(cost(4, &vtc()), 1.0 + 2.0 * 2.0);
        assert_eq!(cost(401, &vtc()), 101.0 + 2.0 * 152.0);
        assert_eq!(cost(400, &Vtc { input_weight: 3.0, output_weight: 0.5, ..vtc() }), 375.0);
    }

    #[test]
    fn what_was_used_leaves_with_the_window() {
        let (vtc, mut users) = (vtc(), Users::default());
        assert_eq!(
            users.usage(1, &vtc, WINDOW, at(0)),
            Usage { tokens: 0.0, step: 4500.0 },
            "nobody: 1000 to 8000"
        );
        users.spend(1, 2000.0, WINDOW, at(0));
        users.spend(1, 500.0, WINDOW, at(100));
        users.spend(2, 6500.0, WINDOW, at(200));
        assert_eq!(users.usage(1, &vtc, WINDOW, at(200)), Usage { tokens: 2500.0, step: 4500.0 });
        assert_eq!(users.usage(1, &vtc, WINDOW, at(301)), Usage { tokens: 500.0, step: 3500.0 });
        assert_eq!(users.usage(2, &vtc, WINDOW, at(450)), Usage { tokens: 6500.0, step: 6500.0 });
        assert_eq!(users.usage(1, &vtc, WINDOW, at(500)), Usage { tokens: 0.0, step: 4500.0 });
        assert_eq!(users.len(), 0);
        users.spend(1, f64::NAN, WINDOW, at(500));
        users.spend(1, 0.0, WINDOW, at(500));
        assert_eq!(users.len(), 0);
    }

    #[test]
    fn users_and_what_is_kept_of_one_are_bounded() {
        let (vtc, mut users) = (vtc(), Users::default());
        users.spend(u64::MAX, 1e6, WINDOW, at(0));
        for user in 0..2 * USERS_MAX as u64 {
            users.spend(user, 10.0 + user as f64, WINDOW, at(1));
        }
        assert_eq!(users.len(), USERS_MAX);
        assert_eq!(users.usage(u64::MAX, &vtc, WINDOW, at(1)).tokens, 1e6, "who used most is remembered");
        assert_eq!(users.usage(0, &vtc, WINDOW, at(1)).tokens, 0.0);
        let mut one = Users::default();
        for ms in 0..400_000 {
            one.spend(7, 1.0, WINDOW, Instant::from_micros(ms * 1000));
        }
        assert!(one.users[&7].slices.len() <= STEPS as usize + 1, "{}", one.users[&7].slices.len());
        assert!((295_000.0..=300_000.0).contains(&one.users[&7].total), "{}", one.users[&7].total);
    }

    fn worth(tokens: f64, step: f64, loads: [u32; 3]) -> Vec<f64> {
        // Not in the order of their URLs.
        let seats = [2, 0, 1]
            .map(|n| Arc::new(Seat::new(n, Worker::new("w", format!("http://h{n}:1"), Role::Whole))));
        let usage = Some(Usage { tokens, step });
        let all: Vec<&Arc<Seat>> = seats.iter().collect();
        let worth = row(&all, &loads, (usage, &vtc()), &mut Dice::new(1), true);
        assert_eq!(worth.parts[0], ("user_tokens", Values::from_elem(Some(tokens), 3)));
        [1, 2, 0].map(|at| worth.values[at].unwrap()).to_vec()
    }

    #[test]
    fn a_user_has_a_place_in_the_row_and_load_moves_it() {
        for (tokens, due) in [(0.0, [0.0, 1.0, 2.0]), (1500.0, [1.5, 0.5, 0.5]), (9e9, [2.0, 1.0, 0.0])] {
            for (value, due) in worth(tokens, 1000.0, [0; 3]).iter().zip(due) {
                assert!((due..due + CHANCE).contains(value), "{tokens}: {value} for {due}");
            }
        }
        // The first in the row has 50 requests, the second 500.
        for (value, due) in worth(0.0, 1000.0, [0, 50, 500]).iter().zip([0.5, 2.0, 2.0]) {
            assert!((due..due + CHANCE).contains(value), "{value} for {due}");
        }
    }
}
