//! Files and functions stay short: none over a limit, and few near it.

use crate::finding::Finding;
use crate::workspace::{File, Workspace};
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of any file.
const MAX_FILE: usize = 600;
/// Lines of nine files in ten.
const MOST_FILES: usize = 300;
/// Lines of a function.
const MAX_FUNCTION: usize = 70;
/// Of so many functions one may be longer.
const PER_LONG_FUNCTION: usize = 500;

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lengths: Vec<usize> = Vec::new();
    let mut functions = 0;
    let mut long = Vec::new();
    for file in workspace.files() {
        let lines = file.text.lines().count();
        lengths.push(lines);
        if lines > MAX_FILE {
            let what = format!("{lines} lines, over {MAX_FILE}: part it");
            findings.push(Finding::new("lengths", &file.path, 0, what));
        }
        let mut found = Functions { file, all: 0, long: Vec::new() };
        found.visit_file(&file.syntax);
        functions += found.all;
        long.extend(found.long);
    }
    lengths.sort_unstable();
    let ninth = lengths.get(lengths.len() * 9 / 10).copied().unwrap_or(0);
    if ninth > MOST_FILES {
        let what = format!("one file in ten has {ninth} lines or more, over {MOST_FILES}");
        findings.push(Finding::new("lengths", Path::new("."), 0, what));
    }
    if long.len() * PER_LONG_FUNCTION > functions {
        findings.extend(long);
    }
    findings
}

struct Functions<'a> {
    file: &'a File,
    all: usize,
    long: Vec<Finding>,
}

impl Functions<'_> {
    fn look_at(&mut self, name: &syn::Ident, block: &syn::Block) {
        self.all += 1;
        let (first, last) = (name.span().start().line, block.span().end().line);
        if last - first >= MAX_FUNCTION {
            let what = format!("{name} has {} lines, over {MAX_FUNCTION}", last - first + 1);
            self.long.push(Finding::new("lengths", &self.file.path, first, what));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.look_at(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.look_at(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.look_at(&function.sig.ident, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
