//! What counting one request costs: `cargo run --release -p baton-gateway --example record_speed`.
//!
//! Nobody listens to the log here, as with `--log-level warn`; the last lines tell what the access log adds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Wall;

use baton_core::ask::Api;
use baton_core::exchange::Outcome;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Worker};
use baton_core::record::{HandoffResult, Moments, Record};
use baton_core::sse::Usage;
use baton_core::time::Instant;
use baton_gateway::telemetry::{Live, Policies, Setup, Telemetry, log};

const ROUNDS: u32 = 2_000_000;

fn fleet(of_each: u32) -> Arc<Fleet> {
    let seat = |slot: u32, role| {
        let url = format!("http://10.0.{}.{}:8000", slot / 256, slot % 256);
        let mut worker = Worker::new(format!("w{slot}"), url, role);
        worker.engine = Engine::Vllm;
        worker.models = vec!["meta-llama/Llama-3.1-70B-Instruct".to_owned()];
        FleetChange::Join(Seat::new(slot, worker))
    };
    let prefill = (0..of_each).map(|n| seat(n, Role::Prefill));
    let decode = (0..of_each).map(|n| seat(of_each + n, Role::Decode));
    Arc::new(Fleet::new(PairingMode::Lenient).with(prefill.chain(decode)))
}

fn telemetry(fleet: &Arc<Fleet>) -> Telemetry {
    let seen = Arc::clone(fleet);
    let setup = Setup {
        duration_buckets: Vec::new(),
        policies: Policies { prefill: "least_load", decode: "least_load", whole: "least_load" },
        fleet: Box::new(move || Arc::clone(&seen)),
        live: Box::new(Live::default),
        log_drops: log::Drops::default(),
    };
    match Telemetry::new(setup) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}

/// A streamed chat over the nth pair.
fn served(fleet: &Fleet, n: usize) -> Record {
    let at = |ms: u64| Some(Instant::from_micros(ms * 1000));
    let prefill = &fleet.prefill()[n % fleet.prefill().len()];
    let decode = &fleet.decode()[n % fleet.decode().len()];
    Record {
        api: Some(Api::Chat),
        method: "POST",
        path: Api::Chat.path().into(),
        model: prefill.seat.worker.models.first().cloned(),
        stream: true,
        outcome: Outcome::Served,
        status: 200,
        prefill: Some(Arc::clone(&prefill.seat.worker)),
        decode: Some(Arc::clone(&decode.worker)),
        pd: true,
        engine: Engine::Vllm,
        mode: Some("nixl"),
        handoff: HandoffResult::Relayed,
        attempts: 1,
        moments: Moments {
            prefill_sent: at(1),
            prefill_done: at(200),
            decode_sent: at(201),
            first_byte: at(250),
            ended: Instant::from_micros(2_000_000),
            ..Moments::default()
        },
        request_bytes: 4000,
        answer_bytes: 20_000,
        usage: Some(Usage { prompt_tokens: 900, completion_tokens: 128, cached_tokens: Some(512) }),
        ..Record::default()
    }
}

fn main() {
    for of_each in [2, 500] {
        let fleet = fleet(of_each);
        let telemetry = telemetry(&fleet);
        let records: Vec<Record> = (0..of_each as usize).map(|n| served(&fleet, n)).collect();
        let unknown = Record { model: Some("no-such-model".to_owned()), ..served(&fleet, 0) };
        println!("{of_each} prefill and {of_each} decode workers");
        let begun = Wall::now();
        records.iter().for_each(|record| telemetry.record(record));
        println!("  first record of each pair {:8.0} ns", each(begun, of_each));
        println!("  served, one thread        {:8.0} ns", timed(&telemetry, &records, ROUNDS));
        println!(
            "  model not known           {:8.0} ns",
            timed(&telemetry, std::slice::from_ref(&unknown), ROUNDS / 50)
        );
        let begun = Wall::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| timed(&telemetry, &records, ROUNDS));
            }
        });
        println!("  served, each of 2 threads {:8.0} ns", each(begun, ROUNDS));
        let begun = Wall::now();
        let bytes = telemetry.render().len();
        println!("  one scrape                {:8.0} ns, {bytes} bytes", each(begun, 1));
    }
    println!("with an access log line, text {:8.0} ns", with_a_line(false));
    println!("with an access log line, JSON {:8.0} ns", with_a_line(true));
}

/// The line is formatted here and thrown away; the real log hands it to another thread.
fn with_a_line(json: bool) -> f64 {
    let fleet = fleet(2);
    let (telemetry, record) = (telemetry(&fleet), served(&fleet, 0));
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::sink);
    let run = || timed(&telemetry, std::slice::from_ref(&record), ROUNDS / 10);
    if json {
        tracing::subscriber::with_default(log.json().flatten_event(true).finish(), run)
    } else {
        tracing::subscriber::with_default(log.finish(), run)
    }
}

fn timed(telemetry: &Telemetry, records: &[Record], rounds: u32) -> f64 {
    let begun = Wall::now();
    for record in records.iter().cycle().take(rounds as usize) {
        telemetry.record(black_box(record));
    }
    each(begun, rounds)
}

fn each(begun: Wall, rounds: u32) -> f64 {
    begun.elapsed().as_nanos() as f64 / f64::from(rounds)
}
