//! The packages of a workspace and their source files, parsed.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All that the rules look at.
pub struct Workspace {
    pub folder: PathBuf,
    pub packages: Vec<Package>,
}

/// One member of the workspace.
pub struct Package {
    pub name: String,
    /// Relative to the workspace.
    pub folder: PathBuf,
    pub manifest: toml::Table,
    pub files: Vec<File>,
}

/// One Rust file.
pub struct File {
    /// Relative to the workspace.
    pub path: PathBuf,
    pub text: String,
    pub syntax: syn::File,
}

impl Workspace {
    /// Reads every member that the manifest of `folder` lists. Errors: what cannot be read or
    /// parsed.
    pub fn read(folder: &Path) -> Result<Self> {
        let manifest = manifest(folder)?;
        let members = manifest.get("workspace").and_then(|w| w.get("members"));
        let members = members.and_then(|m| m.as_array()).context("no members in Cargo.toml")?;
        let members = members.iter().filter_map(|member| member.as_str());
        let packages = members.map(|member| Package::read(folder, member));
        Ok(Self { folder: folder.into(), packages: packages.collect::<Result<_>>()? })
    }

    /// The package of this name.
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// All Rust files.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.packages.iter().flat_map(|package| &package.files)
    }
}

impl Package {
    fn read(workspace: &Path, member: &str) -> Result<Self> {
        let manifest = manifest(&workspace.join(member))?;
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str());
        let name = name.with_context(|| format!("{member}/Cargo.toml names no package"))?.into();
        let mut files = Vec::new();
        gather(workspace, Path::new(member), &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { name, folder: member.into(), manifest, files })
    }

    /// Its dependencies of one kind (`dependencies`, `dev-dependencies`, `build-dependencies`), as
    /// named in code.
    pub fn dependencies(&self, kind: &str) -> BTreeSet<String> {
        let table = self.manifest.get(kind).and_then(|table| table.as_table());
        table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
    }

    /// Its files under one of its folders.
    pub fn under(&self, folder: &str) -> impl Iterator<Item = &File> {
        let folder = self.folder.join(folder);
        self.files.iter().filter(move |file| file.path.starts_with(&folder))
    }

    /// One of its files.
    pub fn file(&self, path: &Path) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn manifest(folder: &Path) -> Result<toml::Table> {
    let path = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

/// Parses all Rust files in `folder`, but for hidden folders and those that cargo builds in.
fn gather(workspace: &Path, folder: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in std::fs::read_dir(workspace.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = folder.join(&*name);
        if entry.file_type()?.is_dir() {
            let built = workspace.join(&path).join("CACHEDIR.TAG").exists();
            if !name.starts_with('.') && !built {
                gather(workspace, &path, files)?;
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(workspace.join(&path))?;
            let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
            files.push(File { path, text, syntax });
        }
    }
    Ok(())
}
