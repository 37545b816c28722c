//! Every numbered case has a test: those from the field, SMG's behaviour as it was observed, and AIBrix's hand-offs.
//!
//! A case is a test whose name begins with its number (`a01_...`; `smg_a11_...`; `aibrix_j9_...`), a transcript
//! whose title does (`## B41: ...`), or a row of a table (`"C51: ..."`). What is left out here is listed with its
//! reason; what is done otherwise on purpose stands in docs/differences.md.

use std::collections::BTreeSet;
use std::path::Path;

/// From the field: reports, and inputs that nobody has tried (`ua`).
const FIELD: [(&str, u32); 2] = [("a", 30), ("ua", 12)];
/// Placement (hot prefixes, hash keys, the index's memory) is tested with the policies, Kubernetes with discovery.
const FIELD_ELSEWHERE: [&str; 4] = ["a25", "a26", "a27", "a28"];

/// SMG 1.13: over HTTP with SGLang (A), vLLM (B) and MoRI-IO (C), pairing (E), its limits and administration (F). Not
/// here: A32 to A33a, which are policies; C59 and D60 to D74, which are gRPC; F86, which is encode workers.
const SMG: &str = "A1 A2 A3 A5 A6 A7 A8 A9 A11 A12 A13 A14 A15 A17 A18 A19 A20 A21 A23 A24 A25 A26 A27 A29 \
                   A30 A31 A33b B35 B36 B37 B38 B39 B41 B42 B43 B44 B45 B47 C48 C49 C50 C51 C53 C54 C55 C56 \
                   C57 E75 E77 E78 E79 E80 F81 F83 F84 F85";

/// AIBrix's hand-offs, aborts and watchdog. Not here: J23, many requests that ask a context server at once: none does,
/// the probe asks.
const AIBRIX: &str = "J1 J2 J3 J4 J5 J7 J8 J9 J10 J11 J13 J14 J15 J16 J17 J19 J20 J21 J22 J25 \
                      K1 K2 K3 K4 K6 K7 K8 K9 K10 K12 K13 K14 K15 K16 K18 K20 K21 K22";

/// All tests and transcripts.
fn written() -> String {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = String::new();
    for part in ["src", "tests", "../core/src", "../core/tests"] {
        read(&home.join(part), &mut all);
    }
    all
}

fn read(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, all);
        } else if path.ends_with("cases.rs") {
            // These examples are no tests.
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "txt") {
            *all += &std::fs::read_to_string(path).unwrap();
        }
    }
}

/// A letter, a number, and perhaps a letter.
fn is_number(word: &str) -> bool {
    let Some(rest) = word.strip_prefix(|c: char| c.is_ascii_alphabetic()) else { return false };
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
    !digits.is_empty() && rest.len() - digits.len() <= 1 && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The numbers that a test's name, a title or a row begins with, in small letters.
fn numbers(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(name) = line.split_once("fn ").map(|(_, name)| name) {
            let foreign = name.strip_prefix("smg_").or_else(|| name.strip_prefix("aibrix_"));
            let words = foreign.unwrap_or(name).split('_').take_while(|word| is_number(word));
            // Without a prefix, A is the field's.
            found.extend(words.filter(|word| foreign.is_some() || !word.starts_with('a')).map(str::to_owned));
        }
        if let Some((numbers, _)) = line.strip_prefix("## ").and_then(|title| title.split_once(':')) {
            found.extend(numbers.split(", ").filter(|word| is_number(word)).map(str::to_ascii_lowercase));
        }
        // A row begins with its name.
        let row = ["\"", "(\"", "row(\""].iter().find_map(|begin| line.strip_prefix(begin));
        if let Some(word) = row.and_then(|row| row.split([':', ' ']).next()).filter(|word| is_number(word)) {
            found.insert(word.to_ascii_lowercase());
        }
    }
    found
}

#[test]
fn every_case_from_the_field_has_a_test() {
    let all = written();
    let cases = FIELD.iter().flat_map(|(letter, last)| (1..=*last).map(move |n| format!("{letter}{n:02}")));
    let missing: Vec<String> = cases
        .filter(|case| !FIELD_ELSEWHERE.contains(&case.as_str()) && !all.contains(&format!("fn {case}_")))
        .collect();
    assert!(missing.is_empty(), "no test begins with {missing:?}");
}

#[test]
fn every_case_of_smg_and_aibrix_has_a_test() {
    let found = numbers(&written());
    let cases = [SMG, AIBRIX].into_iter().flat_map(str::split_whitespace);
    let missing: Vec<&str> = cases.filter(|case| !found.contains(&case.to_ascii_lowercase())).collect();
    assert!(missing.is_empty(), "no test, title or row begins with {missing:?}");
}

#[test]
fn numbers_are_found_where_they_stand() {
    let text = "async fn smg_a19_b39_a_refusal() {\nfn a01_x() {\n## C51, J2: no mode\n    (\"C53: samples\", 1),\n    row(\"E75 nothing known\"),\nfn j17_time() {}\nfn smg_about_b1()";
    let found: Vec<String> = numbers(text).into_iter().collect();
    assert_eq!(found, ["a19", "b39", "c51", "c53", "e75", "j17", "j2"]);
}
