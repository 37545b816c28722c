//! What does a placement cost, by policy, fleet and prompt?
//! `cargo run --release -p baton-core --example decision_cost [ROWS]`
//!
//! A fleet of so many workers, half of them prefills, half decodes (all of them for both phases under AIBrix's strategies
//! for whole workers), all well, each with a few requests in flight. One decision places all legs, takes the leases,
//! marks the prompt as computed and gives all back. Prompts are turns of conversations that some worker has, so what is
//! kept of them is looked up and found, the common case. A prompt is hashed once a request, however many workers there
//! are: that is measured apart, with the reading of the body.
//!
//! Each cell has the median and the 99th percentile of single decisions, with the 20 to 30 ns that it takes to read the
//! clock. What else runs on the machine shows in the latter. ROWS: only those whose name contains this.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::gauges::Reading;
use baton_core::kv::{Batch, Event, Feed, Form, KvIndex, Stored};
use baton_core::load::Lease;
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::cascade::words::Ways;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Cascade, Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning, Whole};
use baton_core::prefix::{Memory, PrefixIndex};
use baton_core::time;

const FLEETS: [u32; 4] = [4, 64, 512, 2048];
/// Tokens of a prompt, of four characters each.
const PROMPTS: [(&str, usize); 3] = [("1K", 1_000), ("32K", 32_000), ("200K", 200_000)];
const CONVERSATIONS: usize = 16;
/// For each cell.
const LOOK: Duration = Duration::from_millis(150);
const BLOCK_TOKENS: u32 = 16;

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let heads = FLEETS.map(|n| format!("{n} workers")).join(" | ");
    println!("Median / 99th percentile, in µs.\n");
    println!("| policy | prompt, tokens | {heads} | 64 to 2,048 |");
    println!("|---|---:|{}---:|", "---:|".repeat(FLEETS.len()));
    for row in rows().iter().filter(|row| row.name.contains(&only)) {
        for (prompt, tokens) in PROMPTS.into_iter().take(if row.reads { PROMPTS.len() } else { 1 }) {
            let asks: Vec<Ask> = (0..CONVERSATIONS).map(|i| row.ask(i as u32, tokens)).collect();
            let cells = FLEETS.map(|workers| row.measure(workers, &asks));
            let growth = cells[3].0 / cells[1].0.max(1.0);
            let shown =
                cells.map(|(median, p99)| format!("{} / {}", micros(median), micros(p99))).join(" | ");
            let prompt = if row.reads { prompt } else { "any" };
            println!("| {} | {prompt} | {shown} | {growth:.1} x |", row.name);
        }
    }
    println!("\n| prompt, tokens | reading the body, µs | hashing its blocks, µs |\n|---|---:|---:|");
    for (prompt, tokens) in PROMPTS {
        let body = body(1, 4 * tokens);
        let (read, _) = times(|_| drop(black_box(read(&body))));
        let (both, _) = times(|_| drop(black_box(self::read(&body).prompt.blocks(16))));
        println!("| {prompt} | {} | {} |", micros(read), micros((both - read).max(0.0)));
    }
}

