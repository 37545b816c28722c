//! `baton launch` and signals: the first one lets requests finish, the second one does not wait for them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test crate are not seen as tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);

/// A worker that begins to stream and never ends.
fn worker() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for wire in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(wire));
        }
    });
    port
}

fn answer(mut wire: TcpStream) {
    let mut asked = BufReader::new(wire.try_clone().unwrap()).lines();
    while let Some(Ok(first)) = asked.next() {
        while asked.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let json = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        let events =
            "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n";
        let rest = if first.starts_with("POST") { events } else { json };
        if wire.write_all(format!("HTTP/1.1 200 OK\r\n{rest}").as_bytes()).is_err() {
            return;
        }
    }
}

/// A port that nobody has now.
fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A gateway in a process of its own, which is killed with the test.
struct Gateway {
    process: Child,
    port: u16,
    /// What it logs.
    lines: mpsc::Receiver<String>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

impl Gateway {
    fn launch() -> Gateway {
        let (port, metrics, worker) = (free(), free(), worker());
        let line = format!(
            "launch --host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 --prometheus-port {metrics} \
             --worker-urls http://127.0.0.1:{worker} --disable-health-check --shutdown-grace-period-secs 1000"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(line.split_whitespace()).env_clear().stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let logged = BufReader::new(process.stdout.take().unwrap()).lines();
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || logged.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Gateway { process, port, lines }
    }

    /// Waits for a line of the log.
    fn says(&self, words: &str) {
        let began = Instant::now();
        while began.elapsed() < BOUND {
            if self.lines.recv_timeout(BOUND).is_ok_and(|line| line.contains(words)) {
                return;
            }
        }
        panic!("it does not say {words:?}");
    }

    /// A stream that has begun.
    fn stream(&self) -> TcpStream {
        let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n";
        let began = Instant::now();
        while began.elapsed() < BOUND {
            let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            client.set_read_timeout(Some(BOUND)).unwrap();
            client
                .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
                .unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).unwrap();
            // The worker is not known yet for a moment.
            if status.ends_with(b"200") {
                return client;
            }
        }
        panic!("it does not serve");
    }

    fn terminate(&self) {
        let line = format!("kill -TERM {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    }
}

#[test]
fn a_second_sigterm_does_not_wait_for_streams() {
    let mut gateway = Gateway::launch();
    gateway.says("serving");
    let mut client = gateway.stream();
    gateway.terminate();
    gateway.says("stopping");
    assert!(gateway.process.try_wait().unwrap().is_none(), "a stream is under way");
    gateway.terminate();
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"draining\""), "{rest}");
    assert_eq!(gateway.process.wait().unwrap().code(), Some(0));
}
