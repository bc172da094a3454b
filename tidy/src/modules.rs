//! The modules of a crate: which file each is in, what it defines, what it imports.

use crate::paths::{self, Names, Use};
use crate::workspace::{Package, Workspace};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use syn::{Attribute, Item};

/// The modules of every library and program of a workspace; the name of a library's first one is
/// the crate's.
#[derive(Default)]
pub struct Modules {
    modules: Vec<Module>,
    /// By the name under which other packages import it.
    libraries: HashMap<String, Id>,
}

/// One of [`Modules`].
pub type Id = usize;

/// One module.
pub struct Module {
    pub file: PathBuf,
    root: Id,
    parent: Option<Id>,
    children: BTreeMap<String, Id>,
    /// Names of the items that are defined here.
    items: BTreeSet<String>,
    /// What `use` brings here.
    pub uses: Vec<Use>,
    /// What the code here names otherwise, test code left out.
    pub names: Names,
}

/// Where a path leads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    Module(Id),
    Item(Id, String),
}

impl Modules {
    /// Reads the modules of all packages, but not of their tests, examples and benches.
    pub fn read(workspace: &Workspace) -> Self {
        let mut modules = Self::default();
        for package in &workspace.packages {
            let src = package.folder.join("src");
            for file in &package.files {
                let is_root = file.path == src.join("lib.rs")
                    || file.path == src.join("main.rs")
                    || file.path.parent() == Some(&src.join("bin"));
                if is_root {
                    let root = modules.modules.len();
                    let folder = file.path.parent().unwrap_or(Path::new("")).to_path_buf();
                    modules.add(package, &file.path, &folder, &file.syntax.items, root, None);
                    if file.path.ends_with("lib.rs") {
                        modules.libraries.insert(package.name.replace('-', "_"), root);
                    }
                }
            }
        }
        modules
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &Module)> {
        self.modules.iter().enumerate()
    }

    /// One of them.
    pub fn get(&self, id: Id) -> &Module {
        &self.modules[id]
    }

    /// The modules that are declared in one.
    pub fn declared(&self, id: Id) -> impl Iterator<Item = Id> {
        self.modules[id].children.values().copied()
    }

    /// The file that a path leads to.
    pub fn file_of(&self, target: &Target) -> &Path {
        match target {
            Target::Module(id) | Target::Item(id, _) => &self.modules[*id].file,
        }
    }

    /// Adds a module whose own children lie in `folder`, and all below it.
    fn add(
        &mut self,
        package: &Package,
        path: &Path,
        folder: &Path,
        items: &[Item],
        root: Id,
        parent: Option<Id>,
    ) -> Id {
        let id = self.modules.len();
        let items: Vec<&Item> =
            items.iter().filter(|item| !is_test(paths::attributes(item))).collect();
        self.modules.push(Module {
            file: path.into(),
            root,
            parent,
            children: BTreeMap::new(),
            items: items.iter().filter_map(|item| paths::name(item)).collect(),
            uses: items.iter().flat_map(|item| paths::uses(item)).collect(),
            names: paths::names(&items),
        });
        for item in items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let child = match &module.content {
                Some((_, items)) => {
                    Some(self.add(package, path, &folder.join(&name), items, root, Some(id)))
                }
                None => {
                    let beside = folder.join(format!("{name}.rs"));
                    let inside = folder.join(&name).join("mod.rs");
                    let file = package.file(&beside).or_else(|| package.file(&inside));
                    file.map(|file| {
                        let folder = folder.join(&name);
                        let items = &file.syntax.items;
                        self.add(package, &file.path, &folder, items, root, Some(id))
                    })
                }
            };
            if let Some(child) = child {
                self.modules[id].children.insert(name, child);
            }
        }
        id
    }

    /// Where a path leads that is written in module `from`; nothing if out of the workspace.
    pub fn resolve(&self, from: Id, path: &[String]) -> Option<Target> {
        self.resolve_within(from, path, 16)
    }

    fn resolve_within(&self, from: Id, path: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.descend(self.modules[from].root, rest, depth),
            "self" => self.descend(from, rest, depth),
            "super" => self.resolve_up(from, rest, depth),
            _ => self.descend(from, path, depth).or_else(|| {
                self.libraries.get(first).and_then(|root| self.descend(*root, rest, depth))
            }),
        }
    }

    fn resolve_up(&self, from: Id, rest: &[String], depth: usize) -> Option<Target> {
        let parent = self.modules[from].parent?;
        match rest.split_first() {
            Some((again, rest)) if again == "super" => self.resolve_up(parent, rest, depth),
            _ => self.descend(parent, rest, depth),
        }
    }

    /// Where a path leads from within a module, re-exports and imports followed.
    fn descend(&self, at: Id, path: &[String], depth: usize) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else { return Some(Target::Module(at)) };
        let module = &self.modules[at];
        if let Some(child) = module.children.get(first) {
            return self.descend(*child, rest, depth);
        }
        if module.items.contains(first) {
            return Some(Target::Item(at, first.clone()));
        }
        let depth = depth.checked_sub(1)?;
        let named = module.uses.iter().filter(|import| import.name.as_deref() == Some(first));
        for import in named {
            let path: Vec<_> = import.path.iter().chain(rest).cloned().collect();
            if let Some(found) = self.resolve_within(at, &path, depth) {
                return Some(found);
            }
        }
        let globs = module.uses.iter().filter(|import| import.name.is_none());
        globs.into_iter().find_map(|import| {
            let path: Vec<_> = import.path.iter().chain(path).cloned().collect();
            self.resolve_within(at, &path, depth)
        })
    }

    /// What the code of a module names, elsewhere or in itself.
    pub fn named(&self, id: Id) -> Vec<Target> {
        let module = &self.modules[id];
        let imports = module.uses.iter().filter(|import| !import.public && import.name.is_some());
        // What is named of an imported module counts, not the import.
        let imports = imports.filter_map(|import| self.item(id, &import.path));
        // A single name is of something imported, which counts already, but for what `*` brings.
        let globs = module.uses.iter().any(|import| !import.public && import.name.is_none());
        let paths = module.names.paths.iter().filter_map(|path| match path.len() {
            1 if globs => self.item(id, path),
            0 | 1 => None,
            _ => self.resolve(id, path),
        });
        imports.chain(paths).collect()
    }

    /// The item that a path leads to, if it does not lead to a module.
    fn item(&self, from: Id, path: &[String]) -> Option<Target> {
        self.resolve(from, path).filter(|found| matches!(found, Target::Item(..)))
    }
}

/// Whether this is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = || attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && tokens().is_ok_and(|tokens| tokens == "test")
            || attribute.path().is_ident("test")
    })
}
