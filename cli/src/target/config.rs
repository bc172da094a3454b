//! The configuration file of a storage daemon as an admin keeps it: targets are added and taken
//! away as text, so that comments and order stay.
//!
//! Invariants: what is written was parsed again and says exactly what was meant; who changes the
//! file holds its lock from before reading it until it is durable.

use crate::durable;
use crate::storaged::read;
use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::path::{Path, PathBuf};
use std::{fs, io};
use weft_storaged::{Config, Target};

const HEADER: &str = "[[targets]]";
/// Tables in such a section.
const WITHIN: &str = "[targets.";

/// What to tell an admin after a change.
pub const RELOAD: &str =
    "a daemon that runs takes it over with `systemctl reload weft-storaged` (or SIGHUP)";

/// A configuration file and what it says, for who may change it.
pub struct File {
    path: PathBuf,
    /// As it was read.
    before: String,
    text: String,
    pub config: Config,
    _lock: Flock<fs::File>,
}

impl File {
    /// Waits until no other command changes it.
    pub fn lock(path: &Path) -> Result<Self> {
        let there = path.canonicalize();
        let there = there.with_context(|| format!("cannot read {}", path.display()))?;
        let lock = lock(&there).with_context(|| format!("cannot lock {}", path.display()))?;
        let config = read(path)?;
        let text = fs::read_to_string(path)?;
        let before = text.clone();
        Ok(Self { path: path.into(), before, text, config, _lock: lock })
    }

    /// The section of a target.
    pub fn find(&self, path: &Path) -> Result<&Target> {
        let found = self.config.targets.iter().find(|t| t.path == path);
        found.with_context(|| format!("{} has no target {}", self.path.display(), path.display()))
    }

    /// With one more target. Nothing is written. Errors: the whole would not be a sound
    /// configuration.
    pub fn with(self, target: &Target) -> Result<Self> {
        let mut config = self.config.clone();
        config.targets.push(target.clone());
        config.validate().with_context(|| format!("{} stays as it is", self.path.display()))?;
        let mut text = self.text.trim_end().to_string();
        let section = Sections { targets: vec![target.clone()] };
        text.push_str(&format!("\n\n{}", toml::to_string(&section)?));
        Self { text, config, ..self }.checked()
    }

    /// Without the target.
    pub fn without(self, path: &Path) -> Result<Self> {
        let mut config = self.config.clone();
        config.targets.retain(|t| t.path != path);
        let mut text = String::new();
        for section in sections(&self.text) {
            let of = section.starts_with(HEADER).then(|| toml::from_str::<Sections>(section).ok());
            let its = of.flatten().is_some_and(|s| s.targets.iter().any(|t| t.path == path));
            // Comments before the next section belong to that.
            text.push_str(if its { trailing_comments(section) } else { section });
        }
        Self { text, config, ..self }.checked()
    }

    fn checked(self) -> Result<Self> {
        let again: Config = toml::from_str(&self.text).context("the changed configuration")?;
        ensure!(
            again == self.config,
            "{} is written in a way that this command cannot change; edit it by hand",
            self.path.display()
        );
        Ok(self)
    }

    /// Replaces the file, whole or not at all.
    pub fn write(&self) -> Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        let now = fs::read_to_string(&self.path).with_context(what)?;
        ensure!(
            now == self.before,
            "{} was changed meanwhile, and stays as it is now: say the same again",
            self.path.display()
        );
        let permissions = fs::metadata(&self.path).ok().map(|meta| meta.permissions());
        durable::replace(&self.path, self.text.as_bytes(), permissions).with_context(what)
    }
}

/// The lock of its folder: the file itself is another after each change.
fn lock(path: &Path) -> io::Result<Flock<fs::File>> {
    let folder = fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    let locked = match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
        Err((folder, Errno::EWOULDBLOCK)) => {
            eprintln!("weft: waiting for another command that changes {}", path.display());
            Flock::lock(folder, FlockArg::LockExclusive)
        }
        locked => locked,
    };
    locked.map_err(|(_, errno)| errno.into())
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Sections {
    targets: Vec<Target>,
}

/// The text in pieces, each but the first from one section header to the next; what is in a section
/// belongs to it.
fn sections(text: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') && !line.starts_with(WITHIN) {
            starts.push(at);
        }
        at += line.len();
    }
    starts.push(text.len());
    starts.windows(2).map(|w| &text[w[0]..w[1]]).collect()
}

fn trailing_comments(section: &str) -> &str {
    let (mut at, mut end) = (0, 0);
    for line in section.split_inclusive('\n') {
        at += line.len();
        if !line.trim().is_empty() && !line.starts_with('#') {
            end = at;
        }
    }
    &section[end..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_storaged::engine::KeySource;

    const TEXT: &str = r#"# a comment
name = "s1"
listen = "0.0.0.0:7100"
metadata = ["m1:7000"]

# the first
[[targets]]
path = "/data/t1"
size = "64GiB"

# the second
[[targets]]
path = "/dev/x"   # by hand
index = "/var/x"
[targets.encryption]
key_file = "/etc/x.key"
"#;

    fn file(dir: &Path) -> File {
        let path = dir.join("storaged.toml");
        fs::write(&path, TEXT).unwrap();
        File::lock(&path).unwrap()
    }

    #[test]
    fn targets_come_and_go_and_comments_stay() {
        let dir = tempfile::tempdir().unwrap();
        let encryption = Some(KeySource { key_file: Some("/k".into()), key_command: None });
        let index = Some("/i".into());
        let third = Target { index, encryption, ..Target::new("/dev/z", Some(1 << 30)) };
        file(dir.path()).with(&third).unwrap().write().unwrap();
        let again = File::lock(&dir.path().join("storaged.toml")).unwrap();
        assert!(again.text.starts_with(TEXT));
        assert_eq!(again.config.targets[2], third);
        assert!(again.with(&third).is_err(), "listed twice");

        let less = file(dir.path()).without(Path::new("/data/t1")).unwrap();
        assert!(less.text.contains("# the second") && !less.text.contains("/data/t1"));
        drop(less);
        let less = file(dir.path()).without(Path::new("/dev/x")).unwrap();
        assert_eq!(less.config.targets.len(), 1);
        assert!(!less.text.contains("key_file"), "its key goes with it: {}", less.text);
        drop(less);
        assert!(file(dir.path()).find(Path::new("/dev/y")).is_err());

        // An editor takes no lock.
        let less = file(dir.path()).without(Path::new("/data/t1")).unwrap();
        let edited = format!("{TEXT}\n# and more\n");
        fs::write(dir.path().join("storaged.toml"), &edited).unwrap();
        assert!(less.write().unwrap_err().to_string().contains("was changed meanwhile"));
        assert_eq!(fs::read_to_string(dir.path().join("storaged.toml")).unwrap(), edited);
    }
}
