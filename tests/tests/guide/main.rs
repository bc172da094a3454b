//! The guide's commands (docs/guide.md), one after the other, each on a machine of its own: a bare
//! Debian of folders, in namespaces of process numbers, mounts and network, with the package that
//! is built here. On the way all machines lose their power, and start in another order.

// Real processes live in real time: conditions are looked at again after a pause.
#![allow(clippy::disallowed_methods)]

mod machines;

use anyhow::{Context, Result, bail, ensure};
use machines::Machines;
use std::path::{Path, PathBuf};
use weft_tests::{not_tested, path, run, weft_binary};

fn repository(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

/// Commands of the guide, and the machines that they are for.
struct Block {
    line: usize,
    on: Vec<String>,
    commands: String,
}

/// The blocks of a text that say where they are run.
fn blocks(text: &str) -> Result<Vec<Block>> {
    let (mut all, mut open) = (Vec::new(), None::<(usize, String)>);
    for (line, text) in (1..).zip(text.lines()) {
        match (&mut open, text) {
            (None, "```sh") => open = Some((line, String::new())),
            (None, _) => {}
            (Some((at, commands)), "```") => {
                if let Some(on) = commands.lines().next().and_then(|l| l.strip_prefix("# on ")) {
                    let on = on.split_whitespace().map(str::to_owned).collect();
                    all.push(Block { line: *at, on, commands: commands.clone() });
                }
                open = None;
            }
            (Some((_, commands)), text) => {
                commands.push_str(text);
                commands.push('\n');
            }
        }
    }
    match open {
        Some((line, _)) => bail!("the block of line {line} does not end"),
        None => Ok(all),
    }
}

/// The package of what was built.
fn package(out: &Path) -> Result<PathBuf> {
    let binary = weft_binary();
    let target = binary.parent().context("the binary is in no folder")?;
    run(path(&repository("scripts/deb")), &[path(target), path(out)], Path::new("/"))?;
    let arch = run("dpkg", &["--print-architecture"], Path::new("/"))?;
    Ok(out.join(format!("weft_{}_{}.deb", env!("CARGO_PKG_VERSION"), arch.trim())))
}

#[test]
fn what_the_guide_says_makes_a_cluster_that_survives_a_reboot() -> Result<()> {
    if !nix::unistd::geteuid().is_root() || run("dpkg", &["--version"], Path::new("/")).is_err() {
        not_tested("the guide: only root can make machines of folders, and only on Debian");
        return Ok(());
    }
    let text = std::fs::read_to_string(repository("docs/guide.md"))?;
    let blocks = blocks(&text)?;
    ensure!(blocks.len() > 20, "only {} blocks say where they are run", blocks.len());
    let work = tempfile::Builder::new().prefix("weft-guide-").tempdir()?;
    let package = package(work.path())?;
    let names: Vec<String> = (["ops".to_owned()].into_iter())
        .chain((1..=4).map(|n| format!("meta-{n}")))
        .chain((1..=7).map(|n| format!("storage-{n}")))
        .chain(["gpu-1".to_owned()])
        .collect();
    let mut machines = Machines::new(work.path(), &package, &names)?;
    let mut rebooted = false;
    for block in &blocks {
        // What comes behind the first part is for a cluster that has been in use.
        let first_part = text.lines().position(|line| line == "# Day by day").unwrap_or_default();
        if block.line > first_part && !std::mem::replace(&mut rebooted, true) {
            machines.lose_power()?;
            let order: Vec<&String> = names.iter().rev().collect();
            machines.boot(&order)?;
            machines.run("ops", "until weft status; do sleep 1; done")?;
            let same = "diff -r /usr/share/common-licenses /datasets/first";
            machines.run("gpu-1", &format!("{same}; sha256sum -c /datasets/sums"))?;
        }
        let every = block.on == ["every"];
        for name in if every { &names } else { &block.on } {
            machines
                .run(name, &block.commands)
                .with_context(|| format!("docs/guide.md, line {}, on {name}", block.line))?;
        }
    }
    Ok(())
}
