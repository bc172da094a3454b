//! What `weft dev` remembers of its cluster: `DIR/dev.json`, replaced atomically.
//!
//! Layout of DIR: `dev.json`, `lock`, `config/ROLE-N.toml`, `log/ROLE-N.log`, `tls/`, and one
//! folder `ROLE-N/` with the data of each daemon.

use crate::durable;
use crate::process::Process;
use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// Version of the layout of DIR.
const LAYOUT: u32 = 1;

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct State {
    layout: u32,
    pub mount: PathBuf,
    pub profile: String,
    /// Bytes of one target.
    pub target_size: u64,
    /// Whether targets take only the space of what is written to them.
    #[serde(default)]
    pub sparse: bool,
    /// Whether everybody has to prove who he is, by certificates in `DIR/tls`.
    #[serde(default)]
    pub tls: bool,
    pub metadata: Vec<Daemon>,
    pub storage: Vec<Daemon>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Daemon {
    pub id: u64,
    /// Kept for the life of the cluster.
    pub address: String,
    /// As last started.
    pub process: Option<Process>,
}

impl Daemon {
    pub fn alive(&self) -> bool {
        self.process.as_ref().is_some_and(Process::alive)
    }

    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().filter(|p| p.alive()).map(|p| p.pid)
    }
}

/// What a new cluster is made of.
pub struct Shape {
    pub mount: PathBuf,
    pub profile: String,
    pub target_size: u64,
    pub sparse: bool,
    pub tls: bool,
    pub metadata: u64,
    pub storage: u64,
}

impl State {
    /// A new cluster on ports that are free now.
    pub fn new(shape: Shape) -> Result<Self> {
        let mut ports = free_ports((shape.metadata + shape.storage) as usize)?.into_iter();
        let mut daemons = |count| {
            let daemon =
                |(id, port)| Daemon { id, address: format!("127.0.0.1:{port}"), process: None };
            (1..=count).zip(ports.by_ref().take(count as usize)).map(daemon).collect()
        };
        Ok(Self {
            layout: LAYOUT,
            metadata: daemons(shape.metadata),
            storage: daemons(shape.storage),
            mount: shape.mount,
            profile: shape.profile,
            target_size: shape.target_size,
            sparse: shape.sparse,
            tls: shape.tls,
        })
    }

    /// So many more storage daemons, on ports that are free now.
    pub fn add_storage(&mut self, count: u64) -> Result<()> {
        let first = self.storage.iter().map(|d| d.id).max().unwrap_or(0) + 1;
        let daemon =
            |(id, port)| Daemon { id, address: format!("127.0.0.1:{port}"), process: None };
        self.storage.extend((first..).zip(free_ports(count as usize)?).map(daemon));
        Ok(())
    }

    /// Reads the cluster of DIR; `None` if DIR is not there or empty.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join("dev.json");
        let bytes = match fs::read(&file) {
            Err(e) if e.kind() == ErrorKind::NotFound => return refuse_foreign(dir).map(|()| None),
            other => other.with_context(|| format!("cannot read {}", file.display()))?,
        };
        #[derive(Deserialize)]
        struct Version {
            layout: u32,
        }
        let what = || format!("{} is damaged or not written by weft dev", file.display());
        let version: Version = serde_json::from_slice(&bytes).with_context(what)?;
        ensure!(
            version.layout == LAYOUT,
            "{} has layout {} of another version of weft, this one knows {LAYOUT}; use that \
             version, or another --dir",
            dir.display(),
            version.layout
        );
        serde_json::from_slice(&bytes).with_context(what).map(Some)
    }

    /// Reads the cluster of DIR, which must be there.
    pub fn load_existing(dir: &Path) -> Result<Self> {
        Self::load(dir)?.with_context(|| {
            format!("there is no cluster in {}; make one with weft dev start", dir.display())
        })
    }

    pub fn save(&self, dir: &Path) -> Result<()> {
        let file = dir.join("dev.json");
        durable::replace(&file, &serde_json::to_vec_pretty(self)?, None)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Forgets the cluster of DIR.
    pub fn remove(dir: &Path) -> Result<()> {
        for name in ["dev.json", ".dev.json.new"] {
            match fs::remove_file(dir.join(name)) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => other.with_context(|| format!("cannot remove {name}"))?,
            }
        }
        Ok(())
    }

    /// Addresses of the metadata servers.
    pub fn cluster(&self) -> Vec<String> {
        self.metadata.iter().map(|d| d.address.clone()).collect()
    }
}

