//! A connection to Redis: dialled, encrypted if that is asked for, and bounded in time and in what it may be told.
//!
//! The `redis` crate speaks the protocol on our own socket, so that TLS is the one that workers are spoken to with, and
//! that an answer without end is cut off.

use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Value};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::words;
use crate::config::{self, Secret};
use crate::upstream::tls_config;

/// Longest time to connect and to be let in, and longest wait for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest answer to one batch of commands, in bytes.
pub const ANSWER_MAX_BYTES: usize = 64 << 20;

/// Where Redis is, and how it is spoken to.
pub struct Target {
    host: String,
    port: u16,
    password: Option<Secret>,
    tls: Option<Arc<ClientConfig>>,
}

impl Target {
    /// `None`: no Redis is named.
    ///
    /// # Errors
    /// What is wrong with the certificates, with the file's name.
    pub fn of(config: &config::Redis) -> Result<Option<Target>, String> {
        let Some(host) = &config.host else { return Ok(None) };
        let tls = match (&config.ca_path, config.tls) {
            (_, false) => None,
            (None, true) => Some(tls_config()),
            (Some(path), true) => {
                let trusted = trusting(path);
                Some(trusted.map_err(|e| format!("--redis-ca-path {}: {e}", path.display()))?)
            }
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let (port, password) = (config.port, config.password.clone());
        Ok(Some(Target { host: bare.to_owned(), port, password, tls }))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn trusting(path: &Path) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(path).map_err(|e| e.to_string())? {
        roots.add(cert.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    }
    if roots.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

/// A connection that is let in. Dropping it closes it.
pub struct Link {
    connection: MultiplexedConnection,
    allowance: Arc<AtomicUsize>,
    driver: JoinHandle<()>,
}

impl Link {
    /// # Errors
    /// Why there is none.
    pub async fn open(target: &Target) -> Result<Link, String> {
        in_time(Link::dial(target)).await
    }

    async fn dial(target: &Target) -> Result<Link, String> {
        let tcp = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|e| e.to_string())?;
        tcp.set_nodelay(true).map_err(|e| e.to_string())?;
        let wire: Box<dyn Wire> = match &target.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::try_from(target.host.clone()).map_err(|e| e.to_string())?;
                let connector = TlsConnector::from(config.clone());
                Box::new(connector.connect(name, tcp).await.map_err(|e| e.to_string())?)
            }
        };
        let allowance = Arc::new(AtomicUsize::new(ANSWER_MAX_BYTES));
        let stream = Metered { wire, allowance: allowance.clone() };
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &target.password {
            info = info.set_password(password.expose());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (connection, driver) = opened.map_err(|e| e.to_string())?;
        Ok(Link { connection, allowance, driver: tokio::spawn(driver) })
    }

    /// What Redis answers to each command.
    ///
    /// # Errors
    /// There is no answer, or one of the commands was refused, and not because of what its key holds. The connection is
    /// of no use any more.
    pub async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, String> {
        self.allowance.store(ANSWER_MAX_BYTES, Ordering::Relaxed);
        let answer = commands.query_async(&mut self.connection);
        let answers: Vec<Value> = in_time(async { answer.await.map_err(|e| e.to_string()) }).await?;
        words::refused(&answers).map_or(Ok(answers), Err)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || Err(format!("no answer within {} s", TIMEOUT.as_secs_f64()));
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| late())
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Reads no more than it is allowed to.
struct Metered {
    wire: Box<dyn Wire>,
    allowance: Arc<AtomicUsize>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.wire).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let left = self.allowance.load(Ordering::Relaxed).checked_sub(read);
        let Some(left) = left else {
            let why = format!("an answer is longer than {ANSWER_MAX_BYTES} bytes");
            return Poll::Ready(Err(io::Error::other(why)));
        };
        self.allowance.store(left, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_without_end_is_cut_off() {
        let allowance = Arc::new(AtomicUsize::new(100));
        let mut metered = Metered {
            wire: Box::new(tokio::io::join(tokio::io::repeat(b'x'), tokio::io::sink())),
            allowance,
        };
        let mut read = [0; 60];
        metered.read_exact(&mut read).await.unwrap();
        let cut = metered.read_exact(&mut read).await.unwrap_err();
        assert!(cut.to_string().contains("longer than"), "{cut}");
    }
}
