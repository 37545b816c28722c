//! What a decode stream says, read on the side.
//!
//! The relay hands each chunk to the client as it came; a [`SseWatch`] sees the same bytes and notes what accounting
//! and the end of the exchange need: was there a first token, is the stream done, did the engine report an error or
//! its usage, and may an event be put in at this point. It returns nothing to the relay, so it can neither fail nor
//! delay nor change a stream; bytes that make no sense leave no note.
//!
//! Framing follows the WHATWG rules: lines end with LF, CRLF or CR, an empty line ends an event, several `data`
//! lines make one text. Chunks may be cut anywhere. `[DONE]` counts only as the whole text of a finished event: the
//! model may well write those words.
//!
//! An event longer than [`EVENT_LIMIT`] is counted but not looked into.

mod usage;

use memchr::{memchr, memchr2};

pub use usage::{Usage, usage_of_answer};

/// Bytes of one event that are kept while it is incomplete (its text, and its last line: twice this at most).
pub const EVENT_LIMIT: usize = 256 * 1024;

/// Buffers above this size are given back after the event they were needed for.
const KEPT_BUFFER: usize = 16 * 1024;

/// Whose streams these are: decides where usage and errors stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// `/v1/chat/completions`, `/v1/completions`.
    OpenAi,
    /// SGLang's `/generate`: usage and abort reason in `meta_info`.
    Generate,
    /// Anthropic's `/v1/messages`: named events, usage in `message_start` and `message_delta`.
    Messages,
    /// `/v1/responses`: named events, usage in the last one, and no `[DONE]` (vLLM 0.32, SGLang 0.5.23).
    Responses,
}

/// The event names that mean something here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Other,
    Error,
    Ping,
    MessageStop,
    /// `response.created` and the like: says that work has begun, and nothing of what it yields.
    ResponseBegun,
    /// `response.completed` or `response.incomplete`: the last event, with the whole response in it.
    ResponseOver,
    ResponseFailed,
}

/// The lines of an event so far.
#[derive(Debug, Default)]
struct Event {
    name: Name,
    /// The `data` lines, joined by line feeds.
    data: Vec<u8>,
    has_data: bool,
    /// Too long: `data` is incomplete.
    cut: bool,
    /// Any line that is no comment.
    begun: bool,
}

/// Watches one stream. Feed it every chunk in order; ask at any time.
#[derive(Debug)]
pub struct SseWatch {
    flavour: Flavour,
    event: Event,
    /// The last line as far as it has come, if a chunk ended inside it.
    line: Vec<u8>,
    line_cut: bool,
    mid_line: bool,
    after_cr: bool,
    /// A byte order mark may come only before the first line.
    first_line: bool,
    events: u64,
    chunks: u64,
    done: bool,
    error: bool,
    usage: Option<Usage>,
}

