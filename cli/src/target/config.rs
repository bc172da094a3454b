//! The configuration file of a storage daemon as an admin keeps it: targets are added and taken
//! away as text, so that comments and order stay.
//!
//! Invariant: what is written was parsed again and says exactly what was meant.

use crate::durable;
use crate::storaged::read;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use weft_storaged::{Config, Target};

const HEADER: &str = "[[targets]]";
/// Tables in such a section.
const WITHIN: &str = "[targets.";

/// What to tell an admin after a change.
pub const RELOAD: &str =
    "a daemon that runs takes it over with `systemctl reload weft-storaged` (or SIGHUP)";

/// A configuration file and what it says.
pub struct File {
    path: PathBuf,
    text: String,
    pub config: Config,
}

impl File {
    pub fn read(path: &Path) -> Result<Self> {
        let config = read(path)?;
        let text = fs::read_to_string(path)?;
        Ok(Self { path: path.into(), text, config })
    }

    /// The section of a target.
    pub fn find(&self, path: &Path) -> Result<&Target> {
        let found = self.config.targets.iter().find(|t| t.path == path);
        found.with_context(|| format!("{} has no target {}", self.path.display(), path.display()))
    }

    /// With one more target. Nothing is written. Errors: the whole would not be a sound
    /// configuration.
    pub fn with(self, target: &Target) -> Result<Self> {
        let mut config = self.config;
        config.targets.push(target.clone());
        config.validate().with_context(|| format!("{} stays as it is", self.path.display()))?;
        let mut text = self.text.trim_end().to_string();
        let section = Sections { targets: vec![target.clone()] };
        text.push_str(&format!("\n\n{}", toml::to_string(&section)?));
        Self { path: self.path, text, config }.checked()
    }

    /// Without the target.
    pub fn without(self, path: &Path) -> Result<Self> {
        let mut config = self.config;
        config.targets.retain(|t| t.path != path);
        let mut text = String::new();
        for section in sections(&self.text) {
            let of = section.starts_with(HEADER).then(|| toml::from_str::<Sections>(section).ok());
            let its = of.flatten().is_some_and(|s| s.targets.iter().any(|t| t.path == path));
            // Comments before the next section belong to that.
            text.push_str(if its { trailing_comments(section) } else { section });
        }
        Self { path: self.path, text, config }.checked()
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
        let permissions = fs::metadata(&self.path).ok().map(|meta| meta.permissions());
        durable::replace(&self.path, self.text.as_bytes(), permissions).with_context(what)
    }
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
        File::read(&path).unwrap()
    }

    #[test]
    fn targets_come_and_go_and_comments_stay() {
        let dir = tempfile::tempdir().unwrap();
        let encryption = Some(KeySource { key_file: Some("/k".into()), key_command: None });
        let index = Some("/i".into());
        let third = Target { index, encryption, ..Target::new("/dev/z", Some(1 << 30)) };
        file(dir.path()).with(&third).unwrap().write().unwrap();
        let again = File::read(&dir.path().join("storaged.toml")).unwrap();
        assert!(again.text.starts_with(TEXT));
        assert_eq!(again.config.targets[2], third);
        assert!(again.with(&third).is_err(), "listed twice");

        let less = file(dir.path()).without(Path::new("/data/t1")).unwrap();
        assert!(less.text.contains("# the second") && !less.text.contains("/data/t1"));
        let less = file(dir.path()).without(Path::new("/dev/x")).unwrap();
        assert_eq!(less.config.targets.len(), 1);
        assert!(!less.text.contains("key_file"), "its key goes with it: {}", less.text);
        assert!(file(dir.path()).find(Path::new("/dev/y")).is_err());
    }
}
