//! Configuration files and data folders of the daemons of a `weft dev` cluster.

use super::role::{METADATA, Role, STORAGE};
use super::state::{Daemon, State};
use super::tls;
use crate::durable;
use anyhow::{Context, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weft_metadata::Member;
use weft_proto::{ErrorKind, NodeId};
use weft_storaged::engine::{Content, Engine, inspect};

pub fn config_path(dir: &Path, role: Role, id: u64) -> PathBuf {
    dir.join("config").join(format!("{}.toml", role.name(id)))
}

/// The one target of a storage daemon.
pub fn target_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(STORAGE.name(id)).join("target")
}

/// Makes the data and writes the file of every daemon that has no file: edits made by hand stay.
pub fn write_all(dir: &Path, state: &State) -> Result<()> {
    if state.tls {
        tls::make(dir, state)?;
    }
    let folder = dir.join("config");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for daemon in &state.metadata {
        let config = metadata(dir, state, daemon);
        // Once: a server whose folder is found empty later has lost its disk.
        if !config_path(dir, METADATA, daemon.id).exists() {
            bootstrap(&config)?;
        }
        write(dir, METADATA, daemon, &toml::to_string_pretty(&config)?)?;
    }
    for daemon in &state.storage {
        let config = storage(dir, state, daemon);
        let path = config_path(dir, STORAGE, daemon.id);
        if !path.exists() {
            make_folder(dir, STORAGE, daemon)?;
            config.targets.iter().try_for_each(make)?;
        } else if !daemon.alive() && is_empty(&dir.join(STORAGE.name(daemon.id)))? {
            // As if the drive had been replaced: an empty target joins, and the one that was there
            // stays lost. A target alone that is gone is not made anew behind anyone's back.
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let config: weft_storaged::Config = toml::from_str(&text)
                .with_context(|| format!("{} is not understood", path.display()))?;
            make_folder(dir, STORAGE, daemon)?;
            let folder = dir.join(STORAGE.name(daemon.id));
            eprintln!(
                "weft: {} is gone: an empty target is made there, and what was there stays lost",
                folder.display()
            );
            let ours = config.targets.iter().filter(|target| target.path.starts_with(&folder));
            ours.into_iter().try_for_each(make)?;
        }
        write(dir, STORAGE, daemon, &toml::to_string_pretty(&config)?)?;
    }
    Ok(())
}

/// Whether there is no such folder, or nothing in it.
fn is_empty(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", folder.display())),
    }
}

/// Formats a target, unless a start that was cut short has.
fn make(target: &weft_storaged::Target) -> Result<()> {
    if target.path.exists() && matches!(inspect(&target.path)?.content, Content::Target(_)) {
        return Ok(());
    }
    Engine::format(&target.options(), &Content::Blank)?;
    Ok(())
}

/// Says that a metadata server is one of a new cluster, unless it has run.
fn bootstrap(config: &weft_metadata::Config) -> Result<()> {
    match weft_metadata::bootstrap(config) {
        Err(e) if e.kind == ErrorKind::Exists => Ok(()),
        done => Ok(done?),
    }
}

/// Removes the files and data folders of all daemons.
pub fn remove_all(dir: &Path, state: &State) -> Result<()> {
    let data = |role: Role, daemons: &[Daemon]| {
        daemons.iter().map(|d| dir.join(role.name(d.id))).collect::<Vec<_>>()
    };
    let mut folders = vec![dir.join("config"), dir.join("tls")];
    folders.extend(data(METADATA, &state.metadata));
    folders.extend(data(STORAGE, &state.storage));
    for folder in folders {
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.with_context(|| format!("cannot remove {}", folder.display()))?,
        }
    }
    Ok(())
}

fn make_folder(dir: &Path, role: Role, daemon: &Daemon) -> Result<()> {
    let data = dir.join(role.name(daemon.id));
    fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))
}

fn write(dir: &Path, role: Role, daemon: &Daemon, text: &str) -> Result<()> {
    make_folder(dir, role, daemon)?;
    let path = config_path(dir, role, daemon.id);
    if path.exists() {
        return Ok(());
    }
    durable::replace(&path, text.as_bytes(), None)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn metadata(dir: &Path, state: &State, daemon: &Daemon) -> weft_metadata::Config {
    let member = |d: &Daemon| Member { id: NodeId(d.id), address: d.address.clone() };
    let peers = state.metadata.iter().map(member).collect();
    let data = dir.join(METADATA.name(daemon.id));
    let mut config =
        weft_metadata::Config::new(NodeId(daemon.id), daemon.address.clone(), peers, data);
    config.profile = state.profile.clone();
    config.tls = state.tls.then(|| tls::files(dir, &METADATA.name(daemon.id)));
    config
}

fn storage(dir: &Path, state: &State, daemon: &Daemon) -> weft_storaged::Config {
    let mut config =
        weft_storaged::Config::new(STORAGE.name(daemon.id), &daemon.address, state.cluster());
    config.tls = state.tls.then(|| tls::files(dir, &STORAGE.name(daemon.id)));
    let path = target_path(dir, daemon.id);
    let target = weft_storaged::Target::new(path, Some(state.target_size));
    config.targets = vec![weft_storaged::Target { sparse: state.sparse, ..target }];
    config
}
