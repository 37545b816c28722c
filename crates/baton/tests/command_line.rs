//! The command line of the binary: exit codes, streams, help, completions.
#![allow(clippy::unwrap_used, reason = "helpers of a test crate are not seen as tests")]

use std::process::{Command, Output};

fn baton(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(line.split_whitespace()).env_clear().output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_refused_command_line_is_one_line_on_stderr_and_exit_code_2() {
    let cases = [
        ("launch --prot 1", "error: unknown flag --prot: did you mean --port?\n"),
        ("start --port 0", "error: --port 0: must be a port between 1 and 65535\n"),
        ("check --port", "error: --port needs a value\n"),
        (
            "--oracle-dsn x",
            "error: --oracle-dsn is not part of Baton (conversations are not stored): see docs/flags.md\n",
        ),
        (
            "launch --policy passthrough",
            "error: --policy passthrough is not served: it belongs to SMG's regular mode\n",
        ),
    ];
    for (line, message) in cases {
        let output = baton(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert_eq!(text(&output.stderr), message, "{line}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn check_prints_the_configuration_and_what_is_missing() {
    let output = baton("check --port 8080 --enable-trace");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("  port: 8080 # flag --port\n"));
    assert!(text(&output.stderr).starts_with("warning: --enable-trace has no effect yet"));

    let output = baton("check --service-discovery --selector a=b");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("  service_discovery: true # flag --service-discovery\n"));
    let stderr = text(&output.stderr);
    assert!(
        stderr
            .ends_with("error: --service-discovery asks for Kubernetes discovery, which is not served yet\n"),
        "{stderr}"
    );
}

#[test]
fn check_reads_the_file_of_workers_too() {
    let path = std::env::temp_dir().join(format!("baton-check-{}.yaml", std::process::id()));
    let check = |list: &str| {
        std::fs::write(&path, list).unwrap();
        let output = baton(&format!("check --discovery-file {}", path.display()));
        (output.status.code(), text(&output.stderr).replace(&path.display().to_string(), "FILE"))
    };
    let one = "version: 1\nworkers:\n- {id: a, url: 'http://h:1'}\n";
    assert_eq!(check(one), (Some(0), String::new()));
    let twice = format!("{one}- {{id: a, url: 'http://h:2'}}\n");
    let refused = "error: --discovery-file FILE: two workers have the id \"a\"\n";
    assert_eq!(check(&twice), (Some(2), refused.to_owned()));
    assert_eq!(
        check("a: &x b\n").1,
        "error: --discovery-file FILE: line 1: anchors, aliases and tags are not read\n"
    );
    std::fs::remove_file(&path).unwrap();
    let output = baton(&format!("check --discovery-file {}", path.display()));
    let waits = "warning: the --discovery-file is not there: baton launch would wait for it\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), waits.to_owned()));
}

#[test]
fn decide_says_who_and_fails_on_what_is_not_expected() {
    let path = std::env::temp_dir().join(format!("baton-decide-{}.yaml", std::process::id()));
    let decide = |text: &str, more: &str| {
        std::fs::write(&path, text).unwrap();
        baton(&format!("decide {} {more}", path.display()))
    };
    let scenario = "workers:\n  - {id: w, role: whole}\nrequests:\n  - {}\nexpect:\n  - {decode: w}\n";
    let output = decide(scenario, "--json");
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["requests"][0]["outcome"], &json["requests"][0]["decode"]),
        (&"whole".into(), &"w".into())
    );
    assert!(text(&decide(scenario, "").stdout).contains("request 1: whole w\n"));
    let output = decide(&scenario.replace("decode: w", "decode: x"), "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).ends_with("request 1: decode: \"w\" instead of \"x\"\n"));
    let output = decide("workrs: []", "");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).ends_with(":1: unknown key workrs in the scenario: did you mean workers?\n")
    );
}

#[test]
fn help_is_grouped_and_has_examples() {
    for line in ["launch --help", "launch -h", "check --help", "help launch"] {
        let output = baton(line);
        assert_eq!(output.status.code(), Some(0), "{line}");
        let help = text(&output.stdout);
        for part in [
            "\nWorkers:\n",
            "\nHealth checks:\n",
            "[default: 30000]",
            "\nExamples:\n",
            "--prefill <URL> [PORT]",
        ] {
            assert!(help.contains(part), "{line}: {part:?} is missing in\n{help}");
        }
        assert!(!help.contains("--enable-trace"), "{line}: shows what has no effect yet");
        assert!(!help.contains('\u{1b}'), "{line}: is coloured in a pipe");
    }
    assert_eq!(baton("--version").status.code(), Some(0));
    assert_eq!(baton("--help").status.code(), Some(0));
}

#[test]
fn completions_know_the_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let output = baton(&format!("completions {shell}"));
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("pd-disaggregation"), "{shell}");
    }
}
