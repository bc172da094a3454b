//! Paths in a syntax tree, those in macros too.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// One name that `use` brings.
pub struct Use {
    /// Nothing: all that is there.
    pub name: Option<String>,
    pub path: Vec<String>,
    /// Others may name it here.
    pub public: bool,
}

/// What an item is called.
pub fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The names that an item brings, if it is a `use`.
pub fn uses(item: &Item) -> Vec<Use> {
    let Item::Use(item) = item else { return Vec::new() };
    let mut uses = Vec::new();
    let public = !matches!(item.vis, Visibility::Inherited);
    spread(&item.tree, &mut Vec::new(), public, &mut uses);
    uses
}

fn spread(tree: &UseTree, before: &mut Vec<String>, public: bool, uses: &mut Vec<Use>) {
    let with = |before: &[String], last: &str| {
        let mut path = before.to_vec();
        if last != "self" {
            path.push(last.into());
        }
        path
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            spread(&path.tree, before, public, uses);
            before.pop();
        }
        UseTree::Name(name) => {
            let path = with(before, &name.ident.to_string());
            uses.push(Use { name: path.last().cloned(), path, public });
        }
        UseTree::Rename(rename) => {
            let path = with(before, &rename.ident.to_string());
            uses.push(Use { name: Some(rename.rename.to_string()), path, public });
        }
        UseTree::Glob(_) => uses.push(Use { name: None, path: before.clone(), public }),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| spread(tree, before, public, uses));
        }
    }
}

/// What code names.
#[derive(Default)]
pub struct Names {
    /// All paths but those of `use` and of modules inside.
    pub paths: Vec<Vec<String>>,
    /// Methods that are called.
    pub calls: BTreeSet<String>,
    /// Methods that are defined.
    pub methods: BTreeSet<String>,
}

/// What these items name.
pub fn names(items: &[&Item]) -> Names {
    let mut names = Names::default();
    for item in items {
        if !matches!(item, Item::Use(_) | Item::Mod(_)) {
            names.visit_item(item);
        }
    }
    names
}

impl<'ast> Visit<'ast> for Names {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// A `use` inside a function.
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut uses = Vec::new();
        spread(&item.tree, &mut Vec::new(), false, &mut uses);
        self.paths.extend(uses.into_iter().map(|import| import.path));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.calls.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.methods.insert(function.sig.ident.to_string());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        in_tokens(called.tokens.clone(), &mut self.paths);
    }
}

/// Runs of names between colons.
fn in_tokens(tokens: TokenStream, found: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    found.extend((!path.is_empty()).then(|| std::mem::take(&mut path)));
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            other => {
                found.extend((!path.is_empty()).then(|| std::mem::take(&mut path)));
                colons = 0;
                if let TokenTree::Group(group) = other {
                    in_tokens(group.stream(), found);
                }
            }
        }
    }
    found.extend((!path.is_empty()).then_some(path));
}
