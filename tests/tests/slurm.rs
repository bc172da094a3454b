//! Prolog and epilog for Slurm (deploy/slurm), called as slurmd calls them: a job has its folder
//! and its datasets warm, nothing is left of it, nobody gets at what is not his, and a mount that
//! is dead or hangs holds neither of them up.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weft_tests::{Cluster, Paused, Shape, data, eventually, path, weft, weft_binary, weft_ok};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// A user whom this machine need not know.
const USER: u32 = 4321;

/// A cluster, and the node of Slurm that mounts it.
struct Node {
    cluster: Cluster,
    scripts: PathBuf,
    state: PathBuf,
}

/// What a script said, whether it was content, and how long it took.
struct Ran {
    said: String,
    success: bool,
    took: Duration,
}

impl Node {
    fn new() -> Result<Self> {
        let cluster = Cluster::start_as(Shape {
            metadata: 1,
            storage: 3,
            profile: "2+1",
            target_size: "256MiB",
            ..Shape::default()
        })?;
        let above = cluster.mnt().parent().context("a folder above")?;
        fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
        let (scripts, state) = (cluster.scratch("slurm")?, cluster.scratch("state")?);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm");
        for entry in fs::read_dir(from)? {
            let file = entry?.path();
            // With its rights: users run some of it.
            fs::copy(&file, scripts.join(file.file_name().context("a name")?))?;
        }
        Ok(Self { cluster, scripts, state })
    }

    fn mnt(&self) -> &Path {
        self.cluster.mnt()
    }

    fn scratch(&self, job: u32) -> PathBuf {
        self.mnt().join(format!("scratch/{job}"))
    }

    /// Runs `prolog` or `epilog` for a job, with more lines in the configuration.
    fn run(&self, script: &str, job: u32, comment: &str, settings: &str) -> Result<Ran> {
        self.run_on("n1", script, job, comment, settings)
    }

    fn run_on(
        &self,
        node: &str,
        script: &str,
        job: u32,
        comment: &str,
        settings: &str,
    ) -> Result<Ran> {
        let (mnt, conf) = (path(self.mnt()), self.state.join("slurm.conf"));
        let own = format!(
            "WEFT={}\nWEFT_MNT={mnt}\nWEFT_SCRATCH={mnt}/scratch\nWEFT_STATE={}\n\
             WEFT_MOUNT_SECONDS=30\nWEFT_MOUNT_COMMAND=false\nWEFT_WARM_WAIT=60\n{settings}\n",
            path(&weft_binary()),
            path(&self.state.join("jobs")),
        );
        fs::write(&conf, own)?;
        let begin = Instant::now();
        let out = Command::new(self.scripts.join(format!("{script}.sh")))
            .env_clear()
            .env("SLURM_JOB_ID", job.to_string())
            .env("SLURM_JOB_UID", USER.to_string())
            .env("SLURM_JOB_GID", USER.to_string())
            .env("SLURM_JOB_USER", "somebody")
            .env("SLURM_JOB_COMMENT", comment)
            .env("SLURMD_NODENAME", node)
            .env("WEFT_SLURM_CONF", &conf)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {script}"))?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        println!("{script} of job {job} on {node}: {}\n{said}", out.status);
        Ok(Ran { said, success: out.status.success(), took: begin.elapsed() })
    }

    /// What has begun for a job to warm: a group of processes.
    fn warmer(&self, job: u32) -> Result<Pid> {
        let text = fs::read_to_string(self.state.join(format!("jobs/{job}.n1/warmer")))?;
        let pid = text.split_whitespace().next().context("no process")?;
        Ok(Pid::from_raw(pid.parse()?))
    }

