//! Where the key of an encrypted target comes from, and what is made of it.
//!
//! Invariants: a key is never logged, shown or part of an error, and is wiped after use. What
//! encrypts a target is made of its key and its own uuid, so that targets with one key have nothing
//! in common. What is kept to tell a wrong key says nothing about the right one.

use super::xts::{KEY, Xts};
use ring::hkdf::{HKDF_SHA512, KeyType, Prk, Salt};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use weft_proto::{Error, ErrorKind, Result, Uuid};
use zeroize::Zeroizing;

/// Longest file or output that may be a key: hexadecimal digits and some space.
const MAX: u64 = 256;
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Bits of a file's mode by which others than its owner may do something with it.
const OTHERS: u32 = 0o077;

/// Where a key comes from; one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySource {
    /// A file with 64 bytes, or as many in hexadecimal digits, for its owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// A program with its arguments, which writes the same to its standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_command: Option<Vec<String>>,
}

impl KeySource {
    /// Refuses what names no key, or two.
    pub fn validate(&self) -> Result<()> {
        match (&self.key_file, &self.key_command) {
            (Some(_), None) => Ok(()),
            (None, Some(command)) if !command.is_empty() => Ok(()),
            _ => Err(invalid("encryption needs one of key_file and key_command".into())),
        }
    }

    /// Gets the key. Blocks. Errors: `NotFound`, there is no such file or command; `Invalid`, it is
    /// none; `Unavailable`, the command failed or took too long, which may pass.
    pub(super) fn load(&self) -> Result<Key> {
        self.validate()?;
        match (&self.key_file, &self.key_command) {
            (Some(path), _) => from_file(path),
            (_, Some(command)) => from_command(command, LIMIT),
            _ => Err(invalid("no key is named".into())),
        }
    }
}

/// The key as an admin keeps it.
pub(super) struct Key(Zeroizing<[u8; KEY]>);

/// By which a wrong key is told: kept in the superblock.
pub type KeyCheck = [u8; 32];

/// How many bytes are to be made.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

impl Key {
    /// What encrypts this target.
    pub fn cipher(&self, target: Uuid) -> Xts {
        Xts::new(&self.expand(target, b"weft target, AES-256-XTS"))
    }

    pub fn check(&self, target: Uuid) -> KeyCheck {
        *self.expand(target, b"weft target, key check")
    }

    fn expand<const N: usize>(&self, target: Uuid, what: &[u8]) -> Zeroizing<[u8; N]> {
        let key: Prk = Salt::new(HKDF_SHA512, &target.0).extract(&*self.0);
        let mut out = Zeroizing::new([0; N]);
        let made = key.expand(&[what], Bytes(N)).and_then(|made| made.fill(&mut *out));
        made.expect("HKDF makes up to 255 times the length of its hash");
        out
    }

    /// 64 bytes, or as many in hexadecimal digits with space around. `None`: it is neither, or no
    /// random number.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut key = Zeroizing::new([0; KEY]);
        if let Ok(raw) = <&[u8; KEY]>::try_from(bytes) {
            *key = *raw;
        } else {
            let digits = bytes.trim_ascii();
            if digits.len() != 2 * KEY {
                return None;
            }
            for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
                let digit = |at: usize| char::from(pair[at]).to_digit(16);
                *byte = (digit(0)? << 4 | digit(1)?) as u8;
            }
        }
        let (first, second) = key.split_at(KEY / 2);
        let repeats = first == second || key.iter().all(|byte| *byte == key[0]);
        (!repeats).then_some(Self(key))
    }
}

const WANTED: &str = "a key is 64 random bytes (head -c 64 /dev/urandom), or as many in \
                      hexadecimal digits";

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

/// What names the key cannot be used.
fn unusable(what: String, e: &std::io::Error) -> Error {
    let kind = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Invalid,
    };
    Error::new(kind, format!("{what}: {e}"))
}

fn from_file(path: &Path) -> Result<Key> {
    let name = path.display();
    let fail = |e: std::io::Error| unusable(format!("key file {name}"), &e);
    let file = File::open(path).map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.mode();
    if mode & OTHERS != 0 {
        let what = format!(
            "key file {name}: others than its owner may use it (mode {:o}): chmod 600 it, and \
             make a new key if they could read it",
            mode & 0o777
        );
        return Err(invalid(what));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX as usize + 1));
    file.take(MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    Key::read(&bytes).ok_or_else(|| invalid(format!("key file {name} holds no key: {WANTED}")))
}

