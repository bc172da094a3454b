//! A certificate authority in a folder: `ca.pem`, its certificate; `ca.key`, its private key;
//! `crl.pem`, what was revoked; `issued.toml`, the records; `lock`.
//!
//! Invariants: the folder is there whole or not at all. A certificate and a revocation are on
//! record before anything else of them exists; a list that lacks a revocation of the records, as
//! after a crash, is signed anew before anything else is done.

use super::crl;
use super::csr::PublicKey;
use super::records::{Locked, Moment, Record, Records, SKEW, YEAR, hex, unhex};
use super::request::{Request, Role};
use crate::durable;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";

/// Longest time that anything is valid, in days.
const MAX_DAYS: u32 = 36_500;
/// Longest certificate file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// An authority that can sign.
pub struct Authority {
    dir: PathBuf,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    until: Moment,
}

/// A certificate and its key, in PEM.
pub struct Issued {
    pub cert_pem: String,
    pub key_pem: String,
}

/// Which certificates are meant.
pub enum Which {
    Serial(String),
    Named(Role, String),
    /// In PEM. One that is not on record, as when those were restored from an old copy, goes there.
    Certificate(Vec<u8>),
}

impl Authority {
    /// Makes an authority in a folder that is not there, or is empty.
    pub fn create(dir: &Path, name: &str, days: u32) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || " '()+,-./:=?_".contains(c);
        ensure!(
            (1..=64).contains(&name.len()) && name.chars().all(plain) && name.trim() == name,
            "{name:?} is no name of an authority: 1 to 64 letters, digits, blanks and '()+,-./:=?_"
        );
        ensure!((1..=MAX_DAYS).contains(&days), "an authority is valid for 1 to {MAX_DAYS} days");
        let (parent, new) = beside(dir)?;
        let what = || format!("cannot make {}", dir.display());
        DirBuilder::new().mode(0o700).create(&new).with_context(what)?;
        let made = fill(&new, name, days).and_then(|()| {
            // Replaces nothing but an empty folder.
            fs::rename(&new, target(dir)).with_context(what)
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&new); // the first error counts
        }
        made?;
        File::open(parent)?.sync_all()?;
        Self::open(dir)
    }

    /// Errors: there is none, its key may not be read, or belongs to another certificate.
    pub fn open(dir: &Path) -> Result<Self> {
        let records = Records::read(dir)?;
        let (path, key) = (dir.join(CERTIFICATE), dir.join(KEY));
        let certificate = certificate(&read(&path)?).with_context(|| path.display().to_string())?;
        let text = String::from_utf8(read(&key)?).unwrap_or_default();
        // What a parser says of a key might tell something of it.
        let pair = KeyPair::from_pem(&text)
            .map_err(|_| anyhow!("{} holds no private key that can be used", key.display()))?;
        let theirs = EndEntityCert::try_from(&certificate)
            .map_err(|e| anyhow!("{} does not read: {e}", path.display()))?
            .subject_public_key_info();
        ensure!(
            theirs.as_ref() == pair.subject_public_key_info(),
            "{} is not the key of {}: take both from the same copy",
            key.display(),
            path.display()
        );
        let issuer = Issuer::new(authority_params(&records.name), pair);
        Ok(Self { dir: dir.into(), certificate, issuer, until: records.until })
    }

    /// Makes a key and a certificate for it.
    pub fn issue(&self, request: &Request) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let cert_pem = self.certify(request, &key)?;
        Ok(Issued { cert_pem, key_pem: key.serialize_pem() })
    }

    /// A certificate for a key whose request, in PEM, was made elsewhere.
    pub fn issue_for_request(&self, request: &Request, csr: &[u8]) -> Result<String> {
        self.certify(request, &PublicKey::of_request(csr)?)
    }

    fn certify(&self, request: &Request, key: &impl PublicKeyData) -> Result<String> {
        request.check()?;
        let now = Moment::now();
        let until = self.until(now, request.days)?;
        let mut serial: [u8; 16] = rand::random();
        // Positive, and never shorter.
        serial[0] = serial[0] & 0x7f | 0x40;
        let mut params = holder_params(request)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        (params.not_before, params.not_after) = (now.minus(SKEW).date(), until.date());
        let made = params.signed_by(key, &self.issuer)?;
        self.verify(made.der(), now).context("the new certificate is not valid")?;

        let mut locked = self.lock()?;
        locked.records.certificates.push(Record::new(&serial, request, now, until));
        locked.write()?;
        Ok(made.pem())
    }

    /// When something ends that is valid for so many days from now on.
    fn until(&self, now: Moment, days: Option<u32>) -> Result<Moment> {
        ensure!(
            now < self.until,
            "the authority in {} has expired at {}: make another with weft ca init, and have all \
             trust both for a while (ca.pem may hold several certificates)",
            self.dir.display(),
            self.until
        );
        let Some(days) = days else { return Ok(now.plus_days(YEAR).min(self.until)) };
        ensure!((1..=MAX_DAYS).contains(&days), "{days} days are not 1 to {MAX_DAYS}");
        let until = now.plus_days(days);
        ensure!(
            until <= self.until,
            "{days} days from now the authority itself has expired, at {}: take less",
            self.until
        );
        Ok(until)
    }

    /// Revokes certificates. Answers those that are meant, as they were before.
    pub fn revoke(&self, which: &Which) -> Result<Vec<Record>> {
        let mut locked = self.lock()?;
        let now = Moment::now();
        let meant = match which {
            Which::Serial(serial) => {
                let serial = hex(&unhex(serial)?);
                find(&locked.records, |record| record.serial == serial)
            }
            Which::Named(role, name) => {
                find(&locked.records, |record| record.role == *role && record.name == *name)
            }
            Which::Certificate(pem) => vec![self.on_record(&mut locked.records, pem, now)?],
        };
        ensure!(
            !meant.is_empty(),
            "{} has no such certificate on record: weft ca list shows all",
            self.dir.display()
        );
        let before = meant.iter().map(|&at| locked.records.certificates[at].clone()).collect();
        for at in meant {
            locked.records.certificates[at].revoked.get_or_insert(now);
        }
        crl::publish(&self.dir, &self.issuer, &mut locked, None)?;
        Ok(before)
    }

    /// Signs the list of what was revoked anew, due again in so many days.
    pub fn renew_crl(&self, days: Option<u32>) -> Result<Records> {
        let mut locked = self.lock()?;
        let due = self.until(Moment::now(), days)?;
        crl::publish(&self.dir, &self.issuer, &mut locked, Some(due))?;
        Ok(locked.records.clone())
    }

    fn lock(&self) -> Result<Locked> {
        let mut locked = Locked::take(&self.dir)?;
        if !crl::is_whole(&self.dir, &locked.records) {
            crl::publish(&self.dir, &self.issuer, &mut locked, None)?;
        }
        Ok(locked)
    }

    /// Where a certificate of this authority is in the records, or is now.
    fn on_record(&self, records: &mut Records, pem: &[u8], now: Moment) -> Result<usize> {
        let der = certificate(pem)?;
        let cert = EndEntityCert::try_from(&der).map_err(|e| anyhow!("it does not read: {e}"))?;
        let serial = hex(cert.serial());
        if let Some(at) = records.certificates.iter().position(|r| r.serial == serial) {
            return Ok(at);
        }
        self.verify(&der, now).with_context(|| {
            format!("the certificate is not of the authority in {}", self.dir.display())
        })?;
        let uri = cert.valid_uri_names().find(|uri| uri.starts_with("weft://")).unwrap_or_default();
        let role = Role::ALL.into_iter().find(|r| uri.starts_with(&format!("weft://{r}/")));
        let Some(role) = role else { bail!("the certificate names nobody of Weft's") };
        let name = uri.split('/').nth(3).and_then(|rest| rest.split('?').next());
        records.certificates.push(Record {
            serial,
            role,
            name: name.unwrap_or_default().into(),
            hosts: Vec::new(),
            uri: uri.into(),
            issued: now,
            until: self.until,
            revoked: None,
        });
        Ok(records.certificates.len() - 1)
    }

    /// Whether who trusts this authority takes the certificate.
    fn verify(&self, der: &CertificateDer<'_>, now: Moment) -> Result<()> {
        let told = |e: webpki::Error| anyhow!("{e}");
        let cert = EndEntityCert::try_from(der).map_err(told)?;
        let anchors = [anchor_from_trusted_cert(&self.certificate).map_err(told)?];
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.0));
        let usage = KeyUsage::client_auth();
        cert.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], now, usage, None, None)
            .map(drop)
            .map_err(told)
    }
}

