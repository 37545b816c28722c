//! What a client asks of routing in AIBrix's headers.
//!
//! Kept as the client wrote it: whether it counts is for the model's config to say, and what it means for
//! [`crate::place::cascade::resolve`]. Most requests carry none of these headers and have no [`Wishes`] at all.

use xxhash_rust::xxh3::xxh3_64;

use crate::place::cascade::sessions::KEY_MAX;
use crate::selector::SELECTOR_MAX_BYTES;

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
    /// `external-filter`.
    Filter,
    /// `user`.
    User,
}

impl Wish {
    pub const ALL: [Wish; 6] =
        [Wish::Strategy, Wish::Profile, Wish::SessionKey, Wish::SessionId, Wish::Filter, Wish::User];

    /// The header's name, in lower case.
    pub fn header(self) -> &'static str {
        match self {
            Wish::Strategy => "routing-strategy",
            Wish::Profile => "config-profile",
            Wish::SessionKey => "x-aibrix-session-key",
            Wish::SessionId => "x-session-id",
            Wish::Filter => "external-filter",
            Wish::User => "user",
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
    /// A label selector: only workers that it selects may serve. One that is too long to be read is kept too long.
    pub filter: Option<String>,
    /// Who asks, as a hash.
    pub user: Option<u64>,
}

impl Wishes {
    /// Takes one header's value. A selector may come in several headers: all of them must select.
    pub fn hear(&mut self, wish: Wish, value: &[u8]) {
        let most = if wish == Wish::Filter { SELECTOR_MAX_BYTES + 1 } else { WISH_MAX };
        let text = String::from_utf8_lossy(&value[..value.len().min(most)]).into_owned();
        match wish {
            Wish::Filter => self.narrow(text),
            Wish::User => self.user = Some(xxh3_64(value)).filter(|_| !value.is_empty()),
            Wish::Strategy => self.strategy = Some(text),
            Wish::Profile => self.profile = Some(text).filter(|t| !t.is_empty()),
            Wish::SessionId => self.session_id = Some(text).filter(|t| !t.is_empty()),
            Wish::SessionKey => {
                self.session_key = Some(text).filter(|_| (1..=KEY_MAX).contains(&value.len()));
            }
        }
    }

    fn narrow(&mut self, text: String) {
        let blank = |text: &str| text.trim().is_empty();
        self.filter = Some(match self.filter.take() {
            Some(before) if blank(&text) => before,
            // Past the limit it is refused, however far.
            Some(before) if !blank(&before) && before.len() <= SELECTOR_MAX_BYTES => {
                format!("{before},{text}")
            }
            Some(before) if !blank(&before) => before,
            _ => text,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_selectors_are_one_and_too_much_of_them_stays_too_much() {
        let heard = |values: &[&str]| {
            let mut wishes = Wishes::default();
            values.iter().for_each(|value| wishes.hear(Wish::Filter, value.as_bytes()));
            wishes.filter.unwrap()
        };
        assert_eq!(heard(&["a=b"]), "a=b");
        assert_eq!(heard(&["a=b", "", "!c"]), "a=b,!c");
        assert_eq!(heard(&["", " "]), "");
        assert_eq!(heard(&[""; 9]), "");
        let long = "x".repeat(3000);
        assert!((SELECTOR_MAX_BYTES + 1..10_000).contains(&heard(&[long.as_str(); 50]).len()));
    }

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
