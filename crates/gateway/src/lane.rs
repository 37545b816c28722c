//! A lane: one thread, one single-threaded runtime, its own share of the client connections and its own
//! pool of worker connections.
//!
//! A request never crosses threads: its client connection, both legs and their timers live in one task of
//! one lane, so nothing on its path is shared but counters. The acceptor gives a new connection to the lane
//! that has the fewest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::dice::Dice;
use baton_core::tokenize::Memo;

use crate::clock::Clock;
use crate::edge::client::{Line, Phase};
use crate::gateway::Timeouts;
use crate::recent::Recent;
use crate::upstream::{Pool, PoolRule};

pub struct Lane {
    pub pool: Arc<Pool>,
    pub clock: Clock,
    /// Its last exchanges.
    pub recent: Recent,
    dice: Mutex<Dice>,
    memo: Mutex<Memo>,
    lines: Mutex<HashMap<u64, Arc<Line>>>,
    next_line: AtomicU64,
    open: AtomicUsize,
    stopping: AtomicBool,
}

impl Lane {
    /// Remembers so many exchanges.
    pub fn new(rule: PoolRule, clock: Clock, seed: u64, recent: usize) -> Lane {
        Lane {
            pool: Arc::new(Pool::new(rule)),
            clock,
            recent: Recent::new(recent),
            dice: Mutex::new(Dice::new(seed)),
            memo: Mutex::default(),
            lines: Mutex::default(),
            next_line: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Dice for one exchange.
    pub fn dice(&self) -> Dice {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).split()
    }

    /// What engines said of its last prompts.
    pub fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Client connections of this lane.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts a connection before it is handed over, so that the acceptor sees its own hand.
    pub fn expect_one(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that was expected did not come.
    pub fn turned_away(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn join(&self, line: &Arc<Line>) -> u64 {
        let id = self.next_line.fetch_add(1, Ordering::Relaxed);
        self.lines().insert(id, line.clone());
        id
    }

    pub fn leave(&self, id: u64) {
        self.lines().remove(&id);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// The gateway stops now: every exchange ends at its next turn.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for line in self.lines().values() {
            match line.phase() {
                Phase::Idle | Phase::Head => line.doom(),
                Phase::Busy | Phase::Answering => line.wake(),
            }
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// No more requests on idle connections; those under way go on.
    pub fn close_idle(&self) {
        for line in self.lines().values() {
            if line.phase() == Phase::Idle {
                line.doom();
            }
        }
    }

    /// Ends connections that have been idle, or have been sending one head, for too long, and those whose client does
    /// not read an answer whose time is over.
    pub fn sweep(&self, timeouts: &Timeouts) {
        let now = self.clock.now();
        for line in self.lines().values() {
            if line.phase() == Phase::Answering && line.is_overdue(now) {
                line.cut();
            }
            let limit = match line.phase() {
                Phase::Idle => timeouts.idle_connection,
                Phase::Head => timeouts.header_read,
                Phase::Busy | Phase::Answering => None,
            };
            if limit.is_some_and(|l| now.since(line.since()) > l) {
                // Doomed before and still there: it waits for a client that does not read what it was answered.
                if line.is_doomed() {
                    line.cut();
                }
                line.doom();
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