/// A folder that holds something else is not ours to fill.
fn refuse_foreign(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", dir.display())),
        Ok(mut entries) => {
            // Logs are what is left of a cluster that could not be started.
            let ours = |e: &DirEntry| e.file_name() == "lock" || e.file_name() == "log";
            match entries.find(|e| e.as_ref().is_ok_and(|e| !ours(e))) {
                None => Ok(()),
                Some(_) => bail!(
                    "{} is not empty and holds no cluster of weft dev (no dev.json); use an empty \
                 or new folder as --dir",
                    dir.display()
                ),
            }
        }
    }
}

/// Keeps other `weft dev` commands off DIR until dropped.
pub fn lock(dir: &Path) -> Result<Flock<File>> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write in {}", dir.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
        nix::errno::Errno::EWOULDBLOCK => anyhow::anyhow!(
            "another weft dev command works on {}; wait until it has ended",
            dir.display()
        ),
        e => anyhow::Error::new(e).context(format!("cannot lock {}", path.display())),
    })
}

/// Looks at DIR, so that one that is refused stays as it is; locks it; and looks again, because
/// another command may have worked on it until then.
pub fn look_and_lock<T>(
    dir: &Path,
    mut look: impl FnMut(&Path) -> Result<T>,
) -> Result<(T, Flock<File>)> {
    look(dir)?;
    let lock = lock(dir)?;
    Ok((look(dir)?, lock))
}

/// Is this loopback address taken by somebody now?
pub fn port_taken(address: &str) -> bool {
    TcpListener::bind(address).is_err_and(|e| e.kind() == ErrorKind::AddrInUse)
}

/// Ports are taken by blocks of so many. Who holds the first of one has the others to itself.
const BLOCK: u16 = 32;

/// The first ports of blocks, held until this process ends: by then its daemons listen, and who
/// starts another cluster at the same time has looked elsewhere.
static HELD: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// Free ports of 127.0.0.1 below the range that the kernel gives to outgoing connections, so that
/// they are still free when the cluster is started again.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let below = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_ascii_whitespace().next()?.parse().ok())
        .filter(|&low| low > 12_000u16)
        .unwrap_or(32_768);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = Vec::with_capacity(count);
    for _ in 0..20_000 {
        if ports.len() == count {
            return Ok(ports);
        }
        let block = rand::random_range(10_000 / BLOCK + 1..below / BLOCK) * BLOCK;
        let Ok(first) = TcpListener::bind(("127.0.0.1", block)) else { continue };
        HELD.lock().push(first);
        ports.extend((block + 1..block + BLOCK).filter(is_free).take(count - ports.len()));
    }
    bail!("found only {} of {count} free ports on 127.0.0.1", ports.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        let (mount, profile) = ("/m".into(), "4+2".into());
        let (target_size, sparse, tls) = (1 << 30, true, false);
        Shape { mount, profile, target_size, sparse, tls, metadata: 3, storage: 6 }
    }

    #[test]
    fn state_survives_and_other_layouts_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(State::load(&dir.path().join("missing")).unwrap().is_none());
        assert!(State::load(dir.path()).unwrap().is_none());
        let state = State::new(shape()).unwrap();
        state.save(dir.path()).unwrap();
        let read = State::load(dir.path()).unwrap().unwrap();
        assert_eq!(read.cluster(), state.cluster());
        assert_eq!((read.metadata.len(), read.storage.len()), (3, 6));

        for (text, says) in [
            (r#"{"layout": 999}"#, "layout 999"),
            (r#"{"layout": 1}"#, "damaged"),
            ("\u{0}garbage", "damaged"),
        ] {
            fs::write(dir.path().join("dev.json"), text).unwrap();
            let error = State::load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        fs::remove_file(dir.path().join("dev.json")).unwrap();
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        assert!(State::load(dir.path()).unwrap_err().to_string().contains("not empty"));
    }

    /// Another command that starts or stops the cluster ends between the first look and the lock.
    #[test]
    fn what_another_command_did_before_the_lock_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut looks = 0;
        let look = |dir: &Path| {
            looks += 1;
            let found = State::load(dir)?;
            if looks == 1 {
                let _theirs = lock(dir)?;
                State::new(shape())?.save(dir)?;
            }
            Ok(found)
        };
        let (found, _lock) = look_and_lock(dir.path(), look).unwrap();
        assert!(found.is_some(), "their cluster would be made a second time");
    }

    #[test]
    fn ports_are_distinct_and_the_lock_excludes() {
        // Many clusters at once: each keeps its ports to itself before its daemons listen.
        let all: Vec<_> = (0..12).map(|_| std::thread::spawn(|| free_ports(40).unwrap())).collect();
        let mut ports: Vec<_> = all.into_iter().flat_map(|ports| ports.join().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 12 * 40);
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(port_taken(&held.local_addr().unwrap().to_string()));

        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).unwrap_err().to_string().contains("another weft dev"));
        drop(first);
        lock(dir.path()).unwrap();
    }
}
