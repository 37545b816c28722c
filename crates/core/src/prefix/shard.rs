//! Runs of blocks, in a tree without a root: a run goes on where its parent ends.
//!
//! A block's hash stands for everything before it as well. So one table from the first block of each run to
//! the run is all it takes to find a child, and a bisection finds the first difference within a run.
//!
//! Runs stand in a list by age. Whoever touches a run touches its parents after it, so the oldest is always
//! one that nothing goes on from, and evicting it leaves no gap.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use super::bits::Bits;

/// No run.
const NIL: u32 = u32::MAX;

/// What a run takes besides its blocks: itself with its share of the list's spare room, its place in the
/// table, and what the allocator adds.
const RUN_BYTES: usize = size_of::<Run>() * 5 / 4 + 40 + 16;

/// Numbers of holders, and how many blocks each has.
pub(super) type Found = SmallVec<[(usize, u32); 8]>;

#[derive(Debug, Default)]
pub(super) struct Shard {
    runs: Vec<Run>,
    free: Vec<u32>,
    /// From a run's first block to the run.
    heads: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    /// Both ends of the list by age. `None`: there is no run.
    ends: Option<Ends>,
    bytes: usize,
    /// Blocks that each number holds here.
    held: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Run {
    /// Empty: a free place.
    hashes: Box<[u64]>,
    holders: Bits,
    parent: u32,
    children: u32,
    /// All children's places, combined by exclusive or: with one child it is that child's.
    kin: u32,
    newer: u32,
    older: u32,
    used: u64,
}

impl Run {
    fn bytes(&self) -> usize {
        RUN_BYTES + self.hashes.len() * 8 + self.holders.bytes()
    }
}

/// One run on a prompt's way: which of the prompt's blocks it has.
struct Step {
    run: u32,
    begin: usize,
    end: usize,
    /// The prompt ends within the run, or goes another way.
    parts: bool,
}

type Path = SmallVec<[Step; 8]>;

impl Shard {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the oldest run was last used.
    pub fn oldest(&self) -> u64 {
        self.ends.map_or(u64::MAX, |ends| self.run(ends.oldest).used)
    }

    /// Adds the blocks that each number holds here.
    pub fn add_held(&self, sums: &mut Vec<u64>) {
        sums.resize(sums.len().max(self.held.len()), 0);
        sums.iter_mut().zip(&self.held).for_each(|(sum, own)| *sum += own);
    }

    pub fn recount(&self) -> usize {
        self.heads.values().map(|at| self.run(*at).bytes()).sum()
    }

    /// Those who hold most first, `most` of them.
    pub fn find(&self, hashes: &[u64], most: usize) -> Found {
        let (mut found, mut seen) = (Found::new(), Bits::default());
        for step in self.path(hashes).iter().rev() {
            let before = seen.clone();
            for number in self.run(step.run).holders.without(&before) {
                if found.len() == most {
                    return found;
                }
                found.push((number, step.end as u32));
                seen.set(number);
            }
        }
        found
    }

    /// The worker holds all of it from now on. How many of its first blocks it held before.
    pub fn hold(&mut self, hashes: &[u64], number: usize, now: u64) -> u32 {
        let mut path = self.path(hashes);
        let held = path.iter().rev().find(|step| self.run(step.run).holders.has(number));
        let held = held.map_or(0, |step| step.end);
        let end = path.last().map_or(0, |step| step.end);
        if let Some(last) = path.last_mut()
            && last.parts
            && (end < hashes.len() || held < end)
        {
            last.run = self.split(last.run, last.end - last.begin);
        }
        // What lies before is covered by what was held, even where a prompt before it was taken back.
        for step in path.iter().filter(|step| step.end > held) {
            self.mark(step.run, number);
        }
        if let Some(rest) = hashes.get(end..).filter(|rest| !rest.is_empty()) {
            let run = self.add(rest, path.last().map_or(NIL, |step| step.run), now);
            self.mark(run, number);
        }
        for step in path.iter().rev() {
            self.touch(step.run, now);
        }
        held as u32
    }

