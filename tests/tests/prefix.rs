//! What is left of what a killed mount did and had not synced. Names the invariants (design §2)
//! that each test holds up.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use weft_tests::{Cluster, eventually, path, tries, weft_ok};

/// What is done to a tree; paths are relative to it.
#[derive(Clone, Debug)]
enum Op {
    MkDir(String),
    Create(String),
    /// Written whole, and closed.
    Write(String, u64),
    SymLink(String),
    Rename(String, String),
    Unlink(String),
    RmDir(String),
    /// All before is durable.
    Sync,
}

#[derive(Clone, PartialEq, Debug)]
enum Node {
    Dir,
    File(Vec<u8>),
    Link,
}

type Tree = BTreeMap<String, Node>;

/// Of a few bytes, or of a few stripes.
fn content(id: u64) -> Vec<u8> {
    weft_tests::data::bytes(
        id,
        1 + (id as usize * 7919) % (if id.is_multiple_of(8) { 300_000 } else { 3000 }),
    )
}

fn apply(tree: &mut Tree, op: &Op) {
    match op {
        Op::MkDir(at) => drop(tree.insert(at.clone(), Node::Dir)),
        Op::Create(at) => drop(tree.insert(at.clone(), Node::File(Vec::new()))),
        Op::Write(at, id) => drop(tree.insert(at.clone(), Node::File(content(*id)))),
        Op::SymLink(at) => drop(tree.insert(at.clone(), Node::Link)),
        Op::Rename(from, to) => {
            if let Some(moved) = tree.remove(from) {
                tree.insert(to.clone(), moved);
            }
        }
        Op::Unlink(at) | Op::RmDir(at) => drop(tree.remove(at)),
        Op::Sync => {}
    }
}

fn carry_out(root: &Path, op: &Op) -> io::Result<()> {
    match op {
        Op::MkDir(at) => fs::create_dir(root.join(at)),
        Op::Create(at) => {
            OpenOptions::new().write(true).create_new(true).open(root.join(at)).map(drop)
        }
        Op::Write(at, id) => {
            let mut file = OpenOptions::new().write(true).open(root.join(at))?;
            file.write_all(&content(*id))?;
            Ok(nix::unistd::close(file)?)
        }
        Op::SymLink(at) => symlink("there", root.join(at)),
        Op::Rename(from, to) => fs::rename(root.join(from), root.join(to)),
        Op::Unlink(at) => fs::remove_file(root.join(at)),
        Op::RmDir(at) => fs::remove_dir(root.join(at)),
        Op::Sync => File::open(root)?.sync_all(),
    }
}

/// What to do next to a tree: the same for the same numbers.
fn next(tree: &Tree, n: u64, chance: &mut impl FnMut(usize) -> usize) -> Op {
    let paths = |is: fn(&Node) -> bool| -> Vec<&String> {
        tree.iter().filter(|(_, node)| is(node)).map(|(at, _)| at).collect()
    };
    let dirs = paths(|node| *node == Node::Dir);
    let others = paths(|node| *node != Node::Dir);
    let empty = paths(|node| *node == Node::File(Vec::new()));
    let place = |chance: &mut dyn FnMut(usize) -> usize| match chance(dirs.len() + 1) {
        0 => format!("n{n}"),
        at => format!("{}/n{n}", dirs[at - 1]),
    };
    match chance(20) {
        0 if dirs.len() < 30 => Op::MkDir(place(chance)),
        1 => Op::SymLink(place(chance)),
        2 | 3 if !others.is_empty() => {
            let from = others[chance(others.len())].clone();
            let to = match chance(2) {
                0 => place(chance),
                _ => others[chance(others.len())].clone(),
            };
            if from == to { Op::Sync } else { Op::Rename(from, to) }
        }
        4 | 5 if !others.is_empty() => Op::Unlink(others[chance(others.len())].clone()),
        6 => {
            let is_empty =
                |dir: &&&String| !tree.keys().any(|at| at.starts_with(&format!("{dir}/")));
            let none: Vec<_> = dirs.iter().filter(is_empty).collect();
            match none.is_empty() {
                true => Op::MkDir(place(chance)),
                false => Op::RmDir(none[chance(none.len())].to_string()),
            }
        }
        7 if chance(8) == 0 => Op::Sync,
        8..13 if !empty.is_empty() => Op::Write(empty[chance(empty.len())].clone(), n),
        _ => Op::Create(place(chance)),
    }
}

/// Goes on until the mount is gone. Answers all that was begun, and with what the last ended.
fn work(root: &Path, seed: u64, done: &AtomicUsize) -> (Vec<Op>, io::Error) {
    let mut state = seed;
    let mut chance = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let (mut tree, mut ops) = (Tree::new(), Vec::new());
    loop {
        let op = next(&tree, ops.len() as u64, &mut chance);
        ops.push(op.clone());
        if let Err(error) = carry_out(root, &op) {
            return (ops, error);
        }
        apply(&mut tree, &op);
        done.store(ops.len(), Ordering::Relaxed);
    }
}

fn found(root: &Path) -> Result<Tree> {
    let (mut tree, mut rest) = (Tree::new(), vec![PathBuf::new()]);
    while let Some(dir) = rest.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let at = dir.join(entry.file_name());
            let kind = entry.file_type()?;
            let node = match () {
                () if kind.is_dir() => {
                    rest.push(at.clone());
                    Node::Dir
                }
                () if kind.is_symlink() => Node::Link,
                () => Node::File(fs::read(entry.path())?),
            };
            tree.insert(path(&at).to_string(), node);
        }
    }
    Ok(tree)
}