fn micros(nanos: f64) -> String {
    let micros = nanos / 1000.0;
    if micros < 9.95 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

/// How the workers are made up.
#[derive(Clone, Copy, PartialEq)]
enum Make {
    Pairs,
    /// One roleset for each two workers.
    Rolesets,
    Whole,
}

/// One row of the table, or three where prompts are looked at.
struct Row {
    name: String,
    make: Make,
    /// What the cost may depend on the prompt for.
    reads: bool,
    /// Workers tell what they hold.
    events: bool,
    /// All of them hold the beginning of each prompt.
    shared: bool,
    receipt: bool,
    ways: Option<&'static str>,
    strategy: Box<dyn Fn() -> Strategy>,
}

impl Row {
    fn new(name: impl Into<String>, strategy: impl Fn() -> Strategy + 'static) -> Row {
        let (name, strategy) = (name.into(), Box::new(strategy));
        Row {
            name,
            make: Make::Pairs,
            reads: false,
            events: false,
            shared: false,
            receipt: false,
            ways: None,
            strategy,
        }
    }

    fn policy(name: PolicyName) -> Row {
        use PolicyName::{CacheAware, ConsistentHashing, PrefixHash};
        let reads = matches!(name, CacheAware | PrefixHash | ConsistentHashing);
        Row { reads, ..Row::new(format!("`{}`", name.as_str()), move || legwise(name, &Tuning::default())) }
    }

    fn pd(prefill: PrefillScore, decode: DecodeScore) -> Row {
        let name = format!("`pd`: `{}`, `{}`", prefill.as_str(), decode.as_str());
        Row { reads: prefill.looks_up(), ..Row::new(name, move || pd(prefill, decode)) }
    }

    fn whole(ways: &'static str) -> Row {
        let row = Row::new(format!("`{ways}`"), whole);
        Row { make: Make::Whole, reads: ways == "prefix-cache", ways: Some(ways), ..row }
    }

    fn events(self) -> Row {
        Row { name: format!("{}, KV events", self.name), events: true, ..self }
    }

    fn shared(self) -> Row {
        let row = self.events();
        Row { name: format!("{}, all hold the beginning", row.name), shared: true, ..row }
    }

    fn receipt(self) -> Row {
        Row { name: format!("{}, with a receipt", self.name), receipt: true, reads: false, ..self }
    }

    /// A request that has been looked at before: its blocks are hashed.
    fn ask(&self, number: u32, tokens: usize) -> Ask {
        if self.events {
            return by_ids(number, tokens);
        }
        let ask = read(&body(u64::from(number), 4 * tokens));
        let _hashed = ask.prompt.blocks(16);
        ask
    }

    /// Median and 99th percentile of one decision, in nanoseconds.
    fn measure(&self, workers: u32, asks: &[Ask]) -> (f64, f64) {
        let (fleet, _load) = fleet(workers, self.make);
        let index = Arc::new(KvIndex::new(64 << 20));
        let strategy = (self.strategy)();
        let strategy = if self.events { strategy.hearing(&index) } else { strategy };
        let _feeds = self.events.then(|| feeds(&fleet, &index, asks, self.shared));
        let ways = self.ways.map(|ways| Ways::parse(ways).unwrap());
        let routing = ways.map(|ways| Routing { ways: Some(ways), ..Routing::plain(&Arc::default()) });
        let mut dice = Dice::new(1);
        let mut one = |run: usize| {
            let now = time::Instant::from_micros(1_000_000 + 50 * run as u64);
            let look = Look::new(&fleet, &asks[run % asks.len()], now);
            let receipt = if self.receipt { Receipt::on() } else { Receipt::off() };
            let look = Look { routing: routing.as_ref(), receipt: receipt.into(), ..look };
            let mut placement = strategy.place(&look, &mut dice).unwrap();
            match &mut placement {
                Placement::Pair { prefill, decode } => {
                    prefill.computed();
                    decode.computed();
                }
                Placement::Whole { worker } | Placement::Prefill { worker } => worker.computed(),
            }
            black_box(look.into_receipt());
            drop(black_box(placement));
        };
        (0..asks.len() * 4).for_each(&mut one);
        times(one)
    }
}

fn rows() -> Vec<Row> {
    use DecodeScore::LoadBalancing;
    use PrefillScore::{LeastRequest, PrefixCache};
    let mut rows: Vec<Row> = PolicyName::ALL.into_iter().map(Row::policy).collect();
    let by_heads = Tuning {
        boundaries: Arc::new([1024, 4096, 16_384, 65_536]),
        heads_last: Some(time::Duration::from_secs(180)),
        ..Tuning::default()
    };
    let hash = move || legwise(PolicyName::CacheAware, &by_heads);
    rows.push(Row { reads: true, ..Row::new("`cache_aware`, `--cache-index hash`", hash) });
    rows.push(Row::policy(PolicyName::CacheAware).events());
    rows.push(Row::policy(PolicyName::CacheAware).shared());
    rows.extend(PrefillScore::ALL.map(|prefill| Row::pd(prefill, LoadBalancing)));
    rows.extend(DecodeScore::ALL.into_iter().skip(1).map(|decode| Row::pd(LeastRequest, decode)));
    rows.push(Row::pd(PrefixCache, LoadBalancing).events());
    rows.push(Row::pd(PrefixCache, LoadBalancing).shared());
    for prefill in [LeastRequest, PrefixCache] {
        let row = Row::pd(prefill, LoadBalancing);
        let name = format!("{}, a roleset for each two workers", row.name);
        rows.push(Row { name, make: Make::Rolesets, reads: false, ..row });
    }
    let least = Row::policy(PolicyName::LeastLoad);
    let name = format!("{}, a roleset for each two workers", least.name);
    rows.push(Row { name, make: Make::Rolesets, ..least });
    rows.extend(
        [
            "random",
            "least-request",
            "power-of-two",
            "least-kv-cache",
            "throughput",
            "prefix-cache",
            "session-affinity",
            "prefix-cache:2,least-request:1,throughput:1",
        ]
        .map(Row::whole),
    );
    rows.push(Row::policy(PolicyName::LeastLoad).receipt());
    rows.push(Row::policy(PolicyName::CacheAware).receipt());
    rows.push(Row::pd(PrefixCache, LoadBalancing).receipt());
    rows
}

fn legwise(name: PolicyName, tuning: &Tuning) -> Strategy {
    // The bucket policy is for prefills.
    let decode = if name == PolicyName::Bucket { PolicyName::LeastLoad } else { name };
    let policy = |name| Policy::tuned(name, tuning.clone());
    Strategy::Legwise(Legwise { prefill: policy(name), decode: policy(decode), whole: policy(decode) })
}

fn pd(prefill_score: PrefillScore, decode_score: DecodeScore) -> Strategy {
    let knobs = Knobs { prefill_score, decode_score, ..Knobs::default() };
    Strategy::Cascade(Cascade::new(&Arc::new(knobs), &Tuning::default()))
}

fn whole() -> Strategy {
    let tuning = Tuning::default();
    let index = Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes)));
    Strategy::Whole(Whole::new(&Arc::default(), &tuning, index))
}

