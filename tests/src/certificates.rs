//! What the commands of a test show clusters that want certificates.

use anyhow::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use weft_net::{Credentials, TlsFiles, Transport, tls};

/// Folders of certificates, by the address of their cluster.
static KNOWN: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);

/// A cluster wants certificates of this folder.
pub fn know(cluster: &str, dir: &Path) {
    KNOWN.lock().expect("no test panics in here").insert(cluster.into(), dir.into());
}

/// The files of one holder.
pub fn files(dir: &Path, name: &str) -> TlsFiles {
    let of = |ending: &str| dir.join(format!("{name}.{ending}"));
    TlsFiles { ca: dir.join("ca.pem"), cert: of("pem"), key: of("key"), crl: None }
}

/// The way to others, as this holder.
pub fn transport(dir: &Path, name: &str) -> Result<Arc<dyn Transport>> {
    Ok(tls(Credentials::load(files(dir, name))?))
}

/// The environment that has a command show this holder's certificate.
pub fn environment(dir: &Path, name: &str) -> Vec<(&'static str, PathBuf)> {
    let TlsFiles { ca, cert, key, .. } = files(dir, name);
    vec![("WEFT_TLS_CA", ca), ("WEFT_TLS_CERT", cert), ("WEFT_TLS_KEY", key)]
}

/// The folder of a cluster that is named by some of its servers.
fn folder_of(cluster: &str) -> Option<PathBuf> {
    let known = KNOWN.lock().expect("no test panics in here");
    let shares = |all: &str| cluster.split(',').any(|one| all.split(',').any(|other| one == other));
    known.iter().find(|(all, _)| shares(all)).map(|(_, dir)| dir.clone())
}

/// The environment of a program that goes to a cluster as a client.
pub fn shown_to(cluster: &str) -> Vec<(&'static str, PathBuf)> {
    folder_of(cluster).map(|dir| environment(&dir, "client")).unwrap_or_default()
}

/// The environment of a command with these arguments.
pub fn shown_by(args: &[&str]) -> Vec<(&'static str, PathBuf)> {
    let name = if args.first() == Some(&"mount") { "client" } else { "admin" };
    let dir = match args.iter().position(|arg| *arg == "--cluster") {
        Some(at) => args.get(at + 1).and_then(|cluster| folder_of(cluster)),
        // It finds the cluster by a path in a mount: that of the only one there is.
        None if args.first() == Some(&"layout") => {
            let known = KNOWN.lock().expect("no test panics in here");
            known.values().next().filter(|_| known.len() == 1).cloned()
        }
        None => None,
    };
    dir.map(|dir| environment(&dir, name)).unwrap_or_default()
}
