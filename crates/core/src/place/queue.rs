//! Who may try next when all windows were full?
//!
//! Requests that found no room stand in line, one line a model. A waiter is not overtaken by a later one of
//! its line that needs as many rooms or more; one that needs fewer may pass, so that a wide request does not
//! keep rooms empty that it cannot use (SMG 1.13). One whose client leaves it other workers to choose from
//! (`external-filter`) waits for other rooms, so neither holds the other up. The lines are bounded together.
//!
//! Decides only: the shell keeps the time, holds the queue behind a lock, and wakes. In this order no
//! wake-up is lost: a lease goes back first, then [`Queue::next`] is asked; a request enters first, then
//! tries once more if it may. One that is done, served or not, leaves, and those that may try then are
//! woken too, since more than one room may have come free.
//!
//! Does not know which worker serves which model; whoever gives rooms back says so.

use std::collections::{BTreeMap, VecDeque};

/// Requests that wait for room, each with what the shell wakes it by.
#[derive(Debug)]
pub struct Queue<W> {
    limit: usize,
    waiting: usize,
    last: u64,
    /// By model; a request that names none stands in the line of the empty name.
    lines: BTreeMap<String, VecDeque<Waiter<W>>>,
}

#[derive(Debug)]
struct Waiter<W> {
    number: u64,
    rooms: u32,
    filter: Option<String>,
    waker: W,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    pub model: Option<&'a str>,
    pub rooms: u32,
    /// The selector by which its client leaves workers out.
    pub filter: Option<&'a str>,
}

impl<'a> Want<'a> {
    /// Of a request that any worker may serve.
    pub fn of(model: Option<&'a str>, rooms: u32) -> Want<'a> {
        Want { model, rooms, filter: None }
    }
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    model: String,
    number: u64,
}

impl<W> Queue<W> {
    /// At most `limit` requests wait.
    pub fn new(limit: usize) -> Queue<W> {
        Queue { limit, waiting: 0, last: 0, lines: BTreeMap::new() }
    }

