//! Names and attributes in the kernel: used without a request while a lease lasts, and never past
//! it.

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use weft_tests::{Cluster, eventually, path, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);

/// How often the process that serves a mount has read: requests of the kernel, and little else.
fn reads(cluster: &Cluster, mount: &Path) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{}/io", cluster.pid_of_mount(mount)?))?;
    let count = io.lines().find_map(|line| line.strip_prefix("syscr: "));
    count.context("reads are not counted")?.parse().context("a number")
}

/// Calls `look` until the kernel asks for nothing in it.
fn until_warm(cluster: &Cluster, mount: &Path, look: impl Fn() -> Result<()>) -> Result<()> {
    const OFTEN: usize = 100;
    // Requests over io_uring, and of kernels before 6.6, are others.
    let before = reads(cluster, mount)?;
    (0..OFTEN).try_for_each(|_| statvfs(mount).map(drop))?;
    ensure!(reads(cluster, mount)? - before >= OFTEN as u64, "requests are not counted");
    eventually(PATIENCE, "the kernel asks for nothing", || {
        look().ok()?;
        let before = reads(cluster, mount).ok()?;
        (0..OFTEN).try_for_each(|_| look()).ok()?;
        // The process does other things, too.
        (reads(cluster, mount).ok()? - before < OFTEN as u64 / 4).then_some(())
    })
}

fn stat(at: impl AsRef<Path>) -> Result<()> {
    fs::metadata(at)?;
    Ok(())
}

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns when a program waits for the answer to a request of this function of the kernel's.
fn waits_in(program: &Program, function: &str) -> Result<()> {
    eventually(PATIENCE, "a program waits in the kernel", || {
        let stack = fs::read_to_string(format!("/proc/{}/stack", program.0.id())).ok()?;
        (stack.contains("request_wait_answer") && stack.contains(function)).then_some(())
    })
}

