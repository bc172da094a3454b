//! What programs do with files, on one mount and on two: POSIX calls, real programs, real input.

use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_tests::{Cluster, data, path, run, weft_ok};

#[test]
fn calls_do_what_they_do_on_a_local_filesystem() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();

    // Sparse, overwrite in the middle, truncate down and up: regrown bytes are zeros.
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(m.join("f"))?;
    file.write_all_at(b"tail", 3 << 20)?;
    file.write_all_at(&data::bytes(1, 300_000), 1000)?;
    file.sync_all()?;
    ensure!(file.metadata()?.len() == (3 << 20) + 4);
    file.set_len(100_000)?;
    file.set_len(200_000)?;
    let mut all = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut all)?;
    let mut expected = vec![0; 200_000];
    expected[1000..100_000].copy_from_slice(&data::bytes(1, 300_000)[..99_000]);
    ensure!(all == expected, "content after truncation");

    // A program that runs is not written to, nor cut before that is refused.
    let program = m.join("program");
    fs::copy("/bin/sleep", &program)?;
    let mut running = Command::new(&program).arg("600").spawn()?;
    let mut only_cuts = File::options();
    only_cuts.read(true).custom_flags(libc::O_TRUNC);
    let refused = [File::options().write(true), &mut only_cuts]
        .map(|options| options.open(&program).map_or_else(|e| e.raw_os_error(), |_| None));
    running.kill()?;
    running.wait()?;
    ensure!(refused == [Some(libc::ETXTBSY); 2], "{refused:?}");
    ensure!(fs::read(&program)? == fs::read("/bin/sleep")?, "a program that ran was cut");

    // Names.
    fs::create_dir(m.join("d"))?;
    fs::rename(m.join("f"), m.join("d/g"))?;
    fs::hard_link(m.join("d/g"), m.join("h"))?;
    ensure!(fs::metadata(m.join("h"))?.nlink() == 2);
    ensure!(fs::metadata(m.join("h"))?.ino() == fs::metadata(m.join("d/g"))?.ino());
    symlink("d/g", m.join("s"))?;
    ensure!(fs::read(m.join("s"))? == expected);
    let kind = |e: std::io::Result<()>| e.map_err(|e| e.raw_os_error().unwrap_or(0));
    ensure!(kind(fs::remove_dir(m.join("d"))) == Err(libc::ENOTEMPTY));
    ensure!(kind(fs::create_dir(m.join("d"))) == Err(libc::EEXIST));
    ensure!(kind(fs::remove_file(m.join("none"))) == Err(libc::ENOENT));
    ensure!(kind(fs::create_dir(m.join("x".repeat(256)))) == Err(libc::ENAMETOOLONG));
    ensure!(kind(fs::rename(m.join("d"), m.join("d/e"))) == Err(libc::EINVAL));
    fs::create_dir(m.join("x".repeat(255)))?;

    // A file lives on after its last name while it is open.
    let mut kept = File::open(m.join("h"))?;
    fs::remove_file(m.join("h"))?;
    fs::remove_file(m.join("d/g"))?;
    ensure!(kept.metadata()?.nlink() == 0);
    all.clear();
    kept.read_to_end(&mut all)?;
    ensure!(all == expected, "content of an unlinked open file");
    drop((kept, file));

    // Appends of two descriptors do not overwrite each other.
    let append = || OpenOptions::new().append(true).create(true).open(m.join("log"));
    let (mut a, mut b) = (append()?, append()?);
    for i in 0..100 {
        writeln!(if i % 2 == 0 { &mut a } else { &mut b }, "{i}")?;
    }
    drop((a, b));
    let text = fs::read_to_string(m.join("log"))?;
    ensure!(text == (0..100).map(|i| format!("{i}\n")).collect::<String>(), "appended: {text:?}");

    // Modes, times, exclusive creation, a large directory.
    fs::set_permissions(m.join("log"), fs::Permissions::from_mode(0o4751))?;
    ensure!(fs::metadata(m.join("log"))?.mode() & 0o7777 == 0o4751);
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
    File::open(m.join("log"))?.set_modified(time)?;
    ensure!(fs::metadata(m.join("log"))?.modified()? == time);
    let exclusive = OpenOptions::new().write(true).create_new(true).mode(0o600).open(m.join("log"));
    ensure!(kind(exclusive.map(drop)) == Err(libc::EEXIST));
    fs::create_dir(m.join("many"))?;
    for i in 0..3000 {
        File::create(m.join(format!("many/{i}")))?;
    }
    let mut names = fs::read_dir(m.join("many"))?
        .map(|e| Ok(e?.file_name().into_string().expect("digits").parse::<u32>()?))
        .collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    ensure!(names == (0..3000).collect::<Vec<_>>());
    fs::remove_dir_all(m.join("many"))?;

    cluster.await_clean()
}

