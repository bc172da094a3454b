//! `weft quota`: what directories, users, groups and projects may use, and what they do. Goes
//! through a mount, by virtual attributes ([`attribute`]).

mod attribute;
mod report;
mod words;

use crate::output::OutputArgs;
use anyhow::{Context, Result, bail};
use attribute::{Quota, Which};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_fuse::MountEntry;
use words::{Grace, Limit};

/// How often it is looked whether all is counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Limit what directories, users, groups and projects may use
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft quota set /datasets/team-a --bytes 10TiB --inodes 5000000
  weft quota set /datasets/team-b --soft-bytes 8TiB --bytes 10TiB --grace 3d
  weft quota set --user alice --bytes 500GiB
  weft quota set /datasets/run-1 --in-project 7
  weft quota set --project 7 --bytes 20TiB
  weft quota show /datasets/team-a/jobs
  weft quota report --output json

Bytes are what files take, as du shows it: holes left out, before redundancy. Inodes are all that
lies below a directory, itself left out. Limits are set as root. Without a path, users, groups and
projects are those of the only mount of this machine.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Set limits; what is not named stays
    Set(SetArgs),
    /// Show the quota of a folder in a mount, or of the nearest above it that has one
    Show {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show all quotas, and what each user and group uses where that is counted
    Report {
        /// A place in the mount; without it, the only mount of this machine
        path: Option<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Take limits away
    Clear {
        #[command(flatten)]
        of: Of,
    },
}

/// Whose quota.
#[derive(clap::Args, Debug)]
struct Of {
    /// A folder in a mount; with a user, group or project, any place in the mount
    #[arg(required_unless_present_any = ["user", "group", "project"])]
    path: Option<PathBuf>,
    /// Of a user, by name or number
    #[arg(long, value_name = "NAME|UID", conflicts_with_all = ["group", "project"])]
    user: Option<String>,
    /// Of a group, by name or number
    #[arg(long, value_name = "NAME|GID", conflicts_with = "project")]
    group: Option<String>,
    /// Of all folders of a project
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    project: Option<u64>,
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    #[command(flatten)]
    of: Of,
    /// Most bytes
    #[arg(long, value_name = "SIZE|none")]
    bytes: Option<Limit>,
    /// Most inodes: files, folders and all else that has a name
    #[arg(long, value_name = "N|none", value_parser = words::count)]
    inodes: Option<Limit>,
    /// Bytes that may be exceeded for the time of grace
    #[arg(long, value_name = "SIZE|none")]
    soft_bytes: Option<Limit>,
    /// Inodes that may be exceeded for the time of grace
    #[arg(long, value_name = "N|none", value_parser = words::count)]
    soft_inodes: Option<Limit>,
    /// How long soft limits may be exceeded; a week if not said
    #[arg(long, value_name = "TIME")]
    grace: Option<Grace>,
    /// What lies in the folder counts for this project, too; 0: for none
    #[arg(long, value_name = "N", conflicts_with_all = ["user", "group", "project"])]
    in_project: Option<u64>,
    /// Do not wait until what is there already is counted
    #[arg(long)]
    no_wait: bool,
}

pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Set(args) => set(&args),
        Command::Show { of, output } => {
            let place = of.place()?;
            let which = of.which()?;
            let mut found = attribute::get(&place, which)?;
            // What those who own a folder may use is theirs to ask for.
            found.retain(|quota| which != Which::Folder || quota.kind == "tree");
            report::show(&place, found, output)
        }
        Command::Report { path, output } => {
            let place = path.map_or_else(only_mount, Ok)?;
            report::all(attribute::all(&place)?, output)
        }
        Command::Clear { of } => attribute::set(&of.place()?, of.which()?, "clear"),
    }
}

