//! How each type of value is read from text and shown again.
//!
//! A [`Kind`] turns the items given for one setting into a typed value, and that value into JSON. Flags, environment
//! and file all bring text, so a value is read in one way wherever it was written. Shown values can be read back.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use serde_json::{Value, json};

use super::setting::Shape;
use super::value::{Concurrency, CorsOrigins, Leg, ModelIdFrom, Secret, TokenizerPath, WorkerUrl};

/// Reads and shows values of one type, under one rule.
#[derive(Clone, Copy)]
pub struct Kind<T> {
    pub shape: Shape,
    pub value_name: &'static str,
    pub secret: bool,
    pub read: fn(&[String]) -> Result<T, String>,
    pub show: fn(&T) -> Value,
}

const fn one<T>(
    value_name: &'static str,
    read: fn(&[String]) -> Result<T, String>,
    show: fn(&T) -> Value,
) -> Kind<T> {
    Kind { shape: Shape::One, value_name, secret: false, read, show }
}

const fn list<T>(
    value_name: &'static str,
    read: fn(&[String]) -> Result<T, String>,
    show: fn(&T) -> Value,
) -> Kind<T> {
    Kind { shape: Shape::List, value_name, secret: false, read, show }
}

fn single(items: &[String]) -> Result<&str, String> {
    match items {
        [item] => Ok(item.trim()),
        [] => Err("a value is missing".into()),
        _ => Err("takes one value, not a list".into()),
    }
}

fn number<T: std::str::FromStr>(items: &[String], what: &str) -> Result<T, String> {
    single(items)?.parse().map_err(|_| format!("must be {what}"))
}

fn each<T>(items: &[String], read: fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    items.iter().map(|item| read(item.trim())).collect()
}

