//! The files that trust is made of, and what stands in them at one moment.

use super::subject::Subject;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, Result};

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Revoked certificates are listed in this file beside that of the authority, if no other is named.
const CRL: &str = "crl.pem";
/// Bits of a file's mode by which everybody may read or write it.
const OTHERS: u32 = 0o006;

/// Where certificates and the key are: files in PEM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted.
    pub ca: PathBuf,
    /// This process' certificate, and those between it and an authority, in this order.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// What the authorities have revoked; if it is not named, `crl.pem` beside `ca`, if there is
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
}

/// Other when a file has changed: inode, length and time of change of each.
pub(super) type Stamps = Vec<Option<(u64, u64, i64, i64)>>;

impl TlsFiles {
    /// As the environment names them: `WEFT_TLS_CA`, `WEFT_TLS_CERT`, `WEFT_TLS_KEY` and
    /// `WEFT_TLS_CRL`. `None`: it names none. Error: `Invalid`, it names some.
    pub fn from_env() -> Result<Option<Self>> {
        let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let [ca, cert, key, crl] =
            ["WEFT_TLS_CA", "WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CRL"].map(named);
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(Self { ca, cert, key, crl })),
            _ => {
                let what = "WEFT_TLS_CA, WEFT_TLS_CERT and WEFT_TLS_KEY go together";
                Err(Error::new(ErrorKind::Invalid, what))
            }
        }
    }

    fn crl(&self) -> Option<PathBuf> {
        let beside = || Some(self.ca.with_file_name(CRL)).filter(|path| path.exists());
        self.crl.clone().or_else(beside)
    }

    pub(super) fn stamps(&self) -> Stamps {
        let stamp = |path: &Path| {
            let is = std::fs::metadata(path).ok()?;
            Some((is.ino(), is.len(), is.mtime(), is.mtime_nsec()))
        };
        let all = [Some(self.ca.clone()), Some(self.cert.clone()), Some(self.key.clone())];
        all.into_iter().chain([self.crl()]).map(|path| stamp(&path?)).collect()
    }
}

/// What stood in the files at one moment.
pub(super) struct Trust {
    pub subject: Subject,
    pub to_connect: Arc<ClientConfig>,
    pub to_serve: Arc<ServerConfig>,
    /// There was a list of what was revoked.
    pub has_list: bool,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Trust {
    /// Error: `Invalid`, with the file and what is wrong with it.
    pub fn read(files: &TlsFiles) -> Result<Self> {
        let provider = Arc::new(provider());
        let mut roots = RootCertStore::empty();
        for cert in certificates(&files.ca)? {
            roots.add(cert).map_err(|e| wrong(&files.ca, e))?;
        }
        let roots = Arc::new(roots);
        let crls = match files.crl() {
            Some(path) => lists(&path)?,
            None => Vec::new(),
        };
        let has_list = !crls.is_empty();
        let of_crls = |e: rustls::server::VerifierBuilderError| {
            wrong(&files.crl().unwrap_or_else(|| files.ca.clone()), e)
        };
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .with_crls(crls.clone())
            .only_check_end_entity_revocation()
            // An authority that was added may have no list yet.
            .allow_unknown_revocation_status()
            .build()
            .map_err(of_crls)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .with_crls(crls)
            .only_check_end_entity_revocation()
            // An authority that was added may have no list yet.
            .allow_unknown_revocation_status()
            .build()
            .map_err(of_crls)?;
        let chain = certificates(&files.cert)?;
        let subject = subject_of(&chain).map_err(|e| wrong(&files.cert, e))?;
        let (to_connect, to_serve) =
            configurations(&provider, files, &chain, servers.clone(), clients.clone())?;
        Ok(Self { subject, to_connect, to_serve, has_list, servers, clients })
    }

    /// Whether who showed this is still to be trusted.
    pub fn verify(&self, shown: &Shown) -> Result<(), rustls::Error> {
        let (end, between) = shown.chain.split_first().ok_or(rustls::Error::DecryptError)?;
        let now = UnixTime::now();
        match &shown.server {
            Some(name) => self.servers.verify_server_cert(end, between, name, &[], now).map(drop),
            None => self.clients.verify_client_cert(end, between, now).map(drop),
        }
    }
}

/// What the other side of a connection has shown of itself.
pub(super) struct Shown {
    pub chain: Vec<CertificateDer<'static>>,
    /// As which server, if it is one.
    pub server: Option<ServerName<'static>>,
}

/// Of a chain that was verified, or is one's own.
pub(super) fn subject_of(chain: &[CertificateDer<'_>]) -> Result<Subject> {
    let refuse = |what: String| Error::new(ErrorKind::NotPermitted, what);
    let end = chain.first().ok_or_else(|| refuse("no certificate".into()))?;
    let cert = webpki::EndEntityCert::try_from(end)
        .map_err(|e| refuse(format!("a certificate that does not read: {e}")))?;
    Subject::of_names(cert.valid_uri_names())
}

/// Prefers AES with 128 bits, which takes two thirds of the time of 256 and has not been broken
/// either.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let is_other = |suite: CipherSuite| suite != CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| is_other(suite.suite()));
    provider
}

fn configurations(
    provider: &Arc<CryptoProvider>,
    files: &TlsFiles,
    chain: &[CertificateDer<'static>],
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>)> {
    let key = private_key(&files.key)?;
    let mismatch = |e: rustls::Error| {
        let what = format!("with the key in {}: {e}", files.key.display());
        wrong(&files.cert, what)
    };
    let mut connect = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(mismatch)?
        .with_webpki_verifier(servers)
        .with_client_auth_cert(chain.to_vec(), key.clone_key())
        .map_err(mismatch)?;
    // Who comes back shows his certificate again: it may have been revoked.
    connect.resumption = rustls::client::Resumption::disabled();
    let mut serve = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(mismatch)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.to_vec(), key)
        .map_err(mismatch)?;
    serve.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    serve.send_tls13_tickets = 0;
    Ok((Arc::new(connect), Arc::new(serve)))
}

fn wrong(path: &Path, what: impl Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let len = std::fs::metadata(path).map_err(|e| wrong(path, e))?.len();
    if len > MAX_FILE {
        return Err(wrong(path, format!("{len} bytes, over {MAX_FILE}")));
    }
    std::fs::read(path).map_err(|e| wrong(path, e))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all.map_err(|e| wrong(path, e))? {
        none if none.is_empty() => Err(wrong(path, "there is no certificate in it")),
        all => Ok(all),
    }
}

fn lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&pem).collect();
    match all.map_err(|e| wrong(path, e))? {
        none if none.is_empty() => Err(wrong(path, "there is no list of what was revoked in it")),
        all => Ok(all),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let is = std::fs::metadata(path).map_err(|e| wrong(path, e))?;
    if is.mode() & OTHERS != 0 {
        let mode = is.mode() & 0o777;
        let what = format!("a key that everybody may read (mode {mode:o}): chmod 600 it");
        return Err(wrong(path, what));
    }
    // What a parser says of a key might tell something of it.
    let unread = |_| wrong(path, "there is no private key in it that can be used");
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(unread)
}
