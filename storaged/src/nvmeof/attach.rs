//! Brings up the paths of one namespace and finds its block device.

use super::{Namespace, Options, Remote, Roots, connect, controllers, namespaces};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weft_proto::{Error, ErrorKind, Result};

/// The kernel looks for namespaces after the connection was answered.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits for a path, connecting all that are not there, and answers the block device of the
/// namespace. Errors: those of [`connect`] when no path can be had; `Unavailable` while all are
/// lost; `NotFound` when the subsystem has no such namespace; `Invalid` when `remote` does not say
/// which one.
pub async fn attach(roots: &Roots, remote: &Remote, options: &Options) -> Result<PathBuf> {
    let live = async {
        while !is_live(roots, remote) {
            sleep(LOOK_INTERVAL).await;
        }
    };
    // One path is enough; what the kernel still tries goes on without us.
    tokio::select! {
        biased;
        () = live => {}
        connected = connect_all(roots, remote, options) => {
            connected?;
            if !is_live(roots, remote) {
                let what = format!("{remote}: {}", lost_paths(roots, remote));
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
        }
    }
    let patience = Instant::now() + SCAN_TIMEOUT;
    loop {
        match find(roots, remote) {
            Err(e) if e.kind == ErrorKind::NotFound && Instant::now() < patience => {
                sleep(LOOK_INTERVAL).await;
            }
            found => return found,
        }
    }
}

/// Whether any path to the subsystem works.
pub fn is_live(roots: &Roots, remote: &Remote) -> bool {
    controllers(roots).iter().any(|c| c.nqn == remote.nqn && c.is_live())
}

/// What the kernel says of the paths, for a message: `nvme0 to traddr=... is connecting`.
pub fn lost_paths(roots: &Roots, remote: &Remote) -> String {
    let all: Vec<_> = controllers(roots)
        .iter()
        .filter(|c| c.nqn == remote.nqn)
        .map(|c| format!("{} to {} is {}", c.name, c.address, c.state))
        .collect();
    if all.is_empty() { "there is no connection".into() } else { all.join(", ") }
}

/// Connects all that is not connected, at the same time; an error only if nothing is, afterwards.
/// Takes as long as the kernel is patient with the slowest address, a minute or more.
pub async fn connect_all(roots: &Roots, remote: &Remote, options: &Options) -> Result<()> {
    let mut paths = JoinSet::new();
    for address in remote.addresses.clone() {
        let (roots, remote, options) = (roots.clone(), remote.clone(), options.clone());
        paths.spawn_blocking(move || connect(&roots, &remote, &address, &options).map(drop));
    }
    let mut result = Ok(());
    let mut some = false;
    while let Some(done) = paths.join_next().await {
        match done.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string()))) {
            Ok(()) => some = true,
            Err(e) => result = result.and(Err(e)),
        }
    }
    if some { Ok(()) } else { result }
}

fn find(roots: &Roots, remote: &Remote) -> Result<PathBuf> {
    let all: Vec<Namespace> =
        namespaces(roots).into_iter().filter(|n| n.nqn == remote.nqn).collect();
    if all.is_empty() {
        return Err(not_found(remote, "the subsystem shows no namespace to this host"));
    }
    // The kernel shows them one after the other: that one is alone proves nothing.
    let Some(id) = &remote.id else {
        let what =
            format!("{remote}: which namespace? add ?uuid=..., such as one of {}", ids(&all));
        return Err(Error::new(ErrorKind::Invalid, what));
    };
    let wanted: Vec<_> = all.iter().filter(|n| n.is(id)).collect();
    match wanted[..] {
        [one] => Ok(one.device.clone()),
        [] => Err(not_found(
            remote,
            &format!("the subsystem has no such namespace; it has {}", ids(&all)),
        )),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!("{remote}: several namespaces say that they are it"),
        )),
    }
}

fn ids(all: &[Namespace]) -> String {
    let ids = all.iter().filter_map(|n| n.id()).map(|id| id.to_string());
    ids.collect::<Vec<_>>().join(", ")
}

fn not_found(remote: &Remote, what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{remote}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvmeof::sysfs::tests::tree;
    use std::path::Path;

    fn box_of_two(root: &Path) {
        tree(
            root,
            &[
                ("sys/class/nvme/nvme0/subsysnqn", "nqn.a"),
                ("sys/class/nvme/nvme0/transport", "tcp"),
                ("sys/class/nvme/nvme0/address", "traddr=127.0.0.1,trsvcid=4420"),
                ("sys/class/nvme/nvme0/state", "live"),
                ("sys/block/nvme0n1/size", "2048"),
                ("sys/block/nvme0n1/uuid", "11111111-9abc-def0-1234-56789abcdef0"),
                ("sys/block/nvme0n1/device/subsysnqn", "nqn.a"),
                ("sys/block/nvme0n2/size", "2048"),
                ("sys/block/nvme0n2/uuid", "22222222-9abc-def0-1234-56789abcdef0"),
                ("sys/block/nvme0n2/device/subsysnqn", "nqn.a"),
                ("sys/block/nvme1n1/size", "2048"),
                ("sys/block/nvme1n1/uuid", "22222222-9abc-def0-1234-56789abcdef0"),
                ("sys/block/nvme1n1/device/subsysnqn", "nqn.other"),
            ],
        );
    }

    #[tokio::test]
    async fn a_namespace_is_found_by_its_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        box_of_two(dir.path());
        let attach = async |query: &str| {
            let remote = format!("nvme-tcp://127.0.0.1/nqn.a{query}").parse().unwrap();
            super::attach(&roots, &remote, &Options::default()).await
        };
        let second = attach("?uuid=22222222-9abc-def0-1234-56789abcdef0").await.unwrap();
        assert_eq!(second, dir.path().join("dev/nvme0n2"));
        let which = attach("").await.unwrap_err();
        assert!(which.message.contains("uuid=11111111-"), "{which}");
        // The first that the scan of a box shows is not taken for its only one.
        let first = dir.path().join("first");
        box_of_two(&first);
        std::fs::remove_dir_all(first.join("sys/block/nvme0n2")).unwrap();
        let alone = "nvme-tcp://127.0.0.1/nqn.a".parse().unwrap();
        let which = find(&Roots::under(&first), &alone).unwrap_err();
        assert_eq!(which.kind, ErrorKind::Invalid);
        assert!(which.message.contains("uuid=11111111-"), "{which}");
        // `attach` would wait for the kernel to find it.
        let other = "nvme-tcp://127.0.0.1/nqn.a?uuid=33333333-9abc-def0-1234-56789abcdef0";
        let none = find(&roots, &other.parse().unwrap()).unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound);
        assert!(none.message.contains("uuid=22222222-"), "{none}");

        tree(dir.path(), &[("sys/class/nvme/nvme0/state", "connecting")]);
        let lost = attach("?uuid=22222222-9abc-def0-1234-56789abcdef0").await.unwrap_err();
        assert_eq!(lost.kind, ErrorKind::Unavailable);
        assert!(lost.message.contains("is connecting"), "{lost}");
    }
}
