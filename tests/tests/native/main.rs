//! A program that uses the library and one that uses a mount see one filesystem (I6): every
//! operation on one side, what the other could have cached before looked at right after.
//!
//! `WEFT_TRIES=1000` repeats each more often than the test suite does.

mod side;

use anyhow::{Context, Result, bail, ensure};
use side::{Library, Mount, Side};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use weft_client::blocking::{ConnectOptions, Connection, File, User};
use weft_client::{LockKind, OpenFlags, ReadItem};
use weft_proto::ErrorKind;
use weft_tests::{Cluster, eventually, path, tries, weft_binary};

/// In the test suite.
const TRIES: u64 = 20;

/// One row: `act` on one side after both have looked, then `sees` on the other must hold.
struct Row {
    name: &'static str,
    act: fn(&dyn Side, &str) -> Result<()>,
    sees: fn(&dyn Side, &str) -> Result<()>,
}

/// Both sides cache what they may: of a file `f`, a name `g` that is free, an empty directory `e`.
fn look(side: &dyn Side) -> Result<()> {
    ensure!(side.read("f")? == b"old content");
    ensure!(side.stat("g")?.is_none() && side.stat("e")?.is_some());
    ensure!(side.list(".")?.len() == 2 && side.list("e")?.is_empty());
    ensure!(side.xattr("f")? == b"old");
    Ok(())
}

fn holds(side: &dyn Side, name: &str, content: &[u8]) -> Result<()> {
    let (read, stat) = (side.read(name)?, side.stat(name)?);
    ensure!(read == content, "{name} holds {:?}", String::from_utf8_lossy(&read));
    ensure!(stat.is_some_and(|(_, size)| size == content.len() as u64), "{stat:?}");
    Ok(())
}

fn gone(side: &dyn Side, name: &str) -> Result<()> {
    ensure!(side.stat(name)?.is_none(), "{name} is still there");
    ensure!(side.read(name).is_err(), "{name} can still be read");
    ensure!(side.list(".")?.iter().all(|listed| listed != name), "{name} is still listed");
    Ok(())
}

const ROWS: &[Row] = &[
    Row {
        name: "create -> stat, read, list",
        act: |s, i| s.write("g", i.as_bytes()),
        sees: |s, i| {
            ensure!(s.list(".")?.iter().any(|name| name == "g"));
            holds(s, "g", i.as_bytes())
        },
    },
    Row { name: "unlink -> all", act: |s, _| s.unlink("f"), sees: |s, _| gone(s, "f") },
    Row {
        name: "rename -> both names",
        act: |s, _| s.rename("f", "g"),
        sees: |s, _| holds(s, "g", b"old content").and_then(|()| gone(s, "f")),
    },
    Row {
        name: "move into a directory -> both",
        act: |s, _| s.rename("f", "e/f"),
        sees: |s, _| holds(s, "e/f", b"old content").and_then(|()| gone(s, "f")),
    },
    Row {
        name: "rewrite -> content, size",
        act: |s, i| s.write("f", i.as_bytes()),
        sees: |s, i| holds(s, "f", i.as_bytes()),
    },
    Row {
        name: "append -> content, size",
        act: |s, i| s.append("f", i.as_bytes()),
        sees: |s, i| holds(s, "f", format!("old content{i}").as_bytes()),
    },
    Row {
        name: "truncate -> content, size",
        act: |s, _| s.truncate("f", 3),
        sees: |s, _| holds(s, "f", b"old"),
    },
    Row {
        name: "chmod -> mode",
        act: |s, _| s.chmod("f", 0o604),
        sees: |s, _| {
            ensure!(s.stat("f")?.is_some_and(|(mode, _)| mode == 0o604));
            Ok(())
        },
    },
    Row {
        name: "mkdir -> stat, use, list",
        act: |s, _| s.mkdir("g"),
        sees: |s, i| {
            ensure!(s.list("g")?.is_empty());
            s.write("g/x", i.as_bytes())?;
            holds(s, "g/x", i.as_bytes())?;
            s.unlink("g/x")
        },
    },
    Row {
        name: "rmdir -> stat, list",
        act: |s, _| s.rmdir("e"),
        sees: |s, _| {
            ensure!(s.stat("e")?.is_none() && s.list("e").is_err());
            ensure!(s.list(".")? == ["f"]);
            Ok(())
        },
    },
    Row {
        name: "link -> other name",
        act: |s, _| s.link("f", "g"),
        sees: |s, _| holds(s, "g", b"old content"),
    },
    Row {
        name: "symlink -> readlink, read",
        act: |s, _| s.symlink("f", "g"),
        sees: |s, _| {
            ensure!(s.readlink("g")? == b"f" && s.read("g")? == b"old content");
            Ok(())
        },
    },
    Row {
        name: "setxattr -> getxattr",
        act: |s, i| s.set_xattr("f", i.as_bytes()),
        sees: |s, i| {
            ensure!(s.xattr("f")? == i.as_bytes());
            Ok(())
        },
    },
];

