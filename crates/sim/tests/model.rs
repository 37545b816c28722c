//! The pure model on a virtual clock: no sockets, no runtime, exact times.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail this way")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_sim::engine::Engine;
use baton_sim::engine::message::{Call, Output, PeerAddr};
use baton_sim::engine::sequence::{
    Ask, Ending, Finish, Handoff, KvState, Part, RemoteBlocks, RemoteKv, SeqId,
};
use baton_sim::text::Prompt;
use baton_sim::{Dialect, EngineSpec, Profile, Role, Stats};
use proptest::prelude::*;

/// Engines that reach each other at once, and a clock that jumps to what happens next.
struct World {
    now: Duration,
    engines: Vec<Engine>,
    /// What became of each sequence, by engine and number.
    done: BTreeMap<(usize, SeqId), (Finish, Duration)>,
}

fn addr(engine: usize) -> PeerAddr {
    PeerAddr::new("sim", 1000 + u16::try_from(engine).unwrap())
}

impl World {
    fn new(specs: Vec<EngineSpec>) -> Self {
        let named = specs.into_iter().enumerate().map(|(at, spec)| Engine::new(spec, format!("engine-{at}")));
        Self { now: Duration::ZERO, engines: named.collect(), done: BTreeMap::new() }
    }

    fn pair(dialect: Dialect, change: impl Fn(&mut EngineSpec)) -> Self {
        let specs = [Role::Prefill, Role::Decode].map(|role| {
            let mut spec = EngineSpec::new(dialect, role);
            change(&mut spec);
            spec
        });
        Self::new(specs.into())
    }

    fn submit(&mut self, engine: usize, ask: Ask) -> SeqId {
        let id = self.engines[engine].submit(ask, self.now);
        self.deliver();
        id
    }

    fn abort(&mut self, engine: usize, id: SeqId) {
        self.engines[engine].abort(id, self.now);
        self.deliver();
    }

    /// Carries all outputs to where they go until there are none. The link number is the engine's own.
    fn deliver(&mut self) {
        loop {
            let mut outputs = Vec::new();
            for (at, engine) in self.engines.iter_mut().enumerate() {
                let mut own = Vec::new();
                engine.take_outputs(&mut own);
                outputs.extend(own.into_iter().map(|output| (at, output)));
            }
            if outputs.is_empty() {
                return;
            }
            for (from, output) in outputs {
                self.carry(from, output);
            }
            // Whoever was told something may have something to do.
            self.engines.iter_mut().for_each(|engine| engine.poll(self.now));
        }
    }

    fn carry(&mut self, from: usize, output: Output) {
        let now = self.now;
        match output {
            Output::Done { seq, finish } => {
                self.done.insert((from, seq), (finish, now));
            }
            Output::Send { to, call } => {
                let peer = usize::from(to.port.wrapping_sub(1000));
                match (&call, self.engines.get_mut(peer)) {
                    (Call::Ping, Some(_)) => self.engines[from].pinged(&to),
                    (_, Some(engine)) => engine.receive(from as u64, call, now),
                    (_, None) => self.engines[from].unreachable(&to, &call, now),
                }
            }
            Output::Reply { link, answer } => {
                self.engines[usize::try_from(link).unwrap()].answered(answer, now);
            }
            Output::Progress { .. } | Output::Died { .. } => {}
        }
    }

    /// Jumps to the next thing that happens, if that is before `until`.
    fn step(&mut self, until: Duration) -> bool {
        let Some(next) =
            self.engines.iter().filter_map(Engine::next_wake).min().filter(|next| *next <= until)
        else {
            return false;
        };
        self.now = self.now.max(next);
        for engine in &mut self.engines {
            engine.poll(self.now);
        }
        self.deliver();
        true
    }

    fn run_until(&mut self, until: Duration) {
        // Work that nobody has looked at yet starts now.
        for engine in &mut self.engines {
            engine.poll(self.now);
        }
        self.deliver();
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    fn run(&mut self, seconds: u64) {
        self.run_until(self.now + Duration::from_secs(seconds));
    }

    fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for engine in &self.engines {
            all.merge(&engine.stats());
        }
        all
    }

    fn finish(&self, engine: usize, id: SeqId) -> &Finish {
        &self.done[&(engine, id)].0
    }

    fn ended_at(&self, engine: usize, id: SeqId) -> Duration {
        self.done[&(engine, id)].1
    }

