//! Follows one worker: connects, asks for what was before, hears what comes, asks for what is missing, and begins anew
//! when the connection is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::fleet::Seat;
use baton_core::kv::{Feed, KvIndex, Next, Trouble};
use baton_core::zmtp;
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::link::{Link, refused};
use super::source::Source;
use crate::clock::Clock;

/// Engines asked at once for what was missed: it can be much, and all of it is read on one thread.
pub const REPLAYS_AT_ONCE: usize = 8;

/// The pause before a connection is tried again: at first, and at most, doubling in between.
pub const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));

/// The pause after events were more than there is memory for.
const FULL: Duration = Duration::from_secs(60);

/// Silence within a replay.
const REPLAY_IDLE: Duration = Duration::from_secs(5);

/// All of a replay.
const REPLAY_ALL: Duration = Duration::from_secs(60);

/// The number that ends a replay.
const END: u64 = u64::MAX;

pub struct Follow {
    pub life: u32,
    pub seat: Arc<Seat>,
    pub source: Source,
    pub index: Arc<KvIndex>,
    pub clock: Clock,
    pub replays: Arc<Semaphore>,
    pub dice: Dice,
}

/// Why a worker is not heard any more.
enum Over {
    Lost(io::Error),
    Full,
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Over {
        Over::Lost(error)
    }
}

impl Follow {
    pub async fn run(mut self) {
        let mut failed = 0;
        loop {
            let pause = match self.once(&mut failed).await {
                Over::Full => {
                    let (worker, budget) = (&self.seat.worker.url, self.index.budget());
                    tracing::warn!(worker, budget, "KV events are more than there is memory for");
                    FULL
                }
                Over::Lost(error) => {
                    let (worker, events) = (&self.seat.worker.url, &self.source.events);
                    match failed {
                        0 => tracing::warn!(worker, events, %error, "KV events are not heard"),
                        _ => tracing::debug!(worker, events, %error, "KV events are not heard"),
                    }
                    self.seat.view.trouble(Trouble::Lost);
                    AGAIN.0.saturating_mul(1 << failed.min(10)).min(AGAIN.1)
                }
            };
            failed = failed.saturating_add(1);
            tokio::time::sleep(self.dice.jitter(pause, 0.2)).await;
        }
    }

    /// One connection's life. `failed` begins anew once something was heard.
    async fn once(&mut self, failed: &mut u32) -> Over {
        match self.listen(failed).await {
            Ok(never) => match never {},
            Err(over) => over,
        }
    }

    async fn listen(&mut self, failed: &mut u32) -> Result<std::convert::Infallible, Over> {
        let mut link = Link::open(&self.source.events, "SUB").await?;
        link.send(&zmtp::subscribe("")).await?;
        let Some(mut feed) = Feed::begin(&self.index, &self.seat.view, self.life) else {
            return Err(Over::Full);
        };
        feed.listening();
        tracing::debug!(worker = self.seat.worker.url, events = self.source.events, "KV events are heard");
        self.replay(&mut feed).await;
        loop {
            let parts = link.message().await?;
            let (number, payload) =
                batch(&parts).ok_or_else(|| refused("a message is no batch of KV events"))?;
            // Whoever publishes something else is dialled ever more rarely, and told of once.
            *failed = 0;
            let can_ask = self.source.replay.is_some();
            let mut next = feed.take(number, payload, can_ask, self.clock.now());
            if matches!(next, Next::Missing { .. }) {
                self.replay(&mut feed).await;
                next = feed.take(number, payload, false, self.clock.now());
            }
            if next == Next::Full {
                return Err(Over::Full);
            }
        }
    }

    /// Asks for everything from the number that should come next. What it does not get, the feed notices.
    async fn replay(&self, feed: &mut Feed) {
        let Some(address) = &self.source.replay else { return };
        let Ok(_turn) = self.replays.acquire().await else { return };
        let from = feed.expects();
        let replay = tokio::time::timeout(REPLAY_ALL, self.ask(address, feed)).await;
        match replay.unwrap_or_else(|elapsed| Err(elapsed.into())) {
            Ok(()) if from > 0 && feed.expects() > from => self.seat.view.trouble(Trouble::Replayed),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(worker = self.seat.worker.url, address, %error, "missed KV events cannot be had");
            }
        }
    }

    async fn ask(&self, address: &str, feed: &mut Feed) -> io::Result<()> {
        let mut link = Link::open(address, "DEALER").await?;
        link.send(&zmtp::message(&[b"", &feed.expects().to_be_bytes()])).await?;
        loop {
            let parts = tokio::time::timeout(REPLAY_IDLE, link.message()).await??;
            let Some((number, payload)) = batch(&parts) else { return Err(refused("no batch of KV events")) };
            if number == END {
                feed.replayed_all();
                return Ok(());
            }
            if !feed.replay(number, payload, self.clock.now()) {
                return Ok(());
            }
        }
    }
}

/// The number and the content: the last two parts, whatever stands before them (a topic, an empty part, both).
fn batch(parts: &[Bytes]) -> Option<(u64, &[u8])> {
    let [.., number, payload] = parts else { return None };
    Some((u64::from_be_bytes(number.as_ref().try_into().ok()?), payload))
}

#[cfg(test)]
mod tests {
    use baton_core::fleet::{Role, Worker};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Who is dialled, told of a connection that says this once it is greeted: how often it has failed then.
    async fn failed_after(said: &[&[u8]]) -> u32 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let events = listener.local_addr().unwrap().to_string();
        let mut follow = Follow {
            life: 0,
            seat: Arc::new(Seat::new(0, Worker::new("1", "http://h:1", Role::Prefill))),
            source: Source { events, replay: None },
            index: Arc::new(KvIndex::new(1 << 20)),
            clock: Clock::start(),
            replays: Arc::new(Semaphore::new(1)),
            dice: Dice::new(1),
        };
        let publisher = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let all = [&zmtp::greeting()[..], &zmtp::ready("PUB"), &zmtp::message(said)].concat();
            tcp.write_all(&all).await.unwrap();
            tcp.shutdown().await.unwrap();
            let _ = tcp.read_to_end(&mut Vec::new()).await;
        };
        let mut failed = 3;
        let (over, ()) = tokio::join!(follow.once(&mut failed), publisher);
        assert!(matches!(over, Over::Lost(_)));
        failed
    }

    #[tokio::test]
    async fn whoever_publishes_something_else_is_dialled_ever_more_rarely() {
        assert_eq!(failed_after(&[b"", &[0; 8], b"\x92\x01\x90"]).await, 0, "a batch without events");
        assert_eq!(failed_after(&[b"weather", b"fine"]).await, 3);
    }
}