impl Of {
    fn which(&self) -> Result<Which> {
        Ok(match self {
            Self { user: Some(user), .. } => Which::User(words::user(user)?),
            Self { group: Some(group), .. } => Which::Group(words::group(group)?),
            Self { project: Some(project), .. } => Which::Project(*project),
            _ => Which::Folder,
        })
    }

    /// The folder, or any place in the mount.
    fn place(&self) -> Result<PathBuf> {
        self.path.clone().map_or_else(only_mount, Ok)
    }
}

/// The only mount of this machine.
fn only_mount() -> Result<PathBuf> {
    only(weft_fuse::mounts().context("the mounts of this machine")?)
}

/// Where the only one of these is; one that is shown at several places is one.
fn only(mounts: Vec<MountEntry>) -> Result<PathBuf> {
    let mut places = BTreeMap::new();
    for mount in mounts.into_iter().filter(MountEntry::is_weft) {
        places.entry(mount.device).or_insert(mount.mount_point);
    }
    match places.len() {
        0 => bail!("nothing of weft is mounted here: name a path in a mount"),
        1 => places.into_values().next().context("the mount"),
        n => bail!("{n} mounts of weft are here: name a path in the one that is meant"),
    }
}

fn set(args: &SetArgs) -> Result<()> {
    let (place, which) = (args.of.place()?, args.of.which()?);
    let mut words = Vec::new();
    let limits = [
        ("bytes", &args.bytes),
        ("inodes", &args.inodes),
        ("soft-bytes", &args.soft_bytes),
        ("soft-inodes", &args.soft_inodes),
    ];
    words.extend(
        limits.iter().filter_map(|(name, limit)| Some(format!("{name}={}", limit.as_ref()?.0))),
    );
    words.extend(args.grace.iter().map(|grace| format!("grace={}", grace.0)));
    words.extend(args.in_project.iter().map(|project| format!("project={project}")));
    if words.is_empty() {
        bail!("nothing to set; name --bytes, --inodes, --soft-bytes, --soft-inodes or --grace");
    }
    if which == Which::Folder {
        // It comes last: it may hold anything.
        words.extend(attribute::path_in_mount(&place).map(|path| format!("path={path}")));
    }
    attribute::set(&place, which, &words.join(" "))?;
    if args.no_wait {
        return Ok(());
    }
    let mut told = false;
    while is_counting(&place, which)? {
        if !std::mem::replace(&mut told, true) {
            eprintln!(
                "weft: what is there already is being counted; nothing is refused until then"
            );
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Whether what was there before is not all counted yet.
fn is_counting(place: &Path, which: Which) -> Result<bool> {
    let found = attribute::get(place, which)?;
    Ok(found.iter().find(|quota: &&Quota| !quota.ends).is_some_and(|quota| quota.counting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_mount_is_found_whoever_made_it() {
        let mount = |at: &str, device: &str, fs_type: &str, source: &str| MountEntry {
            mount_point: at.into(),
            device: device.into(),
            fs_type: fs_type.into(),
            source: source.into(),
            user: Some(0),
            read_only: false,
        };
        let ours = mount("/scratch", "0:57", "fuse.weft", "weft:b:7100");
        // As mount(8) makes it.
        let fstab = mount("/datasets", "0:58", "fuse.weft", "a:7100:/");
        let other = mount("/other", "0:59", "fuse.sshfs", "a:/");
        let bound = MountEntry { mount_point: "/srv/datasets".into(), ..fstab.clone() };
        let found = |all: &[&MountEntry]| {
            only(all.iter().map(|mount| (*mount).clone()).collect()).map_err(|e| e.to_string())
        };
        assert_eq!(found(&[&other, &fstab]).unwrap(), Path::new("/datasets"));
        assert_eq!(found(&[&fstab, &other, &bound]).unwrap(), Path::new("/datasets"));
        assert!(found(&[&fstab, &ours, &bound]).unwrap_err().contains("2 mounts"));
        assert!(found(&[&other]).unwrap_err().contains("nothing of weft"));
    }
}
