//! Packages depend on nothing that their code does not name. What is there for its features, or
//! named by generated code, is listed in the manifest: `[package.metadata.tidy] unnamed = ["..."]`.

use crate::finding::Finding;
use crate::workspace::{File, Package, Workspace};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::HashSet;

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace.packages.iter().flat_map(unused_of).collect()
}

fn unused_of(package: &Package) -> Vec<Finding> {
    let src = names(package.under("src"));
    let all = names(package.files.iter());
    let build = names(package.files.iter().filter(|file| file.path.ends_with("build.rs")));
    let unnamed = unnamed(package);
    let kinds = [("dependencies", src), ("dev-dependencies", all), ("build-dependencies", build)];
    let mut findings = Vec::new();
    for (kind, names) in kinds {
        for dependency in package.dependencies(kind) {
            if !names.contains(&dependency.replace('-', "_")) && !unnamed.contains(&dependency) {
                let what = format!("{dependency} in [{kind}] is not used");
                let manifest = package.folder.join("Cargo.toml");
                findings.push(Finding::new("unused", &manifest, 0, what));
            }
        }
    }
    findings
}

fn unnamed(package: &Package) -> HashSet<String> {
    let tidy = package.manifest.get("package").and_then(|p| p.get("metadata")?.get("tidy"));
    let list = tidy.and_then(|tidy| tidy.get("unnamed")?.as_array().cloned()).unwrap_or_default();
    list.iter().filter_map(|name| name.as_str()).map(String::from).collect()
}

/// All identifiers in these files.
fn names<'a>(files: impl Iterator<Item = &'a File>) -> HashSet<String> {
    let mut names = HashSet::new();
    for file in files {
        if let Ok(tokens) = file.text.parse() {
            gather(tokens, &mut names);
        }
    }
    names
}

fn gather(tokens: TokenStream, names: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => drop(names.insert(ident.to_string())),
            TokenTree::Group(group) => gather(group.stream(), names),
            _ => {}
        }
    }
}
