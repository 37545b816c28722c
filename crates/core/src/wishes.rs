//! What a client asks of routing in AIBrix's headers.
//!
//! Kept as the client wrote it: whether it counts is for the model's config to say, and what it means for
//! [`crate::place::cascade::resolve`]. Most requests carry none of these headers and have no [`Wishes`] at all.

use crate::place::cascade::sessions::KEY_MAX;

/// Longest header that is taken, in bytes. A longer one counts as a name that nobody knows.
const WISH_MAX: usize = 1024;

/// The headers that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// `routing-strategy`.
    Strategy,
    /// `config-profile`.
    Profile,
    /// `x-aibrix-session-key`.
    SessionKey,
    /// `x-session-id`.
    SessionId,
}

impl Wish {
    pub const ALL: [Wish; 4] = [Wish::Strategy, Wish::Profile, Wish::SessionKey, Wish::SessionId];

    /// The header's name, in lower case.
    pub fn header(self) -> &'static str {
        match self {
            Wish::Strategy => "routing-strategy",
            Wish::Profile => "config-profile",
            Wish::SessionKey => "x-aibrix-session-key",
            Wish::SessionId => "x-session-id",
        }
    }
}

/// What one client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub strategy: Option<String>,
    pub profile: Option<String>,
    /// Names the conversation that the request belongs to. Never longer than [`KEY_MAX`].
    pub session_key: Option<String>,
    /// Names the worker that served the conversation before, as the gateway told it.
    pub session_id: Option<String>,
}

impl Wishes {
    /// Takes one header's value.
    pub fn hear(&mut self, wish: Wish, value: &[u8]) {
        let text = String::from_utf8_lossy(&value[..value.len().min(WISH_MAX)]).into_owned();
        match wish {
            Wish::Strategy => self.strategy = Some(text),
            Wish::Profile => self.profile = Some(text).filter(|t| !t.is_empty()),
            Wish::SessionId => self.session_id = Some(text).filter(|t| !t.is_empty()),
            Wish::SessionKey => {
                self.session_key = Some(text).filter(|_| (1..=KEY_MAX).contains(&value.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_names_nothing() {
        let mut wishes = Wishes::default();
        wishes.hear(Wish::SessionKey, "k".repeat(KEY_MAX + 1).as_bytes());
        assert_eq!(wishes.session_key, None);
        wishes.hear(Wish::SessionKey, "k".repeat(KEY_MAX).as_bytes());
        assert_eq!(wishes.session_key.map(|k| k.len()), Some(KEY_MAX));
        let mut wishes = Wishes::default();
        wishes.hear(Wish::Strategy, &[b'p'; 5000]);
        wishes.hear(Wish::Profile, b"");
        assert_eq!(wishes.strategy.map(|s| s.len()), Some(WISH_MAX));
        assert_eq!(wishes.profile, None);
    }
}