/// Sets an extended attribute.
fn set_xattr(of: &Path, name: &str, value: &[u8]) -> Result<()> {
    let (file, attribute) = (CString::new(path(of))?, CString::new(name)?);
    // SAFETY: the names end with a zero byte and the length is that of the value.
    let set = unsafe {
        libc::setxattr(file.as_ptr(), attribute.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    ensure!(set == 0, "{name}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Something that is mounted, until this is dropped.
struct Below(PathBuf);

impl Below {
    fn mount(at: PathBuf) -> Result<Self> {
        mount(Some("below"), &at, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        Ok(Self(at))
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn what_is_known_costs_no_request_of_the_kernel() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    fs::create_dir_all(m.join("a/b"))?;
    fs::write(m.join("a/b/f"), "content")?;
    symlink("b/f", m.join("a/link"))?;
    // Names that were made here, and names that were looked up.
    for remounted in [false, true] {
        if remounted {
            cluster.remount()?;
        }
        until_warm(&cluster, m, || {
            ensure!(fs::metadata(m.join("a/b/f"))?.len() == 7);
            ensure!(fs::metadata(m.join("a/link"))?.len() == 7);
            ensure!(fs::metadata(m.join("a/b"))?.is_dir());
            ensure!(!m.join("a/b/none").exists() && !m.join("none").exists());
            Ok(())
        })
        .with_context(|| format!("remounted: {remounted}"))?;
    }
    Ok(())
}

/// What a mount does itself its kernel sees at once.
#[test]
fn a_mount_sees_its_own_changes_of_what_is_known() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let (d, e) = (m.join("d"), m.join("e"));
    fs::create_dir(&d)?;
    fs::create_dir(&e)?;
    for i in 0..20 {
        let (f, g, moved) = (d.join("f"), d.join("g"), e.join(format!("moved{}", i % 3)));
        fs::write(&f, "f")?;
        until_warm(&cluster, m, || {
            ensure!(fs::metadata(&f)?.nlink() == 1 && !g.exists());
            stat(&d)
        })?;
        let before = fs::metadata(&d)?;
        fs::hard_link(&f, &g)?;
        ensure!(fs::metadata(&f)?.nlink() == 2 && fs::metadata(&g)?.nlink() == 2);
        ensure!(fs::metadata(&d)?.mtime_nsec() != before.mtime_nsec());
        fs::create_dir(d.join("sub"))?;
        ensure!(fs::metadata(&d)?.nlink() == before.nlink() + 1);
        fs::remove_dir(d.join("sub"))?;
        ensure!(fs::metadata(&d)?.nlink() == before.nlink() && !d.join("sub").exists());
        fs::rename(&g, &moved)?;
        ensure!(!g.exists() && fs::metadata(&moved)?.nlink() == 2);
        fs::remove_file(&f)?;
        ensure!(!f.exists() && fs::metadata(&moved)?.nlink() == 1);
        fs::write(&moved, i.to_string().repeat(10))?;
        ensure!(fs::metadata(&moved)?.len() == 10 * i.to_string().len() as u64);
        if i % 2 == 0 {
            fs::remove_file(&moved)?;
        }
    }
    Ok(())
}

/// A name that was moved is known under its new directory, which is another's to change.
#[test]
fn names_that_were_moved_are_taken_back_too() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for name in ["from", "to"] {
        fs::create_dir(a.join(name))?;
    }
    for i in 0..20 {
        let (from, to) = (a.join("from/f"), a.join("to").join(i.to_string()));
        fs::write(&from, "f")?;
        // The other mount uses the second directory, and every other time changes it.
        ensure!(fs::read_dir(b.join("to"))?.count() == i);
        if i % 2 == 0 {
            fs::write(b.join("to/x"), "x")?;
            fs::remove_file(b.join("to/x"))?;
        }
        until_warm(&cluster, &a, || stat(&from))?;
        fs::rename(&from, &to)?;
        ensure!(fs::metadata(&to)?.len() == 1);
        let there = b.join("to").join(i.to_string());
        fs::rename(&there, there.with_extension("away"))?;
        ensure!(!to.exists(), "try {i}: a name that is gone");
        fs::write(&there, "another")?;
        ensure!(fs::metadata(&to)?.len() == 7, "try {i}: the inode of before");
        fs::remove_file(there.with_extension("away"))?;
    }
    weft_ok(&["umount", path(&b)]).map(drop)
}

/// Each has names that the other's change takes back, while its own holds their directory.
#[test]
fn mounts_that_change_a_directory_of_which_both_have_names_go_on() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_path_buf(), cluster.mount_again("second")?];
    fs::create_dir(mounts[0].join("d"))?;
    fs::write(mounts[0].join("d/f"), "f")?;
    for i in 0..60 {
        let name = |n: usize| format!("d/{n}-{i}");
        for m in &mounts {
            until_warm(&cluster, m, || {
                ensure!(!m.join(name(0)).exists() && !m.join(name(1)).exists());
                stat(m.join("d/f"))
            })?;
        }
        let together = Barrier::new(2);
        let change = &|n: usize| {
            together.wait();
            let (own, other) = (&mounts[n], &mounts[1 - n]);
            let made = own.join(name(n));
            match i % 6 {
                0 => fs::create_dir(&made)?,
                1 => fs::write(&made, "new")?,
                2 => fs::hard_link(own.join("d/f"), &made)?,
                3 => symlink("f", &made)?,
                // What locks the directory in another call, and then changes it.
                4 => {
                    set_xattr(&own.join("d"), "user.by", n.to_string().as_bytes())?;
                    fs::create_dir(&made)?;
                }
                _ => {
                    fs::write(own.join("d").join(format!("from{n}")), "moved")?;
                    fs::rename(own.join("d").join(format!("from{n}")), &made)?;
                }
            }
            ensure!(other.join(name(n)).exists(), "try {i}: not seen by {}", 1 - n);
            match made.symlink_metadata()?.is_dir() {
                true => fs::remove_dir(&made)?,
                false => fs::remove_file(&made)?,
            }
            ensure!(!other.join(name(n)).exists(), "try {i}: seen by {}", 1 - n);
            Ok(())
        };
        thread::scope(|scope| {
            let begun = [0, 1].map(|n| scope.spawn(move || change(n)));
            begun.into_iter().try_for_each(|changed| changed.join().expect("no panic"))
        })?;
    }
    weft_ok(&["umount", path(&mounts[1])]).map(drop)
}

/// What is mounted on a name stays when others change its directory.
#[test]
fn what_is_mounted_below_stays() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::create_dir_all(a.join("d/at"))?;
    let below = Below::mount(a.join("d/at"))?;
    fs::write(a.join("d/at/inside"), "tmpfs")?;
    for i in 0..10 {
        until_warm(&cluster, &a, || stat(a.join("d/at/inside")))?;
        fs::write(b.join("d").join(i.to_string()), "")?;
        fs::create_dir(b.join(format!("beside{i}")))?;
        ensure!(fs::read(a.join("d/at/inside"))? == b"tmpfs");
    }
    drop(below);
    weft_ok(&["umount", path(&b)]).map(drop)
}

/// It takes effect when its caller is gone, and nobody told the kernel.
#[test]
fn what_a_killed_caller_had_begun_is_seen() -> Result<()> {
    let cluster = Cluster::start()?;
    // One on which each name waits.
    let m = &cluster.scratch("dirsync")?;
    weft_ok(&["mount", "-o", "dirsync", "--cluster", &cluster.address()?, path(m)])?;
    for i in 0..3 {
        // From one directory to another: what is done about the one does nothing for the other.
        let (from, to) = (m.join(format!("from{i}")), m.join(format!("to{i}")));
        fs::create_dir(&from)?;
        fs::create_dir(&to)?;
        let (f, g) = (from.join("f"), to.join("g"));
        fs::write(&f, "f")?;
        let look = || {
            ensure!(!g.exists());
            stat(&f)
        };
        until_warm(&cluster, m, look)?;
        let paused = cluster.pause_metadata()?;
        let mover = Command::new("mv").args([&f, &g]).stderr(Stdio::null()).spawn()?;
        let mut mover = Program(mover);
        waits_in(&mover, "fuse_rename")?;
        kill(Pid::from_raw(mover.0.id() as i32), Signal::SIGKILL)?;
        mover.0.wait()?;
        // Before it takes effect.
        look()?;
        drop(paused);
        eventually(PATIENCE, "the move is seen", || (!f.exists() && g.exists()).then_some(()))?;
    }
    Ok(())
}

/// The process of a mount stands still for longer than its leases last.
#[test]
fn a_mount_that_stands_still_uses_nothing_past_its_leases() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::create_dir(a.join("d"))?;
    fs::write(a.join("d/f"), "before")?;
    let look = || stat(b.join("d/f"));
    until_warm(&cluster, &b, look)?;
    let paused = cluster.pause_mount(&b)?;
    // Waits until the other is declared dead.
    fs::rename(a.join("d/f"), a.join("d/g"))?;
    let looks = Command::new("stat").arg(b.join("d/f")).stderr(Stdio::null()).spawn()?;
    let mut looks = Program(looks);
    waits_in(&looks, "fuse")?;
    fs::write(a.join("d/g"), "afterwards")?;
    drop(paused);
    ensure!(!looks.0.wait()?.success(), "a name is used that was moved long ago");
    ensure!(fs::metadata(b.join("d/g"))?.len() == 10);
    // And one whose process is no more.
    until_warm(&cluster, &b, || stat(b.join("d/g")))?;
    cluster.kill_mount(&b)?;
    fs::remove_file(a.join("d/g"))?;
    ensure!(fs::metadata(b.join("d/g")).is_err(), "a dead mount answers");
    Ok(())
}

/// Another process goes on with what the kernel has.
#[test]
fn names_are_taken_back_by_the_next_process() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::create_dir(a.join("d"))?;
    for i in 0..5 {
        let (f, g) = (b.join("d/f"), b.join(format!("d/g{i}")));
        fs::write(a.join("d/f"), "before")?;
        let open = File::open(&f)?;
        until_warm(&cluster, &b, || {
            ensure!(!g.exists());
            stat(&f)
        })?;
        weft_ok(&["mount", "--takeover", path(&b)])?;
        fs::rename(a.join("d/f"), a.join(format!("d/g{i}")))?;
        ensure!(!f.exists() && fs::metadata(&g)?.len() == 6, "takeover {i}");
        fs::write(a.join("d/f"), "another")?;
        ensure!(fs::metadata(&f)?.len() == 7 && open.metadata()?.len() == 6, "takeover {i}");
    }
    weft_ok(&["umount", path(&b)]).map(drop)
}
