//! What is said to Redis, and what its answers mean.

use std::collections::{BTreeSet, HashMap};

use baton_core::place::cascade::shared::{INSTANCES_KEY, KEPT_FOR, Reading, Write};
use redis::{Pipeline, ServerError, Value, cmd, pipe};

/// Instances that are heeded at all, those seen last.
const INSTANCES_HEARD: usize = 4096;

/// Commands of which one may be refused, and the others count: the asker looks at what was refused.
fn patient() -> Pipeline {
    let mut pipe = pipe();
    pipe.ignore_errors();
    pipe
}

/// A command that was refused for any other reason than that its key holds something else. That is about one key alone.
pub fn refused(answers: &[Value]) -> Option<String> {
    let mut errors = answers.iter().filter_map(error);
    errors.find(|error| !is_foreign(error)).map(|error| error.to_string())
}

fn error(answer: &Value) -> Option<&ServerError> {
    match answer {
        Value::ServerError(error) => Some(error),
        _ => None,
    }
}

fn is_foreign(error: &ServerError) -> bool {
    error.code() == "WRONGTYPE"
}

/// A batch of writes: what is charged, fields of gateways that are gone, and with `beat` a sign of life at that moment.
pub fn writes(own: &[u8], writes: &[Write], pruned: &[(String, Vec<u8>)], beat: Option<i64>) -> Pipeline {
    let kept_ms = KEPT_FOR.as_millis() as i64;
    let mut pipe = patient();
    if let Some(now_ms) = beat {
        pipe.cmd("TIME");
        pipe.cmd("ZADD").arg(INSTANCES_KEY).arg(now_ms).arg(own);
        pipe.cmd("PEXPIRE").arg(INSTANCES_KEY).arg(kept_ms);
        let forgotten = format!("({}", now_ms.saturating_sub(kept_ms));
        pipe.cmd("ZREMRANGEBYSCORE").arg(INSTANCES_KEY).arg("-inf").arg(forgotten);
    }
    for write in writes {
        match write {
            Write::Set { key, value } => {
                pipe.cmd("HSET").arg(key).arg(own).arg(value);
                pipe.cmd("PEXPIRE").arg(key).arg(kept_ms);
            }
            Write::Delete { key } => {
                pipe.cmd("HDEL").arg(key).arg(own);
            }
        }
    }
    for (key, instance) in pruned {
        pipe.cmd("HDEL").arg(key).arg(instance.as_slice());
    }
    pipe
}

/// The question for Redis' time alone.
pub fn time() -> Pipeline {
    let mut pipe = patient();
    pipe.add_command(cmd("TIME"));
    pipe
}

/// Redis' time in microseconds since 1970, from the first of these answers.
///
/// # Errors
/// It is none.
pub fn micros(answers: &[Value]) -> Result<u64, String> {
    let parts = answers.first().map(texts).unwrap_or_default();
    let number = |at: usize| std::str::from_utf8(parts.get(at)?).ok()?.parse::<u64>().ok();
    let micros = number(0).and_then(|secs| secs.checked_mul(1_000_000)?.checked_add(number(1)?));
    micros
        .filter(|micros| i64::try_from(*micros).is_ok())
        .ok_or_else(|| "TIME was not answered with a time".to_owned())
}

/// The question who is alive and what each of these hashes holds.
pub fn look<'a>(keys: impl Iterator<Item = &'a String>, now_ms: i64) -> Pipeline {
    let since = now_ms.saturating_sub(KEPT_FOR.as_millis() as i64);
    let mut pipe = patient();
    pipe.cmd("ZREVRANGEBYSCORE").arg(INSTANCES_KEY).arg("+inf").arg(since);
    pipe.arg("WITHSCORES").arg("LIMIT").arg(0).arg(INSTANCES_HEARD);
    for key in keys {
        pipe.cmd("HGETALL").arg(key);
    }
    pipe
}

/// What was answered to [`look`] with these hashes.
///
/// # Errors
/// Who is alive is not known.
pub fn reading(keys: impl Iterator<Item = String>, answers: &[Value]) -> Result<Reading, String> {
    let (seen, hashes) = answers.split_first().unwrap_or((&Value::Nil, &[]));
    if let Some(error) = error(seen) {
        return Err(format!("{INSTANCES_KEY}: {error}"));
    }
    let score = |text: &[u8]| Some(std::str::from_utf8(text).ok()?.parse::<f64>().ok()? as i64);
    let seen = pairs(seen).filter_map(|(instance, at)| Some((instance, score(&at)?)));
    let seen: HashMap<_, _> = seen.collect();
    let hashes = keys.zip(hashes).map(|(key, fields)| (key, pairs(fields).collect())).collect();
    Ok(Reading { seen, hashes })
}

