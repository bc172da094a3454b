//! Names that an orchestrator gives, as folders of the filesystem, and what a volume's id may be.
//!
//! Invariant: an id is one name of a folder, without tricks: nothing that is given from outside
//! leads out of the folder of all volumes.

use ring::digest::{SHA256, digest};
use std::fmt::Write;
use tonic::Status;

/// Longest id, and longest name that is taken as it is: as the specification bounds a string.
const MAX_ID: usize = 128;
/// Longest name that is taken at all.
const MAX_NAME: usize = 1024;
/// Longest path, as Linux has it, without the closing NUL.
const MAX_PATH: usize = 4095;
/// Of a name that is not taken as it is, so much is kept for people to know it by.
const KEPT: usize = 48;

/// The context of a volume says by this where it lies in the filesystem.
pub const PATH: &str = "path";

/// Whether an id can be one of a volume that this driver has made.
pub fn is_valid(id: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !id.is_empty()
        && id.len() <= MAX_ID
        && id.bytes().all(good)
        && id.as_bytes()[0].is_ascii_alphanumeric()
}

/// The id of the volume of this name: the name itself if that can be one, or else what is left of
/// it and its hash. Errors: `INVALID_ARGUMENT`.
pub fn of_name(name: &str) -> Result<String, Status> {
    if name.is_empty() {
        return Err(Status::invalid_argument("the volume has no name"));
    }
    if name.len() > MAX_NAME {
        let what = format!("a name of {} bytes is over {MAX_NAME}", name.len());
        return Err(Status::invalid_argument(what));
    }
    if is_valid(name) {
        return Ok(name.to_owned());
    }
    let kept = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(KEPT);
    let kept: String = kept.collect();
    Ok(format!("v{}-{}", kept.trim_matches('-').to_ascii_lowercase(), hash(name)))
}

/// 32 hexadecimal digits, others for every other text.
pub fn hash(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    digest.as_ref().iter().take(16).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// An absolute path in the filesystem, as contexts and handles of volumes that others have made
/// name one. Errors: `INVALID_ARGUMENT`.
pub fn check_path(path: &str) -> Result<(), Status> {
    let bad = |why: &str| {
        let shown: String = path.chars().take(200).collect();
        Err(Status::invalid_argument(format!("the path {shown:?} {why}")))
    };
    match path {
        _ if !path.starts_with('/') => bad("does not begin with /"),
        _ if path.len() > MAX_PATH => bad("is too long"),
        _ if path.contains('\0') => bad("has a NUL in it"),
        _ if path.split('/').any(|part| part == "..") => bad("has .. in it"),
        _ => Ok(()),
    }
}

/// Where the volume with this id lies, or that its context names. Errors: `INVALID_ARGUMENT` of a
/// path that is none, `NOT_FOUND` of an id that none can have.
pub fn path_of(root: &str, id: &str, context: Option<&String>) -> Result<String, Status> {
    if let Some(path) = context {
        check_path(path)?;
        return Ok(path.clone());
    }
    if id.starts_with('/') {
        check_path(id)?;
        return Ok(id.to_owned());
    }
    if !is_valid(id) {
        let what = "no volume has this id, and its context names no path";
        return Err(Status::not_found(what));
    }
    Ok(format!("{root}/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_name_without_tricks() {
        for good in ["pvc-0f0b7f2e-8d44-4d7b", "a", "A.b_c-1", &"x".repeat(128)] {
            assert!(is_valid(good), "{good}");
            assert_eq!(of_name(good).unwrap(), *good);
        }
        for bad in
            ["", ".", "..", ".deleted", "a/b", "/a", "a\0", "a b", "-a", "ä", &"x".repeat(129)]
        {
            assert!(!is_valid(bad), "{bad:?}");
        }
        for name in ["..", "a/../../b", "a\0b", "ä", " ", "-", "a b", &"y/".repeat(500)] {
            let id = of_name(name).unwrap();
            assert!(is_valid(&id), "{name:?}: {id}");
        }
        assert_ne!(of_name("a b").unwrap(), of_name("a_ b").unwrap());
        assert!(of_name("").is_err() && of_name(&"x".repeat(1025)).is_err());
    }

    #[test]
    fn paths_lead_nowhere_else() {
        let of = |id: &str, path: Option<&str>| {
            path_of("/volumes", id, path.map(str::to_owned).as_ref()).map_err(|e| e.code())
        };
        assert_eq!(of("a", None).unwrap(), "/volumes/a");
        assert_eq!(of("/data/x", None).unwrap(), "/data/x");
        assert_eq!(of("anything at all", Some("/data/x")).unwrap(), "/data/x");
        for (id, path) in
            [("/a/../b", None), ("a", Some("b")), ("a", Some("/../b")), ("a", Some("/a\0"))]
        {
            assert_eq!(of(id, path), Err(tonic::Code::InvalidArgument), "{id:?} {path:?}");
        }
        assert_eq!(of("../b", None), Err(tonic::Code::NotFound));
        assert_eq!(of(&"/x".repeat(2048), None), Err(tonic::Code::InvalidArgument));
    }
}
