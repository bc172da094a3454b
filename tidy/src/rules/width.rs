//! Lines have at most 100 columns, comments too.

use crate::finding::Finding;
use crate::workspace::Workspace;

const MAX_COLUMNS: usize = 100;

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.files() {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                let what = format!("{columns} columns, over {MAX_COLUMNS}");
                findings.push(Finding::new("width", &file.path, index + 1, what));
            }
        }
    }
    findings
}
