//! What the records of the namespace have against each other is found, and mended without losing
//! anything that is there; what is lost is said, and never read as zeros.

use anyhow::{Context, Result, ensure};
use prost::Message;
use rocksdb::{DB, IteratorMode, Options, SliceTransform};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_proto::v1;
use weft_tests::{Cluster, data, path, weft_ok};

const INODE: u8 = 0x10;
const DENTRY: u8 = 0x11;
const INDEX: u8 = 0x12;
const EXTENT: u8 = 0x13;
const SEGMENT: u8 = 0x20;
const GROUP: u8 = 0x42;
const MEMBER: u8 = 0x43;

/// The state of one metadata server that does not run.
struct State(DB);

/// What a name stands for.
#[derive(Clone, PartialEq, Message)]
struct Dentry {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint64, tag = "3")]
    cookie: u64,
}

/// A part of an inode's record: the rest stays as it is.
#[derive(Clone, PartialEq, Message)]
struct Links {
    #[prost(message, optional, tag = "1")]
    attr: Option<v1::Attr>,
}

/// A part of a placement group's.
#[derive(Clone, PartialEq, Message)]
struct Count {
    #[prost(uint64, tag = "3")]
    segments: u64,
}

impl State {
    fn open(dir: &Path) -> Result<Self> {
        let state = dir.join("state");
        let current = fs::read_to_string(state.join("current"))?;
        let mut options = Options::default();
        options.set_prefix_extractor(SliceTransform::create_fixed_prefix(11));
        Ok(Self(DB::open(&options, state.join(current.trim()))?))
    }

    fn records(&self, tag: u8) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut options = rocksdb::ReadOptions::default();
        options.set_total_order_seek(true);
        let all = self.0.iterator_opt(IteratorMode::Start, options);
        let all = all.map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())));
        let all: Vec<_> = all.collect::<Result<_, _>>()?;
        Ok(all.into_iter().filter(|(key, _)| key.get(2) == Some(&tag)).collect())
    }

    /// The key of a name, and what it says.
    fn name(&self, name: &str) -> Result<(Vec<u8>, Dentry)> {
        let names = self.records(DENTRY)?;
        let found = names.into_iter().find(|(key, _)| &key[11..] == name.as_bytes());
        let (key, value) = found.with_context(|| format!("no name {name}"))?;
        Ok((key, Dentry::decode(&value[..])?))
    }

    fn index(key: &[u8], dentry: &Dentry) -> Vec<u8> {
        [&[0, 0, INDEX], &key[3..11], &dentry.cookie.to_be_bytes()].concat()
    }

    fn of_inode(tag: u8, ino: u64) -> Vec<u8> {
        [&[0, 0, tag][..], &ino.to_be_bytes()].concat()
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        ensure!(self.0.get(key)?.is_some(), "nothing to delete at {key:02x?}");
        Ok(self.0.delete(key)?)
    }

    /// Sets some fields of a record.
    fn set(&self, key: &[u8], fields: impl Message) -> Result<()> {
        let mut value = self.0.get(key)?.with_context(|| format!("nothing at {key:02x?}"))?;
        value.extend(fields.encode_to_vec());
        Ok(self.0.put(key, value)?)
    }

    /// The segments of a file.
    fn segments(&self, ino: u64) -> Result<BTreeSet<(u64, u64)>> {
        let prefix = Self::of_inode(EXTENT, ino);
        let mut found = BTreeSet::new();
        for (_, value) in self.records(EXTENT)?.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            if let Some(v1::extent::Source::Segment(part)) = v1::Extent::decode(&value[..])?.source
            {
                let id = part.id.context("an id")?;
                found.insert((id.session, id.seq));
            }
        }
        Ok(found)
    }
}

/// Kinds and texts.
fn findings(of: &Value) -> Vec<(String, String)> {
    let text = |f: &Value, field: &str| f[field].as_str().unwrap_or_default().to_owned();
    let all = of.as_array().into_iter().flatten();
    all.map(|f| (text(f, "kind"), text(f, "text"))).collect()
}

/// Does the same damage to the state of each server of a cluster that is stopped.
fn damage(cluster: &Cluster, how: impl Fn(&State) -> Result<()>) -> Result<()> {
    for id in 1..=3 {
        let state = State::open(&cluster.dir().join(format!("metadata-{id}")))?;
        how(&state).with_context(|| format!("server {id}"))?;
    }
    Ok(())
}

const FILES: [&str; 8] =
    ["whole", "no-index", "no-dentry", "no-name", "no-inode", "links", "unlisted", "no-segment"];

