//! HTTPS towards the clients.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

pub type Acceptor = TlsAcceptor;

/// # Errors
/// What is wrong with the certificate or the key, with the file's name.
pub fn acceptor(cert: &Path, key: &Path) -> Result<Acceptor, String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|e| format!("--tls-cert-path {}: {e}", cert.display()))?;
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|e| format!("--tls-key-path {}: {e}", key.display()))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| format!("the certificate and the key do not fit: {e}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