    /// The worker does not hold the blocks after the first `from` after all.
    pub fn withdraw(&mut self, hashes: &[u64], number: usize, from: u32) {
        let from = from as usize;
        // Removing a run may join others, so each one is looked for anew.
        let holds = |shard: &Shard, step: &Step| step.end > from && shard.run(step.run).holders.has(number);
        while let Some(step) = self.path(hashes).into_iter().rev().find(|step| holds(self, step)) {
            let mut run = step.run;
            if step.parts {
                run = self.split(run, step.end - step.begin);
            }
            if step.begin < from {
                self.split(run, from - step.begin);
            }
            self.unmark(run, number);
        }
    }

    /// Nobody of this number is there any more.
    pub fn forget(&mut self, number: usize) {
        for run in 0..self.runs.len() as u32 {
            if self.run(run).holders.has(number) {
                self.unmark(run, number);
            }
        }
    }

    /// Removes the oldest run. False if there is none.
    pub fn evict(&mut self) -> bool {
        let Some(ends) = self.ends else { return false };
        self.remove(ends.oldest);
        true
    }

    fn path(&self, hashes: &[u64]) -> Path {
        let (mut path, mut at) = (Path::new(), 0);
        while let Some(run) = hashes.get(at).and_then(|head| self.heads.get(head)) {
            let own = &self.run(*run).hashes;
            let end = at + alike(own, &hashes[at..]);
            let parts = end - at < own.len();
            path.push(Step { run: *run, begin: at, end, parts });
            if parts {
                break;
            }
            at = end;
        }
        path
    }

    fn run(&self, at: u32) -> &Run {
        &self.runs[at as usize]
    }

    fn run_mut(&mut self, at: u32) -> &mut Run {
        &mut self.runs[at as usize]
    }

    fn mark(&mut self, at: u32, number: usize) {
        if !self.run(at).holders.has(number) {
            self.change_holders(at, |holders| holders.set(number));
            self.gain(number, self.run(at).hashes.len());
        }
    }

    fn change_holders(&mut self, at: u32, change: impl FnOnce(&mut Bits)) {
        let holders = &mut self.run_mut(at).holders;
        let before = holders.bytes();
        change(holders);
        let after = holders.bytes();
        self.bytes = self.bytes + after - before;
    }

    fn gain(&mut self, number: usize, blocks: usize) {
        if self.held.len() <= number {
            self.held.resize(number + 1, 0);
        }
        self.held[number] += blocks as u64;
    }

    fn lose(&mut self, number: usize, blocks: usize) {
        if let Some(held) = self.held.get_mut(number) {
            *held = held.saturating_sub(blocks as u64);
        }
    }

    fn unmark(&mut self, at: u32, number: usize) {
        if self.run(at).holders.has(number) {
            self.change_holders(at, |holders| holders.clear(number));
            self.lose(number, self.run(at).hashes.len());
        }
        let run = self.run(at);
        if run.holders.is_empty() && run.children == 0 {
            self.remove(at);
        }
    }
}

/// Making and ending runs.
impl Shard {
    /// The newest run.
    fn add(&mut self, hashes: &[u64], parent: u32, now: u64) -> u32 {
        let run = Run {
            hashes: hashes.into(),
            holders: Bits::default(),
            parent,
            children: 0,
            kin: 0,
            newer: NIL,
            older: NIL,
            used: now,
        };
        let at = self.place(run);
        if parent != NIL {
            self.adopt(parent, at);
        }
        self.push_newest(at);
        at
    }

    fn place(&mut self, run: Run) -> u32 {
        self.bytes += run.bytes();
        let head = run.hashes.first().copied().unwrap_or_default();
        let at = match self.free.pop() {
            Some(at) => {
                self.runs[at as usize] = run;
                at
            }
            None => {
                if self.runs.len() == self.runs.capacity() {
                    // Not doubled: the spare room counts as memory in use.
                    self.runs.reserve_exact(self.runs.len() / 4 + 16);
                }
                self.runs.push(run);
                (self.runs.len() - 1) as u32
            }
        };
        self.heads.insert(head, at);
        at
    }

