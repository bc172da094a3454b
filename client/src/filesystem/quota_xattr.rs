//! Quotas as text, for virtual attributes and people: a line each, such as
//! `tree=1099 bytes=67108864 soft-bytes=0 inodes=500 soft-inodes=0 grace=0 used-bytes=4096
//! used-inodes=1 bytes-since=0 inodes-since=0 counting=0 ends=0 project=0 path=/home`.

use bytes::Bytes;
use std::fmt::Write;
use v1::quota_key::Kind;
use weft_proto::{Error, ErrorKind, Result, v1};

/// Of any inode: the quotas that it counts for, from the nearest directory up, and those of its
/// owners. With `.user.`, `.group.` or `.project.` and a number behind it: that one.
pub const NAME: &[u8] = b"user.weft.quota";
/// All quotas, for root: with `.` and a key behind it, such as `user.1000`, those after it.
pub const ALL: &[u8] = b"trusted.weft.quotas";
/// Sets a quota, as root: of a directory, or with `user=`, `group=` or `of-project=` and a number
/// in front, of another.
pub const SET: &[u8] = b"trusted.weft.quota";

/// Begins the last line where there are more.
const MORE: &str = "more";

const KINDS: [(Kind, &str); 4] = [
    (Kind::Tree, "tree"),
    (Kind::User, "user"),
    (Kind::Group, "group"),
    (Kind::Project, "project"),
];

fn bad(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

/// What a name asks for: the part behind `prefix`, if there is one; `None` if it is another name.
pub fn asks(name: &[u8], prefix: &[u8]) -> Option<Result<Option<v1::QuotaKey>>> {
    match name.strip_prefix(prefix)? {
        [] => Some(Ok(None)),
        [b'.', rest @ ..] => Some(key(rest).map(Some)),
        _ => None,
    }
}

fn key(text: &[u8]) -> Result<v1::QuotaKey> {
    let text = String::from_utf8_lossy(text);
    let parts = text.split_once('.');
    let kind = |name: &str| KINDS.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind);
    parts
        .and_then(|(name, id)| {
            Some(v1::QuotaKey { kind: kind(name)?.into(), id: id.parse().ok()? })
        })
        .ok_or_else(|| bad(format!("{text:?} is no quota: write user.1000, group.5 or project.7")))
}

/// A line for each.
pub fn print(quotas: &[v1::QuotaInfo], more: bool) -> Bytes {
    let mut text = String::new();
    for quota in quotas {
        let key = quota.key.unwrap_or_default();
        let kind = KINDS.iter().find(|(kind, _)| *kind == key.kind()).map_or("", |(_, name)| name);
        let l = quota.limits.unwrap_or_default();
        let (counting, ends) = (u8::from(quota.counting), u8::from(quota.ends));
        let _ = write!(
            text,
            "{kind}={} bytes={} soft-bytes={} inodes={} soft-inodes={} grace={} used-bytes={} \
             used-inodes={} bytes-since={} inodes-since={} counting={counting} ends={ends} \
             project={} path=",
            key.id,
            l.bytes,
            l.soft_bytes,
            l.inodes,
            l.soft_inodes,
            l.grace_s,
            quota.bytes,
            quota.inodes,
            quota.soft_bytes_since_ns,
            quota.soft_inodes_since_ns,
            quota.project,
        );
        // A path may hold anything.
        let _ = writeln!(text, "{}", quota.path.escape_ascii());
    }
    if more {
        text.push_str(MORE);
        text.push('\n');
    }
    text.into()
}

/// Reads what sets a quota; without another key, that of directory `ino`. `clear` takes it away;
/// `none` is no limit. The path comes last, and may hold anything.
pub fn parse(text: &[u8], ino: u64) -> Result<v1::SetQuotaOp> {
    let text = std::str::from_utf8(text).map_err(|_| bad("the quota is not text".into()))?;
    // At the beginning of a word only.
    let of_path = |at: &usize| text[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let at = text.match_indices("path=").map(|(at, _)| at).find(of_path);
    let (words, path) = match at {
        Some(at) => (&text[..at], text[at + "path=".len()..].trim_end_matches('\0')),
        None => (text, ""),
    };
    let tree = v1::QuotaKey { kind: Kind::Tree.into(), id: ino };
    let path = Bytes::copy_from_slice(path.as_bytes());
    let mut op = v1::SetQuotaOp { key: Some(tree), path, ..Default::default() };
    for word in words.trim_end_matches('\0').split_whitespace() {
        if word == "clear" {
            op.clear = true;
            continue;
        }
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = match value {
            "none" => 0,
            value => {
                value.parse().map_err(|_| bad(format!("{word:?} does not end in a number")))?
            }
        };
        let of = |kind: Kind| Some(v1::QuotaKey { kind: kind.into(), id: number });
        if value == "none" && matches!(name, "user" | "group" | "of-project") {
            return Err(bad(format!("{word:?} names nobody")));
        }
        match name {
            "user" => op.key = of(Kind::User),
            "group" => op.key = of(Kind::Group),
            "of-project" => op.key = of(Kind::Project),
            "bytes" => op.bytes = Some(number),
            "soft-bytes" => op.soft_bytes = Some(number),
            "inodes" => op.inodes = Some(number),
            "soft-inodes" => op.soft_inodes = Some(number),
            "grace" => op.grace_s = Some(number),
            "project" => op.project = Some(number),
            _ => return Err(bad(format!("{word:?} says nothing of a quota"))),
        }
    }
    Ok(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read() {
        let op = parse(b"bytes=67108864 inodes=none grace=60 path=/a b/bytes=7\0", 9).unwrap();
        assert_eq!((op.key.unwrap().id, op.bytes, op.inodes), (9, Some(67_108_864), Some(0)));
        assert_eq!(
            (op.soft_bytes, op.grace_s, &op.path[..]),
            (None, Some(60), &b"/a b/bytes=7"[..])
        );
        let op = parse(b"user=1000 soft-inodes=5", 9).unwrap();
        assert_eq!((op.key.unwrap().kind(), op.key.unwrap().id), (Kind::User, 1000));
        assert!(parse(b"clear", 9).unwrap().clear);
        for text in [
            &b"bytes"[..],
            b"bytes=x",
            b"bytes=-1",
            b"a=1",
            b"\xff",
            b"user=me",
            b"5",
            b"user=none",
            b"group=none",
            b"bytes=5path=/x",
        ] {
            assert!(parse(text, 9).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_say_which() {
        let id =
            |name: &str| asks(name.as_bytes(), NAME).map(|key| key.map(|key| key.map(|k| k.id)));
        assert!(matches!(id("user.weft.quota"), Some(Ok(None))));
        assert!(matches!(id("user.weft.quota.user.5"), Some(Ok(Some(5)))));
        assert!(id("user.weft.quotas").is_none() && id("user.other").is_none());
        for name in ["user.weft.quota.user.x", "user.weft.quota.", "user.weft.quota.all.5"] {
            assert!(id(name).unwrap().is_err(), "{name}");
        }
    }

    #[test]
    fn a_line_is_told_of_each() {
        let limits = Some(v1::QuotaLimits { bytes: 5, ..Default::default() });
        let key = Some(v1::QuotaKey { kind: Kind::User.into(), id: 7 });
        let path = Bytes::from_static(b"/a\nb");
        let quota = v1::QuotaInfo { key, limits, bytes: 3, path, ..Default::default() };
        let text = print(&[quota.clone(), quota], true);
        let text = String::from_utf8(text.to_vec()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("user=7 bytes=5 ") && lines[0].ends_with("path=/a\\nb"));
        assert_eq!(lines[2], MORE);
    }
}
