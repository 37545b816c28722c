//! Who may try next when all windows were full?
//!
//! Requests that found no room stand in line, one line a model. A waiter is not overtaken by a later one of
//! its line that needs as many rooms or more; one that needs fewer may pass, so that a wide request does not
//! keep rooms empty that it cannot use (SMG 1.13).
//!
//! One whose client leaves it other workers to choose from (`external-filter`) waits for other rooms, so it holds up
//! nobody with another filter or with none. But whoever may go anywhere could use its rooms too, so a filter is no way
//! past those who wait without one. Only so many filters are told apart in one line: requests with any further ones
//! wait for each other, so that a client that thinks of a new one each time does not have everybody try at once.
//!
//! The lines are bounded together. Who may try is found without walking a line, as far as its requests need one room.
//!
//! Decides only: the shell keeps the time, holds the queue behind a lock, and wakes. In this order no
//! wake-up is lost: a lease goes back first, then [`Queue::next`] is asked; a request enters first, then
//! tries once more if it may. One that is done, served or not, leaves, and those that may try then are
//! woken too, since more than one room may have come free.
//!
//! Does not know which worker serves which model; whoever gives rooms back says so.

use std::collections::{BTreeMap, VecDeque};

/// Filters that are told apart in one line.
pub const FILTERS_MAX: usize = 16;

/// Requests that wait for room, each with what the shell wakes it by.
#[derive(Debug)]
pub struct Queue<W> {
    limit: usize,
    waiting: usize,
    last: u64,
    /// By model; a request that names none stands in the line of the empty name.
    lines: BTreeMap<String, Line<W>>,
}

/// Requests for one model.
#[derive(Debug)]
struct Line<W> {
    /// May go to any worker.
    plain: File<W>,
    /// Those of one filter each.
    filtered: Vec<(String, File<W>)>,
    /// Those of any further filters.
    rest: File<W>,
}

/// Requests that wait for the same rooms, in the order in which they came.
#[derive(Debug)]
struct File<W>(VecDeque<Waiter<W>>);

#[derive(Debug)]
struct Waiter<W> {
    number: u64,
    rooms: u32,
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

impl<W> File<W> {
    /// Somebody who came before this number needs no more than so many rooms.
    fn holds_up(&self, rooms: u32, number: u64) -> bool {
        self.0.iter().take_while(|waiter| waiter.number < number).any(|waiter| waiter.rooms <= rooms)
    }

    /// Those that overtake nobody: the first, and each that needs less than all before it. Nobody needs less than one
    /// room.
    fn first(&self) -> impl Iterator<Item = &Waiter<W>> {
        let each = self.0.iter().scan(u32::MAX, |fewest, waiter| {
            let before = *fewest;
            *fewest = waiter.rooms.min(before);
            (before > 1).then_some((waiter, waiter.rooms < before))
        });
        each.filter(|(_, first)| *first).map(|(waiter, _)| waiter)
    }