fn connect(cluster: &Cluster) -> Result<Connection> {
    let mut options = ConnectOptions::new(&cluster.address()?)?;
    options.client.transport = cluster.transport()?;
    Ok(Connection::connect(options)?)
}

#[test]
fn what_one_side_did_the_other_sees() -> Result<()> {
    let cluster = Cluster::start()?;
    let (first, second) = (connect(&cluster)?, connect(&cluster)?);
    let sides = |dir: &str| -> Result<[Box<dyn Side>; 3]> {
        let library = |connection: &Connection| -> Result<Box<dyn Side>> {
            let user = connection.as_this_process();
            Ok(Box::new(Library(user.at(user.lookup(dir)?))))
        };
        Ok([Box::new(Mount(cluster.mnt().join(dir))), library(&first)?, library(&second)?])
    };
    for row in ROWS {
        for (acts, watches) in [(0, 1), (1, 0), (1, 2)] {
            for i in 0..tries(TRIES) {
                let dir = format!("{}-{acts}-{watches}-{i}", row.name.replace([' ', '/'], "_"));
                fs::create_dir(cluster.mnt().join(&dir))?;
                let sides = sides(&dir)?;
                let (acting, watching) = (&*sides[acts], &*sides[watches]);
                let content = format!("content {i}");
                let round = || {
                    acting.write("f", b"old content")?;
                    acting.set_xattr("f", b"old")?;
                    acting.mkdir("e")?;
                    look(acting)?;
                    look(watching)?;
                    (row.act)(acting, &content)?;
                    (row.sees)(watching, &content)
                };
                let what = || format!("{}: side {acts} acts, {watches} looks, try {i}", row.name);
                round().with_context(what)?;
                drop(sides);
                fs::remove_dir_all(cluster.mnt().join(&dir))?;
            }
        }
        println!("{:48} {} tries each way, none stale", row.name, tries(TRIES));
    }
    second.disconnect()?;
    first.disconnect()?;
    Ok(())
}

/// What is asked of many files costs few requests.
#[test]
fn a_batch_of_small_files_is_few_requests() -> Result<()> {
    const FILES: usize = 600;
    let cluster = Cluster::start()?;
    let content = |i: usize| vec![i as u8; 20_000 + i];
    let name = |i: usize| format!("d{}/{i}", i % 3);
    // Who has written them is gone, and holds nothing any more.
    let writer = connect(&cluster)?;
    let side = Library(writer.as_this_process());
    for dir in 0..3 {
        side.mkdir(&format!("d{dir}"))?;
    }
    for i in 0..FILES {
        side.write(&name(i), &content(i))?;
    }
    drop(side);
    writer.disconnect()?;

    let items = || (0..FILES).map(|i| ReadItem::whole(name(i))).collect();
    let mut asked = u64::MAX;
    // What was just taken back from others is not granted to everybody at once.
    eventually(Duration::from_secs(60), "few requests read many files", || {
        let connection = connect(&cluster).ok()?;
        let requests = || connection.filesystem().counters().metadata_requests;
        let before = requests();
        let (mut read, mut wrong) = (0, Vec::new());
        let take = |i, data: weft_proto::Result<weft_client::ReadData>| match data {
            Ok(data) if data.clone().into_bytes() == content(i) => read += 1,
            other => wrong.push((i, other.map(|data| data.len()))),
        };
        connection.as_this_process().read_many(items(), take).ok()?;
        assert!(read == FILES && wrong.is_empty(), "{read} are right, not {wrong:?}");
        asked = requests() - before;
        connection.disconnect().ok()?;
        (asked < FILES as u64 / 20).then_some(())
    })
    .with_context(|| format!("{FILES} files took {asked} requests"))
}