    fn adopt(&mut self, parent: u32, child: u32) {
        let run = self.run_mut(parent);
        run.children += 1;
        run.kin ^= child;
    }

    /// Cuts a run after its first `at` blocks. Gives the upper part's place; the lower part keeps its own, and
    /// with it all that goes on from it.
    fn split(&mut self, lower: u32, at: usize) -> u32 {
        let run = self.run_mut(lower);
        let (above, below) = run.hashes.split_at(at.min(run.hashes.len()));
        let (Some(head), true) = (below.first().copied(), !above.is_empty()) else { return lower };
        let upper = Run {
            hashes: above.into(),
            holders: run.holders.clone(),
            parent: run.parent,
            children: 1,
            kin: lower,
            newer: run.newer,
            older: lower,
            used: run.used,
        };
        let (parent, below) = (run.parent, below.into());
        run.hashes = below;
        self.bytes -= at * 8;
        let upper = self.place(upper);
        self.heads.insert(head, lower);
        self.run_mut(lower).parent = upper;
        if parent != NIL {
            self.run_mut(parent).kin ^= lower ^ upper;
        }
        // As old as the lower part, and next to it: what has children must not be the older one.
        self.link(upper);
        upper
    }

    /// Removes a run that nothing goes on from, and those before it that are of no use without it.
    fn remove(&mut self, at: u32) {
        let mut next = Some(at);
        while let Some(at) = next.take() {
            self.unlink(at);
            let parent = self.vacate(at);
            if parent == NIL {
                return;
            }
            let run = self.run_mut(parent);
            run.children -= 1;
            run.kin ^= at;
            match run.children {
                0 if run.holders.is_empty() => next = Some(parent),
                1 => self.join(parent),
                _ => {}
            }
        }
    }

    /// Frees the place of a run that is in no list any more. Gives its parent.
    fn vacate(&mut self, at: u32) -> u32 {
        let run = self.run_mut(at);
        let (hashes, parent, bytes) = (std::mem::take(&mut run.hashes), run.parent, run.bytes());
        let holders = std::mem::take(&mut run.holders);
        (run.children, run.kin, run.parent) = (0, 0, NIL);
        self.bytes -= bytes + hashes.len() * 8;
        holders.iter().for_each(|number| self.lose(number, hashes.len()));
        if let Some(head) = hashes.first()
            && self.heads.get(head) == Some(&at)
        {
            self.heads.remove(head);
        }
        self.free.push(at);
        parent
    }

    /// Makes one run of this one and its only child, if the same workers hold both: what was split for a
    /// prompt that is forgotten need not stay split.
    fn join(&mut self, upper: u32) {
        let lower = self.run(upper).kin;
        if self.run(upper).holders != self.run(lower).holders {
            return;
        }
        let both = [&*self.run(upper).hashes, &*self.run(lower).hashes].concat();
        let head = self.run(lower).hashes.first().copied().unwrap_or_default();
        self.heads.remove(&head);
        self.unlink(lower);
        let (parent, newer, used) = (self.run(upper).parent, self.run(upper).newer, self.run(upper).used);
        let gained = self.run(upper).hashes.len();
        self.bytes += gained * 8;
        // What the upper part's end takes back.
        let holders = self.run(upper).holders.clone();
        holders.iter().for_each(|number| self.gain(number, gained));
        let first = both.first().copied().unwrap_or_default();
        let run = self.run_mut(lower);
        (run.hashes, run.parent, run.used) = (both.into(), parent, used);
        (run.newer, run.older) = (newer, upper);
        self.link(lower);
        self.unlink(upper);
        self.vacate(upper);
        self.heads.insert(first, lower);
        if parent != NIL {
            self.run_mut(parent).kin ^= upper ^ lower;
        }
    }
}

/// The list by age.
impl Shard {
    fn touch(&mut self, at: u32, now: u64) {
        self.run_mut(at).used = now;
        self.unlink(at);
        self.push_newest(at);
    }

