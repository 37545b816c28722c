//! `baton demo`: what it prints, how it ends.
#![allow(clippy::unwrap_used, reason = "helpers of a test crate are not seen as tests")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

fn demo(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.arg("demo").args(line.split_whitespace()).env_clear();
    command
}

#[test]
fn once_proves_that_the_kv_moved_and_ends() {
    for engine in ["vllm", "mooncake", "moriio-read", "moriio-write", "sglang", "trtllm"] {
        let output = demo(&format!("--once --port 0 --engine {engine}")).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{engine}\n{out}\n{err}");
        assert!(err.is_empty(), "{engine}: {err}");
        for part in [
            "  gateway   http://127.0.0.1:",
            "computed the prompt's ",
            "computed 0 itself",
            "\nThe KV moved ",
        ] {
            assert!(out.contains(part), "{engine}: {part:?} is missing in\n{out}");
        }
        assert!(!out.contains('\u{1b}'), "{engine}: is coloured in a pipe");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = demo(&format!("--once --port {}", address.port())).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.starts_with(&format!("error: cannot listen on {address} (--port): ")), "{err}");
    assert!(err.contains("--port 0"), "{err}");
}

#[test]
fn it_runs_until_it_is_told_to_stop() {
    let mut running = demo("--port 0").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let said: Vec<_> = lines.map_while(Result::ok).take_while(|line| !line.contains("Ctrl-C")).collect();
    assert_eq!(said.iter().filter(|line| line.starts_with("  curl ")).count(), 2, "{said:?}");
    interrupt(&running);
    let errors = errors_until_the_end(&mut running);
    assert_eq!((running.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
}

/// What it wrote to standard error when it ended by itself; one that does not is killed.
fn errors_until_the_end(running: &mut Child) -> String {
    let mut stderr = running.stderr.take().unwrap();
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        tell.send(text)
    });
    let errors = ended.recv_timeout(Duration::from_secs(30));
    if errors.is_err() {
        running.kill().unwrap();
    }
    errors.unwrap_or_else(|_| "it did not end".into())
}

/// What Ctrl-C does.
fn interrupt(child: &Child) {
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(kill.success());
}
