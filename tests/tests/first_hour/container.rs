//! The file of which container images are made. Nothing makes one here: it is held against what the
//! package has in it.

use super::package::repository;
use anyhow::{Context, Result, ensure};
use std::fs;

/// Instructions, lines that go on joined, without remarks.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let split = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        Some((name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    joined.lines().filter_map(split).collect()
}

#[test]
fn the_container_file_names_what_there_is() -> Result<()> {
    let text = fs::read_to_string(repository("deploy/container/Containerfile"))?;
    let all = instructions(&text);
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names == ["FROM", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"], "{names:?}");
    let of = |wanted: &str| {
        let found = all.iter().find(|(name, _)| name == wanted);
        found.map(|(_, rest)| rest.as_str()).with_context(|| wanted.to_owned())
    };
    // What scripts/deb makes is what is installed, from the folder that the build is given.
    let made = fs::read_to_string(repository("scripts/deb"))?;
    ensure!(made.contains("name=${1}_${version}_$arch.deb") && made.contains("out=${2:-$1/deb}"));
    ensure!(text.contains("\"$TARGET/deb\"") && of("RUN")?.contains(" /packages/weft_*.deb "));
    ensure!(of("RUN")?.starts_with("--mount=type=bind,target=/packages "));
    ensure!(of("ENTRYPOINT")? == "[\"/usr/bin/weft\"]");
    let user: u32 = of("USER")?.split(':').next().unwrap_or_default().parse()?;
    ensure!(user != 0, "the image runs as root");
    // The folder that it works in is the user's, and the one that the samples name.
    ensure!(of("RUN")?.contains(&format!("-o {user} -g {user} {}", of("WORKDIR")?)));
    let sample = fs::read_to_string(repository("deploy/config/metadata.toml"))?;
    ensure!(sample.contains(&format!("\"{}/", of("WORKDIR")?)), "{sample}");
    for (name, rest) in &all {
        let rest = rest.to_lowercase();
        for secret in ["password", "token", "secret", ".key", "private"] {
            ensure!(!rest.contains(secret), "{name} {rest}");
        }
    }
    Ok(())
}
