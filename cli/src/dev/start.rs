//! `weft dev start`: brings up whatever does not run, waits until the cluster works, mounts it.

use super::state::{Daemon, Shape, State, lock, port_taken};
use super::{StartArgs, absolute, config};
use crate::control::{leader_of, statuses};
use crate::process::{self, Process};
use crate::progress::Progress;
use crate::size::Size;
use crate::{mount, umount};
use crate::{mounts, output};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use weft_client::{Filesystem, SetAttr};
use weft_fuse::mount_at;
use weft_proto::v1::{StatusReply, TargetState};
use weft_proto::{InodeId, Profile};

/// Between two looks at a cluster that is not ready.
const POLL: Duration = Duration::from_millis(50);

pub fn run(args: StartArgs) -> Result<()> {
    let dir = absolute(&args.dir)?;
    // Look before anything is made, so that a wrong --dir stays as it is.
    let known = State::load(&dir)?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let dir = absolute(&dir)?;
    let mount_point = args.mount.as_deref().map(prepare_mount_point).transpose()?;
    let first_start = known.is_none();
    let mut state = match known {
        Some(state) => adopt(state, &args, mount_point)?,
        None => State::new(shape(&args, mount_point)?)?,
    };
    let mut progress = Progress::new(format!("starting the cluster in {}", dir.display()));
    let mut started = start_daemons(&dir, &mut state, first_start)?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let failed =
        wait_until_ready(&dir, &state, &mut started, first_start, deadline, &mut progress)?;
    if first_start && !nix::unistd::geteuid().is_root() {
        give_root_to_user(&state.cluster())?;
    }
    if !args.no_mount {
        progress.set(format!("mounting {}", state.mount.display()));
        ensure_mounted(&dir, &state)?;
    }
    drop(progress);
    ensure!(failed.is_empty(), "the cluster runs, but not all of it:\n{}", failed.join("\n"));
    output::say(&summary(&dir, &state, args.no_mount))
}

/// What a new cluster is made of.
fn shape(args: &StartArgs, mount: Option<PathBuf>) -> Result<Shape> {
    let profile = args.profile.map_or_else(|| "4+2".parse::<Profile>(), Ok)?;
    let storage = args.storage.unwrap_or(6);
    ensure!(
        storage > u64::from(profile.m()),
        "--profile {profile} needs at least {} storage daemons, not {storage}: each shard of a \
         stripe lies on another",
        profile.m() + 1
    );
    Ok(Shape {
        mount: mount.unwrap_or_default(),
        profile: profile.to_string(),
        target_size: args.target_size.unwrap_or(Size(4 << 30)).0,
        sparse: !args.preallocate,
        metadata: args.metadata.unwrap_or(3),
        storage,
    })
}

/// Checks that a known cluster is what the flags ask for; what they leave out stays.
fn adopt(mut state: State, args: &StartArgs, mount: Option<PathBuf>) -> Result<State> {
    let differs = |flag: &str, has: String, wants: Option<String>| match wants {
        Some(wants) if wants != has => bail!(
            "the cluster in {} was made with {flag} {has}; leave the flag out, or use another \
             --dir for a cluster with {wants}",
            args.dir.display()
        ),
        _ => Ok(()),
    };
    let text = |n: Option<u64>| n.map(|n| n.to_string());
    differs("--metadata", state.metadata.len().to_string(), text(args.metadata))?;
    differs("--storage", state.storage.len().to_string(), text(args.storage))?;
    differs("--profile", state.profile.clone(), args.profile.map(|p| p.to_string()))?;
    differs(
        "--target-size",
        state.target_size.to_string(),
        args.target_size.map(|s| s.0.to_string()),
    )?;
    if let Some(mount) = mount.filter(|mount| *mount != state.mount) {
        let record = mounts::find(&state.mount)?;
        ensure!(
            !record.is_some_and(|r| r.process.alive()),
            "this cluster is mounted at {}; add another mount with weft mount --cluster {} {}",
            state.mount.display(),
            state.cluster().join(","),
            mount.display()
        );
        state.mount = mount;
    }
    Ok(state)
}