/// Paths of which the next that is done is to remove what is there. If that was never told, it
/// never will be.
fn removed_next(ops: &[Op]) -> BTreeSet<&str> {
    let (mut seen, mut removed) = (BTreeSet::new(), BTreeSet::new());
    for op in ops {
        match op {
            Op::Unlink(at) | Op::RmDir(at) if seen.insert(at.as_str()) => {
                removed.insert(at.as_str());
            }
            Op::Rename(from, to) => seen.extend([from.as_str(), to.as_str()]),
            _ => {}
        }
    }
    removed
}

/// I2: what is left is a state that there was, and none from before the last sync; but for what was
/// made and removed before anybody had heard of it.
fn is_prefix(ops: &[Op], left: &Tree) -> Result<()> {
    // The last may have been carried out, and not answered.
    let synced = ops[..ops.len() - 1].iter().rposition(|op| matches!(op, Op::Sync));
    let from = synced.map_or(0, |at| at + 1);
    let mut tree = Tree::new();
    let mut nearest = (usize::MAX, 0);
    for n in 0..=ops.len() {
        if n >= from {
            let gone = removed_next(&ops[n..]);
            let is_left = |(at, node): &(&String, &Node)| match left.get(*at) {
                None => gone.contains(at.as_str()),
                left => left == Some(*node),
            };
            let differ = tree.iter().filter(|node| !is_left(node)).count()
                + left.keys().filter(|at| !tree.contains_key(*at)).count();
            if differ == 0 {
                return Ok(());
            }
            nearest = nearest.min((differ, n));
        }
        if let Some(op) = ops.get(n) {
            apply(&mut tree, op);
        }
    }
    let (differ, n) = nearest;
    let mut near = Tree::new();
    ops[..n].iter().for_each(|op| apply(&mut near, op));
    let len = |node: Option<&Node>| match node {
        Some(Node::File(bytes)) => format!("a file of {} bytes", bytes.len()),
        other => format!("{other:?}"),
    };
    let names: BTreeSet<_> = near.keys().chain(left.keys()).collect();
    let what: Vec<_> = names
        .into_iter()
        .filter(|at| near.get(*at) != left.get(*at))
        .take(5)
        .map(|at| format!("{at}: {} and not {}", len(left.get(at)), len(near.get(at))))
        .collect();
    let around = &ops[n.saturating_sub(5)..(n + 5).min(ops.len())];
    ensure!(
        false,
        "no state of {from}..={}: {differ} differ from {n}: {what:?}; {around:?}",
        ops.len()
    );
    Ok(())
}

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Has some mounts, the first of which has this number, work beside each other, kills one after the
/// other, and compares what each has left.
fn kill(cluster: &Cluster, first: usize, mounts: usize) -> Result<()> {
    let address = cluster.address()?;
    let (mut roots, mut enough) = (Vec::new(), Vec::new());
    for n in first..first + mounts {
        let mount = cluster.scratch(&format!("mount{n}"))?;
        weft_ok(&["mount", "--cluster", &address, path(&mount)])?;
        let root = mount.join(format!("tree{n}"));
        fs::create_dir(&root)?;
        roots.push((n, mount, root));
    }
    let done: Vec<_> = (0..mounts).map(|_| AtomicUsize::new(0)).collect();
    let worked = thread::scope(|s| -> Result<Vec<_>> {
        let workers: Vec<_> = (roots.iter().zip(&done))
            .map(|((n, _, root), done)| s.spawn(move || work(root, *n as u64, done)))
            .collect();
        for (at, ((n, mount, _), done)) in roots.iter().zip(&done).enumerate() {
            // Each at another point, and later than the one before.
            let some = 300 + at * 777 + n * 389 % 700;
            let _ = eventually(Duration::from_secs(120), "enough is done", || {
                let ended = workers[at].is_finished();
                (ended || done.load(Ordering::Relaxed) >= some).then_some(())
            });
            // Also if it was not, or the others would go on for ever.
            cluster.kill_mount(mount)?;
            enough.push(some);
        }
        Ok(workers.into_iter().map(|worker| worker.join().expect("a worker")).collect())
    })?;
    for (((n, ..), (ops, error)), some) in roots.iter().zip(&worked).zip(enough) {
        let (begun, last) = (ops.len(), ops.last());
        ensure!(begun > some, "mount {n} ended at {begun} of {some}: {last:?}: {error}");
        let tree = cluster.mnt().join(format!("tree{n}"));
        is_prefix(ops, &found(&tree)?).with_context(|| format!("mount {n} after {begun}"))?;
        // What 144 of them leave fills the cluster.
        fs::remove_dir_all(tree)?;
    }
    Ok(())
}

/// `WEFT_TRIES` mounts are killed, the first of which has the number `WEFT_SEED`.
#[test]
fn what_a_killed_mount_leaves_is_a_prefix() -> Result<()> {
    const AT_ONCE: usize = 6;
    let cluster = Cluster::start()?;
    let from = number("WEFT_SEED", 0);
    let to = from + tries(AT_ONCE as u64) as usize;
    for first in (from..to).step_by(AT_ONCE) {
        kill(&cluster, first, AT_ONCE.min(to - first))?;
    }
    cluster.await_clean()
}
