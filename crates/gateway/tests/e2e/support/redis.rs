//! A Redis for tests: it knows the commands that gateways use and refuses all others.
//!
//! Gateways come in by doors of their own, so that one of them can be cut off alone. Its clock is the test's to put
//! forward.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

type Words = Vec<Vec<u8>>;

#[derive(Default)]
struct Store {
    hashes: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    instances: BTreeMap<Vec<u8>, f64>,
    expiring: BTreeSet<String>,
    /// How far the clock is ahead of this machine's, in milliseconds.
    ahead_ms: u64,
    password: Option<String>,
    refused: Vec<String>,
    /// Keys that hold no hash.
    spoilt: BTreeSet<String>,
}

/// What one door does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Open,
    /// It takes connections and commands, and never answers.
    Hangs,
    /// It takes no connection, and has dropped those that there were.
    Shut,
}

#[derive(Clone, Default)]
pub struct Redis(Arc<Mutex<Store>>);

/// A way in.
pub struct Way {
    pub address: SocketAddr,
    door: watch::Sender<Door>,
    task: AbortHandle,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Way {
    pub fn set(&self, door: Door) {
        self.door.send_replace(door);
    }

    /// The gateway's settings that lead here.
    pub fn args(&self) -> String {
        format!("--redis-host {} --redis-port {}", self.address.ip(), self.address.port())
    }
}

impl Redis {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap()
    }

    pub fn demand(&self, password: &str) {
        self.store().password = Some(password.to_owned());
    }

    pub fn put_forward(&self, ms: u64) {
        self.store().ahead_ms += ms;
    }

    /// Somebody keeps something else under this key.
    pub fn spoil(&self, key: &str) {
        self.store().spoilt.insert(key.to_owned());
    }

    /// As after a restart without a snapshot.
    pub fn forget(&self) {
        let mut store = self.store();
        store.hashes.clear();
        store.instances.clear();
    }

