//! Which process serves a mount, as that notes it for the commands of this machine, and waiting for
//! its end: what was written is durable then, and not when the mount is out of sight.

use serde::Deserialize;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_fuse::resolve_mount_point;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// How often it is looked whether a process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What is read of a note.
#[derive(Deserialize)]
struct Note {
    path: PathBuf,
    process: Process,
    /// Its last word, if not all that was written could be made durable.
    failed: Option<String>,
}

#[derive(Deserialize)]
struct Process {
    pid: i32,
    /// In clock ticks since the machine was started.
    started: u64,
    boot: String,
}

impl Process {
    fn lives(&self) -> bool {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        boot.trim() == self.boot && start_of(self.pid) == Some(self.started)
    }
}

/// When the process was started that has this id; `None`: there is none, or it has ended.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, also blanks and brackets.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18)?.parse().ok()).flatten()
}

/// How the wait for the end of a process came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It has ended, and nothing was lost; or there is none.
    Good,
    /// It did not say that all is durable. This is told once.
    Bad(String),
    /// It has not ended.
    Lives(i32),
}

/// Waits until the process has ended that served what was mounted at a place.
pub async fn end(run: &Path, place: &Path, limit: Duration) -> io::Result<End> {
    let until = Instant::now() + limit;
    loop {
        let Some((file, note)) = find(run, place)? else { return Ok(End::Good) };
        if !note.process.lives() {
            // It may have said its last word just now.
            let Some((_, note)) = find(run, place)? else { return Ok(End::Good) };
            fs::remove_file(file)?;
            return Ok(End::Bad(note.failed.unwrap_or_else(|| "its process died".to_owned())));
        }
        if Instant::now() > until {
            return Ok(End::Lives(note.process.pid));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn find(run: &Path, place: &Path) -> io::Result<Option<(PathBuf, Note)>> {
    let place = match resolve_mount_point(place) {
        Err(e) if e.kind() == ErrorKind::NotFound => place.to_owned(),
        place => place?,
    };
    let all = match fs::read_dir(run.join("mounts")) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        all => all?,
    };
    for entry in all {
        let file = entry?.path();
        if file.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        // Of one that ends just now there is nothing left to read.
        let Ok(bytes) = fs::read(&file) else { continue };
        match serde_json::from_slice::<Note>(&bytes) {
            Ok(note) if note.path == place => return Ok(Some((file, note))),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_awaited_and_its_last_word_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let (run, place) = (folder.path().join("run"), folder.path().join("at"));
        let (soon, patience) = (Duration::from_millis(100), Duration::from_secs(60));
        assert_eq!(end(&run, &place, soon).await.unwrap(), End::Good, "there is none");
        fs::create_dir_all(run.join("mounts")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let boot = fs::read_to_string(BOOT_ID).unwrap().trim().to_owned();
        let process = serde_json::json!({
            "pid": pid, "started": start_of(pid).unwrap(), "boot": boot,
        });
        let note = |failed: Option<&str>| {
            let note = serde_json::json!({ "path": place, "process": process, "failed": failed });
            fs::write(run.join("mounts/at.json"), note.to_string()).unwrap();
        };
        note(None);
        assert_eq!(end(&run, &place, soon).await.unwrap(), End::Lives(pid));
        assert_eq!(end(&run, &folder.path().join("other"), soon).await.unwrap(), End::Good);
        child.kill().unwrap();
        // It has ended, also while nobody has heard of it.
        note(Some("no space"));
        assert_eq!(end(&run, &place, patience).await.unwrap(), End::Bad("no space".into()));
        assert_eq!(end(&run, &place, soon).await.unwrap(), End::Good, "it was told");
        child.wait().unwrap();
    }
}