    fn push_newest(&mut self, at: u32) {
        let older = self.ends.map_or(NIL, |ends| ends.newest);
        let run = self.run_mut(at);
        (run.newer, run.older) = (NIL, older);
        self.link(at);
    }

    /// Tells both neighbours that a run names.
    fn link(&mut self, at: u32) {
        let (newer, older) = (self.run(at).newer, self.run(at).older);
        let mut ends = self.ends.unwrap_or(Ends { newest: at, oldest: at });
        match newer {
            NIL => ends.newest = at,
            newer => self.run_mut(newer).older = at,
        }
        match older {
            NIL => ends.oldest = at,
            older => self.run_mut(older).newer = at,
        }
        self.ends = Some(ends);
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.run(at).newer, self.run(at).older);
        let Some(mut ends) = self.ends else { return };
        match newer {
            NIL => ends.newest = older,
            newer => self.run_mut(newer).older = older,
        }
        match older {
            NIL => ends.oldest = newer,
            older => self.run_mut(older).newer = newer,
        }
        self.ends = (ends.newest != NIL).then_some(ends);
    }
}

/// How many first blocks are the same. Equal blocks have equal blocks before them.
fn alike(a: &[u64], b: &[u64]) -> usize {
    let n = a.len().min(b.len());
    if a[..n].last() == b[..n].last() {
        return n;
    }
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = (low + high) / 2;
        if a[middle] == b[middle] { low = middle + 1 } else { high = middle }
    }
    low
}