/// Whatever was acknowledged while others disconnect is there.
#[test]
fn what_is_acknowledged_while_it_disconnects_is_kept() -> Result<()> {
    const LEN: usize = 3000;
    let cluster = Cluster::start()?;
    for round in 0..15 {
        let connection = connect(&cluster)?;
        let user = connection.as_this_process();
        let dir = format!("d{round}");
        user.mkdir(&dir, 0o755)?;
        let (begun, begins) = std::sync::mpsc::channel();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (user, begun, dir) = (user.clone(), begun.clone(), dir.clone());
                std::thread::spawn(move || {
                    let mut kept = Vec::new();
                    for number in 0.. {
                        let name = format!("{dir}/{writer}-{number}");
                        let flags = OpenFlags { write: true, ..Default::default() };
                        let Ok(file) = user.create(&name, 0o644, flags) else { break };
                        let written = file.write(0, &[writer as u8; LEN]);
                        kept.push((name, written.is_ok_and(|len| len == LEN)));
                        if number == 20 {
                            let _ = begun.send(());
                        }
                    }
                    kept
                })
            })
            .collect();
        for _ in 0..4 {
            begins.recv()?;
        }
        connection.disconnect()?;
        for (writer, thread) in writers.into_iter().enumerate() {
            let kept = thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            for (name, written) in kept {
                let found = fs::read(cluster.mnt().join(&name)).with_context(|| name.clone())?;
                let whole = found == [writer as u8; LEN];
                ensure!(whole || !written, "{name} has {} bytes", found.len());
            }
        }
    }
    Ok(())
}

/// Numbers of open files are those of one connection.
#[test]
fn files_of_two_connections_are_not_mixed_up() -> Result<()> {
    let cluster = Cluster::start()?;
    let (first, second) = (connect(&cluster)?, connect(&cluster)?);
    let both = OpenFlags { write: true, both: true, ..Default::default() };
    let opened = |of: &Connection, name: &str| of.as_this_process().create(name, 0o644, both);
    let (from, precious) = (opened(&first, "from")?, opened(&first, "precious")?);
    from.write(0, b"content")?;
    precious.write(0, b"precious")?;
    let (_, to) = (opened(&second, "other")?, opened(&second, "to")?);
    let (source, sink) = (from.open_file(), to.open_file());
    let copied = first.run(source.copy_to(0, &sink, 0, 7)).err().map(|e| e.kind);
    ensure!(copied == Some(ErrorKind::CrossDevice), "{copied:?}");
    ensure!(first.run(source.copy_to(0, &precious.open_file(), 8, 7))? == 7);
    precious.sync()?;
    ensure!(fs::read(cluster.mnt().join("precious"))? == b"preciouscontent");
    second.disconnect()?;
    Ok(first.disconnect()?)
}

/// The child of a fork is told so at once, whatever the parent's threads hold; what it does not do
/// does not disturb the parent, and it may connect anew.
#[test]
fn a_forked_process_connects_anew() -> Result<()> {
    const CHILD: &str = "WEFT_TEST_FORKS";
    if let Ok(cluster) = std::env::var(CHILD) {
        return fork_and_look(&cluster);
    }
    let cluster = Cluster::start()?;
    // Only a process that is one thread by itself can go on after a fork with what allocates.
    let test = ["--exact", "a_forked_process_connects_anew", "--test-threads=1", "--nocapture"];
    let run = Command::new(std::env::current_exe()?)
        .args(test)
        .envs(cluster.environment())
        .env(CHILD, cluster.address()?)
        .output()?;
    let said = String::from_utf8_lossy(&run.stdout);
    ensure!(run.status.success() && said.contains("the child is done"), "{run:?}");
    ensure!(fs::read(cluster.mnt().join("by-child"))? == b"child");
    ensure!(fs::read(cluster.mnt().join("by-parent"))? == b"parent");
    Ok(())
}

fn fork_and_look(cluster: &str) -> Result<()> {
    let connection = Connection::connect(ConnectOptions::new(cluster)?)?;
    let user = connection.as_this_process();
    let flags = OpenFlags { write: true, ..Default::default() };
    let file = user.create("by-parent", 0o644, flags)?;
    ensure!(file.write(0, b"par")? == 3);
    // SAFETY: the child does what a program does after a fork; the test runs in a process that has
    // no other threads of its own.
    match unsafe { libc::fork() } {
        -1 => bail!(std::io::Error::last_os_error()),
        0 => {
            let ended = in_child(cluster, &user, file, &connection);
            println!(
                "{}",
                ended.map_or_else(|e| format!("{e:#}"), |()| "the child is done".into())
            );
            std::process::exit(0);
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process, and room for its status.
            ensure!(unsafe { libc::waitpid(child, &mut status, 0) } == child);
            ensure!(file.write(3, b"ent")? == 3);
            file.sync()?;
            file.close()?;
            Ok(connection.disconnect()?)
        }
    }
}

