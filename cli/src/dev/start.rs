//! `weft dev start`: brings up whatever does not run, waits until the cluster works, mounts it.

use super::args::{StartArgs, absolute};
use super::config;
use super::disk;
use super::role;
use super::state::{Daemon, Shape, State, look_and_lock, port_taken};
use super::stop::stop_all;
use super::tls;
use crate::control::{leader_of, statuses};
use crate::process::{self, Interrupt, Process};
use crate::progress::Progress;
use crate::size::Size;
use crate::{mount, umount};
use crate::{mounts, network, output};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use weft_client::{Filesystem, SetAttr};
use weft_fuse::mount_at;
use weft_net::TlsFiles;
use weft_proto::v1::{StatusReply, TargetState};
use weft_proto::{InodeId, Profile};
use weft_storaged::engine::Superblock;

/// Between two looks at a cluster that is not ready.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Size of a target of a new cluster, where there is room.
const TARGET_SIZE: Size = Size(4 << 30);
/// Stands in for whatever the daemons write beside the targets: logs, indexes, metadata.
const BESIDE: u64 = 256 << 20;
/// A daemon that was started in vain gets this long to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

pub fn run(args: StartArgs) -> Result<()> {
    let interrupt = Interrupt::catch()?;
    let dir = absolute(&args.dir)?;
    // Look before anything is made, so that a wrong --dir stays as it is.
    if State::load(&dir)?.is_none() {
        shape(&args, &dir)?;
    }
    let made_dir = !dir.exists();
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (known, _lock) = look_and_lock(&dir, State::load)?;
    let mut start = Start {
        dir: absolute(&dir)?,
        first: known.is_none(),
        made_dir,
        made_mount_point: None,
        state: None,
        started: Vec::new(),
        args,
        interrupt,
    };
    match start.run(known) {
        Ok(summary) => output::say(&summary),
        Err(error) => Err(start.undo(error)),
    }
}

/// One start, and what it has made and started so far.
struct Start {
    args: StartArgs,
    dir: PathBuf,
    interrupt: Interrupt,
    /// There was no cluster yet.
    first: bool,
    made_dir: bool,
    made_mount_point: Option<PathBuf>,
    state: Option<State>,
    /// Daemons that this start has started, as far as they are known to run.
    started: Vec<Started>,
}

impl Start {
    /// Answers what there is to say about the cluster.
    fn run(&mut self, known: Option<State>) -> Result<String> {
        let mount_point = match &self.args.mount {
            Some(path) => Some(prepare_mount_point(path, &mut self.made_mount_point)?),
            None => None,
        };
        let state = match known {
            Some(state) => adopt(state, &self.args, mount_point)?,
            None => State::new(Shape {
                mount: mount_point.unwrap_or_default(),
                ..shape(&self.args, &self.dir)?
            })?,
        };
        let state = self.state.insert(state);
        let mut progress = Progress::new(format!("starting the cluster in {}", self.dir.display()));
        start_daemons(&self.dir, state, self.first, &self.interrupt, &mut self.started)?;
        tls::speak(&self.dir, state)?;
        let limit = Duration::from_secs(self.args.timeout);
        let (state, deadline) = (&*state, Instant::now() + limit);
        let failed = wait_until_ready(
            &self.dir,
            state,
            &mut self.started,
            self.first,
            deadline,
            &self.interrupt,
            &mut progress,
        )?;
        if self.first && !nix::unistd::geteuid().is_root() {
            give_root_to_user(&state.cluster(), limit)?;
        }
        if !self.args.no_mount {
            progress.set(format!("mounting {}", state.mount.display()));
            ensure_mounted(&self.dir, state, &self.interrupt)?;
        }
        drop(progress);
        tell_dead_mounts(state)?;
        ensure!(failed.is_empty(), "the cluster runs, but not all of it:\n{}", failed.join("\n"));
        Ok(summary(&self.dir, state, self.args.no_mount))
    }

    /// A new cluster that failed goes, and so does what a start has begun that is interrupted; else
    /// what runs is of use. Answers the error with what was done about it.
    fn undo(&mut self, error: anyhow::Error) -> anyhow::Error {
        if !self.first && !self.interrupt.came() {
            return error;
        }
        let stopped = self.stop();
        let said = match stopped.and_then(|()| if self.first { self.remove() } else { Ok(()) }) {
            Ok(()) if !self.first => "what it had started is stopped again".to_owned(),
            Ok(()) if self.dir.join("log").exists() => format!(
                "the new cluster is removed again, but for its logs in {}",
                self.dir.join("log").display()
            ),
            Ok(()) => "nothing was made".to_owned(),
            Err(e) => format!("not all of it could be taken back: {}", output::describe(&e)),
        };
        anyhow::anyhow!("{}\n{said}", output::describe(&error))
    }