/// The keys are hashes already.
#[derive(Debug, Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shard {
        /// The list has each run once, parents before children; counts and table fit.
        fn check(&self) {
            let mut rank = HashMap::new();
            let mut at = self.ends.map_or(NIL, |ends| ends.oldest);
            let mut newer = NIL;
            while at != NIL {
                assert_eq!(rank.insert(at, rank.len()), None);
                (newer, at) = (at, self.run(at).newer);
            }
            assert_eq!(newer, self.ends.map_or(NIL, |ends| ends.newest));
            assert_eq!((rank.len(), self.recount()), (self.heads.len(), self.bytes));
            assert_eq!(self.runs.len() - self.free.len(), rank.len());
            for (at, place) in &rank {
                let run = self.run(*at);
                assert_eq!(self.heads.get(&run.hashes[0]), Some(at));
                let own = |child: &&u32| self.run(**child).parent == *at;
                let children: Vec<_> = rank.keys().filter(own).collect();
                assert_eq!(children.len() as u32, run.children);
                assert_eq!(children.iter().fold(0, |kin, child| kin ^ **child), run.kin);
                assert!(children.iter().all(|child| rank[child] < *place), "a child is newer");
                assert!(run.children > 0 || !run.holders.is_empty(), "of no use");
            }
            let mut held = vec![0; self.held.len()];
            for run in rank.keys().map(|at| self.run(*at)) {
                run.holders.iter().for_each(|number| held[number] += run.hashes.len() as u64);
            }
            assert_eq!(held, self.held);
        }
    }

    /// A prompt whose blocks are told by letters; equal beginnings have equal hashes.
    fn hashes(text: &str) -> Vec<u64> {
        let chain = |hash: &mut u64, letter: char| {
            *hash = (*hash ^ letter as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            Some(*hash)
        };
        text.chars().scan(7, chain).collect()
    }

    fn found(shard: &Shard, text: &str) -> Vec<(usize, u32)> {
        let mut found = shard.find(&hashes(text), 64).to_vec();
        found.sort_unstable();
        found
    }

    #[test]
    fn prompts_share_what_they_have_in_common() {
        let mut shard = Shard::default();
        assert_eq!(shard.hold(&hashes("abcdef"), 1, 1), 0);
        assert_eq!(shard.hold(&hashes("abcxyz"), 2, 2), 0);
        assert_eq!(shard.hold(&hashes("abcx"), 100, 3), 0);
        shard.check();
        assert_eq!(found(&shard, "abcxyzzz"), [(1, 3), (2, 6), (100, 4)]);
        assert_eq!(found(&shard, "ab"), [(1, 2), (2, 2), (100, 2)]);
        assert_eq!(found(&shard, "b"), []);
        assert_eq!(shard.hold(&hashes("abcxyz!"), 2, 4), 6);
        assert_eq!(shard.hold(&hashes("abcx"), 2, 4), 4, "nothing new");
        assert_eq!(shard.find(&hashes("abcxyz"), 1).to_vec(), [(2, 6)]);
        shard.check();
    }

    #[test]
    fn the_oldest_goes_first_and_what_was_split_is_joined() {
        let mut shard = Shard::default();
        shard.hold(&hashes("abcdef"), 1, 1);
        let whole = shard.bytes();
        shard.hold(&hashes("abcxyz"), 1, 2);
        shard.hold(&hashes("q"), 1, 3);
        assert_eq!(shard.oldest(), 1);
        assert!(shard.evict());
        shard.check();
        assert_eq!(found(&shard, "abcdef"), [(1, 3)]);
        assert_eq!(found(&shard, "abcxyz"), [(1, 6)]);
        shard.hold(&hashes("q"), 1, 4);
        assert!(shard.evict() && shard.bytes() < whole, "one run again, so it went at once");
        assert_eq!(found(&shard, "abcxyz"), []);
        assert!(shard.evict() && !shard.evict());
        assert_eq!((shard.bytes(), shard.oldest()), (0, u64::MAX));
        shard.check();
    }

    #[test]
    fn what_is_taken_back_is_only_what_was_new() {
        let mut shard = Shard::default();
        shard.hold(&hashes("abc"), 1, 1);
        shard.hold(&hashes("abcdef"), 2, 2);
        let from = shard.hold(&hashes("abcdefgh"), 1, 3);
        assert_eq!(from, 3);
        shard.withdraw(&hashes("abcdefgh"), 1, from);
        shard.check();
        assert_eq!(found(&shard, "abcdefgh"), [(1, 3), (2, 6)]);
        shard.withdraw(&hashes("ab"), 2, 0);
        shard.check();
        assert_eq!(found(&shard, "abcdefgh"), [(1, 3), (2, 6)], "it has a later part, so it has it all");
        shard.forget(2);
        shard.check();
        assert_eq!(found(&shard, "abcdefgh"), [(1, 3)]);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None, ..proptest::prelude::ProptestConfig::default()
        })]

        /// Any order of everything: the tree stays whole, and a holder that was just put in is found.
        #[test]
        fn the_tree_stays_whole(steps in proptest::collection::vec((0..5u8, "[ab]{1,7}", 0..130usize, 0..7u32), 1..80)) {
            let mut shard = Shard::default();
            for (now, (step, text, number, from)) in (1u64..).zip(steps) {
                let hashes = hashes(&text);
                match step {
                    0 | 1 => {
                        let before = shard.find(&hashes, 1000);
                        let own = before.iter().find(|(n, _)| *n == number).map_or(0, |(_, blocks)| *blocks);
                        assert_eq!(shard.hold(&hashes, number, now), own);
                        assert!(shard.find(&hashes, 1000).contains(&(number, hashes.len() as u32)));
                    }
                    2 => {
                        shard.withdraw(&hashes, number, from);
                        let kept = shard.find(&hashes, 1000);
                        assert!(kept.iter().all(|(n, blocks)| *n != number || *blocks <= from));
                    }
                    3 => {
                        shard.forget(number);
                        assert!(shard.find(&hashes, 1000).iter().all(|(n, _)| *n != number));
                    }
                    _ => drop(shard.evict()),
                }
                shard.check();
            }
        }
    }
}
