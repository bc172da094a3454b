//! `weft target add`: makes a drive a target and lists it in its daemon's configuration.

use super::config::{File, RELOAD};
use crate::output::say;
use crate::size::Size;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use tokio::task::block_in_place;
use weft_storaged::engine::{Content, Engine, KeySource, TargetOptions, inspect};
use weft_storaged::nvmeof::{self, Options, Roots};
use weft_storaged::{Location, Target};

/// Format a drive and add it to the configuration of a storage daemon
///
/// A drive that is mounted or otherwise in use is refused. One that holds anything (a filesystem, a
/// partition table, a member of LVM or of a RAID, another target) is formatted only after you said
/// so. One that the configuration lists already is made as it says there. Daemons format nothing.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft target add /dev/disk/by-id/nvme-a --index /var/lib/weft/nvme-a.index
  weft target add /srv/weft/target --size 64GiB
  weft target add /dev/disk/by-id/nvme-b --index /var/lib/weft/nvme-b.index --encrypt \
--key-file /etc/weft/nvme-b.key
  weft target add 'nvme-tcp://10.0.0.5:4420/nqn.2025-01.com.example:box1?uuid=..' --index \
/var/lib/weft/b1")]
pub struct Args {
    /// Block device (by a name that stays), file, or address of an NVMe-oF namespace
    #[arg(value_name = "LOCATION")]
    pub location: PathBuf,
    /// Only format it, for a daemon that is run by flags
    #[arg(long, conflicts_with = "config")]
    pub no_config: bool,
    #[command(flatten)]
    pub new: NewArgs,
}

#[derive(clap::Args, Debug)]
pub struct NewArgs {
    /// Configuration of the storage daemon
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/storaged.toml")]
    pub config: PathBuf,
    /// Size of a file that is to be made
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Give that file the space of what is written to it only, not all of it at once
    #[arg(long, requires = "size")]
    pub sparse: bool,
    /// Directory of the index, on a fast local drive [default for a file: its path with .index]
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
    /// Encrypt all that the drive will hold; without its key nobody can read it, you included
    #[arg(long, requires = "key_file")]
    pub encrypt: bool,
    /// File with the key: 64 random bytes, or as many in hexadecimal digits, with mode 600
    #[arg(long, requires = "encrypt", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Destroy what the drive holds without asking
    #[arg(long, visible_alias = "yes")]
    pub force: bool,
}

pub async fn run(args: Args) -> Result<()> {
    let target = target(&args.location, &args.new)?;
    if args.no_config {
        return say(&make(&target, &Options::default(), args.new.force, Index::New).await?);
    }
    let (file, config) = (File::lock(&args.new.config)?, args.new.config.display());
    if let Ok(listed) = file.find(&target.path) {
        ensure!(
            args.new.size.is_none() && args.new.index.is_none() && !args.new.encrypt,
            "{config} lists {} already and says there how to make it; leave --size, --index and \
             --encrypt out",
            listed.path.display()
        );
        let options = drive(listed, &file.config.nvmeof).await?;
        ensure!(
            !matches!(block_in_place(|| holds(&options.path))?, Content::Target(_)),
            "{config} lists {} already, and it is a target: there is nothing to do",
            listed.path.display()
        );
        // It is listed for no other.
        let made = block_in_place(|| format(listed, &options, args.new.force, Index::Own))?;
        return say(&format!("{made}; {config} lists it: {RELOAD}"));
    }
    let file = file.with(&target)?;
    let made = make(&target, &file.config.nvmeof, args.new.force, Index::New).await?;
    file.write()?;
    say(&format!("{made}; {config} lists it: {RELOAD}"))
}

/// The absolute path of a file that may be there, by one name whatever leads to its folder: that of
/// another target's index is recognised by it.
fn one_name(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    Ok(folder.zip(path.file_name()).map_or(path.clone(), |(folder, name)| folder.join(name)))
}

/// The section of a new target. Its path is absolute, unless it is an address.
pub fn target(location: &Path, args: &NewArgs) -> Result<Target> {
    let path = if is_address(location) {
        location.to_path_buf()
    } else {
        std::path::absolute(location)
            .with_context(|| format!("{} is not a path", location.display()))?
    };
    let index = args.index.as_deref().map(one_name).transpose()?;
    let key_file = args.key_file.as_deref().map(std::path::absolute).transpose()?;
    let encryption = key_file.map(|path| KeySource { key_file: Some(path), key_command: None });
    let size = args.size.map(|s| s.0);
    Ok(Target { index, sparse: args.sparse, encryption, ..Target::new(path, size) })
}

/// Whose the index of a target was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// Nobody's, as far as the configuration says.
    New,
    /// That of the target in whose place this one is made.
    Own,
}

/// Formats the drive, after a question where it holds something. Answers what was done.
pub async fn make(target: &Target, fabric: &Options, force: bool, index: Index) -> Result<String> {
    let options = drive(target, fabric).await?;
    block_in_place(|| format(target, &options, force, index))
}

/// The drive as it is to be opened; one behind a fabric is connected first.
pub async fn drive(target: &Target, fabric: &Options) -> Result<TargetOptions> {
    let path = match target.location()? {
        Location::Local(path) => path,
        Location::Fabric(remote) => nvmeof::attach(&Roots::default(), &remote, fabric).await?,
    };
    Ok(TargetOptions { path, ..target.options() })
}

fn format(target: &Target, options: &TargetOptions, force: bool, index: Index) -> Result<String> {
    let (name, found) = (target.path.display(), holds(&options.path)?);
    if found != Content::Blank && !force {
        let what = format!("{name} holds {found}");
        confirm(&what, "Everything on it will be lost.", "--force destroys that")?;
    }
    let superblock = match index {
        Index::New => Engine::format(options, &found)?,
        Index::Own => Engine::format_and_take_index(options, &found)?,
    };
    let encrypted = if superblock.key_check.is_some() { ", encrypted" } else { "" };
    Ok(format!("{name} is target {} now, {}{encrypted}", superblock.uuid, Size(superblock.size)))
}

/// What is on a drive or in a file; one that is not there holds nothing.
fn holds(path: &Path) -> Result<Content> {
    let there = path.try_exists().with_context(|| format!("cannot look at {}", path.display()))?;
    if there { Ok(inspect(path)?.content) } else { Ok(Content::Blank) }
}

/// An NVMe-oF address, which the daemon connects.
fn is_address(location: &Path) -> bool {
    location.to_str().is_some_and(|text| text.contains("://"))
}

/// Asks at a terminal before something is done that cannot be undone; `force` is what to say where
/// nobody can be asked.
pub fn confirm(what: &str, consequence: &str, force: &str) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("{what}; {force}");
    }
    eprint!("{what}. {consequence} Type yes to go on: ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    ensure!(answer.trim() == "yes", "nothing was changed");
    Ok(())
}
