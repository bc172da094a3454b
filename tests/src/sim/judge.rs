//! What is true when all is over.

use super::calls::{LOOKS, until};
use super::clients::{get_mode, read};
use super::clocks::{CLIENT_CLOCKS, now};
use super::history::*;
use super::hosts::connect;
use super::linear::{Call, Op};
use super::storage::Host;
use super::turns;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use weft_client::{Filesystem, Finding, FsckReport, OpenFlags};
use weft_proto::{InodeId, TargetId};

/// Once all clients are done, and the admin is: reads everything back and has it checked.
pub async fn judge(seed: u64, history: Shared, storage: Vec<Arc<Host>>) -> turmoil::Result {
    let is_over = || history.borrow().is_over() && history.borrow().orders.is_empty();
    while !is_over() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let fs = connect("judge", seed, CLIENT_CLOCKS[0]).await?;
    let mut broken = names(&fs, &history).await;
    broken.extend(turns::judge(&fs, &history).await);
    for register in 0..MODES {
        read(&fs, &history, register, None).await;
    }
    for register in MODES..CONTENTS {
        get_mode(&fs, &history, register, None).await;
    }
    for register in CONTENTS..REGISTERS {
        let name = format!("r{register}");
        match read_back(&fs, name.as_bytes(), LARGE_LEN).await {
            Ok((start, found)) => match value_of(register, &found) {
                Ok(value) => {
                    note(&history, register, Call::new(Op::Read(value), start, now()));
                }
                Err(what) => broken.push(what),
            },
            Err(what) => broken.push(what),
        }
    }
    broken.extend(log(&fs, &history).await);
    broken.extend(fsck(&fs, &storage).await);
    history.borrow_mut().broken.extend(broken);
    Ok(())
}

/// Names that were made and are not there.
async fn names(fs: &Filesystem, history: &Shared) -> Vec<String> {
    let (mut found, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let Ok(page) = fs.read_dir(InodeId::ROOT, cookie, 1000, false).await else { continue };
        for entry in page.entries {
            cookie = entry.cookie;
            found.insert(String::from_utf8_lossy(&entry.name).into_owned());
        }
        if page.end {
            break;
        }
    }
    history.borrow().made.difference(&found).map(|name| format!("{name} is lost")).collect()
}

/// All of a file, and when that was asked last. An error says why it cannot be had, with no fault
/// any more.
async fn read_back(fs: &Filesystem, name: &[u8], len: usize) -> Result<(u64, Vec<u8>), String> {
    let found = until(async || {
        let (start, ino) = (now(), fs.lookup(InodeId::ROOT, name).await?.ino);
        let opened = fs.open(ino, OpenFlags::default()).await?;
        let data = fs.read(opened.handle, 0, len).await;
        fs.release(opened.handle).await?;
        Ok((start, data?.into_bytes().to_vec()))
    });
    let why = |why| format!("{} cannot be read: {why}", String::from_utf8_lossy(name));
    found.await.map_err(why)
}

/// What is wrong with the log that everybody appended to.
async fn log(fs: &Filesystem, history: &Shared) -> Vec<String> {
    let appended = history.borrow().appended.clone();
    if appended.is_empty() {
        return Vec::new();
    }
    let found = match read_back(fs, b"log", 1 << 20).await {
        Ok((_, found)) => found,
        Err(what) => return vec![what],
    };
    let mut broken = Vec::new();
    if found.len() % 8 != 0 {
        broken.push(format!("the log has {} bytes", found.len()));
    }
    let mut left = appended;
    for record in found.chunks_exact(8) {
        let value = u64::from_be_bytes(record.try_into().expect("eight bytes"));
        if left.remove(&value).is_none() {
            broken.push(format!("{value:#x} is in the log twice, or was never appended"));
        }
    }
    let lost = left.iter().filter(|(_, acknowledged)| **acknowledged);
    broken.extend(lost.map(|(value, _)| format!("{value:#x} is lost from the log")));
    broken
}

/// What `fsck` finds still when all that was left behind has had time to go. Of a target that was
/// replaced nothing can be known. A chunk whose header has rotted is lost with the index: an admin
/// has that told to the target.
async fn fsck(fs: &Filesystem, storage: &[Arc<Host>]) -> Vec<String> {
    let replaced = storage.iter().filter(|host| host.was_replaced()).count();
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        match fs.fsck(|_| ()).await {
            Ok(report) => {
                let is_away = |f: &&Finding| matches!(f, Finding::Unreachable { .. });
                let away = report.findings.iter().filter(is_away).count();
                let others = report.findings.iter().filter(|f| !is_away(f));
                found = others.map(|finding| format!("fsck: {finding}")).collect();
                if away > replaced {
                    found.push(format!("fsck: {away} targets cannot be checked"));
                }
                if found.is_empty() {
                    break;
                }
                fs.report_findings(&of_rot(fs, storage, &report)).await;
            }
            Err(error) => found = vec![format!("fsck: {error}")],
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    found
}

/// Findings about targets whose drives have rotted.
fn of_rot(fs: &Filesystem, storage: &[Arc<Host>], report: &FsckReport) -> FsckReport {
    let rotted = |address: &str| {
        let is_there = |host: &&Arc<Host>| address.starts_with(&format!("{}:", host.name()));
        storage.iter().find(is_there).is_some_and(|host| host.has_rotted())
    };
    let map = fs.cluster_map();
    let on = |target: TargetId| {
        map.targets.iter().any(|info| info.id == target.0 && rotted(&info.address))
    };
    let is_of_rot = |finding: &&Finding| match finding {
        Finding::Missing { target, .. } | Finding::WrongLength { target, .. } => on(*target),
        _ => false,
    };
    let findings = report.findings.iter().filter(is_of_rot).cloned().collect();
    FsckReport { findings, ..Default::default() }
}
