//! Does an output contain what was expected of it?

use serde_json::{Map, Value};

/// How far a number may be from the expected one.
const NEAR: f64 = 1e-9;

/// One sentence for each output that is not as expected. What an expectation does not speak of may be anything.
///
/// A mapping stands for a list of scores or steps too: `{p1: 2.5}` for the entry whose `worker` is `p1` and whose score
/// is that, `skipped` for one that was skipped; `{pair: true}` for the entry whose `name` is `pair` and that fired;
/// nothing for one that is not there; `{prefill: {...}}` for the leg of that name. `~TEXT` is met by a text that contains
/// it, `!~TEXT` by one that does not, a list of such by a text that meets each. A list of lines such as `20 decode head`
/// is met by events among which these are, in this order. `@1` at the top stands for what the first output has there,
/// `!@1` for anything but that.
///
/// An entry that stands for several requests has an output for each, and all of them must be as it says.
pub fn unmet(due: &[Value], got: &[Vec<Value>]) -> Vec<String> {
    let of_request = |(i, (due, outputs)): (usize, (&Value, &Vec<Value>))| {
        outputs.iter().enumerate().find_map(|(time, own)| {
            let why = refers(due, own, got).or_else(|| walk(due, own, ""))?;
            let which = if outputs.len() > 1 { format!(", time {}", time + 1) } else { String::new() };
            Some(format!("request {}{which}: {why}", i + 1))
        })
    };
    due.iter().zip(got).enumerate().filter_map(of_request).collect()
}

/// Where one output is not as this says.
pub fn unmet_of(due: &Value, got: &Value) -> Option<String> {
    walk(due, got, "")
}

/// The first member that refers to another output and is not as that says.
fn refers(due: &Value, own: &Value, all: &[Vec<Value>]) -> Option<String> {
    due.as_object()?.iter().find_map(|(key, due)| {
        let (equal, at) = reference(due)?;
        let there =
            at.checked_sub(1).and_then(|at| all.get(at)?.first()).map_or(&Value::Null, |other| &other[key]);
        let not = if equal { "" } else { "anything but " };
        ((own[key] == *there) != equal).then(|| format!("{key}: {} instead of {not}{there}", own[key]))
    })
}

fn reference(due: &Value) -> Option<(bool, usize)> {
    let text = due.as_str()?;
    let (equal, at) = match text.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, text),
    };
    Some((equal, at.strip_prefix('@')?.parse().ok()?))
}

/// A counter, or all of its family with some labels.
pub struct Counter {
    name: String,
    labels: Vec<String>,
}

impl Counter {
    /// `name`, or `name{label="value",...}`.
    pub fn parse(text: &str) -> Option<Counter> {
        let (name, labels) = match text.split_once('{') {
            None => (text, Vec::new()),
            Some((name, rest)) => {
                let labels = rest.strip_suffix('}')?.split(',').map(|label| label.trim().to_owned());
                (name, labels.collect::<Vec<_>>())
            }
        };
        let is_name =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let is_label = |label: &String| {
            label.split_once('=').is_some_and(|(name, value)| {
                is_name(name) && value.len() > 1 && value.starts_with('"') && value.ends_with('"')
            })
        };
        let right = is_name(name) && labels.iter().all(is_label);
        right.then(|| Counter { name: name.to_owned(), labels })
    }

    /// The sum of what it stands for. No label's value of these counters holds a comma.
    fn sum(&self, counts: &Map<String, Value>) -> f64 {
        let fits = |sample: &str| {
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let own: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
            name == self.name && self.labels.iter().all(|label| own.contains(&label.as_str()))
        };
        counts.iter().filter(|(sample, _)| fits(sample)).filter_map(|(_, value)| value.as_f64()).sum()
    }
}

/// One sentence for each counter that is not as expected.
pub fn miscounted(due: &[(Counter, f64)], counts: &Map<String, Value>) -> Vec<String> {
    let wrong = |(counter, due): &(Counter, f64)| {
        let got = counter.sum(counts);
        let Counter { name, labels } = counter;
        ((got - due).abs() > NEAR).then(|| format!("{name}{{{}}}: {got} instead of {due}", labels.join(",")))
    };
    due.iter().filter_map(wrong).collect()
}