fn bool_of(items: &[String]) -> Result<bool, String> {
    match single(items)?.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

pub const SWITCH: Kind<bool> =
    Kind { shape: Shape::Switch, value_name: "BOOL", secret: false, read: bool_of, show: |v| json!(v) };

pub const MAYBE_SWITCH: Kind<Option<bool>> = Kind {
    shape: Shape::Switch,
    value_name: "BOOL",
    secret: false,
    read: |items| bool_of(items).map(Some),
    show: |v| json!(v),
};

fn address(items: &[String]) -> Result<IpAddr, String> {
    let text = single(items)?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().map_err(|_| {
        "must be an IP address such as 0.0.0.0, 127.0.0.1, :: or [::1]; a host name cannot be listened on"
            .into()
    })
}

pub const ADDRESS: Kind<IpAddr> = one("IP", address, |v| json!(v));
pub const MAYBE_ADDRESS: Kind<Option<IpAddr>> = one("IP", |items| address(items).map(Some), |v| json!(v));

fn port(items: &[String]) -> Result<u16, String> {
    match number(items, "a port between 1 and 65535")? {
        0 => Err("must be a port between 1 and 65535".into()),
        port => Ok(port),
    }
}

pub const PORT: Kind<u16> = one("PORT", port, |v| json!(v));
pub const MAYBE_PORT: Kind<Option<u16>> = one("PORT", |items| port(items).map(Some), |v| json!(v));

fn machine_id(items: &[String]) -> Result<u16, String> {
    let id = number(items, "a whole number from 0 to 1023")?;
    if id < 1024 { Ok(id) } else { Err("must be a whole number from 0 to 1023".into()) }
}

pub const MACHINE_ID: Kind<u16> = one("N", machine_id, |v| json!(v));

pub const COUNT: Kind<usize> = one("N", |items| number(items, "a whole number, 0 or more"), |v| json!(v));
pub const COUNT32: Kind<u32> = one("N", |items| number(items, "a whole number, 0 or more"), |v| json!(v));
pub const MAYBE_COUNT: Kind<Option<usize>> =
    one("N", |items| number(items, "a whole number, 0 or more").map(Some), |v| json!(v));
pub const POSITIVE: Kind<NonZeroUsize> =
    one("N", |items| number(items, "a whole number, 1 or more"), |v| json!(v));
pub const POSITIVE32: Kind<NonZeroU32> =
    one("N", |items| number(items, "a whole number, 1 or more"), |v| json!(v));
pub const MAYBE_POSITIVE: Kind<Option<NonZeroUsize>> =
    one("N", |items| number(items, "a whole number, 1 or more").map(Some), |v| json!(v));
/// 0 reads as none.
pub const COUNT_OR_OFF: Kind<Option<NonZeroUsize>> = one(
    "N",
    |items| number(items, "a whole number, 0 or more").map(NonZeroUsize::new),
    |v| json!(v.map_or(0, NonZeroUsize::get)),
);
pub const BYTES: Kind<NonZeroUsize> =
    one("BYTES", |items| number(items, "a number of bytes, 1 or more"), |v| json!(v));
pub const BYTES_OR_ZERO: Kind<usize> =
    one("BYTES", |items| number(items, "a number of bytes, 0 or more"), |v| json!(v));

/// A positive bound up to `MOST`.
pub const fn bounded<const MOST: usize>() -> Kind<NonZeroUsize> {
    one(
        "N",
        |items| match number::<NonZeroUsize>(items, "a whole number, 1 or more")? {
            n if n.get() > MOST => Err(format!("must be at most {MOST}")),
            n => Ok(n),
        },
        |v| json!(v),
    )
}

/// A bound of 0 or more, up to `MOST`.
pub const fn at_most<const MOST: usize>() -> Kind<usize> {
    one(
        "N",
        |items| match number(items, "a whole number, 0 or more")? {
            n if n > MOST => Err(format!("must be at most {MOST}")),
            n => Ok(n),
        },
        |v| json!(v),
    )
}

/// Longest time that any setting may name: a hundred years. Keeps `now + duration` from overflowing.
const LONGEST_SECS: f64 = 3_155_760_000.0;

fn duration(items: &[String], unit: &str, per_sec: f64) -> Result<Duration, String> {
    let text = single(items)?;
    let wrong = || format!("must be a number of {unit}, without a suffix");
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    let amount: f64 = text.parse().map_err(|_| wrong())?;
    if amount > LONGEST_SECS * per_sec {
        return Err("must be shorter than a hundred years".into());
    }
    Duration::try_from_secs_f64(amount / per_sec).map_err(|_| wrong())
}

fn positive(duration: Duration) -> Result<Duration, String> {
    if duration.is_zero() { Err("must be more than 0".into()) } else { Ok(duration) }
}

fn secs(items: &[String]) -> Result<Duration, String> {
    duration(items, "seconds", 1.0)
}

fn show_secs(duration: Duration) -> Value {
    if duration.subsec_nanos() == 0 { json!(duration.as_secs()) } else { json!(duration.as_secs_f64()) }
}

fn off(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

pub const SECS: Kind<Duration> = one("SECS", |items| positive(secs(items)?), |v| show_secs(*v));
pub const SECS_OR_ZERO: Kind<Duration> = one("SECS", secs, |v| show_secs(*v));
/// 0 reads as none.
pub const SECS_OR_OFF: Kind<Option<Duration>> =
    one("SECS", |items| secs(items).map(off), |v| show_secs(v.unwrap_or_default()));
/// Not given reads as none; 0 is refused.
pub const MAYBE_SECS: Kind<Option<Duration>> =
    one("SECS", |items| positive(secs(items)?).map(Some), |v| v.map_or(Value::Null, show_secs));
/// Not given reads as none, and 0 is a value.
pub const MAYBE_SECS_OR_ZERO: Kind<Option<Duration>> =
    one("SECS", |items| secs(items).map(Some), |v| v.map_or(Value::Null, show_secs));

fn millis(items: &[String]) -> Result<Duration, String> {
    duration(items, "milliseconds", 1000.0)
}

fn show_millis(duration: Duration) -> Value {
    let whole = duration.as_millis();
    if Duration::from_millis(whole as u64) == duration {
        json!(whole as u64)
    } else {
        json!(duration.as_secs_f64() * 1000.0)
    }
}

pub const MILLIS: Kind<Duration> = one("MS", |items| positive(millis(items)?), |v| show_millis(*v));
pub const MILLIS_OR_OFF: Kind<Option<Duration>> =
    one("MS", |items| millis(items).map(off), |v| show_millis(v.unwrap_or_default()));

fn float(items: &[String], fits: fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let value: f64 = number(items, what)?;
    if value.is_finite() && fits(value) { Ok(value) } else { Err(format!("must be {what}")) }
}

pub const SHARE: Kind<f64> = one(
    "SHARE",
    |items| float(items, |v| (0.0..=1.0).contains(&v), "a number from 0.0 to 1.0"),
    |v| json!(v),
);
pub const FACTOR: Kind<f64> =
    one("X", |items| float(items, |v| v >= 1.0, "a number, 1.0 or more"), |v| json!(v));
pub const WEIGHT: Kind<f64> =
    one("X", |items| float(items, |v| v >= 0.0, "a number, 0.0 or more"), |v| json!(v));
pub const RATE: Kind<f64> = one("X", |items| float(items, |v| v > 0.0, "a number above 0"), |v| json!(v));
/// A share above 0: at 0 every worker would be over it.
pub const LEVEL: Kind<f64> = one(
    "SHARE",
    |items| float(items, |v| v > 0.0 && v <= 1.0, "a number above 0.0, at most 1.0"),
    |v| json!(v),
);

pub const BUCKETS: Kind<Vec<f64>> = list(
    "SECS",
    |items| {
        let bounds =
            each(items, |item| item.parse::<f64>().map_err(|_| format!("{item:?} is not a number")))?;
        let rising = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        if rising && bounds.iter().all(|b| b.is_finite() && *b > 0.0) {
            Ok(bounds)
        } else {
            Err("must be rising numbers of seconds above 0".into())
        }
    },
    |v| json!(v),
);

/// Positions at which prompts are cut. Each is a look-up for each request.
const BOUNDARIES_MAX: usize = 64;

pub const BOUNDARIES: Kind<Vec<usize>> = list(
    "TOKENS",
    |items| {
        let parts: Vec<&str> = items.iter().flat_map(|item| item.split(',')).map(str::trim).collect();
        let bounds: Vec<usize> = parts
            .iter()
            .map(|item| item.parse().map_err(|_| format!("{item:?} is not a whole number")))
            .collect::<Result<_, String>>()?;
        if bounds.first() == Some(&0) || bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("must be rising token positions above 0".into());
        }
        if bounds.len() > BOUNDARIES_MAX {
            return Err(format!("must be {BOUNDARIES_MAX} positions at most"));
        }
        Ok(bounds)
    },
    |v| json!(v),
);

fn text(items: &[String]) -> Result<String, String> {
    match single(items)? {
        "" => Err("must not be empty".into()),
        text => Ok(text.to_owned()),
    }
}

/// IPv6 with or without brackets.
fn host(items: &[String]) -> Result<String, String> {
    let text = text(items)?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
    let in_names = |c: char| c.is_alphanumeric() || "-._".contains(c);
    match bare.parse::<IpAddr>().is_ok() || text.chars().all(in_names) {
        true => Ok(text),
        false => Err("must be a host name or an IP address, without scheme, user and port".into()),
    }
}

pub const TEXT: Kind<String> = one("TEXT", text, |v| json!(v));
pub const MAYBE_MODEL_ID_FROM: Kind<Option<ModelIdFrom>> = one(
    "WHERE",
    |items| ModelIdFrom::new(single(items)?).map(Some),
    |v| v.as_ref().map_or(Value::Null, |v| json!(v.to_string())),
);
pub const MAYBE_TEXT: Kind<Option<String>> = one("TEXT", |items| text(items).map(Some), |v| json!(v));
pub const MAYBE_HOST: Kind<Option<String>> = one("HOST", |items| host(items).map(Some), |v| json!(v));
pub const MAYBE_PATH: Kind<Option<PathBuf>> =
    one("PATH", |items| text(items).map(|t| Some(t.into())), |v| json!(v));

/// The path part of a URL.
pub const URL_PATH: Kind<String> = one(
    "PATH",
    |items| match text(items)? {
        path if path.starts_with('/') => Ok(path),
        _ => Err("must start with '/': it is appended to each worker's URL".into()),
    },
    |v| json!(v),
);

pub const MAYBE_SECRET: Kind<Option<Secret>> = Kind {
    shape: Shape::One,
    value_name: "KEY",
    secret: true,
    read: |items| Secret::new(single(items)?).map(Some),
    show: |v| json!(v.as_ref().map(|_| Secret::MASK)),
};

/// A key of somebody else's that may be empty: no key then.
pub const MAYBE_PASSWORD: Kind<Option<Secret>> = Kind {
    read: |items| match single(items)? {
        "" => Ok(None),
        text => Secret::new(text).map(Some),
    },
    ..MAYBE_SECRET
};

pub const SECRETS: Kind<Vec<Secret>> = Kind {
    shape: Shape::List,
    value_name: "KEY",
    secret: true,
    read: |items| each(items, Secret::new),
    show: |v| json!(v.iter().map(|_| Secret::MASK).collect::<Vec<_>>()),
};

pub const HEADERS: Kind<Vec<HeaderName>> = list(
    "HEADER",
    |items| each(items, |item| item.parse().map_err(|_| format!("{item:?} is not a header name"))),
    |v| json!(v.iter().map(HeaderName::as_str).collect::<Vec<_>>()),
);

pub const TOKENIZERS: Kind<Vec<TokenizerPath>> = list(
    "[MODEL=]PATH",
    |items| each(items, TokenizerPath::new),
    |v| json!(v.iter().map(ToString::to_string).collect::<Vec<_>>()),
);

pub const URLS: Kind<Vec<WorkerUrl>> = list(
    "URL",
    |items| each(items, WorkerUrl::new),
    |v| json!(v.iter().map(WorkerUrl::as_str).collect::<Vec<_>>()),
);

pub const LEGS: Kind<Vec<Leg>> = Kind {
    shape: Shape::Leg,
    value_name: "URL",
    secret: false,
    read: |items| each(items, Leg::new),
    show: |v| json!(v.iter().map(Leg::to_string).collect::<Vec<_>>()),
};

pub const ORIGINS: Kind<CorsOrigins> = list("ORIGIN", CorsOrigins::read, |v| json!(v.as_list()));

pub const CONCURRENCY: Kind<Concurrency> = one(
    "N",
    |items| {
        number::<i64>(items, "-1 (from the number of cores), 0 (no bound) or a whole number")
            .and_then(Concurrency::new)
    },
    |v| json!(v.as_number()),
);

/// SMG's spelling: nothing above 0 means off.
pub const INFLIGHT_WINDOW: Kind<Option<NonZeroU32>> = one(
    "N",
    |items| {
        let n: i64 = number(items, "a whole number; 0 or less turns it off")?;
        u32::try_from(n.max(0)).map(NonZeroU32::new).map_err(|_| format!("must be at most {}", u32::MAX))
    },
    |v| v.map_or(json!(-1), |n| json!(n)),
);

/// `name=name` pairs.
pub const PAIRS: Kind<Vec<(String, String)>> = Kind {
    shape: Shape::Pairs,
    value_name: "NAME=NAME",
    secret: false,
    read: |items| {
        each(items, |item| match item.split_once('=') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => Ok((left.into(), right.into())),
            _ => Err(format!("{item:?} is not of the form name=name")),
        })
    },
    show: |v| json!(v.iter().map(|(left, right)| format!("{left}={right}")).collect::<Vec<_>>()),
};