/// What needs a kernel interface of its own: files without a name, times of birth, groups.
#[test]
fn files_get_their_name_late_and_their_group_by_the_rules() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();

    let unnamed = || {
        OpenOptions::new().read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE).open(m)
    };
    let mut file = unnamed()?;
    file.write_all(b"no name yet")?;
    ensure!(file.metadata()?.nlink() == 0 && fs::read_dir(m)?.count() == 0);
    let link = |file: &File, name: &str| {
        let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
        nix::unistd::linkat(
            nix::fcntl::AT_FDCWD,
            fd.as_str(),
            nix::fcntl::AT_FDCWD,
            &m.join(name),
            nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW,
        )
    };
    link(&file, "named")?;
    drop(file);
    ensure!(fs::read(m.join("named"))? == b"no name yet");
    let made = fs::metadata(m.join("named"))?;
    ensure!(made.nlink() == 1 && made.mode() & 0o7777 == 0o640);
    ensure!(made.created()? <= made.modified()?, "born after it was written");
    // One that gets no name leaves nothing; one that lost its name gets none again.
    drop(unnamed()?);
    let lost = File::open(m.join("named"))?;
    fs::remove_file(m.join("named"))?;
    ensure!(link(&lost, "again") == Err(nix::errno::Errno::ENOENT));
    drop(lost);

    // Of two directories with the set-group-id bit, one has a group that the user is in beside its
    // own. The kernel applies the rules, with the attributes that it is told.
    for (dir, group) in [("mine", 2000), ("theirs", 3000)] {
        fs::create_dir(m.join(dir))?;
        chown(m.join(dir), None, Some(group))?;
        fs::set_permissions(m.join(dir), fs::Permissions::from_mode(0o2777))?;
    }
    let script = "umask 0; for d in mine theirs; do cp /bin/true $d/x; chmod 2755 $d/x; done
        chgrp 2000 theirs/x; chgrp 4000 mine/x && exit 1; stat -c %g:%a mine/x theirs/x";
    let user = ["--reuid", "1000", "--regid", "1000", "--groups", "2000", "sh", "-c", script];
    let shown = run("setpriv", &user, m)?;
    // Not being in the group, the user may not make programs run in it.
    ensure!(shown == "2000:2755\n2000:755\n", "groups and modes: {shown}");
    fs::remove_dir_all(m.join("mine"))?;
    fs::remove_dir_all(m.join("theirs"))?;
    cluster.await_clean()
}

#[test]
fn supplementary_groups_count() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let own = |name: PathBuf, group, mode| -> Result<()> {
        chown(&name, None, Some(group))?;
        Ok(fs::set_permissions(name, fs::Permissions::from_mode(mode))?)
    };
    for (dir, group) in [("mine", 2000), ("theirs", 3000)].map(|(dir, group)| (m.join(dir), group))
    {
        // Where only the group may do anything; and where new files get the group.
        fs::create_dir_all(dir.join("closed"))?;
        fs::write(dir.join("closed/f"), "seen")?;
        own(dir.join("closed/f"), group, 0o060)?;
        own(dir.join("closed"), group, 0o070)?;
        fs::create_dir(dir.join("open"))?;
        own(dir.join("open"), group, 0o2777)?;
    }
    fs::create_dir(m.join("own"))?;
    chown(m.join("own"), Some(1000), Some(1000))?;
    // A user who is in group 2000 beside its own, and not in 3000.
    let script = r#"
