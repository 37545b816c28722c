//! Batches as engines write them: for simulated engines and for tests.

use super::batch::{Batch, Event, Stored};

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Maps with a name under `type`, what is absent left out (vLLM 0.24 and later).
    Map,
    /// Lists that begin with the name (vLLM 0.20, SGLang before 0.5.23).
    List,
}

impl Batch {
    /// A rank that is none is left out by vLLM and written as nothing by SGLang; here it is left out in maps.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        let mut out = Writer::default();
        let ranked = self.rank.is_some() || form == Form::List;
        out.list(if ranked { 3 } else { 2 });
        out.float(self.at);
        out.list(self.events.len());
        for event in &self.events {
            match form {
                Form::Map => out.map_event(event),
                Form::List => out.list_event(event),
            }
        }
        if ranked {
            out.maybe(self.rank.map(u64::from));
        }
        out.0
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn map_event(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) => {
                let salted = stored.salt.is_some();
                self.map(8 + usize::from(salted) + usize::from(stored.group.is_some()));
                self.texts(&["type", "BlockStored", "block_hashes"]);
                self.hashes(&stored.hashes);
                self.text("parent_block_hash");
                self.maybe(stored.parent);
                self.text("token_ids");
                self.numbers(&stored.tokens);
                self.text("block_size");
                self.unsigned(u64::from(stored.block_tokens));
                self.text("lora_id");
                self.maybe(None);
                self.texts(&["medium", "GPU", "lora_name"]);
                self.maybe_text(stored.lora.as_deref());
                if salted {
                    self.text("extra_keys");
                    self.extra_keys(stored);
                }
                self.group(stored.group);
            }
            Event::Removed(removed) => {
                self.map(3 + usize::from(removed.group.is_some()));
                self.texts(&["type", "BlockRemoved", "block_hashes"]);
                self.hashes(&removed.hashes);
                self.texts(&["medium", "GPU"]);
                self.group(removed.group);
            }
            Event::Cleared => {
                self.map(1);
                self.texts(&["type", "AllBlocksCleared"]);
            }
            Event::Elsewhere => {
                self.map(3);
                self.texts(&["type", "BlockRemoved", "block_hashes"]);
                self.hashes(&[]);
                self.texts(&["medium", "CPU"]);
            }
            Event::Unknown => {
                self.map(1);
                self.texts(&["type", "SomethingElse"]);
            }
        }
    }

    fn list_event(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) => {
                self.list(10);
                self.text("BlockStored");
                self.hashes(&stored.hashes);
                self.maybe(stored.parent);
                self.numbers(&stored.tokens);
                self.unsigned(u64::from(stored.block_tokens));
                self.maybe(None);
                self.text("GPU");
                self.maybe_text(stored.lora.as_deref());
                self.extra_keys(stored);
                self.maybe(stored.group.map(u64::from));
            }
            Event::Removed(removed) => {
                self.list(4);
                self.text("BlockRemoved");
                self.hashes(&removed.hashes);
                self.text("GPU");
                self.maybe(removed.group.map(u64::from));
            }
            Event::Cleared => {
                self.list(1);
                self.text("AllBlocksCleared");
            }
            Event::Elsewhere => {
                self.list(3);
                self.text("BlockRemoved");
                self.hashes(&[]);
                self.text("CPU");
            }
            Event::Unknown => {
                self.list(1);
                self.text("SomethingElse");
            }
        }
    }

    /// The salt stands among the keys of a prompt's first block.
    fn extra_keys(&mut self, stored: &Stored) {
        let Some(salt) = stored.salt.as_deref().filter(|_| stored.parent.is_none()) else {
            return self.maybe(None);
        };
        self.list(stored.hashes.len());
        for place in 0..stored.hashes.len() {
            let mut parts: Vec<&str> = stored.lora.as_deref().into_iter().collect();
            if place == 0 {
                parts.push(salt);
            }
            self.list(parts.len());
            self.texts(&parts);
        }
    }

    fn group(&mut self, group: Option<u32>) {
        if let Some(group) = group {
            self.text("group_idx");
            self.unsigned(u64::from(group));
        }
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.list(hashes.len());
        hashes.iter().for_each(|hash| self.unsigned(*hash));
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.list(numbers.len());
        numbers.iter().for_each(|number| self.unsigned(u64::from(*number)));
    }

    fn texts(&mut self, texts: &[&str]) {
        texts.iter().for_each(|text| self.text(text));
    }

    fn maybe(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.unsigned(number),
            None => self.0.push(0xc0),
        }
    }

    fn maybe_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.0.push(0xc0),
        }
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            n @ 0..32 => self.0.push(0xa0 | n as u8),
            n @ 32..256 => self.0.extend_from_slice(&[0xd9, n as u8]),
            n => self.sized(0xdb, n),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    fn list(&mut self, n: usize) {
        match n {
            0..16 => self.0.push(0x90 | n as u8),
            n => self.sized(0xdd, n),
        }
    }

    fn map(&mut self, n: usize) {
        self.0.push(0x80 | (n as u8 & 0x0f));
    }

    fn sized(&mut self, mark: u8, n: usize) {
        self.0.push(mark);
        self.0.extend_from_slice(&(n as u32).to_be_bytes());
    }

    fn float(&mut self, x: f64) {
        self.0.push(0xcb);
        self.0.extend_from_slice(&x.to_bits().to_be_bytes());
    }

    fn unsigned(&mut self, n: u64) {
        let bytes = n.to_be_bytes();
        match n {
            0..0x80 => self.0.push(n as u8),
            0x80..0x100 => self.0.extend_from_slice(&[0xcc, n as u8]),
            0x100..0x1_0000 => {
                self.0.push(0xcd);
                self.0.extend_from_slice(&bytes[6..]);
            }
            0x1_0000..0x1_0000_0000 => {
                self.0.push(0xce);
                self.0.extend_from_slice(&bytes[4..]);
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend_from_slice(&bytes);
            }
        }
    }
}