fn from_command(command: &[String], limit: Duration) -> Result<Key> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(invalid("key_command is empty".into()));
    };
    let fail =
        |what: String| Error::new(ErrorKind::Unavailable, format!("key command {program}: {what}"));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| unusable(format!("key command {program} does not start"), &e))?;
    let group = child.id() as libc::pid_t;
    let (told, answer) = channel();
    let wait = move || {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX as usize + 1));
        let read = child.stdout.take().map(|out| out.take(MAX + 1).read_to_end(&mut bytes));
        let ended = child.wait();
        let _ = told.send((read, ended, bytes)); // nobody waits for it any more
    };
    std::thread::Builder::new()
        .name("key command".into())
        .spawn(wait)
        .map_err(|e| fail(format!("starting a thread: {e}")))?;
    let Ok((read, ended, bytes)) = answer.recv_timeout(limit) else {
        // SAFETY: plain system call. The group is there as long as its leader was not waited for,
        // which would have been told.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        return Err(fail(format!("it has not ended after {} s", limit.as_secs())));
    };
    if let Some(Err(e)) = read {
        return Err(fail(format!("reading its output: {e}")));
    }
    match ended {
        Ok(status) if status.success() => Key::read(&bytes)
            .ok_or_else(|| invalid(format!("key command {program} gave no key: {WANTED}"))),
        Ok(status) => Err(fail(format!("it ended with {status}"))),
        Err(e) => Err(fail(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
                       202122232425262728292a2b2c2d2e2f303132333435363738393A3B3C3D3E3F";

    fn raw() -> [u8; KEY] {
        std::array::from_fn(|n| n as u8)
    }

    fn command(words: &[&str], limit: Duration) -> Result<Key> {
        let words: Vec<_> = words.iter().map(|word| word.to_string()).collect();
        from_command(&words, limit)
    }

    #[test]
    fn keys_are_raw_or_digits_and_random() {
        for good in [&raw()[..], HEX.as_bytes(), format!(" {HEX}\n").as_bytes()] {
            assert_eq!(*Key::read(good).unwrap().0, raw());
        }
        let twice = [7; 32].map(|b: u8| b ^ 0x5a);
        let mut twice = [twice, twice].concat();
        twice[0] ^= 1;
        twice[32] ^= 1;
        let bad: [&[u8]; 7] =
            [b"", &raw()[1..], &[0; 64], &[9; 64], &twice, &HEX.as_bytes()[1..], &[b'g'; 128]];
        assert!(bad.iter().all(|bytes| Key::read(bytes).is_none()));
    }

    #[test]
    fn a_file_that_others_may_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, HEX).unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let source = KeySource { key_file: Some(path.clone()), key_command: None };
            assert_eq!(source.load().is_ok(), good, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, &HEX[2..]).unwrap();
        let refused = from_file(&path).err().unwrap();
        assert!(!refused.message.contains(&HEX[2..20]), "{refused}");
        assert_eq!(from_file(&dir.path().join("none")).err().unwrap().kind, ErrorKind::NotFound);
        assert!(KeySource::default().load().is_err());
    }

    #[test]
    fn a_command_gives_the_key_or_is_told_apart() {
        let long = Duration::from_secs(60);
        let key = command(&["/bin/echo", HEX], long).unwrap();
        assert_eq!(*key.0, raw());
        let kind = |result: Result<Key>| result.err().map(|e| e.kind);
        assert_eq!(kind(command(&["/bin/echo", "x"], long)), Some(ErrorKind::Invalid));
        assert_eq!(kind(command(&["/nowhere"], long)), Some(ErrorKind::NotFound));
        assert_eq!(kind(command(&["/bin/false"], long)), Some(ErrorKind::Unavailable));
        assert_eq!(kind(command(&["/bin/cat", "/dev/zero"], long)), Some(ErrorKind::Unavailable));
        // It goes on in a child that holds the output.
        let hang = ["/bin/sh", "-c", "sleep 1000 & wait"];
        let refused = command(&hang, Duration::from_millis(50)).err().unwrap();
        assert!(refused.message.contains("has not ended"), "{refused}");
        assert_eq!(refused.kind, ErrorKind::Unavailable);
    }

    #[test]
    fn targets_with_one_key_have_nothing_in_common() {
        let key = Key::read(&raw()).unwrap();
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        assert_eq!(key.check(a), key.check(a));
        assert_ne!(key.check(a), key.check(b));
        assert_ne!(key.check(a), Key::read(&[&raw()[1..], &[9]].concat()).unwrap().check(a));
        let encrypted = |target| {
            let mut to = [0; 4096];
            key.cipher(target).encrypt(1, &[0; 4096], &mut to);
            to
        };
        assert_ne!(encrypted(a), encrypted(b));
        // What is on drives must stay readable. These are of another implementation (OpenSSL).
        let check = [0x8f, 0x95, 0x78, 0x3a, 0x42, 0x7d, 0xb7, 0x6c];
        let block = [0xb2, 0xe2, 0xb3, 0xdd, 0xdf, 0x0e, 0x98, 0x54];
        assert_eq!((&key.check(a)[..8], &encrypted(a)[..8]), (&check[..], &block[..]));
    }
}
