//! `weft ca` makes what others verify: the library that servers use, and openssl(1) where it is.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use webpki::{
    ALL_VERIFICATION_ALGS, BorrowedCertRevocationList, EndEntityCert, Error, KeyUsage,
    RevocationOptionsBuilder, anchor_from_trusted_cert,
};

/// A folder in which an authority was made.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.done(&["init"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn dir(&self) -> PathBuf {
        self.path("ca")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.arg("ca").args(args).env("WEFT_CA_DIR", self.dir()).current_dir(self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What the command said.
    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn issue(&self, role: &str, name: &str, more: &[&str]) -> PathBuf {
        let out = format!("{role}-{name}");
        let args = [&["issue", "--role", role, "--name", name, "--out", &out], more].concat();
        self.done(&args);
        self.path(&format!("{out}.pem"))
    }

    fn list(&self) -> serde_json::Value {
        serde_json::from_str(&self.done(&["list", "--output", "json"])).unwrap()
    }

    /// Verifies a certificate as peers do. Answers the URI that it names its holder with.
    fn verify(&self, cert: &Path, host: Option<&str>) -> Result<String, Error> {
        let ca = CertificateDer::from_pem_file(self.dir().join("ca.pem")).unwrap();
        let crl = CertificateRevocationListDer::from_pem_file(self.dir().join("crl.pem")).unwrap();
        let crl = BorrowedCertRevocationList::from_der(&crl).unwrap().into();
        let crls = [&crl];
        let revocation = RevocationOptionsBuilder::new(&crls).unwrap().build();
        let der = CertificateDer::from_pem_file(cert).unwrap();
        let cert = EndEntityCert::try_from(&der).unwrap();
        let usage = match host {
            Some(_) => KeyUsage::server_auth(),
            None => KeyUsage::client_auth(),
        };
        let anchors = [anchor_from_trusted_cert(&ca).unwrap()];
        let (now, revocation) = (UnixTime::now(), Some(revocation));
        let all = ALL_VERIFICATION_ALGS;
        cert.verify_for_usage(all, &anchors, &[], now, usage, revocation, None)?;
        if let Some(host) = host {
            cert.verify_is_valid_for_subject_name(&ServerName::try_from(host).unwrap())?;
        }
        Ok(cert.valid_uri_names().collect::<Vec<_>>().join(" "))
    }

    /// What openssl says; `None`: there is none here.
    fn openssl(&self, args: &[&str]) -> Option<Output> {
        Command::new("openssl").args(args).current_dir(self.0.path()).output().ok()
    }

    /// Whether openssl takes a certificate; where there is none, what it should say.
    fn openssl_takes(&self, cert: &Path, should: bool) -> bool {
        let cert = cert.to_str().unwrap();
        let flags = ["verify", "-crl_check", "-x509_strict", "-CAfile", "ca/ca.pem"];
        let args = [&flags[..], &["-CRLfile", "ca/crl.pem", cert]].concat();
        self.openssl(&args).map_or(should, |output| output.status.success())
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn certificates_say_who_their_holder_is_and_verify() {
    let place = Place::new();
    assert_eq!(mode(&place.dir()), 0o700);
    assert_eq!(mode(&place.dir().join("ca.key")), 0o600);

    let server = place.issue("metadata", "1", &["--host", "m1.example.com", "--host", "10.0.0.1"]);
    assert_eq!(place.verify(&server, None).unwrap(), "weft://metadata/1");
    for host in ["m1.example.com", "10.0.0.1"] {
        assert_eq!(place.verify(&server, Some(host)).unwrap(), "weft://metadata/1");
    }
    assert!(place.verify(&server, Some("m2.example.com")).is_err());
    assert!(place.openssl_takes(&server, true));

    let limits = ["--subtree", "/team/a b", "--read-only", "--root-squash"];
    let client = place.issue("client", "team-a", &limits);
    let uri = "weft://client/team-a?subtree=/team/a%20b&access=ro&squash=root";
    assert_eq!(place.verify(&client, None).unwrap(), uri);
    assert!(place.verify(&client, Some("m1.example.com")).is_err(), "it is no server");
    assert!(place.openssl_takes(&client, true));

    let key = client.with_extension("key");
    assert_eq!(mode(&key), 0o600);
    let pem = fs::read_to_string(&key).unwrap();
    assert!(PrivateKeyDer::from_pem_slice(pem.as_bytes()).is_ok());
    if let Some(of_key) = place.openssl(&["pkey", "-pubout", "-in", key.to_str().unwrap()]) {
        let cert = client.to_str().unwrap();
        let of_cert = place.openssl(&["x509", "-noout", "-pubkey", "-in", cert]).unwrap();
        assert_eq!(of_key.stdout, of_cert.stdout, "the key is that of the certificate");
        let text = place.openssl(&["x509", "-noout", "-text", "-in", cert]).unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains(&format!("URI:{uri}")) && text.contains("CA:FALSE"), "{text}");
        assert!(!text.contains("TLS Web Server Authentication"), "{text}");
    }
    // Nothing that was said or listed has a key in it.
    assert!(!place.done(&["list"]).contains("PRIVATE"));
}

#[test]
fn what_was_revoked_counts_no_more() {
    let place = Place::new();
    let old = place.issue("client", "a", &["--days", "10"]);
    place.done(&["issue", "--role", "client", "--name", "a", "--out", "new"]);
    let (new, other) = (place.path("new.pem"), place.issue("client", "b", &[]));
    let listed = place.list();
    assert_eq!(listed["certificates"][0]["name"], "a", "what expires first is first: {listed}");
    let serial = listed["certificates"][0]["serial"].as_str().unwrap().to_owned();
    let number = listed["crl_number"].as_u64().unwrap();

    let said = place.done(&["revoke", "--serial", &serial.to_uppercase()]);
    assert!(said.contains("is revoked") && said.contains("crl.pem"), "{said}");
    assert_eq!(place.verify(&old, None), Err(Error::CertRevoked));
    assert!(!place.openssl_takes(&old, false));
    for good in [&new, &other] {
        place.verify(good, None).unwrap();
        assert!(place.openssl_takes(good, true));
    }
    let listed = place.list();
    assert_eq!(listed["certificates"][2]["state"], "revoked");
    assert_eq!(listed["crl_number"].as_u64().unwrap(), number + 1);

    // By its name all that there are; by a file also what the records have lost.
    let said = place.done(&["revoke", "--role", "client", "--name", "a"]);
    assert!(said.contains("was revoked already"), "{said}");
    assert_eq!(place.verify(&new, None), Err(Error::CertRevoked));
    let records = place.dir().join("issued.toml");
    let text = fs::read_to_string(&records).unwrap();
    let lost = text.find("[[certificates]]").unwrap();
    fs::write(&records, &text[..lost]).unwrap();
    place.done(&["revoke", "--cert", other.to_str().unwrap()]);
    assert_eq!(place.verify(&other, None), Err(Error::CertRevoked));
    assert_eq!(place.list()["certificates"][0]["name"], "b");
    let another = Place::new();
    let theirs = another.issue("client", "a", &[]);
    let said = place.refused(&["revoke", "--cert", theirs.to_str().unwrap()]);
    assert!(said.contains("is not of the authority"), "{said}");
    let said = place.refused(&["revoke", "--cert", "ca/crl.pem"]);
    assert!(said.contains("no certificate"), "{said}");

    place.done(&["renew-crl", "--days", "30"]);
    assert_eq!(place.list()["crl_number"].as_u64().unwrap(), number + 4);
}

/// The records say first what the list says then: a crash between leaves a list without it.
#[test]
fn a_list_that_was_not_made_is_made_by_the_next_command() {
    let place = Place::new();
    let gone = place.issue("client", "a", &[]);
    let crl = place.dir().join("crl.pem");
    let before = fs::read(&crl).unwrap();
    place.done(&["revoke", "--role", "client", "--name", "a"]);
    for left in [Some(before), Some(b"half of".to_vec()), None] {
        match left {
            Some(bytes) => fs::write(&crl, bytes).unwrap(),
            None => fs::remove_file(&crl).unwrap(),
        }
        place.done(&["issue", "--role", "admin", "--name", "x", "--out", "x"]);
        assert_eq!(place.verify(&gone, None), Err(Error::CertRevoked));
        fs::remove_file(place.path("x.pem")).unwrap();
        fs::remove_file(place.path("x.key")).unwrap();
    }
}

#[test]
fn nothing_is_overwritten_and_mistakes_are_refused() {
    let place = Place::new();
    let all = |dir: &Path| {
        let mut all: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap_or_default()))
            .collect();
        all.sort();
        all
    };
    let before = all(&place.dir());
    assert!(place.refused(&["init"]).contains("already"));
    let full = place.path("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), "").unwrap();
    assert!(place.refused(&["init", "--dir", "full"]).contains("not empty"));
    assert!(place.refused(&["init", "--dir", "new", "--name", ""]).contains("name"));
    assert!(place.refused(&["init", "--dir", "new", "--days", "0"]).contains("days"));

    let cert = place.issue("client", "a", &[]);
    let records = place.list();
    let issue = ["issue", "--role", "client", "--name", "a", "--out", "client-a"];
    assert!(place.refused(&issue).contains("not overwritten"));
    fs::remove_file(&cert).unwrap();
    let said = place.refused(&issue);
    assert!(said.contains("client-a.key") && said.contains("remove it"), "{said}");
    for (role, name, more) in [
        ("storage", "s1", &[][..]),
        ("storage", "s1", &["--host", "*.example.com"]),
        ("storage", "a b", &["--host", "s1"]),
        ("metadata", "m1", &["--host", "m1"]),
        ("admin", "x", &["--read-only"]),
        ("client", "x", &["--subtree", "team"]),
        ("client", "x", &["--subtree", "/team/../other"]),
        ("client", "x", &["--days", "3651"]),
        ("client", "x", &["--days", "0"]),
    ] {
        let args = ["issue", "--role", role, "--name", name, "--out", "x"];
        place.refused(&[&args[..], more].concat());
    }
    assert!(
        place.refused(&["issue", "--role", "root", "--name", "x", "--out", "x"]).contains("role")
    );
    for args in [
        &["revoke"][..],
        &["revoke", "--name", "a"],
        &["revoke", "--serial", "00ff"],
        &["revoke", "--serial", "zz"],
        &["revoke", "--role", "client", "--name", "b"],
        &["list", "--dir", "nowhere"],
    ] {
        place.refused(args);
    }
    assert_eq!(place.list(), records, "nothing of it went on record");
    assert!(!place.path("x.pem").exists() && !place.path("x.key").exists());
    let names = |files: &[(std::ffi::OsString, Vec<u8>)]| {
        files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&all(&place.dir())), names(&before), "no pieces are left");
    // A key of somebody else.
    let theirs = Place::new();
    fs::copy(theirs.dir().join("ca.key"), place.dir().join("ca.key")).unwrap();
    assert!(place.refused(&["renew-crl"]).contains("is not the key of"));
}

