//! The certificates of a `weft dev` cluster, in `DIR/tls`: an authority of its own, one certificate
//! for each daemon, `admin.pem` and `client.pem` for people; the key of each beside it.

use super::role::{METADATA, STORAGE};
use super::state::State;
use crate::ca::authority::Authority;
use crate::ca::request::{Request, Role};
use crate::{durable, network};
use anyhow::{Context, Result};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weft_net::TlsFiles;

/// For who changes the cluster.
pub const ADMIN: &str = "admin";
/// For who mounts it.
pub const CLIENT: &str = "client";

/// Where a new authority's certificate is valid for, in days: a cluster for trying out.
const DAYS: u32 = 3650;

fn folder(dir: &Path) -> PathBuf {
    dir.join("tls")
}

/// What whoever has this name shows.
pub fn files(dir: &Path, name: &str) -> TlsFiles {
    let of = |ending: &str| folder(dir).join(format!("{name}.{ending}"));
    TlsFiles { ca: folder(dir).join("ca.pem"), cert: of("pem"), key: of("key"), crl: None }
}

/// Makes what is missing.
pub fn make(dir: &Path, state: &State) -> Result<()> {
    let folder = folder(dir);
    let authority = match folder.join("ca.pem").exists() {
        true => Authority::open(&folder)?,
        false => Authority::create(&folder, "weft dev", DAYS)?,
    };
    let metadata =
        state.metadata.iter().map(|d| (METADATA.name(d.id), Role::Metadata, d.id.to_string()));
    let storage = state.storage.iter().map(|d| {
        let name = STORAGE.name(d.id);
        (name.clone(), Role::Storage, name)
    });
    let people = [(ADMIN, Role::Admin), (CLIENT, Role::Client)];
    let people = people.into_iter().map(|(name, role)| (name.to_owned(), role, name.to_owned()));
    for (file, role, name) in metadata.chain(storage).chain(people) {
        issue(dir, &authority, &file, role, name)
            .with_context(|| format!("cannot make a certificate in {}", folder.display()))?;
    }
    Ok(())
}

fn issue(dir: &Path, authority: &Authority, file: &str, role: Role, name: String) -> Result<()> {
    let TlsFiles { cert, key, .. } = files(dir, file);
    if cert.exists() {
        return Ok(());
    }
    let mut request = Request::new(role, name);
    if matches!(role, Role::Metadata | Role::Storage) {
        request.hosts = ["127.0.0.1", "::1", "localhost"].map(String::from).to_vec();
    }
    let issued = authority.issue(&request)?;
    // The key first: a certificate alone would count as done.
    durable::replace(&key, issued.key_pem.as_bytes(), Some(Permissions::from_mode(0o600)))?;
    Ok(durable::replace(&cert, issued.cert_pem.as_bytes(), None)?)
}

/// Has this command speak to the cluster as its admin, unless certificates were named.
pub fn speak(dir: &Path, state: &State) -> Result<()> {
    match state.tls && !network::has_certificates() {
        true => network::show(files(dir, ADMIN)),
        false => Ok(()),
    }
}
