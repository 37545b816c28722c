//! What becomes of the whole when something becomes of a part?
//!
//! All parts start together and fail together. The client's answer begins once every part's has, so that a part that
//! is refused can still be told as what it is; it ends once every part's has ended; and the first part to fail ends
//! it, with its fault. Whoever asks drops the other parts then, as if their client had left.

/// What a part reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Its answer begins.
    Begun,
    /// Its answer has ended as it should.
    Ended,
    /// It was refused, cut or lost.
    Failed,
}

/// What becomes of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Wait,
    /// The client's answer begins.
    Begin,
    /// The client's answer is complete.
    Finish,
    /// The client gets the part's fault; the other parts are dropped.
    Fail,
    /// The answer that has begun ends with the part's fault; the other parts are dropped.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Awaited,
    Begun,
    Ended,
}

/// The parts of one request.
#[derive(Clone, Debug)]
pub struct Gather {
    parts: Vec<Part>,
    begun: bool,
    over: bool,
}

impl Gather {
    pub fn new(parts: usize) -> Gather {
        Gather { parts: vec![Part::Awaited; parts], begun: false, over: false }
    }

    /// The client's answer has begun.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Nothing more becomes of it.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// A report that does not fit what the part said before changes nothing.
    pub fn on(&mut self, part: usize, said: Said) -> Next {
        let begun = self.begun;
        match (self.parts.get_mut(part), said) {
            _ if self.over => Next::Wait,
            (Some(state @ Part::Awaited), Said::Begun) => {
                *state = Part::Begun;
                self.begun = !self.parts.contains(&Part::Awaited);
                if self.begun { Next::Begin } else { Next::Wait }
            }
            (Some(state @ Part::Begun), Said::Ended) if begun => {
                *state = Part::Ended;
                self.over = self.parts.iter().all(|part| *part == Part::Ended);
                if self.over { Next::Finish } else { Next::Wait }
            }
            (Some(Part::Awaited | Part::Begun), Said::Failed) => {
                self.over = true;
                if begun { Next::Cut } else { Next::Fail }
            }
            _ => Next::Wait,
        }
    }
}
