//! The journeys that ARCHITECTURE.md lists are those of the code: under a heading `## One ...`
//! there is one file in each numbered step, and each names something of the next; a step that
//! begins with `⇢` is reached over the network.

use crate::finding::Finding;
use crate::modules::Modules;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

const FILE: &str = "ARCHITECTURE.md";

struct Step {
    line: usize,
    file: PathBuf,
    from_afar: bool,
}

pub fn check(workspace: &Workspace, modules: &Modules) -> Vec<Finding> {
    let text = std::fs::read_to_string(workspace.folder.join(FILE)).unwrap_or_default();
    let mut findings = Vec::new();
    let wrong = |line, what: String| Finding::new("journeys", Path::new(FILE), line, what);
    for journey in journeys(&text) {
        for step in &journey {
            if !workspace.files().any(|file| file.path == step.file) {
                findings.push(wrong(step.line, format!("{} is not there", step.file.display())));
            }
        }
        for pair in journey.windows(2) {
            let [from, to] = pair else { continue };
            if !to.from_afar && !leads(modules, &from.file, &to.file) {
                let (from, to_file) = (from.file.display(), to.file.display());
                findings.push(wrong(to.line, format!("{from} does not lead to {to_file}")));
            }
        }
    }
    findings
}

fn journeys(text: &str) -> Vec<Vec<Step>> {
    let mut journeys: Vec<Vec<Step>> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            inside = line.starts_with("## One ") && !line.starts_with("## One port");
            if inside {
                journeys.push(Vec::new());
            }
        }
        let Some((number, step)) = line.split_once(". ").filter(|_| inside) else { continue };
        if number.parse::<u32>().is_ok()
            && let Some(file) = step.split('`').nth(1)
        {
            let from_afar = step.starts_with('⇢');
            let step = Step { line: index + 1, file: file.into(), from_afar };
            if let Some(journey) = journeys.last_mut() {
                journey.push(step);
            }
        }
    }
    journeys
}

/// Whether a file names something that another defines, calls a method of it, or declares it.
fn leads(modules: &Modules, from: &Path, to: &Path) -> bool {
    let of = |file: &Path| -> Vec<_> {
        modules.iter().filter(|(_, m)| m.file == file).map(|(id, _)| id).collect()
    };
    let there = of(to);
    of(from).into_iter().any(|id| {
        let names = modules.named(id).iter().any(|target| modules.file_of(target) == to);
        let declares = modules.declared(id).any(|child| there.contains(&child));
        let calls = &modules.get(id).names.calls;
        let has_method = |id: &usize| !modules.get(*id).names.methods.is_disjoint(calls);
        names || declares || there.iter().any(has_method)
    })
}
