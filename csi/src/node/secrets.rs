//! Certificates that come with a call, for one volume: as a secret of the type that Kubernetes has
//! for them names its parts.
//!
//! They are written to files that only this user can read, whose paths go to the mount by its
//! environment; they are on no command line, and in no log.

use super::state::State;
use std::collections::HashMap;
use std::ffi::OsString;
use tonic::Status;

const CA: &str = "ca.crt";
const CERT: &str = "tls.crt";
const KEY: &str = "tls.key";
/// What was revoked, if it is given.
const CRL: &str = "ca.crl";
/// Longest of them.
const MAX: usize = 256 << 10;

/// The certificates of one volume.
pub struct Secrets(Vec<(&'static str, String)>);

/// Reads them; `None`: there are none, and the driver's own are shown. Errors: `INVALID_ARGUMENT`
/// of some without the others.
pub fn read(mut all: HashMap<String, String>) -> Result<Option<Secrets>, Status> {
    let known: Vec<_> =
        [CA, CERT, KEY, CRL].into_iter().filter_map(|n| Some((n, all.remove(n)?))).collect();
    if known.is_empty() {
        return Ok(None);
    }
    let has = |name: &str| known.iter().any(|(known, _)| *known == name);
    if !(has(CA) && has(CERT) && has(KEY)) {
        let what = format!("the secret has to have {CA}, {CERT} and {KEY}, all of them");
        return Err(Status::invalid_argument(what));
    }
    if known.iter().any(|(_, content)| content.is_empty() || content.len() > MAX) {
        return Err(Status::invalid_argument("a part of the secret is empty, or too long"));
    }
    Ok(Some(Secrets(known)))
}

impl Secrets {
    /// Writes them where the mount of the volume reads them.
    pub fn save(&self, state: &State, volume: &str) -> std::io::Result<()> {
        self.0
            .iter()
            .try_for_each(|(name, content)| state.save_secret(volume, name, content).map(drop))
    }
}

/// The environment by which a mount is told of those that were saved.
pub fn environment(state: &State, volume: &str) -> Vec<(OsString, OsString)> {
    let folder = state.tls(volume);
    let names = [
        ("WEFT_TLS_CA", CA),
        ("WEFT_TLS_CERT", CERT),
        ("WEFT_TLS_KEY", KEY),
        ("WEFT_TLS_CRL", CRL),
    ];
    let there = names.into_iter().filter(|(_, file)| folder.join(file).exists());
    there.map(|(name, file)| (name.into(), folder.join(file).into_os_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_or_none() {
        let of = |names: &[&str]| {
            read(names.iter().map(|n| (n.to_string(), "pem".to_string())).collect())
        };
        assert!(of(&[]).unwrap().is_none() && of(&["password"]).unwrap().is_none());
        assert!(of(&[CA, CERT, KEY]).unwrap().is_some());
        assert!(of(&[CA, CERT]).is_err() && of(&[CRL]).is_err());
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        of(&[CA, CERT, KEY, "x"]).unwrap().unwrap().save(&state, "v").unwrap();
        assert_eq!(environment(&state, "v").len(), 3);
    }
}