/// Plants one damage of each sort.
fn plant(state: &State) -> Result<()> {
    let at = |name| state.name(name);
    let (key, dentry) = at("no-index")?;
    state.delete(&State::index(&key, &dentry))?;
    state.delete(&at("no-dentry")?.0)?;
    let (key, dentry) = at("no-name")?;
    state.delete(&State::index(&key, &dentry))?;
    state.delete(&key)?;
    state.delete(&State::of_inode(INODE, at("no-inode")?.1.ino))?;
    let attr = Some(v1::Attr { nlink: 9, ..Default::default() });
    state.set(&State::of_inode(INODE, at("links")?.1.ino), Links { attr })?;
    let attr = Some(v1::Attr { nlink: 40, size: 1, ..Default::default() });
    state.set(&State::of_inode(INODE, at("d")?.1.ino), Links { attr })?;
    let unlisted = state.segments(at("unlisted")?.1.ino)?;
    let lost = state.segments(at("no-segment")?.1.ino)?;
    ensure!(!unlisted.is_empty() && !lost.is_empty());
    let ends_in = |key: &[u8], (session, seq): &(u64, u64)| {
        key.ends_with(&[session.to_be_bytes(), seq.to_be_bytes()].concat())
    };
    for (key, _) in state.records(MEMBER)? {
        if unlisted.iter().any(|id| ends_in(&key, id)) {
            state.delete(&key)?;
        }
    }
    for (key, _) in state.records(SEGMENT)? {
        if lost.iter().any(|id| ends_in(&key, id)) {
            state.delete(&key)?;
        }
    }
    let groups = state.records(GROUP)?;
    for (key, _) in groups.iter().take(3) {
        state.set(key, Count { segments: 77 })?;
    }
    Ok(())
}

#[test]
fn what_the_namespace_has_against_itself_is_mended() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("d");
    fs::create_dir(&dir)?;
    let bytes = |name: &str| data::bytes(name.len() as u64, 3 << 20);
    for name in FILES {
        fs::write(dir.join(name), bytes(name))?;
    }
    fs::hard_link(dir.join("links"), dir.join("other link"))?;
    weft_ok(&["umount", path(cluster.mnt())])?;
    cluster.await_clean()?;
    cluster.stop()?;
    damage(&cluster, plant)?;
    cluster.start_again()?;

    let (clean, found) = cluster.fsck()?;
    let found = findings(&found["findings"]);
    ensure!(!clean && found.len() >= 9, "{found:#?}");
    // Somebody knows it as it is, and has it open.
    ensure!(fs::metadata(dir.join("links"))?.nlink() == 9 && fs::read_dir(&dir)?.count() > 0);
    let open = fs::File::open(dir.join("links"))?;
    let (clean, mended) = cluster.fsck_with(&["--repair"])?;
    let left = findings(&mended["findings"]);
    ensure!(!clean && left.iter().all(|(kind, _)| kind == "lost") && left.len() == 1, "{left:#?}");
    ensure!(mended["lost_files"] == serde_json::json!(["/d/no-segment"]), "{mended}");
    let told = findings(&mended["mended"]);
    ensure!(told.iter().filter(|(kind, _)| kind == "metadata").count() >= 9, "{told:#?}");

    drop(open);
    let names = fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let names: BTreeSet<Option<String>> = names.collect::<Result<_>>()?;
    let want = FILES.iter().copied().filter(|name| *name != "no-name").chain(["other link"]);
    ensure!(names == want.map(|name| Some(name.to_owned())).collect(), "{names:?}");
    for name in ["whole", "no-index", "no-dentry", "no-inode", "links", "unlisted"] {
        ensure!(fs::read(dir.join(name))? == bytes(name), "{name} has changed");
    }
    ensure!(fs::metadata(dir.join("links"))?.nlink() == 2 && fs::metadata(&dir)?.nlink() == 2);
    let made = fs::metadata(dir.join("no-inode"))?;
    ensure!((made.mode() & 0o7777, made.uid()) == (0o600, 0), "{made:?}");
    let found = cluster.mnt().join("lost+found");
    let found: Vec<PathBuf> =
        fs::read_dir(&found)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(found.len() == 1 && fs::read(&found[0])? == bytes("no-name"), "{found:?}");
    // Not zeros, and it can be used again.
    let lost = dir.join("no-segment");
    let read = fs::read(&lost);
    ensure!(read.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EIO)), "{read:?}");
    fs::write(&lost, bytes("new"))?;
    ensure!(fs::read(&lost)? == bytes("new"));
    fs::remove_file(dir.join("no-dentry"))?;
    fs::remove_file(&found[0])?;
    cluster.await_clean()?;
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}