    /// Stops the daemons that this start has started.
    fn stop(&self) -> Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let ours = |d: &&Daemon| self.started.iter().any(|s| Some(s.child.id() as i32) == d.pid());
        for (role, daemons) in [("storage", &state.storage), ("metadata", &state.metadata)] {
            let daemons: Vec<_> = daemons.iter().filter(ours).cloned().collect();
            stop_all(role, &daemons, STOP_TIMEOUT)?;
        }
        Ok(())
    }

    /// Removes what was made, the logs aside if there are any.
    fn remove(&self) -> Result<()> {
        let dir = &self.dir;
        if let Some(state) = &self.state {
            config::remove_all(dir, state)?;
            State::remove(dir)?;
        }
        if self.made_dir && !dir.join("log").exists() {
            fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        match &self.made_mount_point {
            Some(path) => fs::remove_dir(path)
                .with_context(|| format!("cannot remove mount point {}", path.display())),
            None => Ok(()),
        }
    }
}

/// What a new cluster in DIR is made of, its mount aside. Fails if there is no room for it.
fn shape(args: &StartArgs, dir: &Path) -> Result<Shape> {
    let profile = args.profile.map_or_else(|| "4+2".parse::<Profile>(), Ok)?;
    let storage = args.storage.unwrap_or(6);
    ensure!(
        storage > u64::from(profile.m()),
        "--profile {profile} needs at least {} storage daemons, not {storage}: each shard of a \
         stripe lies on another",
        profile.m() + 1
    );
    Ok(Shape {
        mount: PathBuf::new(),
        profile: profile.to_string(),
        target_size: target_size(args.target_size, storage, free_space(dir)?, dir)?.0,
        sparse: !args.preallocate,
        tls: args.tls,
        metadata: args.metadata.unwrap_or(3),
        storage,
    })
}

/// Bytes that may be written on the filesystem that has DIR, or will have it.
fn free_space(dir: &Path) -> Result<u64> {
    let there = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let stat = nix::sys::statvfs::statvfs(there)
        .with_context(|| format!("cannot ask for the free space of {}", there.display()))?;
    Ok(stat.blocks_available() as u64 * stat.fragment_size() as u64)
}

/// The size of each of so many targets: the wanted one, or one with which all have room. Their
/// files take space only as they are filled, but a disk that is full then fails writes of which the
/// cluster thinks that there is room.
fn target_size(wanted: Option<Size>, count: u64, free: u64, dir: &Path) -> Result<Size> {
    let fits = ((free.saturating_sub(BESIDE) / count) >> 20) << 20;
    let size = wanted.unwrap_or(TARGET_SIZE.min(Size(fits)));
    ensure!(
        size.0 <= fits && size.0 >= Superblock::MIN_SIZE,
        "{count} targets of {} have no room: {} are free on the disk of {}; use another --dir{}",
        wanted.unwrap_or(Size(Superblock::MIN_SIZE)).exact(),
        Size(free),
        dir.display(),
        if fits >= Superblock::MIN_SIZE {
            format!(", or --target-size {} or less", Size(fits).exact())
        } else {
            String::new()
        }
    );
    Ok(size)
}

/// Checks that a known cluster is what the flags ask for; what they leave out stays. More storage
/// daemons than there are are added.
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
    let more = args.storage.unwrap_or(0).saturating_sub(state.storage.len() as u64);
    if more == 0 {
        differs("--storage", state.storage.len().to_string(), text(args.storage))?;
    } else {
        let size = Some(Size(state.target_size));
        target_size(size, more, free_space(&args.dir)?, &args.dir)?;
        state.add_storage(more)?;
    }
    ensure!(
        state.tls || !args.tls,
        "the cluster in {} was made without certificates; leave --tls out, or use another --dir",
        args.dir.display()
    );
    differs("--profile", state.profile.clone(), args.profile.map(|p| p.to_string()))?;
    let size = args.target_size.map(Size::exact);
    differs("--target-size", Size(state.target_size).exact(), size)?;
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

