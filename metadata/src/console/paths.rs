//! Paths of directories, with the names that they had the last time kept, since to find a name of
//! a directory all names beside it have to be looked at.

use crate::state::StateMachine;
use bytes::Bytes;
use std::collections::HashMap;
use weft_proto::InodeId;

/// Names that are kept; they are all forgotten when there are more.
const KEPT: usize = 4096;
/// Directories above one that are named, and bytes of a path.
const MAX_DEPTH: usize = 64;
const MAX_PATH: usize = 512;

/// The names that directories had.
#[derive(Default)]
pub(super) struct Paths(HashMap<InodeId, Bytes>);

impl Paths {
    /// The path of a directory, as far as it can be told.
    pub fn of(&mut self, state: &StateMachine, dir: InodeId) -> String {
        let (mut at, mut names) = (dir, Vec::new());
        while at != InodeId::ROOT {
            let known = self.0.get(&at);
            let found = match names.len() < MAX_DEPTH {
                true => state.name_of_directory(at, known).ok().flatten(),
                false => None,
            };
            let Some((parent, name)) = found else {
                names.push(format!("(inode {at})"));
                break;
            };
            if self.0.len() >= KEPT {
                self.0.clear();
            }
            self.0.insert(at, name.clone());
            names.push(String::from_utf8_lossy(&name).into_owned());
            at = parent;
        }
        if names.is_empty() {
            return "/".into();
        }
        let mut path = String::new();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        match path.len() > MAX_PATH {
            // Its end says more than its beginning.
            true => format!("…{}", &path[ceil(&path, path.len() - MAX_PATH)..]),
            false => path,
        }
    }
}

/// The next boundary between characters.
fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}
