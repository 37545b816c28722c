//! Any bytes as what an engine publishes: read or refused, and what was read can be written and read again.
//!
//! Input: one byte, whose lowest bit says whether the rest is a batch of KV events or a ZMTP stream, and whose others say
//! in how large pieces the stream comes.

#![no_main]

use std::sync::Arc;

use baton_core::kv::{Batch, Feed, Form, KvIndex, View};
use baton_core::time::Instant;
use baton_core::zmtp::{self, Wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [how, rest @ ..] = input else { return };
    if how & 1 == 0 {
        let mut wire = Wire::new(1 << 12);
        wire.buffer.extend_from_slice(&zmtp::greeting());
        for piece in rest.chunks(usize::from(*how).max(1)) {
            wire.buffer.extend_from_slice(piece);
            while let Ok(Some(_)) = wire.said() {}
            assert!(wire.buffer.capacity() < 1 << 16);
        }
        return;
    }
    let (index, view) = (Arc::new(KvIndex::new(1 << 16)), Arc::new(View::default()));
    if let Some(mut feed) = Feed::begin(&index, &view, 0) {
        for number in 0..2 {
            feed.take(number, rest, number == 0, Instant::ZERO);
        }
    }
    assert_eq!((index.bytes(), index.entries()), (0, 0));
    if let Ok(batch) = Batch::decode(rest) {
        for form in [Form::Map, Form::List] {
            assert!(Batch::decode(&batch.encode(form)).is_ok());
        }
    }
});