#[test]
fn who_issues_at_the_same_time_loses_no_record() {
    let place = Place::new();
    let start = |n: usize| {
        let (name, out) = (format!("c{n}"), format!("out{n}"));
        let args = ["issue", "--role", "client", "--name", &name, "--out", &out];
        place.command(&args).stdout(Stdio::null()).spawn().unwrap()
    };
    let running: Vec<_> = (0..12).map(start).collect();
    // Of those who want the same files, one gets them.
    let args = ["issue", "--role", "client", "--name", "same", "--out", "same"];
    let start = |_| place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let same: Vec<_> = (0..4).map(|n: usize| start(n).unwrap()).collect();
    for mut child in running {
        assert!(child.wait().unwrap().success());
    }
    let ended = same.into_iter().map(|mut child| child.wait().unwrap().success());
    assert_eq!(ended.filter(|done| *done).count(), 1);
    let listed = place.list();
    let listed = listed["certificates"].as_array().unwrap();
    for n in 0..12 {
        let name = format!("c{n}");
        assert_eq!(listed.iter().filter(|c| c["name"] == name.as_str()).count(), 1, "{name}");
        place.verify(&place.path(&format!("out{n}.pem")), None).unwrap();
    }
    let keys = PrivateKeyDer::from_pem_file(place.path("same.key"));
    assert!(keys.is_ok() && place.verify(&place.path("same.pem"), None).is_ok());
}

