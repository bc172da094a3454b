//! What every call about volumes of this machine needs.

use super::volumes::Volumes;
use crate::busy::Busy;

/// Clones share it.
#[derive(Clone)]
pub struct Context {
    /// The folder that volumes lie in.
    pub root: String,
    pub busy: Busy,
    pub volumes: Volumes,
}
