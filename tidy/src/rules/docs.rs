//! Every file says at its top what it holds, and the libraries that others build on have all that
//! is public documented (which rustc looks after once it is told to).

use crate::finding::Finding;
use crate::workspace::{File, Workspace};
use syn::AttrStyle;

/// Whose public items are all documented.
const DOCUMENTED: &[&str] = &["weft-proto", "weft-net", "weft-segments", "weft-client"];

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let missing = workspace.files().filter(|file| !has_module_docs(file));
    let missing = missing
        .map(|file| Finding::new("docs", &file.path, 1, "does not say at its top what it holds"));
    let documented = DOCUMENTED.iter().filter_map(|name| workspace.package(name));
    let lax = documented.filter_map(|package| {
        let lib = package.file(&package.folder.join("src/lib.rs"))?;
        let what = "public items may lack documentation: `#![warn(missing_docs)]` is not there";
        (!warns(lib, "missing_docs")).then(|| Finding::new("docs", &lib.path, 1, what))
    });
    missing.chain(lax).collect()
}

fn has_module_docs(file: &File) -> bool {
    let mut attributes = file.syntax.attrs.iter();
    attributes.any(|a| matches!(a.style, AttrStyle::Inner(_)) && a.path().is_ident("doc"))
}

fn warns(file: &File, lint: &str) -> bool {
    file.syntax.attrs.iter().any(|attribute| {
        (attribute.path().is_ident("warn") || attribute.path().is_ident("deny"))
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == lint)
    })
}