/// Of these hashes, those that are none: others keep something else there.
pub fn foreign<'a>(keys: impl Iterator<Item = &'a String>, answers: &[Value]) -> BTreeSet<String> {
    let hashes = keys.zip(answers.iter().skip(1));
    hashes.filter(|(_, answer)| error(answer).is_some_and(is_foreign)).map(|(key, _)| key.clone()).collect()
}

/// The farewell: everything of this gateway is taken back.
pub fn farewell<'a>(own: &[u8], keys: impl Iterator<Item = &'a str>) -> Pipeline {
    let mut pipe = patient();
    for key in keys {
        pipe.cmd("HDEL").arg(key).arg(own);
    }
    pipe.cmd("ZREM").arg(INSTANCES_KEY).arg(own);
    pipe
}

fn texts(value: &Value) -> Vec<Vec<u8>> {
    let Value::Array(items) = value else { return Vec::new() };
    let text = |item: &Value| match item {
        Value::BulkString(text) => text.clone(),
        Value::SimpleString(text) => text.clone().into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    };
    items.iter().map(text).collect()
}

fn pairs(value: &Value) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut texts = texts(value).into_iter();
    std::iter::from_fn(move || Some((texts.next()?, texts.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|t| Value::BulkString(t.as_bytes().to_vec())).collect())
    }

    #[test]
    fn answers_of_redis() {
        assert_eq!(micros(&[bulk(&["1732963200", "25"])]), Ok(1_732_963_200_000_025));
        for bad in [bulk(&["1"]), bulk(&["x", "1"]), bulk(&["99999999999999999", "1"]), Value::Nil] {
            assert!(micros(std::slice::from_ref(&bad)).is_err(), "{bad:?}");
        }
        assert!(micros(&[]).is_err());
        let keys = || ["a", "b"].map(str::to_owned).into_iter();
        let answers =
            [bulk(&["gw:1", "1732963200123", "gw:2", "x", "odd"]), bulk(&["gw:1", "1,2,3"]), Value::Nil];
        let read = reading(keys(), &answers).unwrap();
        assert_eq!(read.seen, [(b"gw:1".to_vec(), 1_732_963_200_123)].into());
        let due = [("a".to_owned(), vec![(b"gw:1".to_vec(), b"1,2,3".to_vec())]), ("b".to_owned(), vec![])];
        assert_eq!(read.hashes, due);
        assert!(reading(keys(), &[]).unwrap().hashes.is_empty());
    }

    #[test]
    fn a_key_that_holds_something_else_is_about_itself_alone() {
        let error = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let wrong = || error("WRONGTYPE Operation against a key holding the wrong kind of value");
        let keys = ["a".to_owned(), "b".to_owned()];
        let answers = [bulk(&["gw:1", "5"]), wrong(), bulk(&["gw:1", "1,2,3"])];
        assert_eq!(refused(&answers), None);
        assert_eq!(foreign(keys.iter(), &answers), ["a".to_owned()].into());
        let read = reading(keys.iter().cloned(), &answers).unwrap();
        assert_eq!((read.hashes[0].1.len(), read.hashes[1].1.len()), (0, 1));
        let told = reading(keys.iter().cloned(), &[wrong(), Value::Nil]).unwrap_err();
        assert!(told.starts_with("aibrix:rrq:gateways: "), "{told}");
        for line in ["READONLY You can't write against a read only replica.", "NOPERM no", "OOM no", "ERR no"]
        {
            assert!(refused(&[Value::Int(1), error(line)]).is_some(), "{line}");
        }
    }

    #[test]
    fn what_is_said_to_redis() {
        let packed = |pipe: &Pipeline| {
            let text = String::from_utf8(pipe.get_packed_pipeline()).unwrap();
            let words = text.lines().filter(|line| !line.starts_with('$'));
            words.map(|word| if word.starts_with('*') { "|" } else { word }).collect::<Vec<_>>().join(" ")
        };
        let set = Write::Set { key: "k".into(), value: "1,2,3".into() };
        let all = [set, Write::Delete { key: "l".into() }];
        assert_eq!(
            packed(&writes(b"me:1", &all, &[("m".into(), b"gone".to_vec())], Some(700_000))),
            "| TIME | ZADD aibrix:rrq:gateways 700000 me:1 | PEXPIRE aibrix:rrq:gateways 600000 \
             | ZREMRANGEBYSCORE aibrix:rrq:gateways -inf (100000 | HSET k me:1 1,2,3 | PEXPIRE k 600000 \
             | HDEL l me:1 | HDEL m gone"
        );
        assert!(writes(b"me:1", &[], &[], None).is_empty());
        assert_eq!(
            packed(&look(["k".to_owned()].iter(), 700_000)),
            "| ZREVRANGEBYSCORE aibrix:rrq:gateways +inf 100000 WITHSCORES LIMIT 0 4096 | HGETALL k"
        );
        assert_eq!(
            packed(&farewell(b"me:1", ["k"].into_iter())),
            "| HDEL k me:1 | ZREM aibrix:rrq:gateways me:1"
        );
    }
}
