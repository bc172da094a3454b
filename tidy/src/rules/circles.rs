//! No two files of a crate name each other, by whatever way round. Modules that are declared and
//! names that are handed on (`pub use`) do not count, nor does test code.

use crate::finding::Finding;
use crate::modules::Modules;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::path::Path;

pub fn check(modules: &Modules) -> Vec<Finding> {
    let graph = graph(modules);
    let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
    circles
        .map(|mut files| {
            files.sort();
            let inner = |a: &Path| {
                let to = graph.neighbors(a).filter(|b| files.contains(b));
                let to: Vec<_> = to.map(|b| b.display().to_string()).collect();
                format!("\n    {} -> {}", a.display(), to.join(", "))
            };
            let what: String = files.iter().map(|file| inner(file)).collect();
            let what = format!("{} files name each other in a circle:{what}", files.len());
            Finding::new("circles", files[0], 0, what)
        })
        .collect()
}

/// Which file names something of which.
fn graph(modules: &Modules) -> DiGraphMap<&Path, ()> {
    let mut graph = DiGraphMap::new();
    for (id, module) in modules.iter() {
        for target in modules.named(id) {
            let (from, to) = (module.file.as_path(), modules.file_of(&target));
            if from != to {
                graph.add_edge(from, to, ());
            }
        }
    }
    graph
}