fn fleet(workers: u32, make: Make) -> (Fleet, Vec<Lease>) {
    let seat = |slot: u32| {
        let role = match make {
            Make::Whole => Role::Whole,
            _ if slot < workers / 2 => Role::Prefill,
            _ => Role::Decode,
        };
        let mut worker = Worker::new(format!("w{slot}"), format!("http://10.0.0.{slot}:8000"), role);
        worker.engine = Engine::Sglang;
        if make == Make::Rolesets {
            worker.labels.insert("roleset-name".to_owned(), format!("set-{}", slot % (workers / 2)));
        }
        let seat = Seat::new(slot, worker);
        seat.pulse.set_status(Status::Ready);
        FleetChange::Join(seat)
    };
    let fleet = Fleet::new(PairingMode::Lenient).with((0..workers).map(seat));
    let mut dice = Dice::new(7);
    let load =
        fleet.seats().flat_map(|seat| (0..dice.below(4)).map(|_| seat.load.take()).collect::<Vec<_>>());
    let load = load.collect();
    if make == Make::Whole {
        for seat in fleet.seats() {
            let running = Some(f64::from(seat.load.in_flight()));
            let kv_usage = Some(dice.fraction() * 0.7);
            let (prompt_tokens, answer_tokens) = (Some(1e6 * dice.fraction()), Some(1e5));
            let requests = Some(1e3);
            let said =
                Reading { running, kv_usage, prompt_tokens, answer_tokens, requests, ..Reading::default() };
            seat.gauges.show(&said);
            seat.gauges.asked_after(seat.load.taken());
        }
    }
    (fleet, load)
}

/// A beginning that all workers hold.
const SHARED_BLOCKS: usize = 30;

/// Everybody tells, and each conversation is held by two workers, whole and half; its beginning by all, if that is `shared`.
fn feeds(fleet: &Fleet, index: &Arc<KvIndex>, asks: &[Ask], shared: bool) -> Vec<Feed> {
    let begin = |seat: &Arc<Seat>| Feed::begin(index, &seat.view, seat.pulse.life()).unwrap();
    let mut feeds: Vec<Feed> = fleet.seats().map(begin).collect();
    let count = feeds.len();
    for (at, ask) in asks.iter().enumerate() {
        let ids = ask.prompt.ids().unwrap();
        let mut stores = |feed: usize, blocks: usize| {
            // Engines store whole blocks.
            let tokens: Vec<u32> = ids[..blocks * BLOCK_TOKENS as usize].to_vec();
            let hashes = (0..blocks as u64).map(|block| (at as u64 + 1) << 32 | block).collect();
            let stored = Stored { hashes, tokens, block_tokens: BLOCK_TOKENS, ..Stored::default() };
            tell(&mut feeds[feed % count], Event::Stored(stored));
        };
        let blocks = ids.len() / BLOCK_TOKENS as usize;
        stores(at, blocks);
        stores(at + 1, blocks / 2);
        if shared {
            (0..count).for_each(|feed| stores(feed, SHARED_BLOCKS));
        }
    }
    feeds
}

fn tell(feed: &mut Feed, event: Event) {
    let payload = Batch { at: 1.0, rank: None, events: vec![event] }.encode(Form::Map);
    feed.take(feed.expects(), &payload, false, time::Instant::from_micros(1));
}

/// A prompt in token ids, which KV events are about.
fn by_ids(number: u32, tokens: usize) -> Ask {
    let first = 1 + number * 1_000_000;
    let ids: Vec<String> = (first..).take(tokens).map(|id| id.to_string()).collect();
    let body = format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(","));
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    let ask = Ask::read(Api::Completions, &body).unwrap();
    let _hashed = ask.prompt.blocks(16);
    ask
}

fn body(seed: u64, characters: usize) -> String {
    let mut dice = Dice::new(seed);
    let text: String = (0..characters).map(|_| char::from(b'a' + dice.below(26) as u8)).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn read(body: &str) -> Ask {
    let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
    Ask::read(Api::Chat, &body).unwrap()
}

/// Median and 99th percentile of many runs, in nanoseconds.
fn times(mut run: impl FnMut(usize)) -> (f64, f64) {
    let (until, mut all) = (Instant::now() + LOOK, Vec::with_capacity(1 << 18));
    while all.len() < 20 || Instant::now() < until && all.len() < all.capacity() {
        let began = Instant::now();
        run(all.len());
        all.push(began.elapsed());
    }
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_nanos() as f64;
    (at(0.5), at(0.99))
}
