//! Certificates that come with a call, for one volume: as a secret of the type that Kubernetes has
//! for them names its parts.
//!
//! They are written to files that only this user can read, whose paths go to the mount by its
//! environment; they are on no command line, and in no log.

use super::state::State;
use super::weft::Environment;
use std::collections::HashMap;
use tonic::Status;
use weft_net::{Credentials, TlsFiles};

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
        for (name, content) in &self.0 {
            state.save_secret(volume, name, content)?;
        }
        // What came with a call before does not count any more.
        match self.0.iter().any(|(name, _)| *name == CRL) {
            true => Ok(()),
            false => state.remove_secret(volume, CRL),
        }
    }
}

/// Those that were saved for a volume. Errors: `FAILED_PRECONDITION` if one is not there: without
/// it the driver's own would be shown, which may do more.
pub fn files(state: &State, volume: &str) -> Result<TlsFiles, Status> {
    let folder = state.tls(volume);
    let file = |name: &str| Some(folder.join(name)).filter(|file| file.exists());
    let needed = |name: &str| {
        file(name).ok_or_else(|| {
            let what = format!("{name} of volume {volume:?} is not there any more");
            Status::failed_precondition(what)
        })
    };
    Ok(TlsFiles { ca: needed(CA)?, cert: needed(CERT)?, key: needed(KEY)?, crl: file(CRL) })
}

/// The environment by which a mount is told of them, and of nothing of the driver's own.
pub fn environment(files: &TlsFiles) -> Environment {
    let path = |path: &std::path::PathBuf| Some(path.clone().into_os_string());
    vec![
        ("WEFT_TLS_CA".into(), path(&files.ca)),
        ("WEFT_TLS_CERT".into(), path(&files.cert)),
        ("WEFT_TLS_KEY".into(), path(&files.key)),
        ("WEFT_TLS_CRL".into(), files.crl.as_ref().and_then(path)),
    ]
}

/// The folder that their holder sees as the root, its parts from the top. Errors:
/// `FAILED_PRECONDITION` of certificates that cannot be used.
pub fn subtree(files: TlsFiles) -> Result<Vec<String>, Status> {
    let credentials = Credentials::load(files)
        .map_err(|e| Status::failed_precondition(format!("the volume's certificates: {e}")))?;
    Ok(credentials.subject().confinement.subtree)
}

/// A path of the whole filesystem, as somebody names it who sees this folder as the root; `None`:
/// it is not below that.
pub fn seen_from(subtree: &[String], path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let above = parts.get(..subtree.len())?;
    (above == subtree).then(|| format!("/{}", parts[subtree.len()..].join("/")))
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
        let save = |names: &[&str]| of(names).unwrap().unwrap().save(&state, "v").unwrap();
        save(&[CA, CERT, KEY, CRL, "x"]);
        assert!(files(&state, "v").unwrap().crl.is_some());
        save(&[CA, CERT, KEY]);
        let found = files(&state, "v").unwrap();
        let named = environment(&found);
        assert!(named.iter().all(|(name, value)| value.is_some() != (name == "WEFT_TLS_CRL")));
        // Never the driver's own instead.
        std::fs::remove_file(found.key).unwrap();
        assert!(files(&state, "v").is_err() && files(&state, "other").is_err());
    }

    #[test]
    fn a_path_is_named_as_its_reader_sees_it() {
        let of = |subtree: &[&str], path: &str| {
            let subtree: Vec<_> = subtree.iter().map(|part| part.to_string()).collect();
            seen_from(&subtree, path)
        };
        assert_eq!(of(&[], "/volumes/a").as_deref(), Some("/volumes/a"));
        assert_eq!(of(&["volumes"], "/volumes//a").as_deref(), Some("/a"));
        assert_eq!(of(&["volumes", "a"], "/volumes/a/").as_deref(), Some("/"));
        for (subtree, path) in
            [(&["vol"][..], "/volumes/a"), (&["volumes", "a", "b"], "/volumes/a"), (&["x"], "/")]
        {
            assert_eq!(of(subtree, path), None, "{subtree:?} {path}");
        }
    }
}