    /// Requests that wait now.
    pub fn len(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Would a request that comes now overtake one that waits? Then it has to enter before it tries.
    pub fn must_wait(&self, want: Want<'_>) -> bool {
        let before = |w: &Waiter<W>| w.rooms <= want.rooms && w.filter.as_deref() == want.filter;
        self.lines.get(want.model.unwrap_or_default()).is_some_and(|line| line.iter().any(before))
    }

    /// A place at the end of the model's line. `None`: the queue is full, refuse at once.
    pub fn enter(&mut self, want: Want<'_>, waker: W) -> Option<Ticket> {
        if self.waiting >= self.limit {
            return None;
        }
        self.waiting += 1;
        self.last += 1;
        let (model, number) = (want.model.unwrap_or_default().to_owned(), self.last);
        let line = self.lines.entry(model.clone()).or_default();
        let filter = want.filter.map(str::to_owned);
        line.push_back(Waiter { number, rooms: want.rooms, filter, waker });
        Some(Ticket { model, number })
    }

    /// The request has its rooms, or does not want them any more. Those of its line that may try now. A
    /// ticket that has left already changes nothing.
    pub fn leave(&mut self, ticket: &Ticket) -> impl Iterator<Item = &W> {
        if let Some(line) = self.lines.get_mut(&ticket.model) {
            let before = line.len();
            line.retain(|waiter| waiter.number != ticket.number);
            self.waiting -= before - line.len();
            if line.is_empty() {
                self.lines.remove(&ticket.model);
            }
        }
        self.lines.get(&ticket.model).into_iter().flat_map(|line| first(line)).map(|waiter| &waiter.waker)
    }

    /// May this one try now?
    pub fn may_try(&self, ticket: &Ticket) -> bool {
        let line = self.lines.get(&ticket.model);
        line.is_some_and(|line| first(line).any(|waiter| waiter.number == ticket.number))
    }

    /// Rooms came free on a worker that serves these models: those who may try for them.
    pub fn next(&self, serves: impl Fn(&str) -> bool) -> impl Iterator<Item = &W> {
        let lines = self.lines.iter().filter(move |(model, _)| model.is_empty() || serves(model));
        lines.flat_map(|(_, line)| first(line)).map(|waiter| &waiter.waker)
    }
}

/// Those of a line that overtake nobody: the first, and each that needs less than all before it.
fn first<W>(line: &VecDeque<Waiter<W>>) -> impl Iterator<Item = &Waiter<W>> {
    let mut fewest: BTreeMap<Option<&str>, u32> = BTreeMap::new();
    line.iter().filter(move |waiter| {
        let fewest = fewest.entry(waiter.filter.as_deref()).or_insert(u32::MAX);
        let first = waiter.rooms < *fewest;
        *fewest = waiter.rooms.min(*fewest);
        first
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(rooms: &[u32]) -> (Queue<usize>, Vec<Ticket>) {
        let mut queue = Queue::new(100);
        let tickets =
            rooms.iter().enumerate().map(|(i, n)| queue.enter(Want::of(Some("m"), *n), i).unwrap()).collect();
        (queue, tickets)
    }

    fn next(queue: &Queue<usize>) -> Vec<usize> {
        queue.next(|_| true).copied().collect()
    }

    #[test]
    fn only_one_that_needs_less_may_pass() {
        let (queue, tickets) = queue(&[4, 4, 2, 3, 1, 1]);
        assert_eq!(next(&queue), [0, 2, 4]);
        let may: Vec<bool> = tickets.iter().map(|t| queue.may_try(t)).collect();
        assert_eq!(may, [true, false, true, false, true, false]);
        assert!(queue.must_wait(Want::of(Some("m"), 1)) && !queue.must_wait(Want::of(Some("x"), 1)));
    }

    #[test]
    fn who_leaves_lets_the_next_one_try() {
        let (mut queue, tickets) = queue(&[1, 1, 1]);
        assert_eq!(queue.leave(&tickets[1]).copied().collect::<Vec<_>>(), [0]);
        assert_eq!(queue.leave(&tickets[0]).copied().collect::<Vec<_>>(), [2]);
        assert_eq!(queue.leave(&tickets[0]).copied().collect::<Vec<_>>(), [2], "it had left");
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.leave(&tickets[2]).count(), 0);
        assert!(queue.is_empty() && queue.lines.is_empty());
    }

    #[test]
    fn filters_do_not_wait_for_each_other() {
        let mut queue = Queue::new(9);
        let want = |rooms, filter| Want { filter, ..Want::of(Some("m"), rooms) };
        let wants = [(2, Some("a")), (2, None), (2, Some("a")), (1, Some("b")), (1, None)];
        let tickets: Vec<Ticket> = (0..)
            .zip(wants)
            .map(|(i, (rooms, filter))| queue.enter(want(rooms, filter), i).unwrap())
            .collect();
        assert_eq!(next(&queue), [0, 1, 3, 4]);
        assert!(queue.must_wait(want(2, Some("a"))) && queue.must_wait(want(1, None)));
        assert!(!queue.must_wait(want(1, Some("a"))) && !queue.must_wait(want(9, Some("c"))));
        assert_eq!(queue.leave(&tickets[0]).copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn models_do_not_wait_for_each_other() {
        let mut queue = Queue::new(3);
        let a = queue.enter(Want::of(Some("a"), 1), 'a').unwrap();
        let _ = queue.enter(Want::of(Some("b"), 1), 'b').unwrap();
        let _ = queue.enter(Want::of(None, 1), '-').unwrap();
        assert_eq!(queue.next(|model| model == "b").collect::<String>(), "-b");
        assert!(queue.enter(Want::of(Some("c"), 1), 'c').is_none(), "the lines are bounded together");
        assert_eq!(queue.leave(&a).count(), 0);
        assert!(queue.enter(Want::of(Some("c"), 1), 'c').is_some());
    }
}
