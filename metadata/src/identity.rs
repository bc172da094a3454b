//! The identity file of a data folder: whose it is, and what part its server may take in the group.
//!
//! Invariants: a folder serves one server of one cluster for life. A server whose folder says
//! otherwise refuses to start, because a voter that forgot its log, or speaks for another, can
//! lose acknowledged metadata. An empty folder is one whose server may have forgotten: only an
//! explicit bootstrap says that there was nothing to forget.

use crate::folder::{LOG, MOVE_AWAY, STATE};
use crate::raftlog::Position;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::ErrorKind::{InvalidInput, PermissionDenied};
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, NodeId, Result, Uuid};

/// Version of what lies in the data folder.
const FORMAT: u32 = 1;

/// What part a server may take in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Bootstrapped, and not started since: it has nothing to forget.
    New,
    /// Its folder was empty. It takes no part until the group has admitted it.
    Empty,
    /// Admitted with an empty log: it follows, but does not stand for election before its log holds
    /// the entry that admitted it, and votes only for who has that.
    CatchingUp,
    #[default]
    Member,
    /// It has left the group for good.
    Removed,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    node: NodeId,
    /// Servers of the group as it was configured when the folder was claimed. A group that is
    /// bootstrapped begins with these; who belongs to it since is part of its state.
    members: Vec<NodeId>,
    /// Empty until the cluster has been made.
    cluster: String,
    #[serde(default)]
    standing: Standing,
    /// Index of the log entry that admitted this server when its folder was empty; 0: none.
    #[serde(default)]
    admitted: u64,
    /// Term of that entry; 0: an earlier version did not note it.
    #[serde(default)]
    admitted_term: u64,
}

/// A claimed data folder.
#[derive(Debug)]
pub struct Identity {
    path: PathBuf,
    node: NodeId,
    members: Vec<NodeId>,
    cluster: Option<Uuid>,
    standing: Standing,
    admitted: Position,
}

impl Identity {
    /// Checks that the folder is this server's, or claims an empty one as that of a server that
    /// may have lost its disk.
    pub fn claim(data_dir: &Path, node: NodeId, mut members: Vec<NodeId>) -> Result<Self> {
        members.sort();
        fs::create_dir_all(data_dir).map_err(|e| io("create", data_dir, &e))?;
        let path = data_dir.join("identity");
        let Some(text) = read(&path)? else {
            for data in [LOG, STATE] {
                let left = data_dir.join(data);
                if left.try_exists().map_err(|e| io("look for", &left, &e))? {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        format!(
                            "{} is there and {} is missing: part of this folder is lost; \
                             {MOVE_AWAY}",
                            left.display(),
                            path.display()
                        ),
                    ));
                }
            }
            sync_name(data_dir)?;
            let (standing, admitted) = (Standing::Empty, Position::default());
            let identity = Self { path, node, members, cluster: None, standing, admitted };
            identity.write()?;
            return Ok(identity);
        };
        let refuse =
            |why: String| Err(Error::new(ErrorKind::Invalid, format!("{}: {why}", path.display())));
        let contents: Contents = match toml::from_str(&text) {
            Ok(contents) => contents,
            Err(e) => return refuse(format!("not an identity file: {e}")),
        };
        if contents.format != FORMAT {
            return refuse(format!(
                "format {} is not {FORMAT}: another version of weft wrote it",
                contents.format
            ));
        }
        if contents.node != node {
            return refuse(format!(
                "this folder belongs to metadata server {}, not {node}: set id or data_dir right",
                contents.node
            ));
        }
        if contents.standing == Standing::New && contents.members != members {
            return refuse(format!(
                "the group was bootstrapped with servers {:?}, the configuration names \
                 {members:?}: set peers right, or empty the folder and bootstrap again",
                contents.members
            ));
        }
        if contents.standing == Standing::Removed {
            return refuse(format!(
                "server {node} has left its group for good: to have this machine join again, give \
                 it an empty folder and another number, and add it with `weft metadata add`"
            ));
        }
        let cluster = match contents.cluster.as_str() {
            "" => None,
            hex => match hex.parse() {
                Ok(cluster) => Some(cluster),
                Err(e) => return refuse(format!("cluster {hex:?}: {e}")),
            },
        };
        let standing = contents.standing;
        let admitted = Position { index: contents.admitted, term: contents.admitted_term };
        Ok(Self { path, node, members, cluster, standing, admitted })
    }

    /// Marks an empty folder as that of a server of a group that has never run.
    pub fn bootstrap(data_dir: &Path, node: NodeId, members: Vec<NodeId>) -> Result<()> {
        let mut identity = Self::claim(data_dir, node, members)?;
        match identity.standing {
            Standing::New => Ok(()),
            Standing::Empty => identity.stand(Standing::New, Position::default()),
            Standing::CatchingUp | Standing::Member | Standing::Removed => Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "{} belongs to a server that has run: only empty folders are bootstrapped",
                    data_dir.display()
                ),
            )),
        }
    }

    /// What part this server may take.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Where the log entry lies that admitted this server, if its folder was empty once; else 0.
    pub fn admitted(&self) -> Position {
        self.admitted
    }

    /// The servers of the group as it was configured when the folder was claimed, ascending.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// Changes what part this server may take, durably.
    pub fn stand(&mut self, standing: Standing, admitted: Position) -> Result<()> {
        (self.standing, self.admitted) = (standing, admitted);
        self.write()
    }

    /// The cluster that this folder belongs to, once it is known.
    pub fn cluster(&self) -> Option<Uuid> {
        self.cluster
    }

    /// Notes the cluster, durably. Another one than before is refused.
    pub fn set_cluster(&mut self, cluster: Uuid) -> Result<()> {
        match self.cluster {
            Some(known) if known == cluster => Ok(()),
            Some(known) => Err(Error::new(
                ErrorKind::WrongCluster,
                format!(
                    "{} belongs to cluster {known}, the state to {cluster}",
                    self.path.display()
                ),
            )),
            None => {
                self.cluster = Some(cluster);
                self.write()
            }
        }
    }

    /// Replaces the file as a whole: written beside, synced, renamed, folder synced.
    fn write(&self) -> Result<()> {
        let contents = Contents {
            format: FORMAT,
            node: self.node,
            members: self.members.clone(),
            cluster: self.cluster.map(|c| c.to_string()).unwrap_or_default(),
            standing: self.standing,
            admitted: self.admitted.index,
            admitted_term: self.admitted.term,
        };
        let text = toml::to_string(&contents)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("identity: {e}")))?;
        let beside = self.path.with_extension("new");
        let replace = || {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        replace().map_err(|e| io("write", &self.path, &e))
    }
}

/// Makes the name of a folder durable, in the one that it is in. Where that may not be opened, or
/// cannot be flushed, it is left to the system.
fn sync_name(dir: &Path) -> Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let synced = File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all());
    match synced {
        Err(e) if matches!(e.kind(), PermissionDenied | InvalidInput) => {
            tracing::warn!("the name of {} cannot be made durable: {e}", dir.display());
            Ok(())
        }
        synced => synced.map_err(|e| io("make durable the name of", dir, &e)),
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io("read", path, &e)),
    }
}

fn io(what: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {what} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests;
