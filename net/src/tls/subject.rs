//! Who a certificate says its holder is.
//!
//! A URI among its alternative names says it: `weft://ROLE/NAME`, and for clients after a `?` what
//! they are confined to: `subtree=/team/a` (percent-encoded), `access=ro`, `squash=root`, joined by
//! `&`. Any authority can make such certificates.

use percent_encoding::percent_decode_str;
use std::fmt;
use weft_proto::{Error, ErrorKind, Result, Role};

const SCHEME: &str = "weft://";
/// Longest URI that is read, in bytes.
const MAX_URI: usize = 8 << 10;
/// Longest name, in bytes.
const MAX_NAME: usize = 64;
/// Longest path of a subtree, in bytes.
const MAX_PATH: usize = 4096;
const MAX_COMPONENT: usize = 255;

/// The holder of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Which part it plays.
    pub role: Role,
    /// Of a metadata server its number, of a storage daemon its name; of a client or an admin
    /// whatever it was called.
    pub name: String,
    /// What a client is confined to.
    pub confinement: Confinement,
}

/// What a client may not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Confinement {
    /// The directory that is its root; empty: that of the filesystem. Its parts, from the top.
    pub subtree: Vec<String>,
    /// It changes nothing.
    pub read_only: bool,
    /// Its root user is nobody in particular, and owns nothing that it makes.
    pub squash_root: bool,
}

impl Confinement {
    /// Nothing.
    pub const NONE: Self = Self { subtree: Vec::new(), read_only: false, squash_root: false };

    /// Whether there is anything that it may not.
    pub fn is_any(&self) -> bool {
        *self != Self::NONE
    }

    /// The subtree as a path.
    pub fn path(&self) -> String {
        format!("/{}", self.subtree.join("/"))
    }

    fn read(query: &str) -> Result<Self, String> {
        let mut this = Self::NONE;
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key, value) {
                ("subtree", path) if this.subtree.is_empty() => this.subtree = subtree(path)?,
                ("access", "ro") => this.read_only = true,
                ("access", "rw") => {}
                ("squash", "root") => this.squash_root = true,
                ("squash", "none") => {}
                _ => return Err(format!("{pair:?} is not understood here")),
            }
        }
        Ok(this)
    }
}

fn subtree(path: &str) -> Result<Vec<String>, String> {
    let path = percent_decode_str(path).decode_utf8().map_err(|_| "a path that is not UTF-8")?;
    let rest = path.strip_prefix('/').ok_or("a subtree that does not begin with /")?;
    if path.len() > MAX_PATH {
        return Err(format!("a subtree of {} bytes", path.len()));
    }
    let parts = rest.split('/').filter(|part| !part.is_empty()).map(str::to_owned);
    let parts: Vec<String> = parts.collect();
    let odd = |part: &&String| {
        part.len() > MAX_COMPONENT || matches!(part.as_str(), "." | "..") || part.contains('\0')
    };
    match parts.iter().find(odd) {
        Some(part) => Err(format!("a subtree with {part:?} in it")),
        None => Ok(parts),
    }
}

impl Subject {
    /// Reads one of a certificate's names. `None`: it is of something else.
    fn read(uri: &str) -> Option<Result<Self, String>> {
        let rest = uri.strip_prefix(SCHEME)?;
        Some(Self::read_rest(rest))
    }

    fn read_rest(rest: &str) -> Result<Self, String> {
        if rest.len() > MAX_URI {
            return Err(format!("a name of {} bytes", rest.len()));
        }
        let (who, query) = rest.split_once('?').map_or((rest, None), |(who, q)| (who, Some(q)));
        let (role, name) = who.split_once('/').ok_or("it has no name")?;
        let role: Role = role.parse()?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(plain) {
            let what = "a name has 1 to 64 letters, digits, dots, underscores and hyphens";
            return Err(what.into());
        }
        let confinement = query.map_or(Ok(Confinement::NONE), Confinement::read)?;
        if confinement.is_any() && role != Role::Client {
            return Err(format!("a {role} cannot be confined"));
        }
        Ok(Self { role, name: name.to_owned(), confinement })
    }

    /// Of the alternative names of a certificate. Error: `NotPermitted`, none or several of them
    /// are Weft's, or the one is not understood.
    pub fn of_names<'a>(uris: impl Iterator<Item = &'a str>) -> Result<Self> {
        let refuse = |what: String| Error::new(ErrorKind::NotPermitted, what);
        let mut ours = uris.filter_map(|uri| Some((uri, Self::read(uri)?)));
        let none = || {
            refuse(format!(
                "its certificate names nobody of Weft's: it needs a URI {SCHEME}ROLE/NAME"
            ))
        };
        let (uri, subject) = ours.next().ok_or_else(none)?;
        if ours.next().is_some() {
            return Err(refuse(format!("its certificate has several URIs that begin {SCHEME}")));
        }
        subject.map_err(|why| {
            let shown: String = uri.chars().filter(|c| !c.is_control()).take(128).collect();
            refuse(format!("its certificate is for {shown}: {why}"))
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(uri: &str) -> Result<Subject> {
        Subject::of_names([uri].into_iter())
    }

    #[test]
    fn names_say_role_name_and_confinement() {
        let server = read("weft://metadata/1").unwrap();
        assert_eq!((server.role, server.name.as_str()), (Role::Metadata, "1"));
        assert!(!server.confinement.is_any());
        let client =
            read("weft://client/team-a?subtree=/team/a%20b//&access=ro&squash=root").unwrap();
        assert_eq!(client.confinement.subtree, ["team", "a b"]);
        assert_eq!(client.confinement.path(), "/team/a b");
        assert!(client.confinement.read_only && client.confinement.squash_root);
        let free = read("weft://client/x?subtree=/&access=rw&squash=none").unwrap();
        assert!(!free.confinement.is_any());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for uri in [
            "https://client/x",
            "weft://",
            "weft://client",
            "weft://client/",
            "weft://client/a/b",
            "weft://root/x",
            "weft://client/x?",
            "weft://client/x?subtree=a",
            "weft://client/x?subtree=/a/../b",
            "weft://client/x?subtree=/a%00b",
            "weft://client/x?subtree=/%ff",
            "weft://client/x?subtree=/a&subtree=/b",
            "weft://client/x?access=none",
            "weft://client/x?until=tomorrow",
            "weft://admin/x?access=ro",
            &format!("weft://client/{}", "x".repeat(65)),
        ] {
            let refused = read(uri).expect_err(uri);
            assert_eq!(refused.kind, ErrorKind::NotPermitted);
        }
        let two = ["weft://client/a", "weft://admin/a"];
        assert!(Subject::of_names(two.into_iter()).is_err());
        let beside = ["spiffe://a/b", "weft://client/a"];
        assert!(Subject::of_names(beside.into_iter()).is_ok());
    }

    proptest! {
        #[test]
        fn garbage_is_read_or_refused(rest in "[ -~]{0,80}", raw in ".{0,40}") {
            for uri in [format!("weft://client/x?{rest}"), format!("weft://{rest}"), raw] {
                if let Ok(subject) = read(&uri) {
                    let parts = &subject.confinement.subtree;
                    prop_assert!(parts.iter().all(|p| !p.is_empty() && p != ".." && p != "."));
                }
            }
        }
    }
}
