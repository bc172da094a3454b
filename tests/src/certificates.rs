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

/// The environment of a command with these arguments.
pub fn shown_by(args: &[&str]) -> Vec<(&'static str, PathBuf)> {
    let Some(at) = args.iter().position(|arg| *arg == "--cluster") else { return Vec::new() };
    let Some(cluster) = args.get(at + 1) else { return Vec::new() };
    let known = KNOWN.lock().expect("no test panics in here");
    // A command may name some of the servers.
    let shares = |all: &str| cluster.split(',').any(|one| all.split(',').any(|other| one == other));
    let dir = known.iter().find(|(all, _)| shares(all)).map(|(_, dir)| dir);
    let name = if args.first() == Some(&"mount") { "client" } else { "admin" };
    dir.map(|dir| environment(dir, name)).unwrap_or_default()
}
