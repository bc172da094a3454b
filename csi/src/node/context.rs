//! What every call about volumes of this machine needs.

use super::volumes::Volumes;
use crate::busy::Busy;

/// Clones share it.
#[derive(Clone)]
pub struct Context {
    pub busy: Busy,
    pub volumes: Volumes,
}
