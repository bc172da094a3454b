//! Certificates for tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use weft_net::{Credentials, TlsFiles, Transport, tls};

/// An authority with a folder of files.
pub struct Authority {
    pub dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
    serial: AtomicU64,
}

/// A certificate that was made.
pub struct Issued {
    pub files: TlsFiles,
    pub serial: u64,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key), serial: AtomicU64::new(1) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// For whoever the URI names, at 127.0.0.1, valid from now on for so long.
    pub fn issue_for(&self, uri: &str, valid: Duration) -> Issued {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{serial}");
        self.issue_as(&name, uri, valid)
    }

    pub fn issue(&self, uri: &str) -> Issued {
        self.issue_for(uri, Duration::days(1))
    }

    /// In files of this name, in place of what is there.
    pub fn issue_as(&self, name: &str, uri: &str, valid: Duration) -> Issued {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        if !uri.is_empty() {
            params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from(serial));
        let now = OffsetDateTime::now_utc();
        params.not_before = now - Duration::days(2);
        params.not_after = now + valid;
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let (cert_path, key_path) =
            (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        replace(&key_path, &key.serialize_pem());
        replace(&cert_path, &cert.pem());
        let files = TlsFiles { ca: self.path("ca.pem"), cert: cert_path, key: key_path, crl: None };
        Issued { files, serial }
    }

    /// Says that these are not valid any more.
    pub fn revoke(&self, serials: &[u64]) {
        let now = OffsetDateTime::now_utc();
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now - Duration::seconds(1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now - Duration::seconds(1),
            next_update: now + Duration::days(1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        replace(&self.path("crl.pem"), &params.signed_by(&self.issuer).unwrap().pem().unwrap());
    }
}

pub fn credentials(issued: &Issued) -> Arc<Credentials> {
    Credentials::load(issued.files.clone()).unwrap()
}

pub fn transport_of(issued: &Issued) -> Arc<dyn Transport> {
    tls(credentials(issued))
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&new, path).unwrap();
}