fn in_child(cluster: &str, user: &User, file: File, parent: &Connection) -> Result<()> {
    let refused = |kind: Option<ErrorKind>| {
        ensure!(kind == Some(ErrorKind::Disconnected), "{kind:?}");
        Ok(())
    };
    refused(user.stat("/").err().map(|e| e.kind))?;
    refused(file.write(0, b"x").err().map(|e| e.kind))?;
    refused(file.close().err().map(|e| e.kind))?;
    parent.disconnect()?;
    let own = Connection::connect(ConnectOptions::new(cluster)?)?;
    Library(own.as_this_process()).write("by-child", b"child")?;
    Ok(own.disconnect()?)
}

/// Calls that are under way when it is disconnected end, and what was written is there.
#[test]
fn disconnecting_ends_what_others_wait_for() -> Result<()> {
    let cluster = Cluster::start()?;
    let (holder, waiter) = (connect(&cluster)?, connect(&cluster)?);
    let flags = OpenFlags { write: true, ..Default::default() };
    let held = holder.as_this_process().create("f", 0o644, flags)?;
    held.lock(LockKind::Write, true)?;
    let waits = waiter.as_this_process().open("f", flags)?;
    ensure!(waits.write(0, b"written")? == 7);
    let taken = waits.lock(LockKind::Write, false).err().map(|e| e.kind);
    ensure!(taken == Some(ErrorKind::WouldBlock), "{taken:?}");
    let requests = |of: &Connection| of.filesystem().counters().metadata_requests;
    let before = requests(&waiter);
    let waiting = std::thread::spawn(move || waits.lock(LockKind::Write, true));
    // It has asked, is told that another holds the lock, and waits.
    eventually(Duration::from_secs(60), "it asks for the lock", || {
        (requests(&waiter) > before).then_some(())
    })?;
    waiter.disconnect()?;
    let ended = waiting.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    ensure!(ended.is_err(), "it cannot have been locked");
    ensure!(fs::read(cluster.mnt().join("f"))? == b"written");
    let after = waiter.as_this_process().stat("/").err().map(|e| e.kind);
    ensure!(after == Some(ErrorKind::Disconnected), "{after:?}");
    held.lock(LockKind::None, true)?;
    held.close()?;
    Ok(holder.disconnect()?)
}

/// Those of the client.
#[test]
fn the_examples_run() -> Result<()> {
    let cluster = Cluster::start()?;
    let binary = weft_binary();
    let folder = binary.parent().context("the binary is in no folder")?.join("examples");
    fs::set_permissions(cluster.mnt(), fs::Permissions::from_mode(0o777))?;
    let run = |name: &str, arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(folder.join(name));
        command.arg(cluster.address()?).args(arguments).envs(cluster.environment());
        let ran = command.output().with_context(|| format!("run the example {name}"))?;
        ensure!(ran.status.success(), "{name}: {ran:?}");
        Ok(String::from_utf8(ran.stdout)?)
    };
    let said = run("as_user", &[])?;
    ensure!(said.contains("1000 reads \"for my eyes only\""), "{said}");
    ensure!(said.contains("1001 does not"), "{said}");
    let local = cluster.scratch("local")?.join("file");
    fs::write(&local, vec![7; 3 << 20])?;
    let said = run("blocking", &[path(&local), "/copied"])?;
    ensure!(said.contains("/copied: 3145728 bytes, the same"), "{said}");
    ensure!(fs::read(cluster.mnt().join("copied"))? == fs::read(&local)?);
    Ok(())
}

#[test]
fn what_names_no_cluster_is_refused() {
    for bad in ["", "host", "host:", ":1", "host:0", "host:70000", "a:1,,b:2", "a:1,b"] {
        let error = ConnectOptions::new(bad).err().map(|e| e.kind);
        assert_eq!(error, Some(ErrorKind::Invalid), "{bad:?}");
    }
    let good = ConnectOptions::new("a:1, [::1]:2").map(|options| options.client.metadata);
    assert_eq!(good.unwrap(), ["a:1", "[::1]:2"]);
}