/// Makes the last part of the path if only that is missing, and answers it resolved. What is
/// mounted there is not asked for anything: the daemons that would answer may not run yet.
fn prepare_mount_point(path: &Path, made: &mut Option<PathBuf>) -> Result<PathBuf> {
    match fs::create_dir(path) {
        Ok(()) => *made = Some(std::path::absolute(path)?),
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

fn start_daemons(
    dir: &Path,
    state: &mut State,
    first_start: bool,
    interrupt: &Interrupt,
    started: &mut Vec<Started>,
) -> Result<()> {
    check_ports(state, first_start, interrupt)?;
    // Before anything else is made in DIR, so that it is known as ours whatever happens next.
    state.save(dir)?;
    config::write_all(dir, state)?;
    for role in [role::METADATA, role::STORAGE] {
        let daemons = if role == role::METADATA { &mut state.metadata } else { &mut state.storage };
        for daemon in daemons.iter_mut().filter(|d| !d.alive()) {
            let new = spawn(dir, role, daemon)?;
            daemon.process = Process::of(new.child.id() as i32);
            started.push(new);
        }
    }
    state.save(dir)
}

/// How long a killed daemon may take to let go of its port.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A new cluster moves out of the way of whoever took a port in the meantime; a known one cannot.
fn check_ports(state: &mut State, first_start: bool, interrupt: &Interrupt) -> Result<()> {
    let taken = |d: &&Daemon| !d.alive() && port_taken(&d.address);
    let find = |state: &State| state.metadata.iter().chain(&state.storage).find(taken).cloned();
    let Some(mut daemon) = find(state) else { return Ok(()) };
    // A daemon that was killed a moment ago holds its port until the kernel has taken it apart.
    let begin = Instant::now();
    while !first_start && begin.elapsed() < KILL_TIMEOUT {
        interrupt.pause(POLL_INTERVAL)?;
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
        tls: state.tls,
        sparse: state.sparse,
        metadata: state.metadata.len() as u64,
        storage: state.storage.len() as u64,
    })?;
    *state = fresh;
    Ok(())
}

fn spawn(dir: &Path, role: role::Role, daemon: &Daemon) -> Result<Started> {
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
    interrupt: &Interrupt,
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
            Ok(reply) => what_is_missing(reply, state.storage.len() - failed.len())
                .or_else(|| silent(reply, state.metadata.len()).filter(|_| first_start)),
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
        interrupt.pause(POLL_INTERVAL)?;
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
    // Those that an admin gave up do not come.
    let held = reply.map.iter().flat_map(|map| &map.targets).filter(|t| t.held_out).count();
    let targets = targets.saturating_sub(held);
    if up < targets {
        Some(format!("waiting for the targets: {up} of {targets} are up"))
    } else if !has_groups(reply) {
        Some("waiting for the placement groups".to_owned())
    } else {
        None
    }
}

/// What a server may not know, as batches, a new group does not use before it has heard that one.
fn silent(reply: &StatusReply, servers: usize) -> Option<String> {
    let heard = 1 + reply.members.iter().filter(|m| m.active && m.matched_index > 0).count();
    let waiting = format!("waiting for the metadata servers: {heard} of {servers} are heard");
    (heard < servers).then_some(waiting)
}

/// A new filesystem belongs to root; one that a user makes for trying out is the user's.
fn give_root_to_user(cluster: &[String], limit: Duration) -> Result<()> {
    let options = weft_client::Options {
        op_deadline: Duration::from_secs(60),
        ..weft_client::Options::new(cluster.to_vec(), crate::network::transport())
    };
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    let give = async {
        let fs = Filesystem::connect(options).await?;
        fs.set_attr(InodeId::ROOT, None, owner).await?;
        anyhow::Ok(fs.shutdown().await?)
    };
    let runtime = crate::daemon::runtime(2)?;
    let given = runtime.block_on(async { tokio::time::timeout(limit, give).await });
    given
        .context("no answer")
        .flatten()
        .context("cannot make this user the owner of the new filesystem")
}

/// Leaves a mount that lives alone; replaces one whose process has died.
fn ensure_mounted(dir: &Path, state: &State, interrupt: &Interrupt) -> Result<()> {
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
        (None, Some(record)) => {
            if let Err(e) = umount::stop(&record, Duration::from_secs(15)) {
                eprintln!("weft: {}", output::describe(&e));
            }
        }
        (None, None) => {}
    }
    let log = dir.join("log").join("mount.log");
    let as_client = state.tls.then(|| network::options_of(&tls::files(dir, tls::CLIENT)));
    let network = as_client.unwrap_or_else(network::options);
    mount::mount_defaults(&state.cluster(), path, &log, 60, network, interrupt)
}

/// Other mounts of this cluster are not brought back: who made them is told of those that died.
fn tell_dead_mounts(state: &State) -> Result<()> {
    let ours = state.cluster();
    let dead =
        |m: &mounts::MountRecord| !m.process.alive() && m.cluster.iter().any(|a| ours.contains(a));
    for mount in mounts::list()?.into_iter().filter(|m| dead(m) && m.path != state.mount) {
        eprintln!(
            "weft: the process of {0} has died, and it is not brought back; weft umount {0}, then \
             weft mount --cluster {1} {0}",
            mount.path.display(),
            ours.join(",")
        );
    }
    Ok(())
}

fn summary(dir: &Path, state: &State, no_mount: bool) -> String {
    let cluster = state.cluster().join(",");
    let shown = match state.tls {
        true => {
            let TlsFiles { ca, cert, key, .. } = tls::files(dir, tls::CLIENT);
            format!(
                "certificates: other commands need them, so for now\n\
                 export WEFT_TLS_CA={} WEFT_TLS_CERT={} WEFT_TLS_KEY={}\n",
                ca.display(),
                cert.display(),
                key.display()
            )
        }
        false => String::new(),
    };
    let disk = disk::told(dir, state);
    let dir = dir.display();
    let place = if no_mount {
        format!("not mounted; mount it with: weft mount --cluster {cluster} MNT")
    } else {
        format!("mounted at {}", state.mount.display())
    };
    format!(
        "running: {} metadata servers, {} storage daemons, redundancy {}\n{place}\n\
         cluster: {cluster}\ndata and logs: {dir}\n{disk}\n{shown}\n\
         weft dev status --dir {dir}\nweft status --cluster {cluster}\nweft dev stop --dir {dir}",
        state.metadata.len(),
        state.storage.len(),
        state.profile,
    )
}

#[cfg(test)]
mod tests;