    fn handoff(&self, id: SeqId) -> Handoff {
        match self.finish(0, id) {
            Finish::Ok { handoff: Some(handoff), .. } => handoff.clone(),
            other => panic!("no hand-off: {other:?}"),
        }
    }
}

fn ask(name: &str, prompt: &Arc<Prompt>, tokens: u32, part: Part) -> Ask {
    let part = if matches!(part, Part::Hold(_)) { Part::Hold(name.into()) } else { part };
    Ask {
        name: name.into(),
        parent: name.into(),
        prompt: prompt.clone(),
        tokens,
        ending: Ending::Length,
        part,
        watched: false,
        whole_prompt: false,
    }
}

fn prompt(family: u32, len: u32) -> Arc<Prompt> {
    Prompt::from_tokens((0..len).map(|at| family * 10_000 + at).collect())
}

fn pull(handoff: &Handoff) -> Part {
    Part::Pull(RemoteKv {
        engine: Some(handoff.engine.clone()),
        request: Some(handoff.request.clone()),
        at: Some(addr(0)),
        notify: None,
        blocks: RemoteBlocks::Ids(handoff.blocks.clone()),
        tp_size: 1,
    })
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[test]
fn a_lease_ends_after_thirty_seconds_and_not_before() {
    let mut world = World::pair(Dialect::Vllm, |_| {});
    world.submit(0, ask("p", &prompt(1, 100), 1, Part::Hold(String::new())));
    world.run_until(secs(29.9));
    assert_eq!((world.stats().blocks.pinned, world.stats().handoffs.expired), (7, 0));
    world.run_until(secs(30.1));
    assert_eq!((world.stats().blocks.pinned, world.stats().handoffs.expired), (0, 1));
    assert!(world.stats().all_free());
}

/// While a decode engine is full it renews the leases of the requests in its queue.
#[test]
fn heartbeats_keep_a_waiting_hand_off_alive() {
    let mut world = World::pair(Dialect::Vllm, |spec| {
        spec.max_running = 1;
        spec.time_scale = 10.0;
    });
    let p = world.submit(0, ask("p", &prompt(1, 100), 1, Part::Hold(String::new())));
    world.run(3);
    let handoff = world.handoff(p);
    let busy = world.submit(1, ask("busy", &prompt(2, 10), 2000, Part::Local));
    let d = world.submit(1, ask("d", &prompt(1, 100), 4, pull(&handoff)));
    world.run(60);
    assert!(!world.done.contains_key(&(1, busy)) && world.stats().blocks.pinned == 7, "{:?}", world.stats());
    world.abort(1, busy);
    world.run(20);
    assert!(matches!(world.finish(1, d), Finish::Ok { kv: KvState::Right, .. }));
    assert!(world.stats().all_free() && world.stats().handoffs.expired == 0, "{:?}", world.stats());
}

#[test]
fn a_step_takes_what_the_profile_says() {
    let mut spec = EngineSpec::new(Dialect::Vllm, Role::Whole);
    spec.time_scale = 1.0;
    let mut world = World::new(vec![spec]);
    let id = world.submit(0, ask("a", &prompt(1, 2048), 101, Part::Local));
    world.run(10);
    // 15 ms + 41 ms of prefill, then 100 steps of 6.7 ms.
    let took = world.ended_at(0, id).as_secs_f64();
    assert!((took - (0.056 + 0.667)).abs() < 0.02, "{took}");
}

/// A closed loop on an engine that does both phases, against the measured time per output token (13.1 ms for Llama 3.1
/// 8B on one H100 with 1024 tokens in, 512 out, 64 at once). With prefill elsewhere only the decode steps are left.
#[test]
fn time_per_token_is_what_was_measured() {
    let tpot = |role: Role, part: Part| {
        let mut spec = EngineSpec::new(Dialect::Vllm, role);
        spec.time_scale = 1.0;
        spec.kv_blocks = 16_384;
        let mut world = World::new(vec![spec]);
        let mut next = 0;
        let mut submit = |world: &mut World| {
            next += 1;
            // A second engine is not needed: parameters without a name are taken as KV that has come.
            world.submit(0, ask(&next.to_string(), &prompt(next, 1024), 512, part.clone()));
        };
        (0..64).for_each(|_| submit(&mut world));
        let mut seen = 0;
        while world.done.len() < 320 {
            assert!(world.step(Duration::MAX) || world.now.is_zero());
            world.engines[0].poll(world.now);
            for _ in seen..world.done.len() {
                submit(&mut world);
            }
            seen = world.done.len();
        }
        let tpot = &world.engines[0].counters().tpot;
        1000.0 * tpot.sum() / f64::from(u32::try_from(tpot.count()).unwrap())
    };
    let whole = tpot(Role::Whole, Part::Local);
    assert!((whole - 13.1).abs() < 1.3, "{whole} ms");
    let blocks = RemoteBlocks::Ids((1..=64).collect());
    let given = RemoteKv { engine: Some("elsewhere".into()), blocks, tp_size: 1, ..RemoteKv::default() };
    let decode = tpot(Role::Decode, Part::Pull(given));
    assert!((decode - 10.6).abs() < 0.3, "{decode} ms beside {whole} ms");
}

#[test]
fn a_full_cache_preempts_and_still_gives_every_token() {
    let mut spec = EngineSpec::new(Dialect::Vllm, Role::Whole);
    spec.kv_blocks = 20;
    let mut world = World::new(vec![spec]);
    let ids: Vec<SeqId> =
        (0..6).map(|n| world.submit(0, ask(&n.to_string(), &prompt(n, 60), 100, Part::Local))).collect();
    world.run(1);
    for id in ids {
        assert!(matches!(world.finish(0, id), Finish::Ok { ending: Ending::Length, .. }));
    }
    assert!(world.engines[0].counters().preempted > 0);
    assert!(world.stats().all_free() && world.stats().tokens.generated == 600, "{:?}", world.stats());
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed: u64| {
        let mut world = World::pair(Dialect::Vllm, |spec| {
            spec.time_scale = 1.0;
            spec.seed = seed;
        });
        let ids: Vec<SeqId> = (0..20)
            .map(|n| world.submit(0, ask(&n.to_string(), &prompt(n, 500), 1, Part::Hold(String::new()))))
            .collect();
        world.run(5);
        for id in ids {
            let handoff = world.handoff(id);
            world.submit(
                1,
                ask(&handoff.request, &prompt(handoff.request.parse().unwrap(), 500), 50, pull(&handoff)),
            );
        }
        world.run(5);
        assert_eq!(world.stats().handoffs.right, 20);
        world.done.values().map(|(_, at)| *at).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn an_sglang_prefill_engine_computes_only_when_somebody_waits() {
    let mut world = World::pair(Dialect::Sglang, |spec| spec.time_scale = 1.0);
    let room = Part::Room { room: 9, at: addr(0) };
    let p = world.submit(0, ask("p", &prompt(1, 1000), 1, room.clone()));
    world.run(5);
    assert_eq!((world.stats().tokens.computed, world.engines[0].room_queues().meeting), (0, 1));
    let d = world.submit(1, ask("d", &prompt(1, 1000), 10, room));
    world.run(5);
    // Both halves end at the transfer's end; the decode engine has its first token then.
    assert!(world.ended_at(0, p) > secs(5.03) && world.ended_at(0, p) < world.ended_at(1, d));
    assert!(matches!(world.finish(1, d), Finish::Ok { kv: KvState::Right, .. }));
    assert!(world.stats().all_free() && world.stats().handoffs.right == 1, "{:?}", world.stats());
}

#[test]
fn a_decode_engine_with_no_blocks_lets_the_prefill_side_wait() {
    let mut world = World::pair(Dialect::Sglang, |spec| spec.kv_blocks = 40);
    let room = |room: u64| Part::Room { room, at: addr(0) };
    let first = world.submit(1, ask("d1", &prompt(1, 320), 100, room(1)));
    let second = world.submit(1, ask("d2", &prompt(2, 320), 100, room(2)));
    world.run(1);
    assert_eq!((world.engines[1].room_queues().receiving, world.engines[1].queued()), (1, 1));
    world.submit(0, ask("p2", &prompt(2, 320), 1, room(2)));
    world.run(1);
    assert!(world.done.is_empty(), "the second one has no blocks to receive into");
    world.submit(0, ask("p1", &prompt(1, 320), 1, room(1)));
    world.run(1);
    for id in [first, second] {
        assert!(matches!(world.finish(1, id), Finish::Ok { kv: KvState::Right, .. }));
    }
    assert!(world.stats().all_free(), "{:?}", world.stats());
}

/// What a random client does.
#[derive(Clone, Debug)]
enum Act {
    /// Starts a request of this family and length on both engines (SGLang), or its prefill leg (vLLM).
    Start {
        family: u32,
        len: u32,
        tokens: u32,
    },
    /// vLLM: starts the decode leg of some finished prefill leg. SGLang: starts a decode leg alone.
    Follow {
        which: usize,
        tokens: u32,
    },
    Abort {
        engine: usize,
        which: usize,
    },
    Wait {
        ms: u64,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0u32..4, 1u32..200, 1u32..40).prop_map(|(family, len, tokens)| Act::Start { family, len, tokens }),
        3 => (0usize..50, 1u32..40).prop_map(|(which, tokens)| Act::Follow { which, tokens }),
        2 => (0usize..2, 0usize..50).prop_map(|(engine, which)| Act::Abort { engine, which }),
        3 => (0u64..400).prop_map(|ms| Act::Wait { ms }),
    ];
    prop::collection::vec(act, 1..60)
}

/// A client that does what it is told to a world.
struct Client {
    world: World,
    dialect: Dialect,
    ids: [Vec<SeqId>; 2],
    prompts: BTreeMap<SeqId, Arc<Prompt>>,
    room: u64,
}

impl Client {
    fn act(&mut self, act: &Act) {
        match *act {
            Act::Start { family, len, tokens } => {
                self.room += 1;
                let prompt = prompt(family, len);
                let name = format!("r{}", self.room);
                let part = self.part();
                let id = self.world.submit(0, ask(&name, &prompt, 1, part.clone()));
                self.ids[0].push(id);
                self.prompts.insert(id, prompt.clone());
                if self.dialect == Dialect::Sglang {
                    let id = self.world.submit(1, ask(&name, &prompt, tokens, part));
                    self.ids[1].push(id);
                }
            }
            Act::Follow { which, tokens } => self.follow(which, tokens),
            Act::Abort { engine, which } => {
                if let Some(id) = pick(&self.ids[engine], which) {
                    self.world.abort(engine, id);
                }
            }
            Act::Wait { ms } => self.world.run_until(self.world.now + Duration::from_millis(ms)),
        }
    }

    fn part(&self) -> Part {
        match self.dialect {
            Dialect::Vllm => Part::Hold(String::new()),
            Dialect::Sglang | Dialect::Trtllm => Part::Room { room: self.room, at: addr(0) },
        }
    }

    fn follow(&mut self, which: usize, tokens: u32) {
        if self.dialect == Dialect::Sglang {
            self.room += 1;
            let part = self.part();
            let id = self.world.submit(1, ask(&format!("r{}", self.room), &prompt(1, 50), tokens, part));
            self.ids[1].push(id);
            return;
        }
        let Some(id) = pick(&self.ids[0], which) else { return };
        let Some((Finish::Ok { handoff: Some(handoff), .. }, _)) = self.world.done.get(&(0, id)) else {
            return;
        };
        let part = pull(handoff);
        let id = self.world.submit(1, ask(&format!("d{which}"), &self.prompts[&id].clone(), tokens, part));
        self.ids[1].push(id);
    }
}

fn pick(ids: &[SeqId], which: usize) -> Option<SeqId> {
    (!ids.is_empty()).then(|| ids[which % ids.len()])
}

proptest! {
    /// Whatever clients do, blocks add up at every moment, none leaks, and once all is over every block is free.
    #[test]
    fn blocks_add_up_whatever_clients_do(acts in acts(), sglang: bool, fast: bool, blocks in 20u32..120) {
        let dialect = if sglang { Dialect::Sglang } else { Dialect::Vllm };
        let world = World::pair(dialect, |spec| {
            spec.kv_blocks = blocks;
            spec.time_scale = if fast { 0.0 } else { 1.0 };
            spec.max_running = 4;
            spec.max_batched_tokens = 64;
            spec.profile = Profile::find("tiny/cpu").unwrap();
        });
        let mut client = Client { world, dialect, ids: [Vec::new(), Vec::new()], prompts: BTreeMap::new(), room: 0 };
        for act in &acts {
            client.act(act);
            let stats = client.world.stats();
            prop_assert_eq!(stats.blocks.leaked, 0, "{:?} after {:?}", stats, act);
            let blocks = stats.blocks;
            prop_assert_eq!(blocks.free + blocks.held + blocks.pinned, blocks.total);
        }
        client.world.run(20_000);
        let stats = client.world.stats();
        prop_assert!(stats.idle() && stats.all_free(), "{:?}", stats);
        let ended = stats.requests.finished + stats.requests.aborted + stats.requests.failed;
        prop_assert_eq!(ended, stats.requests.accepted);
        prop_assert_eq!(stats.deaths, 0);
    }
}
