//! Does an output contain what was expected of it?

use serde_json::Value;

/// How far a number may be from the expected one.
const NEAR: f64 = 1e-9;

/// One sentence for each output that is not as expected. What an expectation does not speak of may be anything.
///
/// A mapping stands for a list of scores or steps too: `{p1: 2.5}` for the entry whose `worker` is `p1` and whose score
/// is that, `skipped` for one that was skipped; `{pair: true}` for the entry whose `name` is `pair` and that fired;
/// nothing for one that is not there. `~TEXT` is met by a text that contains it. `@1` at the top stands for
/// what the first output has there, `!@1` for anything but that.
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

fn walk(due: &Value, got: &Value, at: &str) -> Option<String> {
    let wrong = || Some(format!("{}: {got} instead of {due}", if at.is_empty() { "output" } else { at }));
    match (due, got) {
        (Value::Object(due), Value::Object(got)) => due.iter().find_map(|(key, due)| {
            let place = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            walk(due, got.get(key).unwrap_or(&Value::Null), &place)
        }),
        (Value::Object(due), Value::Array(got)) => due.iter().find_map(|(worker, due)| {
            let place = format!("{at}.{worker}");
            match got.iter().find(|one| one["worker"] == worker.as_str() || one["name"] == worker.as_str()) {
                Some(one) => of_worker(due, one, &place),
                None if due.is_null() => None,
                None => Some(format!("{place} is missing")),
            }
        }),
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
        _ if due == got => None,
        _ => wrong(),
    }
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
