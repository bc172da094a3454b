//! Parameters of a storage class.

use std::collections::{BTreeMap, HashMap};
use tonic::Status;

/// The orchestrator's own, which say nothing of the volume.
const FOREIGN: &str = "csi.storage.k8s.io/";
const DEFAULT_MODE: u32 = 0o777;

/// What a class says of its volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Of the volume's folder.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Most inodes; 0: no limit.
    pub inodes: u64,
    /// As `weft layout set` takes it.
    pub layout: Option<String>,
}

/// Those that are meant for this driver.
pub fn ours(all: &HashMap<String, String>) -> BTreeMap<String, String> {
    let ours = all.iter().filter(|(name, _)| !name.starts_with(FOREIGN));
    ours.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Reads them. Errors: `INVALID_ARGUMENT`.
pub fn read(all: &BTreeMap<String, String>) -> Result<Parameters, Status> {
    let mut read = Parameters { mode: DEFAULT_MODE, uid: 0, gid: 0, inodes: 0, layout: None };
    for (name, value) in all {
        let bad = || {
            let what = format!("the parameter {name:?} cannot be {value:?}");
            Status::invalid_argument(what)
        };
        match name.as_str() {
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok();
                read.mode = mode.filter(|mode| *mode <= 0o7777).ok_or_else(bad)?;
            }
            "uid" => read.uid = value.parse().map_err(|_| bad())?,
            "gid" => read.gid = value.parse().map_err(|_| bad())?,
            "inodes" => read.inodes = value.parse().map_err(|_| bad())?,
            "layout" if !value.is_empty() && value.len() <= 128 => {
                read.layout = Some(value.clone());
            }
            "layout" => return Err(bad()),
            _ => {
                let shown: String = name.chars().take(64).collect();
                let what = format!("there is no parameter {shown:?}");
                return Err(Status::invalid_argument(what));
            }
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        let of = |pairs: &[(&str, &str)]| {
            let all = pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            read(&ours(&all))
        };
        let all = [("mode", "2770"), ("uid", "7"), ("inodes", "500"), ("layout", "2+1")];
        let found = of(&all).unwrap();
        assert_eq!((found.mode, found.uid, found.gid, found.inodes), (0o2770, 7, 0, 500));
        assert_eq!(of(&[("csi.storage.k8s.io/pvc/name", "x")]).unwrap().mode, 0o777);
        for bad in [("mode", "8"), ("mode", "10000"), ("uid", "-1"), ("inodes", "1k"), ("x", "")] {
            assert_eq!(of(&[bad]).unwrap_err().code(), tonic::Code::InvalidArgument, "{bad:?}");
        }
    }
}