fn walk(due: &Value, got: &Value, at: &str) -> Option<String> {
    let wrong = || Some(format!("{}: {got} instead of {due}", if at.is_empty() { "output" } else { at }));
    match (due, got) {
        (Value::Object(due), Value::Object(got)) => due.iter().find_map(|(key, due)| {
            let place = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            walk(due, got.get(key).unwrap_or(&Value::Null), &place)
        }),
        (Value::Object(due), Value::Array(got)) => due.iter().find_map(|(worker, due)| {
            let place = format!("{at}.{worker}");
            let is = |one: &&Value| ["worker", "name", "leg"].iter().any(|key| one[*key] == worker.as_str());
            match got.iter().find(is) {
                Some(one) => of_worker(due, one, &place),
                None if due.is_null() => None,
                None => Some(format!("{place} is missing")),
            }
        }),
        (Value::Array(lines), Value::Array(events)) if are_events(lines, events) => {
            let mut left = events.iter();
            let line = lines.iter().find(|line| !left.any(|event| is_event(line, event)))?;
            Some(format!("{at}: {line} is not there, or not in this order, in {got}"))
        }
        (Value::Array(due_list), Value::String(_)) => due_list.iter().find_map(|due| walk(due, got, at)),
        (Value::Array(due_list), Value::Array(got_list)) => {
            if due_list.len() != got_list.len() {
                return wrong();
            }
            let mut pairs = due_list.iter().zip(got_list).enumerate();
            pairs.find_map(|(i, (due, got))| walk(due, got, &format!("{at}[{i}]")))
        }
        (Value::Number(a), Value::Number(b)) => {
            let near = match (a.as_f64(), b.as_f64()) {
                _ if a.is_u64() && b.is_u64() => a == b,
                (Some(a), Some(b)) => (a - b).abs() <= NEAR * a.abs().max(1.0),
                _ => a == b,
            };
            if near { None } else { wrong() }
        }
        (Value::String(_), _) if reference(due).is_some() => None,
        (Value::String(part), Value::String(whole)) if part.starts_with('~') => {
            if whole.contains(&part[1..]) { None } else { wrong() }
        }
        (Value::String(part), Value::String(whole)) if part.starts_with("!~") => {
            if whole.contains(&part[2..]) { wrong() } else { None }
        }
        _ if due == got => None,
        _ => wrong(),
    }
}

/// Texts that stand for some of these events.
fn are_events(lines: &[Value], events: &[Value]) -> bool {
    !lines.is_empty()
        && lines.iter().all(Value::is_string)
        && events.iter().all(|event| event["does"].is_string())
}

/// `20 decode head status=200`: when, who, what, and what else is to be told of it.
fn is_event(line: &Value, event: &Value) -> bool {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut words = line.as_str().unwrap_or_default().split_whitespace();
    ["at_ms", "who", "does"].iter().all(|key| words.next().is_some_and(|word| plain(&event[*key]) == word))
        && words.all(|word| word.split_once('=').is_some_and(|(key, value)| plain(&event[key]) == value))
}

