//! One request as several: samples that an engine pair cannot share one hand-off for.
//!
//! A bootstrap room serves one request. Asked for `n` samples, SGLang sends every sample (and a warm-up of
//! the prompt) into the same room and stalls (SGLang 0.5.23), so the gateway asks `n` times for one sample,
//! each with a room and an id of its own, and puts the answers together: indices as the engine numbers
//! them, prompt tokens counted once, streams interleaved event by event.
//!
//! This module decides into how many parts a request falls and what each part says; [`gather`] what becomes of the
//! whole when something becomes of a part; [`plain`] and [`stream`] join what comes back. It does not know how the
//! parts are sent.

pub mod gather;
pub mod plain;
pub mod stream;

use bytes::Bytes;

use crate::ask::{Api, Ask};
use crate::body::{BodyLimits, Edit, Envelope, scalar};
use crate::fleet::Fleet;

/// Most parts of one request. More samples than this were refused before (`ask::ANSWERS_MAX` bounds them
/// with the prompts); each part costs a pair of connections.
pub const PARTS_MAX: u32 = 128;

/// Into how many parts this request falls on this fleet. 1: it is sent as it is.
pub fn parts(fleet: &Fleet, ask: &Ask) -> u32 {
    let mut pairs = fleet.prefill().iter().filter(|p| p.seat.worker.serves(ask.model.as_deref()));
    if ask.n > 1 && pairs.any(|p| p.seat.worker.engine.meets_in_rooms()) { ask.n } else { 1 }
}

/// The body of part `index`: one sample, and a pinned seed moved on so that the samples differ (page,
/// "Parallel Sampling").
pub fn part(body: &Envelope, ask: &Ask, index: u32) -> Bytes {
    let mut edits = Vec::with_capacity(2);
    if ask.api == Api::Generate {
        if let Some(params) = body.get_bytes("sampling_params") {
            edits.push(Edit::set("sampling_params", one_sample(params, index)));
        }
    } else {
        edits.push(Edit::set("n", &b"1"[..]));
        if let Some(seed) = body.get("seed").and_then(scalar::as_u64) {
            edits.push(Edit::set_u64("seed", seed.wrapping_add(u64::from(index))));
        }
    }
    body.splice(&edits).to_bytes()
}

/// `/generate` keeps its sample count and its seed one level down.
fn one_sample(params: Bytes, index: u32) -> Bytes {
    let Ok(inner) = Envelope::parse(params.clone(), &BodyLimits::default()) else { return params };
    let mut edits = vec![Edit::set("n", &b"1"[..])];
    if let Some(seed) = inner.get("sampling_seed").and_then(scalar::as_u64) {
        edits.push(Edit::set_u64("sampling_seed", seed.wrapping_add(u64::from(index))));
    }
    inner.splice(&edits).to_bytes()
}

/// Where an engine would number choice `of` of part `part`: prompts first, samples of a prompt together.
fn place(of: u64, part: u32, parts: u32) -> u64 {
    of * u64::from(parts) + u64::from(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(text: &str) -> Envelope {
        Envelope::parse(Bytes::copy_from_slice(text.as_bytes()), &BodyLimits::default()).unwrap()
    }

    #[test]
    fn a_part_asks_for_one_sample_with_a_seed_of_its_own() {
        let body = envelope(r#"{"model":"m","n":3,"seed":7,"x":1.10}"#);
        let ask = Ask::read(Api::Chat, &body).unwrap();
        assert_eq!(part(&body, &ask, 2), &br#"{"model":"m","n":1,"seed":9,"x":1.10}"#[..]);
        let body = envelope(r#"{"text":"a","sampling_params":{"n":2,"sampling_seed":1,"top_p":0.90}}"#);
        let ask = Ask::read(Api::Generate, &body).unwrap();
        assert_eq!(ask.n, 2);
        let want = r#"{"text":"a","sampling_params":{"n":1,"sampling_seed":2,"top_p":0.90}}"#;
        assert_eq!(part(&body, &ask, 1), want.as_bytes());
    }

    #[test]
    fn samples_of_a_prompt_stand_together() {
        let order: Vec<u64> = (0..2).flat_map(|of| (0..3).map(move |p| place(of, p, 3))).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    }
}
