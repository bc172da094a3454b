//! What every call about a volume of this machine has to name.

use crate::capability::missing;
use std::path::{Component, Path, PathBuf};
use tonic::Status;

/// Longest path that is taken, as Linux has it.
const MAX_PATH: usize = 4095;

/// Errors: `INVALID_ARGUMENT`.
pub fn id_of(id: &str) -> Result<&str, Status> {
    match id {
        "" => Err(missing("the volume's id")),
        id if id.len() > MAX_PATH => Err(Status::invalid_argument("the volume's id is too long")),
        id => Ok(id),
    }
}

/// A path of this machine. Errors: `INVALID_ARGUMENT`.
pub fn place_of(path: &str, what: &str) -> Result<PathBuf, Status> {
    if path.is_empty() {
        return Err(missing(what));
    }
    let place = Path::new(path);
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let good = place.is_absolute()
        && place.file_name().is_some()
        && path.len() <= MAX_PATH
        && !path.contains('\0')
        && place.components().all(plain);
    match good {
        true => Ok(place.components().collect()),
        false => Err(Status::invalid_argument(format!("{what} is no absolute path"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_absolute() {
        let of = |path: &str| place_of(path, "it").ok();
        assert_eq!(of("/a//b/"), Some("/a/b".into()));
        for bad in ["", "a", "/", "/a/../b", "/a\0", &"/a".repeat(2048)] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        assert!(id_of("").is_err() && id_of(&"x".repeat(5000)).is_err());
    }
}