/// Makes the last part of the path if only that is missing, and answers it resolved.
fn prepare_mount_point(path: &Path) -> Result<PathBuf> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(e).with_context(|| format!("cannot create mount point {}", path.display()));
        }
    }
    let path = weft_fuse::resolve_mount_point(path)
        .with_context(|| format!("cannot use mount point {}", path.display()))?;
    if mount_at(&path)?.is_none() {
        weft_fuse::check_mount_point(&path, false)?;
    }
    Ok(path)
}

/// A daemon that this command started, to notice when it ends at once.
struct Started {
    name: String,
    log: PathBuf,
    /// Length of the log before it started.
    log_start: u64,
    child: Child,
}

fn start_daemons(dir: &Path, state: &mut State, first_start: bool) -> Result<Vec<Started>> {
    check_ports(state, first_start)?;
    // Before anything else is made in DIR, so that it is known as ours whatever happens next.
    state.save(dir)?;
    config::write_all(dir, state)?;
    let mut started = Vec::new();
    for role in [config::METADATA, config::STORAGE] {
        let daemons =
            if role == config::METADATA { &mut state.metadata } else { &mut state.storage };
        for daemon in daemons.iter_mut().filter(|d| !d.alive()) {
            let new = spawn(dir, role, daemon)?;
            daemon.process = Process::of(new.child.id() as i32);
            started.push(new);
        }
    }
    state.save(dir)?;
    Ok(started)
}

/// How long a killed daemon may take to let go of its port.
const DYING: Duration = Duration::from_secs(5);

/// A new cluster moves out of the way of whoever took a port in the meantime; a known one cannot.
fn check_ports(state: &mut State, first_start: bool) -> Result<()> {
    let taken = |d: &&Daemon| !d.alive() && port_taken(&d.address);
    let find = |state: &State| state.metadata.iter().chain(&state.storage).find(taken).cloned();
    let Some(mut daemon) = find(state) else { return Ok(()) };
    // A daemon that was killed a moment ago holds its port until the kernel has taken it apart.
    let begin = Instant::now();
    while !first_start && begin.elapsed() < DYING {
        std::thread::sleep(POLL);
        match find(state) {
            Some(other) => daemon = other,
            None => return Ok(()),
        }
    }
    ensure!(
        first_start,
        "the address {} of this cluster is in use by another program; stop that program (ss -ltnp \
         shows it) and start again",
        daemon.address
    );
    let fresh = State::new(Shape {
        mount: state.mount.clone(),
        profile: state.profile.clone(),
        target_size: state.target_size,
        sparse: state.sparse,
        metadata: state.metadata.len() as u64,
        storage: state.storage.len() as u64,
    })?;
    *state = fresh;
    Ok(())
}

fn spawn(dir: &Path, role: config::Role, daemon: &Daemon) -> Result<Started> {
    let name = role.name(daemon.id);
    let log = dir.join("log").join(format!("{name}.log"));
    let config = config::config_path(dir, role, daemon.id);
    let arguments = [role.command.as_ref(), "--config".as_ref(), config.as_os_str()];
    // What a daemon prints (a panic of a library, say) belongs in its log.
    let stdout = Stdio::from(process::open_log(&log)?);
    let log_start = process::log_len(&log);
    let child = process::spawn_detached(&arguments, &log, stdout)?;
    Ok(Started { name, log, log_start, child })
}

/// Waits for a leader, all targets and the placement groups. Answers what failed to start in a
/// cluster that works without it; a new cluster must come up whole.
fn wait_until_ready(
    dir: &Path,
    state: &State,
    started: &mut Vec<Started>,
    first_start: bool,
    deadline: Instant,
    progress: &mut Progress,
) -> Result<Vec<String>> {
    let runtime = crate::daemon::runtime(2)?;
    let cluster = state.cluster();
    let mut failed = Vec::new();
    loop {
        failed.extend(ended_early(started)?);
        ensure!(failed.is_empty() || !first_start, "{}", failed.join("\n"));
        let leader = runtime.block_on(async { leader_of(&statuses(&cluster).await).await });
        let waiting = match &leader {
            Ok(reply) => what_is_missing(reply, state.storage.len() - failed.len()),
            Err(_) => Some("waiting for the metadata servers to elect a leader".to_owned()),
        };
        let Some(waiting) = waiting else { return Ok(failed) };
        if Instant::now() >= deadline {
            let log = dir.join("log");
            failed.push(format!("gave up {waiting}; the logs are in {}", log.display()));
            ensure!(leader.is_ok_and(|r| usable(&r)) && !first_start, "{}", failed.join("\n"));
            return Ok(failed);
        }
        progress.set(waiting);
        std::thread::sleep(POLL);
    }
}