fn find(records: &Records, is: impl Fn(&Record) -> bool) -> Vec<usize> {
    let all = records.certificates.iter().enumerate();
    all.filter(|(_, record)| is(record)).map(|(at, _)| at).collect()
}

/// The folder that the new one is in, and its name there until it is whole.
fn beside(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let there = target(dir);
    if let Ok(mut entries) = fs::read_dir(&there) {
        ensure!(
            !there.join(CERTIFICATE).exists(),
            "{} holds an authority already, which is not overwritten",
            dir.display()
        );
        ensure!(entries.next().is_none(), "{} is not empty: name another folder", dir.display());
    }
    let name = there.file_name().with_context(|| format!("{} names no folder", dir.display()))?;
    let parent = there.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{:016x}", rand::random::<u64>()));
    Ok((parent.into(), parent.join(new)))
}

/// The folder itself, where it is reached through a link.
fn target(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.into())
}

/// Makes the files of a new authority.
fn fill(dir: &Path, name: &str, days: u32) -> Result<()> {
    let key = KeyPair::generate()?;
    let now = Moment::now();
    let until = now.plus_days(days);
    let mut params = authority_params(name);
    params.serial_number = Some(SerialNumber::from_slice(&rand::random::<[u8; 8]>()));
    (params.not_before, params.not_after) = (now.minus(SKEW).date(), until.date());
    let certificate = params.self_signed(&key)?;
    durable::create(&dir.join(KEY), key.serialize_pem().as_bytes(), 0o600)?;
    durable::create(&dir.join(CERTIFICATE), certificate.pem().as_bytes(), 0o644)?;
    let records =
        Records { name: name.into(), until, crl_number: 0, crl_until: until, certificates: vec![] };
    records.write(dir)?;
    crl::publish(dir, &Issuer::new(params, key), &mut Locked::take(dir)?, None)
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn holder_params(request: &Request) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&request.name);
    params.distinguished_name.push(DnType::OrganizationalUnitName, request.role.to_string());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Servers are clients of each other, too.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if request.role.serves() {
        params.extended_key_usages.insert(0, ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names.push(SanType::URI(request.uri().try_into()?));
    for host in &request.hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.as_str().try_into()?),
        });
    }
    Ok(params)
}

fn certificate(pem: &[u8]) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem).map_err(|e| anyhow!("no certificate in PEM: {e}"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("cannot read {}", path.display());
    let len = fs::metadata(path).with_context(what)?.len();
    ensure!(len <= MAX_FILE, "{} has {len} bytes, over {MAX_FILE}", path.display());
    fs::read(path).with_context(what)
}