import os
os.setgroups([2000])
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
os.umask(0)
def refused(call, *args):
    try:
        call(*args)
    except PermissionError:
        return
    raise SystemExit(f"{call.__name__}{args} was allowed")
def mode(name):
    return oct(os.stat(name).st_mode & 0o7777)[2:]

assert open("mine/closed/f").read() == "seen"
open("mine/closed/f", "a").write(", written")
open("mine/closed/made", "w").close()
os.remove("mine/closed/made")
refused(open, "theirs/closed/f")
refused(os.listdir, "theirs/closed")
refused(os.mkdir, "theirs/closed/made")

open("own/f", "w").close()
os.chown("own/f", -1, 2000)
assert os.stat("own/f").st_gid == 2000
refused(os.chown, "own/f", -1, 3000)
refused(os.chown, "own/f", 1001, -1)

for folder in ["mine/open", "theirs/open"]:
    os.mkdir(f"{folder}/d", 0o755)
    shown = [mode(f"{folder}/d")]
    for wanted in [0o2755, 0o2745]:
        os.close(os.open(f"{folder}/f{wanted}", os.O_CREAT | os.O_WRONLY, wanted))
        os.mknod(f"{folder}/n{wanted}", wanted)
        shown += [mode(f"{folder}/f{wanted}"), mode(f"{folder}/n{wanted}")]
    print(*shown, os.stat(f"{folder}/f{wanted}").st_gid)
"#;
    let shown = run("python3", &["-c", script], m)?;
    // Not being in the group, the user may not make programs run in it.
    let want = "2755 2755 2755 2745 2745 2000\n2755 755 755 2745 2745 3000\n";
    ensure!(shown == want, "modes and groups:\n{shown}");
    ensure!(fs::read(m.join("mine/closed/f"))? == b"seen, written");
    cluster.await_clean()
}

#[test]
fn names_are_any_bytes_and_paths_as_long_as_a_path_may_be() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    // Every byte that a name may have, and what is no UTF-8.
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let names = [&bytes[..], b"\xff", b"\xc3", b"a\xf0\x28\x8c\xbc", b"\n", b" ", b"...", b"\\"];
    let names = names.map(OsStr::from_bytes);
    let (files, links) = (m.join("files"), m.join("links"));
    fs::create_dir(&files)?;
    fs::create_dir(&links)?;
    for name in names {
        fs::write(m.join("new"), name.as_bytes())?;
        fs::rename(m.join("new"), files.join(name))?;
        symlink(Path::new("../files").join(name), links.join(name))?;
    }
    cluster.remount()?;
    for dir in [&files, &links] {
        let listed = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
        let listed = listed.collect::<Result<BTreeSet<_>>>()?;
        ensure!(listed == names.map(OsString::from).into(), "{} lists {listed:?}", dir.display());
        for name in names {
            ensure!(fs::read(dir.join(name))? == name.as_bytes(), "{} {name:?}", dir.display());
        }
    }
    for name in names {
        fs::remove_file(files.join(name))?;
    }

    // A path of 4095 bytes, with the zero behind it as many as may be, and one that is longer.
    let room = libc::PATH_MAX as usize - 2 - m.as_os_str().len();
    let mut deep = m.to_path_buf();
    for _ in 0..room / 201 {
        deep.push(OsStr::from_bytes(&[b'\xfe'; 200]));
        fs::create_dir(&deep)?;
    }
    let last = "x".repeat(room % 201);
    let file = deep.join(&last);
    ensure!(file.as_os_str().len() == libc::PATH_MAX as usize - 1);
    fs::write(&file, "deep")?;
    symlink(&file, m.join("there"))?;
    cluster.remount()?;
    ensure!(fs::read(&file)? == b"deep" && fs::read(m.join("there"))? == b"deep");
    ensure!(fs::read_link(m.join("there"))? == file);
    let longer = fs::metadata(deep.join(last + "x")).map_err(|error| error.raw_os_error());
    ensure!(longer.is_err_and(|error| error == Some(libc::ENAMETOOLONG)));
    // Folders may be deeper than a path can say.
    let deeper = r#"
