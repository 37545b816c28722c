//! What a setting is, and the macro that writes a group of them.
//!
//! One row gives a setting everything it has: the field of [`Config`], its type and default, how it is read and
//! shown, its flag, and the help text. The flag, the environment variable, the YAML key, `--help`, docs/flags.md and
//! `baton check` are all made from the row, so that they cannot disagree.

use std::fmt;

use serde_json::Value;

use super::{Config, Source};

/// How a setting appears on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `--flag`, `--flag=false`.
    Switch,
    /// `--flag VALUE`, once.
    One,
    /// `--flag WORD`, one of these.
    Word(&'static [&'static str]),
    /// `--flag A B C`, and again.
    List,
    /// `--flag A=B C=D`, and again.
    Pairs,
    /// `--flag URL [PORT]`, and again.
    Leg,
}

/// Whether a setting does something in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Now,
    /// Read and kept, but without effect until the named part is served. Setting it is a warning.
    Later(&'static str),
    /// Read and kept, and without effect for good: why. Setting it is a warning.
    Otherwise(&'static str),
    /// Setting it stops the launch: running on as if it were not there would mislead.
    Refused(&'static str),
}

/// The rarely given parts of a row.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub aliases: &'static [&'static str],
    pub env: Option<&'static str>,
    /// A value of `env` that nobody knows is a warning and leaves the default, as AIBrix reads it.
    pub lenient: bool,
    pub effect: Effect,
}

pub const NOTE: Note = Note { aliases: &[], env: None, lenient: false, effect: Effect::Now };

impl Note {
    pub const fn alias(self, aliases: &'static [&'static str]) -> Note {
        Note { aliases, ..self }
    }

    pub const fn env(self, name: &'static str) -> Note {
        Note { env: Some(name), ..self }
    }

    /// Is the line about this row's foreign variable?
    pub(super) fn speaks_of(&self, line: &str) -> bool {
        self.env.is_some_and(|name| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
    }

    pub const fn lenient(self) -> Note {
        Note { lenient: true, ..self }
    }

    pub const fn later(self, part: &'static str) -> Note {
        Note { effect: Effect::Later(part), ..self }
    }

    pub const fn otherwise(self, why: &'static str) -> Note {
        Note { effect: Effect::Otherwise(why), ..self }
    }

    pub const fn refused(self, part: &'static str) -> Note {
        Note { effect: Effect::Refused(part), ..self }
    }
}

/// One row of the table, with the type of its value erased.
pub struct Setting {
    /// The field of [`Config`] that holds the group, and the YAML section.
    pub group: &'static str,
    /// The heading of the group in help and docs.
    pub title: &'static str,
    /// Without the dashes.
    pub flag: &'static str,
    pub help: &'static str,
    pub shape: Shape,
    pub value_name: &'static str,
    pub secret: bool,
    pub note: Note,
    pub(super) store: fn(&mut Config, &[String]) -> Result<(), String>,
    pub(super) show: fn(&Config) -> Value,
}

impl Setting {
    /// The YAML key inside its section: the flag with underscores.
    pub fn key(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// `section.key`, as error messages name it.
    pub fn path(&self) -> String {
        format!("{}.{}", self.group, self.key())
    }

    /// The environment variables that set it, the first one that is present wins.
    pub fn environment(&self) -> Vec<String> {
        let own = format!("BATON_{}", self.flag.to_uppercase().replace('-', "_"));
        std::iter::once(own).chain(self.note.env.map(String::from)).collect()
    }

    /// Is a value from there that cannot be used only a warning?
    pub(super) fn forgives(&self, source: &Source) -> bool {
        let foreign = |name: &String| self.note.env == Some(name.as_str());
        self.note.lenient && matches!(source, Source::Environment(name) if foreign(name))
    }

    /// The default, as JSON.
    pub fn default_value(&self) -> Value {
        (self.show)(&Config::default())
    }

    /// The value that `config` holds, as JSON; a secret is masked.
    pub fn value(&self, config: &Config) -> Value {
        (self.show)(config)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("flag", &self.flag).finish_non_exhaustive()
    }
}

/// Writes one group: the struct, its defaults and its rows.
///
/// A row reads: help text, `field: Type = default, KIND, "flag"`, and a [`Note`] when there is something to note.
macro_rules! group {
    (
        $(#[doc = $about:literal])+
        $title:literal $name:ident: $Group:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $Type:ty = $default:expr, $kind:expr, $flag:literal $(, $note:expr)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Group {
            $( $(#[doc = $help])+ pub $field: $Type, )+
        }

        impl Default for $Group {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $Group {
            /// The rows of this group.
            pub const SETTINGS: &'static [$crate::config::setting::Setting] = &[
                $( {
                    // Named, so that the field's type decides which values the kind reads.
                    const KIND: $crate::config::kind::Kind<$Type> = $kind;
                    $crate::config::setting::Setting {
                        group: stringify!($name),
                        title: $title,
                        flag: $flag,
                        help: concat!($($help),+),
                        shape: KIND.shape,
                        value_name: KIND.value_name,
                        secret: KIND.secret,
                        note: $crate::config::setting::group!(@note $($note)?),
                        store: |config, items| {
                            config.$name.$field = (KIND.read)(items)?;
                            Ok(())
                        },
                        show: |config| (KIND.show)(&config.$name.$field),
                    }
                }, )+
            ];
        }
    };
    (@note) => { $crate::config::setting::NOTE };
    (@note $note:expr) => { $note };
}

pub(super) use group;
