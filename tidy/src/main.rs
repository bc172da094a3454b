//! `weft-tidy [FOLDER]`: reads the workspace in FOLDER (by default this one) and says what breaks
//! the rules of the house ([`rules`]). Ends with 1 if anything does.

mod finding;
mod modules;
mod paths;
mod rules;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;
use workspace::Workspace;

fn main() -> anyhow::Result<ExitCode> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).unwrap_or_else(|| ".".into());
    let findings = rules::all(&Workspace::read(&folder)?);
    for finding in &findings {
        println!("{finding}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests;
