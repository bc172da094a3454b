//! What is mounted, as the table of mounts and fstab(5) name it: `ADDR[,ADDR..][:/SUBDIR]`.

use weft_fuse::SOURCE_PREFIX;
use weft_net::Address;

/// A cluster and a folder of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Addresses of metadata servers.
    pub cluster: Vec<String>,
    /// From the root on, as [`subdir`] has it.
    pub subdir: String,
}

impl Spec {
    /// Reads one. Errors: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A host may be called as the prefix is.
        let shown = text.strip_prefix(SOURCE_PREFIX).map(Self::of);
        Self::of(text).or_else(|why| shown.unwrap_or(Err(why)))
    }

    fn of(text: &str) -> Result<Self, String> {
        let (addresses, folder) = split(text);
        let cluster: Vec<String> = addresses.split(',').map(|a| a.trim().to_owned()).collect();
        for address in &cluster {
            address.parse::<Address>().map_err(|e| {
                format!("{e}; what is mounted is named as ADDR[,ADDR..]:/SUBDIR, ADDR as host:port")
            })?;
        }
        Ok(Self { cluster, subdir: subdir(folder)? })
    }
}

/// Addresses, and a path or nothing. A colon that a path comes after ends the addresses; that of
/// `network://host:port` does not.
fn split(text: &str) -> (&str, &str) {
    let mut ends = text.match_indices(":/").map(|(at, _)| at);
    match ends.find(|at| !text[at + 2..].starts_with('/')) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    }
}

/// What the table of mounts shows of a mount that was made without mount(8).
pub fn source(cluster: &[String], subdir: Option<&str>) -> String {
    let cluster = cluster.join(",");
    match subdir {
        None | Some("/") => format!("{SOURCE_PREFIX}{cluster}"),
        Some(subdir) => format!("{SOURCE_PREFIX}{cluster}:{subdir}"),
    }
}

/// A folder's path from the root of the filesystem on: `/` and names with one slash between them.
pub fn subdir(text: &str) -> Result<String, String> {
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    match names.iter().find(|name| **name == ".." || name.contains('\0')) {
        Some(name) => Err(format!("{text:?} has {name:?} in it; write its path from the root on")),
        None => Ok(format!("/{}", names.join("/"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_folders_are_told_apart() {
        for (text, cluster, subdir) in [
            ("a:1", vec!["a:1"], "/"),
            ("a:1:/", vec!["a:1"], "/"),
            ("a:1,b:2:/x//y/.", vec!["a:1", "b:2"], "/x/y"),
            ("weft:a:1:/x", vec!["a:1"], "/x"),
            ("weft:7100:/x", vec!["weft:7100"], "/x"),
            ("weft:weft:7100", vec!["weft:7100"], "/"),
            ("[::1]:7100,[fe80::1]:7:/x", vec!["[::1]:7100", "[fe80::1]:7"], "/x"),
            ("10.0.0.1:7100:/x:/y z", vec!["10.0.0.1:7100"], "/x:/y z"),
            ("rdma://a:1,rdma://b:1:/x", vec!["rdma://a:1", "rdma://b:1"], "/x"),
        ] {
            let spec = Spec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((spec.cluster, spec.subdir.as_str()), (own(cluster), subdir), "{text}");
        }
        for bad in
            ["", ":/x", "a", "a:/x", "a:1:/x/../y", "a:1,:/x", "a:1,b:/x", "[::1:/x", "/dev/sda"]
        {
            assert!(Spec::parse(bad).is_err(), "{bad}");
        }
    }

    fn own(names: Vec<&str>) -> Vec<String> {
        names.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn sources_are_read_as_they_are_shown() {
        for folder in [None, Some("/"), Some("/a/b c")] {
            let cluster = own(vec!["a:1", "[::1]:2"]);
            let spec = Spec::parse(&source(&cluster, folder)).unwrap();
            assert_eq!((spec.cluster, &*spec.subdir), (cluster, folder.unwrap_or("/")));
        }
    }
}
