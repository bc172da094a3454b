//! The rules of the house, one file each.
//!
//! What needs no reader of the code of its own is clippy's and rustc's: lints in the manifests, and
//! `missing_docs` in the libraries that others build on.

mod arrows;
mod circles;
mod docs;
mod journeys;
mod lengths;
mod unused;
mod width;

use crate::finding::Finding;
use crate::modules::Modules;
use crate::workspace::Workspace;

/// All that breaks a rule.
pub fn all(workspace: &Workspace) -> Vec<Finding> {
    let modules = Modules::read(workspace);
    [
        arrows::check(workspace),
        circles::check(&modules),
        docs::check(workspace),
        journeys::check(workspace, &modules),
        lengths::check(workspace),
        unused::check(workspace),
        width::check(workspace),
    ]
    .into_iter()
    .flatten()
    .collect()
}