    /// Nothing is kept of jobs.
    fn knows_no_job(&self) -> Result<()> {
        let left: Vec<_> = fs::read_dir(self.state.join("jobs"))?.collect::<Result<_, _>>()?;
        ensure!(left.is_empty(), "{left:?}");
        let scratch = self.mnt().join("scratch");
        for folder in [scratch.join(".nodes"), scratch] {
            for entry in fs::read_dir(folder)? {
                let name = entry?.file_name();
                ensure!(name == ".nodes", "{name:?} is left");
            }
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.state.join("jobs")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path().join("warmer")).unwrap_or_default();
            if let Some(Ok(pid)) = text.split_whitespace().next().map(str::parse) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// Whether any process of a group has not ended.
fn lives(group: Pid) -> Result<bool> {
    for entry in fs::read_dir("/proc")? {
        let stat = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
        // Its number, its name in brackets, its state, its parent, its group.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let fields: Vec<_> = fields.take(3).collect();
        if fields.get(2) == Some(&group.to_string().as_str()) && fields[0] != "Z" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How much of a file is in the page cache.
fn resident(of: &Path) -> Result<u64> {
    // SAFETY: it only answers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
    let file = File::open(of)?;
    let len = usize::try_from(file.metadata()?.len())?;
    let mut pages = vec![0u8; len.div_ceil(page)];
    // SAFETY: a new mapping of a file that nobody truncates meanwhile, which is only asked about,
    // by a buffer with a byte for each of its pages, and is taken away again.
    unsafe {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), 0);
        ensure!(at != libc::MAP_FAILED, "cannot map {}", of.display());
        let known = libc::mincore(at, len, pages.as_mut_ptr());
        libc::munmap(at, len);
        ensure!(known == 0, "nothing is known of the pages of {}", of.display());
    }
    let pages = pages.into_iter().filter(|page| page & 1 == 1).count();
    Ok((pages * page).min(len) as u64)
}

/// A user's command.
fn as_user(user: u32, script: &str) -> Result<bool> {
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    let out = Command::new("setpriv")
        .args([&uid, &gid, "--clear-groups", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()?;
    Ok(out.status.success())
}

#[test]
fn a_job_finds_its_folder_and_its_data_and_leaves_nothing() -> Result<()> {
    let node = Node::new()?;
    let data = node.mnt().join("data");
    fs::create_dir_all(data.join("sub"))?;
    let files = [("large", 70 * MIB), ("sub/a b", 100_000), ("sub/small", 10)];
    for (name, len) in files {
        fs::write(data.join(name), data::bytes(len, len as usize))?;
    }
    node.cluster.remount()?;
    let comment = format!("for=a,weft:{};weft-drop:{}", path(&data), path(&data.join("large")));
    for name in ["n1", "n2"] {
        let ran = node.run_on(name, "prolog", 7, &comment, "WEFT_SCRATCH_BYTES=8MiB")?;
        ensure!(ran.success, "{}", ran.said);
        ensure!(ran.said.contains(": 3 files, 73500330 of 73500330 bytes"), "{}", ran.said);
    }
    for (name, len) in files {
        ensure!(resident(&data.join(name))? == len, "{name} is not warm");
    }
    let scratch = node.scratch(7);
    let meta = fs::metadata(&scratch)?;
    ensure!((meta.uid(), meta.gid()) == (USER, USER) && meta.mode() & 0o7777 == 0o700, "{meta:?}");
    let quota = weft_ok(&["quota", "show", path(&scratch), "--output", "json"])?;
    let quota: Value = serde_json::from_str(&quota)?;
    ensure!(quota["bytes"]["limit"] == 8 * MIB && quota["path"] == path(&scratch), "{quota}");
    // Its owner alone uses it. A link in it leads to what is not his.
    let outside = node.cluster.scratch("outside")?;
    fs::write(outside.join("stays"), "")?;
    let inside = node.mnt().join("stays");
    fs::write(&inside, "")?;
    let fill = format!(
        "cd {} && mkdir -p a/b && echo x >a/b/f && ln -s {} a/link && ln -s {} .link",
        path(&scratch),
        path(&outside),
        path(&data),
    );
    ensure!(!as_user(USER + 1, &fill)? && as_user(USER, &fill)?);
    ensure!(!as_user(USER, &format!("mv {0} {0}.mine", path(&scratch)))?, "it is not in his place");
    // The last node takes it away.
    let written = data::bytes(1, MIB as usize);
    for (name, stays) in [("n2", true), ("n1", false)] {
        if !stays {
            fs::write(node.mnt().join("result"), &written)?;
        }
        let ran = node.run_on(name, "epilog", 7, &comment, "")?;
        ensure!(ran.success, "{}", ran.said);
        ensure!(scratch.exists() == stays, "{name}");
    }
    node.knows_no_job()?;
    ensure!(outside.join("stays").exists() && inside.exists() && data.join("sub/small").exists());
    ensure!(resident(&data.join("large"))? == 0, "it was to leave the page cache");
    ensure!(resident(&data.join("sub/a b"))? == 100_000);
    // What was written is durable: the mount loses all that is not.
    node.cluster.kill_mount(node.mnt())?;
    let other = node.cluster.mount_again("other")?;
    ensure!(fs::read(other.join("result"))? == written, "what the job has written is lost");
    node.cluster.await_clean()
}

#[test]
fn nothing_is_read_for_a_user_that_he_may_not_read() -> Result<()> {
    let node = Node::new()?;
    let mnt = node.mnt();
    for (name, mode) in [("open", 0o755), ("closed", 0o700), ("listed by nobody", 0o711)] {
        fs::create_dir(mnt.join(name))?;
        fs::write(mnt.join(name).join("f"), data::bytes(1, MIB as usize))?;
        fs::set_permissions(mnt.join(name), fs::Permissions::from_mode(mode))?;
    }
    let unlisted = mnt.join("unlisted");
    fs::rename(mnt.join("listed by nobody"), &unlisted)?;
    let secret = mnt.join("open/secret");
    fs::write(&secret, data::bytes(2, MIB as usize))?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    fs::write(mnt.join("open/long"), data::bytes(3, 16 * MIB as usize))?;
    let outside = node.cluster.scratch("outside")?;
    fs::write(outside.join("f"), data::bytes(4, MIB as usize))?;
    symlink(&outside, mnt.join("open/out"))?;
    symlink(outside.join("f"), mnt.join("open/file"))?;
    node.cluster.remount()?;
    let made = node.cluster.scratch("made")?.join("by the comment");
    let (at, made) = (path(mnt), path(&made).replace(' ', "?"));
    let refused = [
        (path(&outside).to_owned(), "is not below"),
        (format!("{at}/closed"), "may not enter it"),
        (format!("{at}/closed/f"), "may not enter it"),
        (format!("{at}/unlisted"), "may not be read by"),
        (format!("{at}/open/secret"), "may not be read by"),
        (format!("{at}/open/out"), "leads out of"),
        (format!("{at}/open/out/f"), "leads out of"),
        (format!("{at}/open/file"), "is a link to a file"),
        (format!("{at}/.."), "leads out of"),
        (format!("{at}/none"), "is not there"),
        ("relative".to_owned(), "is not below"),
        (format!("$(touch${{IFS}}{made})"), "is not below"),
        (format!("`touch${{IFS}}{made}`"), "is not below"),
    ];
    for (n, (named, why)) in (1..).zip(&refused) {
        let ran = node.run("prolog", n, &format!("weft:{named}"), "")?;
        ensure!(ran.success, "a user's mistake is no reason to drain a node: {}", ran.said);
        let line = ran.said.lines().find(|line| line.contains("refused: "));
        ensure!(line.is_some_and(|line| line.contains(why)), "{named}: {}", ran.said);
        ensure!(node.run("epilog", n, "", "")?.success);
    }
    ensure!(fs::read_dir(node.cluster.scratch("made")?)?.next().is_none(), "a comment was run");
    // No more than was set, of no more paths than were set.
    let comment = format!("weft:{at}/open,weft:{at}/unlisted/f,weft:{at}/open/long");
    let limits = "WEFT_WARM_BYTES=3MiB\nWEFT_WARM_PATHS=1";
    let ran = node.run("prolog", 20, &comment, limits)?;
    ensure!(ran.said.contains(" files, 3145728 of "), "{}", ran.said);
    let left = ran.said.lines().filter(|line| line.contains("warm: ")).count();
    ensure!(ran.success && left == 1, "{}", ran.said);
    ensure!(node.run("epilog", 20, "", "")?.success);
    for never in [secret, mnt.join("closed/f"), unlisted.join("f")] {
        ensure!(resident(&never)? == 0, "{} was read", never.display());
    }
    // The kernel reads ahead.
    let warm = resident(&mnt.join("open/long"))?;
    ensure!(warm < 8 * MIB, "{warm} bytes of the long file were read");
    // Nobody but root may make names where scratch folders are.
    fs::set_permissions(mnt.join("scratch"), fs::Permissions::from_mode(0o777))?;
    let ran = node.run("prolog", 21, "", "")?;
    ensure!(!ran.success && ran.said.contains("nobody else may write"), "{}", ran.said);
    ensure!(!node.scratch(21).exists());
    fs::set_permissions(mnt.join("scratch"), fs::Permissions::from_mode(0o711))?;
    ensure!(node.run("epilog", 21, "", "")?.success);
    node.knows_no_job()
}

#[test]
fn a_mount_that_is_no_use_fails_the_prolog_in_time() -> Result<()> {
    let node = Node::new()?;
    ensure!(node.run("prolog", 1, "", "")?.success && node.scratch(1).is_dir());
    let soon = "WEFT_MOUNT_SECONDS=2\nWEFT_CLEAN_SECONDS=2\nWEFT_SYNC_SECONDS=2";
    let in_time = |ran: &Ran, why: &str| -> Result<()> {
        ensure!(!ran.success && ran.said.contains(why), "{}", ran.said);
        // The mount stands still for five minutes.
        ensure!(ran.took < Duration::from_secs(240), "it took {:?}", ran.took);
        Ok(())
    };
    let paused = node.cluster.pause_mount(node.mnt())?;
    let hangs = [node.run("prolog", 2, "", soon)?, node.run("epilog", 1, "", soon)?];
    drop(paused);
    in_time(&hangs[0], "is not usable: it does not answer: no end of it within")?;
    in_time(&hangs[1], "may not be durable: no end of it within 2 s")?;
    // What it had begun ends by itself.
    eventually(PATIENCE, "the folder is removed", || (!node.scratch(1).exists()).then_some(()))?;
    ensure!(node.run("epilog", 1, "", "")?.success && node.run("epilog", 2, "", "")?.success);
    node.cluster.kill_mount(node.mnt())?;
    in_time(&node.run("prolog", 3, "", soon)?, "Transport endpoint is not connected")?;
    in_time(&node.run("epilog", 3, "", soon)?, "Transport endpoint is not connected")?;
    weft(&["umount", path(node.mnt())])?;
    in_time(&node.run("prolog", 4, "", soon)?, "it is not mounted, and cannot be")?;
    // It has to be a mount, and not the folder where it would be.
    ensure!(fs::read_dir(node.mnt())?.next().is_none(), "something was made below the mount");
    ensure!(node.run("epilog", 4, "", "")?.success, "there is nothing to sync");
    // What is not mounted is mounted, if that can be.
    let shown = node.cluster.environment();
    let shown = shown.iter().map(|(name, file)| format!("{name}={} ", path(file)));
    let command = format!(
        "WEFT_MOUNT_COMMAND='{}{} mount --cluster {} --log-file {} \"$WEFT_MNT\"'",
        shown.collect::<String>(),
        path(&weft_binary()),
        node.cluster.address()?,
        path(&node.cluster.dir().join("log/by-prolog.log")),
    );
    let ran = node.run("prolog", 5, "", &command)?;
    ensure!(ran.success && node.scratch(5).is_dir(), "{}", ran.said);
    ensure!(node.run("epilog", 5, "", "")?.success);
    let unknown = node.run("prolog", 6, "", "WEFT_WARM_READERS=many")?;
    in_time(&unknown, "WEFT_WARM_READERS is no number")?;
    node.knows_no_job()
}

#[test]
fn a_warming_that_hangs_holds_nobody_up_and_ends_with_the_job() -> Result<()> {
    let node = Node::new()?;
    let data = node.mnt().join("data");
    fs::create_dir(&data)?;
    for n in 0..4 {
        fs::write(data.join(format!("f{n}")), data::bytes(n, 4 * MIB as usize))?;
    }
    node.cluster.remount()?;
    let status = node.cluster.status()?;
    let daemons = status["storage"].as_array().context("no storage daemons")?;
    let pids = daemons.iter().map(|one| one["pid"].as_i64().and_then(|pid| pid.try_into().ok()));
    // Names are there, and content never comes.
    let paused = Paused::all(pids.collect::<Option<_>>().context("no pids")?)?;
    let comment = format!("weft:{}", path(&data));
    let ran = node.run("prolog", 1, &comment, "WEFT_WARM_WAIT=1")?;
    ensure!(ran.success, "{}", ran.said);
    let group = node.warmer(1)?;
    ensure!(lives(group)?, "nothing warms: {}", ran.said);
    let ran = node.run("epilog", 1, "", "")?;
    ensure!(ran.success, "{}", ran.said);
    let is_gone = || lives(group).is_ok_and(|lives| !lives).then_some(());
    eventually(PATIENCE, "what warmed is gone", is_gone)?;
    drop(paused);
    node.knows_no_job()?;
    node.cluster.await_clean()
}

#[test]
fn a_mount_that_died_during_a_job_fails_its_epilog() -> Result<()> {
    let node = Node::new()?;
    let mnt = node.mnt();
    weft_ok(&["umount", path(mnt)])?;
    let log = node.cluster.dir().join("log/supervised.log");
    let (cluster, log) = (node.cluster.address()?, path(&log).to_owned());
    weft_ok(&["mount", "--cluster", &cluster, "--supervise", "--log-file", &log, path(mnt)])?;
    // Another process that goes on with it loses nothing.
    ensure!(node.run("prolog", 1, "", "")?.success);
    weft_ok(&["mount", "--takeover", path(mnt)])?;
    let ran = node.run("epilog", 1, "", "")?;
    ensure!(ran.success, "{}", ran.said);
    ensure!(node.run("prolog", 2, "", "")?.success && node.run("prolog", 3, "", "")?.success);
    let before = node.cluster.pid_of_mount(mnt)?;
    node.cluster.kill_mount(mnt)?;
    eventually(PATIENCE, "it is mounted anew", || {
        let now = node.cluster.pid_of_mount(mnt).ok()?;
        (now != before && mnt.join("scratch").exists()).then_some(())
    })?;
    let ran = node.run("epilog", 2, "", "")?;
    ensure!(!ran.success && ran.said.contains("was mounted anew during the job"), "{}", ran.said);
    weft_ok(&["umount", path(mnt)])?;
    let ran = node.run("epilog", 3, "", "")?;
    ensure!(!ran.success && ran.said.contains("is not mounted any more"), "{}", ran.said);
    Ok(())
}

#[test]
fn folders_are_refused_where_others_may_rename_and_left_out_where_there_is_no_room() -> Result<()> {
    let node = Node::new()?;
    let mnt = node.mnt();
    // Whoever may rename what is above the folder could have root work elsewhere.
    let open = mnt.join("open");
    fs::create_dir_all(open.join("root"))?;
    symlink("open/root", mnt.join("link"))?;
    let at = |folder: &str| format!("WEFT_SCRATCH={}/{folder}/scratch", path(mnt));
    for (n, mode, folder, why) in [
        (1, 0o777, "open/root", "open is not a folder of root into which nobody else may write"),
        (2, 0o1777, "link", "leads through a link"),
        (3, 0o1777, "open/root", ""),
    ] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode))?;
        let ran = node.run("prolog", n, "", &at(folder))?;
        ensure!(ran.success == why.is_empty() && ran.said.contains(why), "{}", ran.said);
        ensure!(open.join(format!("root/scratch/{n}")).exists() == ran.success);
        ensure!(node.run("epilog", n, "", &at(folder))?.success);
    }
    ensure!(!open.join("root/scratch/3").exists());
    // A user who may have no more folders is no reason to drain a node.
    fs::create_dir(mnt.join("his"))?;
    chown(mnt.join("his"), Some(USER), Some(USER))?;
    let user = USER.to_string();
    weft_ok(&["quota", "set", "--user", &user, "--inodes", "1", path(mnt)])?;
    let ran = node.run("prolog", 4, "", "")?;
    ensure!(ran.success && ran.said.contains("the job goes on without"), "{}", ran.said);
    ensure!(fs::metadata(node.scratch(4))?.uid() == 0, "it is his");
    ensure!(node.run("epilog", 4, "", "")?.success);
    weft_ok(&["quota", "set", "--user", &user, "--inodes", "none", path(mnt)])?;
    // An epilog was killed in the middle: the next one ends what that has begun.
    ensure!(node.run("prolog", 5, "", "")?.success);
    fs::remove_dir_all(mnt.join("scratch/.nodes/5"))?;
    fs::create_dir_all(mnt.join("scratch/.removed-5-n1-77/left"))?;
    ensure!(node.run("epilog", 5, "", "")?.success);
    node.knows_no_job()
}