#[test]
fn the_key_of_a_request_stays_where_it_was_made() {
    let place = Place::new();
    for (algorithm, option) in
        [("EC", "ec_paramgen_curve:P-256"), ("ED25519", ""), ("RSA", "rsa_keygen_bits:2048")]
    {
        let mut make = vec!["genpkey", "-algorithm", algorithm, "-out", "own.key"];
        if !option.is_empty() {
            make.extend(["-pkeyopt", option]);
        }
        let Some(made) = place.openssl(&make) else { return };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // What it asks for, it does not get.
        let asks = ["-subj", "/CN=root", "-addext", "subjectAltName=URI:weft://admin/root"];
        let args = [&["req", "-new", "-key", "own.key", "-out", "own.csr"], &asks[..]].concat();
        let made = place.openssl(&args).unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let cert = place.issue("client", algorithm, &["--csr", "own.csr"]);
        assert_eq!(place.verify(&cert, None).unwrap(), format!("weft://client/{algorithm}"));
        assert!(place.openssl_takes(&cert, true));
        assert!(!cert.with_extension("key").exists());
        let certified = ["x509", "-noout", "-pubkey", "-in", cert.to_str().unwrap()];
        let own = place.openssl(&["pkey", "-pubout", "-in", "own.key"]).unwrap();
        assert_eq!(place.openssl(&certified).unwrap().stdout, own.stdout);
    }
    fs::write(place.path("bad.csr"), "-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n").unwrap();
    for request in ["bad.csr", "own.key", "nowhere"] {
        let args = ["issue", "--role", "client", "--name", "x", "--out", "x", "--csr", request];
        place.refused(&args);
    }
}