fn of_worker(due: &Value, got: &Value, at: &str) -> Option<String> {
    match due {
        Value::String(word) if word == "skipped" => {
            got["skipped"].is_null().then(|| format!("{at}: is not skipped"))
        }
        Value::Number(_) => walk(due, &got["score"], at),
        Value::Bool(_) => walk(due, &got["fired"], at),
        Value::Null => Some(format!("{at}: {got} instead of nothing")),
        _ => walk(due, got, at),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_counter_is_the_sum_of_its_family_with_its_labels() {
        let counts = json!({"n{a=\"1\",b=\"2\"}": 3, "n{a=\"1\",b=\"3\"}": 4, "nn": 9});
        let counts = counts.as_object().unwrap();
        for (text, sum) in [("n", 7.0), ("n{a=\"1\"}", 7.0), ("n{b=\"3\",a=\"1\"}", 4.0), ("n{c=\"1\"}", 0.0)]
        {
            let due = [(Counter::parse(text).unwrap(), sum)];
            assert_eq!(miscounted(&due, counts), Vec::<String>::new(), "{text}");
        }
        let due = [(Counter::parse("n{a=\"1\"}").unwrap(), 1.0)];
        assert_eq!(miscounted(&due, counts), ["n{a=\"1\"}: 7 instead of 1"]);
        for text in ["", "a b", "n{a}", "n{a=1}", "n{a=\"1\"", "n{=\"1\"}"] {
            assert!(Counter::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn only_what_is_expected_counts() {
        let got = json!({"prefill": "p1", "n": 0.1 + 0.2, "prefill_scores": [
            {"worker": "p1", "score": 2.5, "terms": {"load": 1.0}, "skipped": null},
            {"worker": "p2", "score": 9.0, "terms": {}, "skipped": "full"}]});
        let one = |due: Value| unmet(&[due], &[vec![got.clone()]]);
        for due in [
            json!({}),
            json!({"prefill": "p1"}),
            json!({"prefill": "~p", "n": 0.3}),
            json!({"prefill_scores": {"p1": 2.5, "p2": "skipped"}}),
            json!({"prefill_scores": {"p1": {"terms": {"load": 1}}}}),
            json!({"fault": null}),
        ] {
            assert_eq!(one(due.clone()), Vec::<String>::new(), "{due}");
        }
        for (due, why) in [
            (json!({"prefill": "p2"}), r#"prefill: "p1" instead of "p2""#),
            (json!({"n": 0.300_001}), "n: 0.30000000000000004 instead of 0.300001"),
            (json!({"prefill_scores": {"p1": "skipped"}}), "prefill_scores.p1: is not skipped"),
            (json!({"prefill_scores": {"p3": 1}}), "prefill_scores.p3 is missing"),
            (json!({"decode": "d"}), r#"decode: null instead of "d""#),
        ] {
            assert_eq!(one(due.clone()), [format!("request 1: {why}")], "{due}");
        }
        let got = json!({"body": "abc", "events": [
            {"at_ms": 0, "who": "gateway", "does": "sends", "leg": "prefill"},
            {"at_ms": 1.5, "who": "prefill", "does": "answers", "status": 500}],
            "legs": [{"leg": "prefill", "body": "x"}]});
        let one = |due: Value| unmet(&[due], &[vec![got.clone()]]);
        for due in [
            json!({"body": ["~a", "!~x", "abc"], "legs": {"prefill": {"body": "x"}, "decode": null}}),
            json!({"events": ["0 gateway sends", "1.5 prefill answers status=500"]}),
        ] {
            assert_eq!(one(due.clone()), Vec::<String>::new(), "{due}");
        }
        for due in [
            json!({"body": ["~a", "!~c"]}),
            json!({"events": ["1.5 prefill answers", "0 gateway sends"]}),
            json!({"events": ["0 gateway sends leg=decode"]}),
            json!({"events": []}),
        ] {
            assert_eq!(one(due.clone()).len(), 1, "{due}");
        }
        assert_eq!(unmet(&[json!([1])], &[vec![json!([1, 2])]]), ["request 1: output: [1,2] instead of [1]"]);
        let most = json!({"n": u64::MAX});
        assert_eq!(unmet_of(&json!({"n": u64::MAX - 1}), &most).is_some(), unmet_of(&most, &most).is_none());
        let (same, other) = (json!({"prefill": "@1"}), json!({"prefill": "!@1"}));
        let got = ["a", "a", "b"].map(|id| vec![json!({"prefill": id})]);
        assert!(unmet(&[json!({}), same.clone(), other.clone()], &got).is_empty());
        let twice = [vec![json!({"n": 1}), json!({"n": 2})]];
        assert_eq!(unmet(&[json!({"n": 1})], &twice), ["request 1, time 2: n: 2 instead of 1"]);
        assert_eq!(
            unmet(&[json!({}), other, same], &got),
            [
                r#"request 2: prefill: "a" instead of anything but "a""#,
                r#"request 3: prefill: "b" instead of "a""#
            ]
        );
    }
}
