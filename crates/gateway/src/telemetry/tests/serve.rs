//! The metrics listener over real sockets.

use std::sync::Arc;

use expect_test::expect;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, timeout};

use super::{Stand, serve};

async fn ask(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let dated = |line: &&str| !line.starts_with("date:");
    answer.split("\r\n").filter(dated).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn metrics_health_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Stand::with_pair().telemetry)));
    let metrics = ask(address, "GET /metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200 OK\n"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4\n"));
    assert!(metrics.contains("\nsmg_worker_requests_active{worker=\"http://h:1\"} 0\n"));
    let mut rest = String::new();
    for request in ["GET /health", "POST /metrics", "GET /x?y"] {
        rest += &ask(address, request).await;
        rest += "--\n";
    }
    expect![[r#"
        HTTP/1.1 200 OK
        content-type: text/plain
        connection: close
        content-length: 3

        OK
        --
        HTTP/1.1 405 Method Not Allowed
        content-type: text/plain
        allow: GET
        connection: close
        content-length: 26

        This path takes GET only.
        --
        HTTP/1.1 404 Not Found
        content-type: text/plain
        connection: close
        content-length: 21

        Invalid URL (GET /x)
        --
    "#]]
    .assert_eq(&rest);
    server.abort();
}

#[tokio::test]
async fn silent_connections_do_not_keep_scrapes_out_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Stand::with_pair().telemetry)));
    let mut silent = Vec::new();
    for _ in 0..super::super::serve::MAX_SCRAPES {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // One leaves, and its place is taken.
    let waiting = tokio::spawn(ask(address, "GET /health"));
    drop(silent.pop());
    assert!(waiting.await.unwrap().starts_with("HTTP/1.1 200 OK\n"));
    server.abort();
}
