//! The list of what an authority has revoked, as its `crl.pem` says it.
//!
//! Invariant: it says all that the records say; its number grows with each that is signed.

use super::records::{Locked, Moment, Records, SKEW, YEAR};
use crate::durable;
use anyhow::{Context, Result};
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use webpki::{BorrowedCertRevocationList, CertRevocationList};

pub const FILE: &str = "crl.pem";

/// Makes the records durable, and then a list of what they say. The next is due then, or in a year,
/// and not later than the end of the authority.
pub fn publish(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    locked: &mut Locked,
    due: Option<Moment>,
) -> Result<()> {
    let now = Moment::now();
    let records = &mut locked.records;
    records.crl_number += 1;
    records.crl_until = due.unwrap_or(now.plus_days(YEAR)).min(records.until);
    let mut revoked_certs = Vec::new();
    for record in &records.certificates {
        let Some(revoked) = record.revoked else { continue };
        revoked_certs.push(RevokedCertParams {
            serial_number: SerialNumber::from(record.number()?),
            revocation_time: revoked.date(),
            reason_code: None,
            invalidity_date: None,
        });
    }
    let params = CertificateRevocationListParams {
        this_update: now.minus(SKEW).date(),
        next_update: records.crl_until.date(),
        crl_number: SerialNumber::from(records.crl_number),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let pem = params.signed_by(issuer)?.pem()?;
    locked.write()?;
    let path = dir.join(FILE);
    durable::replace(&path, pem.as_bytes(), Some(Permissions::from_mode(0o644)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Whether the list that is there says all that the records say.
pub fn is_whole(dir: &Path, records: &Records) -> bool {
    let Ok(pem) = fs::read(dir.join(FILE)) else { return false };
    let Ok(der) = CertificateRevocationListDer::from_pem_slice(&pem) else { return false };
    let Ok(list) = BorrowedCertRevocationList::from_der(&der) else { return false };
    let list = CertRevocationList::Borrowed(list);
    let mut revoked = records.certificates.iter().filter(|record| record.revoked.is_some());
    revoked.all(|record| {
        let number = record.number().unwrap_or_default();
        matches!(list.find_serial(&number), Ok(Some(_)))
    })
}