/// Daemons that ended since the last look, each with the end of its log.
fn ended_early(started: &mut Vec<Started>) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    let mut running = Vec::new();
    for mut daemon in started.drain(..) {
        match daemon.child.try_wait()? {
            None => running.push(daemon),
            Some(status) => failed.push(format!(
                "{} ended ({status}); {} says:\n{}",
                daemon.name,
                daemon.log.display(),
                process::log_tail(&daemon.log, daemon.log_start)
            )),
        }
    }
    *started = running;
    Ok(failed)
}

/// Targets that this leader has heard of: after a restart the map still says what was before.
fn targets_up(reply: &StatusReply) -> usize {
    let heard = |id: u32| reply.targets.iter().any(|stat| stat.target == id);
    let targets = reply.map.iter().flat_map(|m| &m.targets);
    targets.filter(|t| t.state() == TargetState::Up && heard(t.id)).count()
}

fn has_groups(reply: &StatusReply) -> bool {
    let pools = reply.map.iter().flat_map(|m| &m.pools);
    pools.flat_map(|p| &p.pgs).any(|pg| !pg.retired)
}

/// Can data be read and, as far as anyone can tell from outside, written?
fn usable(reply: &StatusReply) -> bool {
    targets_up(reply) > 0 && has_groups(reply)
}

fn what_is_missing(reply: &StatusReply, targets: usize) -> Option<String> {
    let up = targets_up(reply);
    if up < targets {
        Some(format!("waiting for the targets: {up} of {targets} are up"))
    } else if !has_groups(reply) {
        Some("waiting for the placement groups".to_owned())
    } else {
        None
    }
}

/// A new filesystem belongs to root; one that a user makes for trying out is the user's.
fn give_root_to_user(cluster: &[String]) -> Result<()> {
    let options = weft_client::Options {
        op_deadline: Duration::from_secs(60),
        ..weft_client::Options::new(cluster.to_vec(), weft_net::tcp())
    };
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    let give = async {
        let fs = Filesystem::connect(options).await?;
        fs.set_attr(InodeId::ROOT, None, owner).await?;
        fs.shutdown().await
    };
    let given = crate::daemon::runtime(2)?.block_on(give);
    given.context("cannot make this user the owner of the new filesystem")
}

/// Leaves a mount that lives alone; replaces one whose process has died.
fn ensure_mounted(dir: &Path, state: &State) -> Result<()> {
    let path = &state.mount;
    umount::detach_dead(path)?;
    let record = mounts::find(path)?.filter(|r| r.process.alive());
    match (mount_at(path)?, record) {
        (Some(mount), Some(record)) if mount.is_weft() => {
            ensure!(
                record.cluster == state.cluster(),
                "{} is a mount of another cluster; weft umount it, or choose another --mount",
                path.display()
            );
            return Ok(());
        }
        (Some(mount), _) => {
            bail!("{} is already a mount ({}); unmount it first", path.display(), mount.fs_type)
        }
        // Unmounted, but its process still writes what it holds.
        (None, Some(record)) => umount::stop(path, &record.process, Duration::from_secs(15))?,
        (None, None) => {}
    }
    mount::mount_defaults(&state.cluster(), path, &dir.join("log").join("mount.log"), 60).map(drop)
}

fn summary(dir: &Path, state: &State, no_mount: bool) -> String {
    let (cluster, dir) = (state.cluster().join(","), dir.display());
    let place = if no_mount {
        format!("not mounted; mount it with: weft mount --cluster {cluster} MNT")
    } else {
        format!("mounted at {}", state.mount.display())
    };
    format!(
        "running: {} metadata servers, {} storage daemons, redundancy {}\n{place}\n\
         cluster: {cluster}\ndata and logs: {dir}\n\n\
         weft dev status --dir {dir}\nweft status --cluster {cluster}\nweft dev stop --dir {dir}",
        state.metadata.len(),
        state.storage.len(),
        state.profile,
    )
}