import os, sys
os.chdir(sys.argv[1])
for _ in range(10):
    os.mkdir("y" * 250)
    os.chdir("y" * 250)
open("f", "w").write("deeper")
os.rename("f", "g")
assert open("g").read() == "deeper"
"#;
    let deepest = Command::new("python3").args(["-c", deeper]).arg(&deep).status()?;
    ensure!(deepest.success(), "python3 ended with {deepest}");
    ensure!(run("find", &[".", "-name", "g"], m)?.len() > libc::PATH_MAX as usize);
    run("sh", &["-c", "rm -r *"], m)?;
    ensure!(fs::read_dir(m)?.count() == 0);
    cluster.await_clean()
}

#[test]
fn two_mounts_see_one_filesystem() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for i in 0..200u64 {
        let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        // The same name again and again, of sizes from inline to several stripes.
        let content = data::bytes(i, 1 << (i % 20));
        fs::write(from.join("f"), &content)?;
        ensure!(fs::metadata(to.join("f"))?.len() == content.len() as u64, "size in round {i}");
        ensure!(fs::read(to.join("f"))? == content, "content in round {i}");
        fs::rename(to.join("f"), to.join(format!("g{}", i % 3)))?;
        ensure!(!from.join("f").exists() && from.join(format!("g{}", i % 3)).exists());
    }
    // What is open on one mount outlives its removal through the other.
    fs::write(a.join("open"), b"still here")?;
    let mut open = File::open(a.join("open"))?;
    fs::remove_file(b.join("open"))?;
    let mut text = String::new();
    open.read_to_string(&mut text)?;
    ensure!(text == "still here");
    drop(open);
    // A mount that is killed loses its session; the other goes on.
    weft_tests::weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

#[test]
fn real_programs_work_in_the_mount() -> Result<()> {
    let cluster = Cluster::start()?;
    let (m, local) = (cluster.mnt(), cluster.scratch("local")?);
    let tree = local.join("tree");
    data::make_tree(&tree, 7, 400, 3 << 20)?;
    let expected = data::digest_tree(&tree)?;
    let same = |what: &str, root: &Path| -> Result<()> {
        ensure!(data::digest_tree(root)? == expected, "{what} changed the tree");
        Ok(())
    };

    run("cp", &["-a", path(&tree), path(&m.join("cp"))], m)?;
    run("tar", &["cf", path(&m.join("t.tar")), "-C", path(&local), "tree"], m)?;
    run("tar", &["xf", "t.tar"], m)?;
    run("rsync", &["-a", "--checksum", path(&tree), path(&m.join("rsync"))], m)?;
    let again = run("rsync", &["-ai", "--checksum", path(&tree), path(&m.join("rsync"))], m)?;
    ensure!(again.is_empty(), "a second rsync found differences: {again}");
    cluster.remount()?;
    same("cp", &m.join("cp"))?;
    same("tar", &m.join("tree"))?;
    same("rsync", &m.join("rsync/tree"))?;

    let repo = local.join("repo");
    run("git", &["init", "-q", path(&repo)], &local)?;
    run("cp", &["-a", path(&tree), path(&repo)], &local)?;
    run("git", &["add", "."], &repo)?;
    let identity = ["-c", "user.name=Weft", "-c", "user.email=weft@localhost"];
    run("git", &[&identity[..], &["commit", "-qm", "Add a tree"]].concat(), &repo)?;
    run("git", &["clone", "-q", path(&repo), "clone"], m)?;
    run("git", &["fsck", "--full", "--strict"], &m.join("clone"))?;
    let status = run("git", &["status", "--porcelain"], &m.join("clone"))?;
    ensure!(status.is_empty(), "git sees changes in a fresh clone: {status}");

    // Each takes several locks, and each lock a commit.
    sqlite(m, 2000)?;
    cluster.await_clean()
}

