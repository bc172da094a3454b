//! The identity file of a data folder: whose it is.
//!
//! Invariant: a folder serves one server of one cluster for life. A server whose folder says
//! otherwise refuses to start, because a voter that forgot its log, or speaks for another, can
//! lose acknowledged metadata.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, NodeId, Result, Uuid};

/// Version of what lies in the data folder.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    node: NodeId,
    /// Servers of the group; the list is fixed.
    members: Vec<NodeId>,
    /// Empty until the cluster has been made.
    cluster: String,
}

/// A claimed data folder.
#[derive(Debug)]
pub struct Identity {
    path: PathBuf,
    node: NodeId,
    members: Vec<NodeId>,
    cluster: Option<Uuid>,
}

impl Identity {
    /// Claims an empty folder for this server, or checks that the folder is this server's.
    pub fn claim(data_dir: &Path, node: NodeId, mut members: Vec<NodeId>) -> Result<Self> {
        members.sort();
        fs::create_dir_all(data_dir).map_err(|e| io("create", data_dir, &e))?;
        let path = data_dir.join("identity");
        let Some(text) = read(&path)? else {
            let identity = Self { path, node, members, cluster: None };
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
        if contents.members != members {
            return refuse(format!(
                "the group was made of servers {:?}, the configuration names {members:?}: membership cannot be changed in the configuration",
                contents.members
            ));
        }
        let cluster = match contents.cluster.as_str() {
            "" => None,
            hex => match hex.parse() {
                Ok(cluster) => Some(cluster),
                Err(e) => return refuse(format!("cluster {hex:?}: {e}")),
            },
        };
        Ok(Self { path, node, members, cluster })
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
mod tests {
    use super::*;

    #[test]
    fn a_folder_serves_one_server_of_one_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let members = vec![NodeId(1), NodeId(2)];
        let mut a = Identity::claim(dir.path(), NodeId(1), members.clone()).unwrap();
        assert_eq!(a.cluster(), None);
        a.set_cluster(Uuid([7; 16])).unwrap();
        assert!(a.set_cluster(Uuid([8; 16])).is_err());
        let again = Identity::claim(dir.path(), NodeId(1), members.clone()).unwrap();
        assert_eq!(again.cluster(), Some(Uuid([7; 16])));
        let e = Identity::claim(dir.path(), NodeId(2), members.clone()).unwrap_err();
        assert!(e.message.contains("belongs to metadata server 1"), "{e}");
        let e = Identity::claim(dir.path(), NodeId(1), vec![NodeId(1)]).unwrap_err();
        assert!(e.message.contains("membership"), "{e}");
        fs::write(dir.path().join("identity"), b"\xff\x00garbage").unwrap();
        assert!(Identity::claim(dir.path(), NodeId(1), members).is_err());
    }
}