    pub fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 + self.store().ahead_ms
    }

    /// The fields of all hashes by the names of their instances, without the moment of its start.
    pub fn fields(&self) -> Vec<(String, String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let store = self.store();
        let all = store.hashes.iter().flat_map(|(key, own)| own.iter().map(move |(f, v)| (key, f, v)));
        let name = |field: &[u8]| text(field).split(':').next().unwrap().to_owned();
        all.map(|(key, field, value)| (key.clone(), name(field), text(value))).collect()
    }

    /// Instances that gave a sign of life and took no leave.
    pub fn instances(&self) -> Vec<String> {
        let store = self.store();
        store.instances.keys().map(|own| String::from_utf8_lossy(own).into_owned()).collect()
    }

    /// Commands that were sent and are not known, and keys that would stay for ever.
    pub fn complaints(&self) -> Vec<String> {
        let store = self.store();
        let lasting = store.hashes.keys().filter(|key| !store.expiring.contains(*key));
        store.refused.iter().cloned().chain(lasting.map(|key| format!("{key} never expires"))).collect()
    }

    /// A field as another gateway would write it, alive now.
    pub fn charge(&self, key: &str, instance: &str, value: &str) {
        let now = self.now_ms() as f64;
        let mut store = self.store();
        store.instances.insert(instance.as_bytes().to_vec(), now);
        let fields = store.hashes.entry(key.to_owned()).or_default();
        fields.insert(instance.as_bytes().to_vec(), value.as_bytes().to_vec());
        store.expiring.insert(key.to_owned());
    }

    pub async fn way(&self) -> Way {
        self.way_through(None).await
    }

    pub async fn way_through(&self, tls: Option<TlsAcceptor>) -> Way {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = listener.local_addr().unwrap();
        let (door, doors) = watch::channel(Door::Open);
        let task = tokio::spawn(self.clone().accept(Some(listener), address, doors, tls)).abort_handle();
        Way { address, door, task }
    }

    async fn accept(
        self,
        mut listener: Option<TcpListener>,
        address: SocketAddr,
        mut doors: watch::Receiver<Door>,
        tls: Option<TlsAcceptor>,
    ) {
        loop {
            match (*doors.borrow_and_update(), &listener) {
                (Door::Shut, _) => listener = None,
                (_, None) => listener = Some(listen(address)),
                _ => {}
            }
            let Some(open) = &listener else {
                if doors.changed().await.is_err() {
                    return;
                }
                continue;
            };
            tokio::select! {
                accepted = open.accept() => {
                    let (redis, doors, tls) = (self.clone(), doors.clone(), tls.clone());
                    let Ok((tcp, _)) = accepted else { continue };
                    tokio::spawn(async move {
                        let _ = match tls {
                            None => redis.serve(tcp, doors).await,
                            Some(tls) => match tls.accept(tcp).await {
                                Ok(stream) => redis.serve(stream, doors).await,
                                Err(e) => Err(e),
                            },
                        };
                    });
                }
                changed = doors.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        mut doors: watch::Receiver<Door>,
    ) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut known = self.store().password.is_none();
        loop {
            let words = tokio::select! {
                words = words(&mut stream) => words?,
                _ = doors.wait_for(|door| *door == Door::Shut) => return Ok(()),
            };
            let answer = self.answer(&words, &mut known);
            let hangs = *doors.borrow() == Door::Hangs;
            if hangs {
                let _ = doors.wait_for(|door| *door == Door::Shut).await;
                return Ok(());
            }
            stream.write_all(&answer).await?;
            stream.flush().await?;
        }
    }

    fn answer(&self, words: &Words, known: &mut bool) -> Vec<u8> {
        let now_ms = self.now_ms();
        let mut store = self.store();
        let text = |at: usize| String::from_utf8_lossy(words.get(at).map_or(b"", Vec::as_slice)).into_owned();
        let raw = |at: usize| words.get(at).cloned().unwrap_or_default();
        let whole = |n: usize| format!(":{n}\r\n").into_bytes();
        let name = text(0).to_uppercase();
        if name == "AUTH" {
            *known = words.len() == 2 && store.password.as_deref() == Some(&text(1));
            let refusal: &[u8] = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
            return if *known { b"+OK\r\n".to_vec() } else { refusal.to_vec() };
        }
        if !*known {
            return b"-NOAUTH Authentication required.\r\n".to_vec();
        }
        if store.spoilt.contains(&text(1)) && name != "PEXPIRE" {
            return b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n".to_vec();
        }
        match (name.as_str(), words.len()) {
            ("TIME", 1) => {
                let (secs, micros) = ((now_ms / 1000).to_string(), (now_ms % 1000 * 1000).to_string());
                array([secs.into_bytes(), micros.into_bytes()])
            }
            ("ZADD", 4) => {
                let score = text(2).parse().unwrap();
                whole(usize::from(store.instances.insert(raw(3), score).is_none()))
            }
            ("ZREM", 3) => whole(usize::from(store.instances.remove(&raw(2)).is_some())),
            ("ZREMRANGEBYSCORE", 4) => {
                assert_eq!(text(2), "-inf");
                let below: f64 = text(3).strip_prefix('(').unwrap().parse().unwrap();
                let before = store.instances.len();
                store.instances.retain(|_, seen| *seen >= below);
                whole(before - store.instances.len())
            }
            ("ZREVRANGEBYSCORE", 8) => {
                assert_eq!([text(2), text(4), text(5)], ["+inf", "WITHSCORES", "LIMIT"]);
                let least: f64 = text(3).parse().unwrap();
                let seen = store.instances.iter().filter(|(_, seen)| **seen >= least);
                let pairs = seen.map(|(instance, seen)| [instance.clone(), seen.to_string().into_bytes()]);
                array(pairs.collect::<Vec<_>>().into_iter().flatten())
            }
            ("HSET", 4) => {
                let fields = store.hashes.entry(text(1)).or_default();
                whole(usize::from(fields.insert(raw(2), raw(3)).is_none()))
            }
            ("HDEL", 3) => {
                let gone = store.hashes.get_mut(&text(1)).and_then(|fields| fields.remove(&raw(2))).is_some();
                store.hashes.retain(|_, fields| !fields.is_empty());
                whole(usize::from(gone))
            }
            ("HGETALL", 2) => {
                let fields = store.hashes.get(&text(1)).cloned().unwrap_or_default();
                array(fields.into_iter().flat_map(|(field, value)| [field, value]))
            }
            ("PEXPIRE", 3) => {
                assert_eq!(text(2), "600000");
                store.expiring.insert(text(1));
                whole(1)
            }
            _ => {
                let all: Vec<String> = (0..words.len()).map(text).collect();
                store.refused.push(all.join(" "));
                format!("-ERR unknown command '{name}' or wrong number of arguments\r\n").into_bytes()
            }
        }
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket.listen(64).unwrap()
}

fn array(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<Vec<u8>> = items.into_iter().collect();
    let mut out = format!("*{}\r\n", items.len()).into_bytes();
    for item in items {
        out.extend(format!("${}\r\n", item.len()).into_bytes());
        out.extend(item);
        out.extend(b"\r\n");
    }
    out
}

/// One command: an array of bulk strings, as clients send them.
async fn words(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>) -> io::Result<Words> {
    let count = length(stream, b'*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; length(stream, b'$').await? + 2];
        stream.read_exact(&mut word).await?;
        assert_eq!(word.split_off(word.len() - 2), b"\r\n");
        words.push(word);
    }
    Ok(words)
}

async fn length(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>, kind: u8) -> io::Result<usize> {
    let mut line = Vec::new();
    if stream.read_until(b'\n', &mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    assert_eq!(line[0], kind, "not RESP: {}", String::from_utf8_lossy(&line));
    Ok(String::from_utf8_lossy(&line[1..]).trim().parse().unwrap())
}
