//! `weft ca issue`: makes a certificate, and a key for it unless there is one already.

use super::args::DirArgs;
use super::authority::{Authority, Issued};
use super::request::{Request, Role};
use crate::durable;
use crate::output::say;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest request that is read, in bytes.
const MAX: u64 = 64 << 10;

/// Issue a certificate, with a new key or for the key of a request
///
/// Writes PREFIX.pem, the certificate, and PREFIX.key, its private key, which only its owner may
/// read; files that are there are not overwritten. With --csr the private key never leaves the
/// machine where it was made.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    dir: DirArgs,
    /// Which part the holder plays
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
    /// Of a metadata server its number, of a storage daemon its name, else what you call it
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Host name or IP address at which a server is reached; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Confine a client to this directory, which it sees as the root of the filesystem
    #[arg(long, value_name = "PATH")]
    subtree: Option<String>,
    /// A client that changes nothing
    #[arg(long)]
    read_only: bool,
    /// Take the rights of root from a client's root user
    #[arg(long)]
    root_squash: bool,
    /// How long the certificate is valid [default: 365, or as long as the authority]
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    /// Certify the key of this request (PKCS#10, PEM); what else it asks for is passed over
    #[arg(long, value_name = "FILE")]
    csr: Option<PathBuf>,
    /// Where the files go: PREFIX.pem, and PREFIX.key without --csr
    #[arg(long, value_name = "PREFIX")]
    out: PathBuf,
}

pub fn run(args: Args) -> Result<()> {
    let Args { dir, role, name, hosts, subtree, read_only, root_squash, days, csr, out } = args;
    let mut request = Request::new(role, name);
    (request.hosts, request.subtree, request.days) = (hosts, subtree, days);
    (request.read_only, request.squash_root) = (read_only, root_squash);
    request.check()?;
    let (cert, key) = (with_suffix(&out, ".pem"), with_suffix(&out, ".key"));
    // Said before anything goes on record.
    let there = |path: &Path| fs::symlink_metadata(path).is_ok();
    ensure!(!there(&cert), "{} is there already and is not overwritten", cert.display());
    ensure!(
        csr.is_some() || !there(&key),
        "{} is there, without {}, and is not overwritten: if a command has left it that was cut \
         off, nobody has a certificate for it; remove it and try again",
        key.display(),
        cert.display()
    );
    let authority = Authority::open(&dir.dir)?;
    let uri = request.uri();
    if let Some(csr) = csr {
        let pem = authority
            .issue_for_request(&request, &read(&csr)?)
            .with_context(|| format!("cannot certify {}", csr.display()))?;
        write(&cert, &pem, 0o644)?;
        return say(&format!("{} is for {uri}", cert.display()));
    }
    let issued = authority.issue(&request)?;
    write_both(&cert, &key, &issued)?;
    say(&format!("{} with {} is for {uri}", cert.display(), key.display()))
}

/// The key first: with the certificate all is there.
fn write_both(cert: &Path, key: &Path, issued: &Issued) -> Result<()> {
    write(key, &issued.key_pem, 0o600)?;
    write(cert, &issued.cert_pem, 0o644).inspect_err(|_| {
        let _ = fs::remove_file(key); // the first error counts
    })
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(what)?;
    file.take(MAX + 1).read_to_end(&mut bytes).with_context(what)?;
    Ok(bytes)
}

fn write(path: &Path, pem: &str, mode: u32) -> Result<()> {
    durable::create(path, pem.as_bytes(), mode).with_context(|| {
        format!("cannot make {}; revoke what is on record and was never used", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_stay_without_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("a.pem"), dir.path().join("a.key"));
        let issued = Issued { cert_pem: "a certificate".into(), key_pem: "a key".into() };
        fs::write(&cert, "another's").unwrap();
        assert!(write_both(&cert, &key, &issued).is_err());
        assert!(!key.exists());
        assert_eq!(fs::read_to_string(&cert).unwrap(), "another's");
        fs::remove_file(&cert).unwrap();
        write_both(&cert, &key, &issued).unwrap();
        assert!(cert.exists() && key.exists());
    }
}