    fn take_out(&mut self, number: u64) -> bool {
        let at = self.0.binary_search_by_key(&number, |waiter| waiter.number).ok();
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

impl<W> Line<W> {
    fn new() -> Line<W> {
        Line { plain: File(VecDeque::new()), filtered: Vec::new(), rest: File(VecDeque::new()) }
    }

    fn is_empty(&self) -> bool {
        self.plain.0.is_empty() && self.filtered.is_empty() && self.rest.0.is_empty()
    }

    /// Where those with this filter stand. `None`: there are none yet, and they get a file of their own.
    fn file(&self, filter: Option<&str>) -> Option<&File<W>> {
        let Some(filter) = filter else { return Some(&self.plain) };
        let own = self.filtered.iter().find(|(own, _)| own == filter).map(|(_, file)| file);
        own.or_else(|| self.is_crowded().then_some(&self.rest))
    }

    fn file_mut(&mut self, filter: Option<&str>) -> &mut File<W> {
        let Some(filter) = filter else { return &mut self.plain };
        let own = self.filtered.iter().position(|(own, _)| own == filter);
        let at = own.unwrap_or(self.filtered.len());
        if own.is_none() && !self.is_crowded() {
            self.filtered.push((filter.to_owned(), File(VecDeque::new())));
        }
        self.filtered.get_mut(at).map_or(&mut self.rest, |(_, file)| file)
    }

    /// No further filter gets a file of its own. Not before those that had none are served: among them may be some with
    /// that filter, and they came first.
    fn is_crowded(&self) -> bool {
        self.filtered.len() >= FILTERS_MAX || !self.rest.0.is_empty()
    }

    fn take_out(&mut self, number: u64) -> bool {
        let found = self.plain.take_out(number) || self.rest.take_out(number);
        let found = found || self.filtered.iter_mut().any(|(_, file)| file.take_out(number));
        self.filtered.retain(|(_, file)| !file.0.is_empty());
        found
    }

    /// Those that overtake nobody.
    fn first(&self) -> impl Iterator<Item = &Waiter<W>> {
        let filtered = self.filtered.iter().map(|(_, file)| file).chain([&self.rest]);
        let held_up = |waiter: &&Waiter<W>| !self.plain.holds_up(waiter.rooms, waiter.number);
        self.plain.first().chain(filtered.flat_map(File::first).filter(held_up))
    }
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
        let holds_up = |file: &File<W>| file.holds_up(want.rooms, u64::MAX);
        self.lines.get(want.model.unwrap_or_default()).is_some_and(|line| {
            holds_up(&line.plain) || want.filter.is_some() && line.file(want.filter).is_some_and(holds_up)
        })
    }

    /// A place at the end of the model's line. `None`: the queue is full, refuse at once.
    pub fn enter(&mut self, want: Want<'_>, waker: W) -> Option<Ticket> {
        if self.waiting >= self.limit {
            return None;
        }
        self.waiting += 1;
        self.last += 1;
        let (model, number) = (want.model.unwrap_or_default().to_owned(), self.last);
        let line = self.lines.entry(model.clone()).or_insert_with(Line::new);
        line.file_mut(want.filter).0.push_back(Waiter { number, rooms: want.rooms, waker });
        Some(Ticket { model, number })
    }

    /// The request has its rooms, or does not want them any more. Those of its line that may try now. A
    /// ticket that has left already changes nothing.
    pub fn leave(&mut self, ticket: &Ticket) -> impl Iterator<Item = &W> {
        if let Some(line) = self.lines.get_mut(&ticket.model) {
            self.waiting -= usize::from(line.take_out(ticket.number));
            if line.is_empty() {
                self.lines.remove(&ticket.model);
            }
        }
        self.lines.get(&ticket.model).into_iter().flat_map(Line::first).map(|waiter| &waiter.waker)
    }

    /// May this one try now?
    pub fn may_try(&self, ticket: &Ticket) -> bool {
        let line = self.lines.get(&ticket.model);
        line.is_some_and(|line| line.first().any(|waiter| waiter.number == ticket.number))
    }

    /// Rooms came free on a worker that serves these models: those who may try for them.
    pub fn next(&self, serves: impl Fn(&str) -> bool) -> impl Iterator<Item = &W> {
        let lines = self.lines.iter().filter(move |(model, _)| model.is_empty() || serves(model));
        lines.flat_map(|(_, line)| line.first()).map(|waiter| &waiter.waker)
    }
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
        assert_eq!(next(&queue), [1, 4, 0, 3]);
        assert!(queue.must_wait(want(2, Some("a"))) && queue.must_wait(want(1, None)));
        let _ = queue.leave(&tickets[4]);
        assert!(!queue.must_wait(want(1, Some("a"))) && queue.must_wait(want(1, Some("b"))));
        assert_eq!(
            queue.leave(&tickets[0]).copied().collect::<Vec<_>>(),
            [1, 3],
            "2 is behind one without a filter"
        );
        assert_eq!(queue.leave(&tickets[1]).copied().collect::<Vec<_>>(), [2, 3]);
    }

    /// Whoever may go anywhere could use the rooms that a filter leaves.
    #[test]
    fn a_filter_is_no_way_past_those_who_wait_without_one() {
        let mut queue = Queue::new(9);
        let want = |rooms, filter| Want { filter, ..Want::of(Some("m"), rooms) };
        let plain = queue.enter(want(2, None), 0).unwrap();
        assert!(queue.must_wait(want(2, Some("!new"))) && !queue.must_wait(want(1, Some("!new"))));
        let filtered = queue.enter(want(2, Some("!new")), 1).unwrap();
        assert!(queue.may_try(&plain) && !queue.may_try(&filtered));
        assert_eq!(next(&queue), [0]);
        assert_eq!(queue.leave(&plain).copied().collect::<Vec<_>>(), [1]);
        // And nobody waits for a filter that he has not.
        assert!(!queue.must_wait(want(2, None)) && !queue.must_wait(want(2, Some("other"))));
    }

    #[test]
    fn many_filters_do_not_make_many_that_try_at_once() {
        let mut queue = Queue::new(2000);
        let filters: Vec<String> = (0..1000).map(|n| format!("x!={n}")).collect();
        let want = |n: usize| Want { filter: Some(&filters[n]), ..Want::of(Some("m"), 1) };
        let mut tickets: VecDeque<Ticket> = (0..1000).map(|n| queue.enter(want(n), n).unwrap()).collect();
        assert_eq!(next(&queue).len(), FILTERS_MAX + 1);
        assert!(queue.must_wait(want(999)) && queue.must_wait(want(3)));
        // All of them come to their turn.
        let mut tried = vec![false; 1000];
        while let Some(own) = tickets.pop_front() {
            next(&queue).into_iter().for_each(|n| tried[n] = true);
            assert!(queue.may_try(&own));
            assert!(queue.leave(&own).count() <= FILTERS_MAX + 1);
        }
        assert!(tried.iter().all(|tried| *tried) && queue.is_empty() && queue.lines.is_empty());
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