/// An enum that is written as one of a closed list of words.
pub trait Word: Copy + 'static {
    const WORDS: &'static [&'static str];
    const VALUES: &'static [Self];
    fn word(self) -> &'static str;
}

fn word<T: Word>(items: &[String]) -> Result<T, String> {
    let text = single(items)?;
    let found = T::VALUES.iter().copied().find(|value| value.word() == text);
    found.ok_or_else(|| {
        let near = super::error::nearest(text, T::WORDS.iter().copied());
        let hint = near.map(|word| format!(": did you mean {word}?")).unwrap_or_default();
        format!("must be one of {}{hint}", T::WORDS.join(", "))
    })
}

/// One word of the list of `T`.
pub const fn one_of<T: Word>(value_name: &'static str) -> Kind<T> {
    Kind {
        shape: Shape::Word(T::WORDS),
        value_name,
        secret: false,
        read: word::<T>,
        show: |v| json!(v.word()),
    }
}

/// One word of the list of `T`, or not given.
pub const fn maybe_one_of<T: Word>(value_name: &'static str) -> Kind<Option<T>> {
    Kind {
        shape: Shape::Word(T::WORDS),
        value_name,
        secret: false,
        read: |items| word::<T>(items).map(Some),
        show: |v| json!(v.map(T::word)),
    }
}