/// Small transactions from Python's sqlite3, in both journal modes, then an integrity check.
fn sqlite(dir: &Path, transactions: u32) -> Result<()> {
    for mode in ["delete", "wal"] {
        let script = format!(
            r#"
import sqlite3
db = sqlite3.connect("{mode}.db", isolation_level=None)
mode = db.execute("pragma journal_mode={mode}").fetchone()
assert mode == ("{mode}",), mode
db.execute("create table t(id integer primary key, v text)")
for i in range({transactions}):
    db.execute("begin")
    db.execute("insert into t values(?, ?)", (i, "x" * (i % 300)))
    if i % 3 == 0:
        db.execute("delete from t where id = ?", (i // 2,))
    db.execute("commit")
db.close()
db = sqlite3.connect("{mode}.db")
assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
expected = set(range({transactions}))
for i in range(0, {transactions}, 3):
    expected.discard(i // 2)
assert {{row[0] for row in db.execute("select id from t")}} == expected
"#
        );
        run("python3", &["-c", &script], dir)?;
    }
    Ok(())
}

#[test]
fn mounts_have_the_options_that_they_are_given() -> Result<()> {
    let cluster = Cluster::start()?;
    let with = |name, options| -> Result<_> {
        let at = cluster.scratch(name)?;
        weft_ok(&["mount", "-o", options, "--cluster", &cluster.address()?, path(&at)])?;
        Ok(at)
    };
    let plain = cluster.mnt();
    let (full, bare) = (with("full", "suid,dev")?, with("bare", "ro,noexec")?);
    fs::copy("/usr/bin/id", plain.join("id"))?;
    run("chown", &["daemon", "id"], plain)?;
    run("chmod", &["4755", "id"], plain)?;
    run("mknod", &["null", "c", "1", "3"], plain)?;
    let daemon = run("id", &["-u", "daemon"], plain)?;
    let me = run("id", &["-u"], plain)?;
    ensure!(me != daemon);
    // Whoever runs it is who owns it, where root has said so.
    for (mount, user) in [(plain, &me), (&full, &daemon)] {
        let program = mount.join("id");
        ensure!(run(path(&program), &["-u"], mount)? == *user, "{}", mount.display());
    }
    ensure!(run(path(&bare.join("id")), &["-u"], &bare).is_err(), "noexec");
    let opened = |mount: &Path| {
        let null = OpenOptions::new().write(true).open(mount.join("null"));
        null.map(drop).map_err(|error| error.raw_os_error().unwrap_or(0))
    };
    ensure!(opened(plain) == Err(libc::EACCES) && opened(&full) == Ok(()));
    let refused = fs::write(bare.join("new"), "x").map_err(|error| error.raw_os_error());
    ensure!(refused == Err(Some(libc::EROFS)), "{refused:?}");
    Ok(())
}

/// What is not committed yet has the times that it will have then.
#[test]
fn a_commit_changes_no_times() -> Result<()> {
    let cluster = Cluster::start()?;
    let mut file = File::create(cluster.mnt().join("f"))?;
    let times = |file: &File| -> Result<_> {
        let m = file.metadata()?;
        Ok(((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())))
    };
    let created = times(&file)?;
    file.write_all(&[1; 5000])?;
    let written = times(&file)?;
    ensure!(written.0 > created.0 && written.1 > created.1, "{created:?}, {written:?} written");
    // What was written before stays buffered.
    file.set_len(9000)?;
    let grown = times(&file)?;
    ensure!(grown.0 > written.0 && grown.1 > written.1, "{written:?}, {grown:?} grown");
    file.sync_all()?;
    let committed = times(&file)?;
    ensure!(committed == grown, "{grown:?}, {committed:?} committed");
    Ok(())
}
