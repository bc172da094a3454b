//! Requests that were made elsewhere (PKCS#10), of which only the key counts: so a private key
//! stays where it was made.
//!
//! Invariant: who made the request has the private key, which its signature proves.

use anyhow::{Context, Result, anyhow, bail, ensure};
use rcgen::{
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData,
    SignatureAlgorithm,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateSigningRequestDer, SubjectPublicKeyInfoDer};
use webpki::{ALL_VERIFICATION_ALGS, RawPublicKeyEntity};
use yasna::ASN1Result;

/// Longest request that is read, in bytes.
const MAX: usize = 64 << 10;
const EC: &[u64] = &[1, 2, 840, 10045, 2, 1];
const P256: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const P384: &[u64] = &[1, 3, 132, 0, 34];
const ED25519: &[u64] = &[1, 3, 101, 112];
const RSA: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];

/// The public key of a request.
pub struct PublicKey {
    key: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.key
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl PublicKey {
    /// The key of a request in PEM.
    pub fn of_request(pem: &[u8]) -> Result<Self> {
        ensure!(pem.len() <= MAX, "a request of more than {MAX} bytes");
        let der = CertificateSigningRequestDer::from_pem_slice(pem)
            .map_err(|e| anyhow!("no CERTIFICATE REQUEST in PEM: {e}"))?;
        Self::of_der(&der)
    }

    fn of_der(der: &[u8]) -> Result<Self> {
        let request = parse(der).map_err(|e| anyhow!("no request of PKCS#10: {e}"))?;
        let spki = SubjectPublicKeyInfoDer::from(request.key);
        let signer = RawPublicKeyEntity::try_from(&spki).context("the key does not read")?;
        let proved = ALL_VERIFICATION_ALGS
            .iter()
            .any(|a| signer.verify_signature(*a, &request.signed, &request.signature).is_ok());
        ensure!(proved, "its signature is not of its key, or of a kind that is not supported");
        let this = Self::of_info(&spki)?;
        // What is certified is what has signed.
        ensure!(this.subject_public_key_info() == spki.as_ref(), "its key is written oddly");
        Ok(this)
    }

    fn of_info(spki: &SubjectPublicKeyInfoDer<'_>) -> Result<Self> {
        let (kind, curve, key) = yasna::parse_der(spki, |reader| {
            reader.read_sequence(|reader| {
                let (kind, curve) = reader.next().read_sequence(|reader| {
                    let kind = reader.next().read_oid()?;
                    let curve = match kind.components().as_slice() {
                        EC => Some(reader.next().read_oid()?),
                        RSA => reader.next().read_null().map(|()| None)?,
                        _ => None,
                    };
                    Ok((kind, curve))
                })?;
                Ok((kind, curve, reader.next().read_bitvec_bytes()?.0))
            })
        })
        .map_err(|e| anyhow!("its key does not read: {e}"))?;
        let curve = curve.as_ref().map(|oid| oid.components().as_slice());
        let algorithm = match (kind.components().as_slice(), curve) {
            (EC, Some(P256)) => &PKCS_ECDSA_P256_SHA256,
            (EC, Some(P384)) => &PKCS_ECDSA_P384_SHA384,
            (ED25519, _) => &PKCS_ED25519,
            (RSA, _) => &PKCS_RSA_SHA256,
            _ => bail!("its key is neither of P-256, P-384, Ed25519 nor RSA"),
        };
        Ok(Self { key, algorithm })
    }
}

struct Parsed {
    /// What the signature is over.
    signed: Vec<u8>,
    key: Vec<u8>,
    signature: Vec<u8>,
}

fn parse(der: &[u8]) -> ASN1Result<Parsed> {
    let (signed, signature) = yasna::parse_der(der, |reader| {
        reader.read_sequence(|reader| {
            let signed = reader.next().read_der()?;
            reader.next().read_der()?; // the algorithm: one fits the key, or none
            Ok((signed, reader.next().read_bitvec_bytes()?.0))
        })
    })?;
    let key = yasna::parse_der(&signed, |reader| {
        reader.read_sequence(|reader| {
            reader.next().read_u8()?; // version
            reader.next().read_der()?; // subject: the authority says who it is
            let key = reader.next().read_der()?;
            reader.next().read_der()?; // attributes, likewise
            Ok(key)
        })
    })?;
    Ok(Parsed { signed, key, signature })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn the_key_of_a_request_counts_and_must_have_signed_it() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let request = CertificateParams::default().serialize_request(&key).unwrap();
            let read = PublicKey::of_request(request.pem().unwrap().as_bytes()).unwrap();
            assert_eq!(read.subject_public_key_info(), key.subject_public_key_info());

            // Whatever byte of it is changed, it is not signed any more, or nothing that counts.
            let mut rng = rand::rng();
            for _ in 0..200 {
                let mut der = request.der().to_vec();
                let at = rng.random_range(0..der.len());
                der[at] ^= rng.random_range(1..=255u8);
                if let Ok(changed) = PublicKey::of_der(&der) {
                    assert_eq!(changed.subject_public_key_info(), key.subject_public_key_info());
                }
                assert!(PublicKey::of_der(&der[..at]).is_err());
            }
        }
        assert!(PublicKey::of_request(b"").is_err());
        assert!(PublicKey::of_request(&vec![b'x'; MAX + 1]).is_err());
        assert!(
            PublicKey::of_request(KeyPair::generate().unwrap().serialize_pem().as_bytes()).is_err()
        );
    }
}