impl SseWatch {
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            event: Event::default(),
            line: Vec::new(),
            line_cut: false,
            mid_line: false,
            after_cr: false,
            first_line: true,
            events: 0,
            chunks: 0,
            done: false,
            error: false,
            usage: None,
        }
    }

    /// Takes the stream's next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        let Some(last) = chunk.last() else { return };
        // the line feed of a CRLF that was cut in two
        let mut rest = if self.after_cr { chunk.strip_prefix(b"\n").unwrap_or(chunk) } else { chunk };
        self.after_cr = *last == b'\r';
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, behind) = rest.split_at(end);
            rest = behind.strip_prefix(b"\r\n").unwrap_or(&behind[1..]);
            self.end_line(line);
        }
        self.mid_line |= !rest.is_empty();
        self.line_cut |= keep(&mut self.line, rest);
    }

    /// Finished events with data, whatever they say: tokens, errors, pings, the done mark. Comments are no events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events that carry output: neither error nor ping nor done mark, nor the announcement of a response. About
    /// one a token, plus those that carry only a role, a finish reason or usage.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// The first event that carries output has ended.
    pub fn first_data_seen(&self) -> bool {
        self.chunks > 0
    }

    /// The engine has said that the stream is over: an event `[DONE]`, Anthropic's `message_stop`, or the last
    /// event of a response.
    pub fn done_seen(&self) -> bool {
        self.done
    }

    /// The stream has said that it is over, and nothing is under way: a break costs it nothing.
    pub fn is_complete(&self) -> bool {
        self.done_seen() && self.at_boundary()
    }

    /// The engine has reported an error in the stream: `{"error": ...}`, `event: error`, `response.failed`, or
    /// SGLang's abort reason.
    pub fn error_seen(&self) -> bool {
        self.error
    }

    /// The engine's last word on token counts; a count that a later report leaves out stays.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Between two events: one may be put in here.
    pub fn at_boundary(&self) -> bool {
        !self.mid_line && !self.event.begun
    }

    /// What must be sent so that the next byte begins a new event; empty at a boundary. It ends the event that is
    /// under way, which the client then takes as far as it has come.
    pub fn restore(&self) -> &'static [u8] {
        if self.at_boundary() {
            b""
        } else if self.mid_line || self.after_cr {
            // behind a CR, one line feed would only complete the CRLF
            b"\n\n"
        } else {
            b"\n"
        }
    }

    /// A line is complete: `tail` is the part of it in this chunk.
    fn end_line(&mut self, tail: &[u8]) {
        self.mid_line = false;
        if self.line.is_empty() {
            self.whole_line(tail, false);
            return;
        }
        let cut = keep(&mut self.line, tail) | std::mem::take(&mut self.line_cut);
        let line = std::mem::take(&mut self.line);
        self.whole_line(&line, cut);
        self.line = emptied(line);
    }

    fn whole_line(&mut self, line: &[u8], cut: bool) {
        let mut line = line;
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        match line.first() {
            None => self.end_event(),
            Some(b':') => {}
            Some(_) => self.event.add(line, cut),
        }
    }

    fn end_event(&mut self) {
        if self.event.has_data {
            self.events += 1;
            self.read_event();
        }
        let data = emptied(std::mem::take(&mut self.event.data));
        self.event = Event { data, ..Event::default() };
    }

    fn read_event(&mut self) {
        let data = &self.event.data;
        match self.event.name {
            Name::Ping | Name::ResponseBegun => {}
            Name::Error => self.error = true,
            Name::MessageStop => self.done = true,
            Name::ResponseOver | Name::ResponseFailed => {
                self.done = true;
                self.error |= self.event.name == Name::ResponseFailed;
                self.note_usage();
            }
            Name::Other if data.trim_ascii() == b"[DONE]" => self.done = true,
            Name::Other if is_error(data) => self.error = true,
            Name::Other => {
                self.chunks += 1;
                self.note_usage();
            }
        }
    }

    fn note_usage(&mut self) {
        let Event { data, cut, .. } = &self.event;
        let report = if *cut { None } else { usage::of_event(self.flavour, data) };
        let Some(report) = report else { return };
        self.error |= report.aborted;
        self.usage = report.over(self.usage);
    }
}

impl Event {
    fn add(&mut self, line: &[u8], cut: bool) {
        self.begun = true;
        let (field, value) = match memchr(b':', &line[..line.len().min(8)]) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.cut |= keep(&mut self.data, value) | cut;
            }
            b"event" => {
                self.name = match value {
                    b"error" => Name::Error,
                    b"ping" => Name::Ping,
                    b"message_stop" => Name::MessageStop,
                    b"response.created" | b"response.queued" | b"response.in_progress" => Name::ResponseBegun,
                    b"response.completed" | b"response.incomplete" => Name::ResponseOver,
                    b"response.failed" => Name::ResponseFailed,
                    _ => Name::Other,
                };
            }
            _ => {}
        }
    }
}

/// Appends as much as fits below [`EVENT_LIMIT`]; true if something was left out.
fn keep(buffer: &mut Vec<u8>, more: &[u8]) -> bool {
    let room = EVENT_LIMIT.saturating_sub(buffer.len());
    buffer.extend_from_slice(&more[..more.len().min(room)]);
    more.len() > room
}

/// The buffer without its content; a large one is given back.
fn emptied(mut buffer: Vec<u8>) -> Vec<u8> {
    if buffer.capacity() > KEPT_BUFFER {
        return Vec::new();
    }
    buffer.clear();
    buffer
}

/// An object whose first member is `error` and not null.
fn is_error(data: &[u8]) -> bool {
    let value = data
        .trim_ascii_start()
        .strip_prefix(b"{")
        .and_then(|rest| rest.trim_ascii_start().strip_prefix(b"\"error\""))
        .and_then(|rest| rest.trim_ascii_start().strip_prefix(b":"));
    value.is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
}
