//! `weft layout`: how new data of a file, or of files made in a folder, is laid out. Goes through
//! the mount, as the virtual attribute `user.weft.layout`.

use crate::output::OutputArgs;
use crate::size::Size;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft_proto::{Layout, Profile};

/// Attribute that holds the layout as text: `4+2 unit=131072 segment=16777216 inline=16384`.
const ATTRIBUTE: &CStr = c"user.weft.layout";

/// Show or change how new data is laid out
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft layout get /datasets
  weft layout set /datasets/checkpoints --ec 8+2 --unit 1MiB
  weft layout set /datasets/small --replica 3 --inline 64KiB

Data that is there already stays as it is; folders and files made below inherit the layout.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show the layout of a file or folder in a mount
    Get {
        path: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Change the layout of a file or folder in a mount; what is not named stays
    Set(SetArgs),
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    path: PathBuf,
    /// Erasure coding with K data and M parity shards a stripe, such as 8+2
    #[arg(long, value_name = "K+M", conflicts_with = "replica", value_parser = erasure_coding)]
    ec: Option<Profile>,
    /// N copies
    #[arg(long, value_name = "N")]
    replica: Option<u8>,
    /// Stripe unit: bytes that lie together on one target
    #[arg(long, value_name = "SIZE")]
    unit: Option<Size>,
    /// Longest segment: a file spreads over other targets after that many bytes
    #[arg(long, value_name = "SIZE")]
    segment: Option<Size>,
    /// Most bytes of a file that live in its inode
    #[arg(long, value_name = "SIZE")]
    inline: Option<Size>,
}

fn erasure_coding(text: &str) -> Result<Profile, String> {
    if !text.contains('+') {
        return Err("write K+M, such as 8+2; for copies use --replica N".into());
    }
    text.parse().map_err(|e: weft_proto::Error| e.to_string())
}

#[derive(Serialize)]
struct Report {
    profile: String,
    unit: u32,
    segment: u64,
    inline: u32,
}

pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Get { path, output } => {
            let layout = get(&path)?;
            let report = Report {
                profile: layout.profile.to_string(),
                unit: layout.unit,
                segment: layout.segment_len,
                inline: layout.inline_limit,
            };
            output.print(&report, text)
        }
        Command::Set(args) => {
            let layout = change(get(&args.path)?, &args)?;
            set(&args.path, &layout)?;
            // Asked for afterwards: what is set holds, whoever answers.
            if let Some(note) = seats(&args.path).and_then(|seats| narrower(&layout, seats)) {
                eprintln!("weft: {note}");
            }
            Ok(())
        }
    }
}

fn text(r: &Report) -> String {
    format!(
        "redundancy      {}\nstripe unit     {}\nlongest segment {}\ninline limit    {}",
        r.profile,
        Size(r.unit.into()),
        Size(r.segment),
        Size(r.inline.into())
    )
}

/// How many targets the widest placement group of the cluster behind this path has, if it can be
/// asked.
fn seats(path: &Path) -> Option<usize> {
    let path = path.canonicalize().ok()?;
    let mounts = weft_fuse::mounts().ok()?.into_iter();
    let mount = mounts.filter(|m| path.starts_with(&m.mount_point));
    // Of several at one place that is the last, which is on top.
    let mount = mount.max_by_key(|m| m.mount_point.as_os_str().len())?;
    let source = mount.is_weft().then_some(mount.source)?;
    let cluster = crate::mount::Spec::parse(&source).ok()?.cluster;
    let runtime = crate::daemon::runtime(1).ok()?;
    let reply = runtime.block_on(crate::control::leader_status(&cluster)).ok()?;
    let pools = reply.map?.pools;
    let open = pools.iter().flat_map(|p| &p.pgs).filter(|pg| !pg.retired);
    open.map(|pg| pg.targets.len()).max()
}

/// What is to be said of a layout that is wider than the cluster.
fn narrower(layout: &Layout, seats: usize) -> Option<String> {
    let wanted = layout.profile;
    if usize::from(wanted.width()) <= seats {
        return None;
    }
    let what = format!("the placement groups of this cluster have {seats} targets, {wanted} takes");
    Some(match wanted.fit(layout.segment_len, layout.unit, seats) {
        Some(got) => {
            format!("{what} {}: until there are more, data is written as {got}", wanted.width())
        }
        None => format!("{what} at least {}: nothing can be written", wanted.m() + 1),
    })
}

/// `layout` with what the flags name. A segment length that was not named follows the stripe.
fn change(mut layout: Layout, args: &SetArgs) -> Result<Layout> {
    let sizes = args.unit.or(args.segment).or(args.inline);
    if args.ec.is_none() && args.replica.is_none() && sizes.is_none() {
        bail!("nothing to change; name --ec, --replica, --unit, --segment or --inline");
    }
    if let Some(profile) = args.ec {
        layout.profile = profile;
    }
    if let Some(copies) = args.replica {
        layout.profile = Profile::replica(copies)?;
    }
    let small = |size: Size, flag: &str| {
        u32::try_from(size.0).with_context(|| format!("{flag} {size} is too large"))
    };
    if let Some(unit) = args.unit {
        layout.unit = small(unit, "--unit")?;
    }
    if let Some(inline) = args.inline {
        layout.inline_limit = small(inline, "--inline")?;
    }
    let stripe = u64::from(layout.profile.k()) * u64::from(layout.unit);
    layout.segment_len = match args.segment {
        Some(size) => size.0,
        None if stripe == 0 => 0,
        None => (layout.segment_len / stripe * stripe).max(stripe),
    };
    layout.validate()?;
    Ok(layout)
}

fn parse(text: &str) -> Result<Layout> {
    let field = |name: &str| {
        text.split_ascii_whitespace()
            .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
            .with_context(|| format!("the layout {text:?} has no {name}"))
    };
    let number = |name: &str| -> Result<u64> { Ok(field(name)?.parse()?) };
    let layout = Layout {
        profile: text.split_ascii_whitespace().next().unwrap_or_default().parse()?,
        unit: number("unit")?.try_into()?,
        segment_len: number("segment")?,
        inline_limit: number("inline")?.try_into()?,
    };
    layout.validate()?;
    Ok(layout)
}

fn format(layout: &Layout) -> String {
    let Layout { profile, unit, segment_len, inline_limit } = layout;
    format!("{profile} unit={unit} segment={segment_len} inline={inline_limit}")
}

fn get(path: &Path) -> Result<Layout> {
    let name = c_path(path)?;
    let mut value = [0u8; 256];
    // SAFETY: both names are NUL-terminated and the buffer is as long as said.
    let len = unsafe {
        libc::getxattr(name.as_ptr(), ATTRIBUTE.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let value =
        usize::try_from(len).ok().and_then(|len| value.get(..len)).ok_or_else(|| explain(path))?;
    parse(&String::from_utf8_lossy(value))
}

fn set(path: &Path, layout: &Layout) -> Result<()> {
    let (name, value) = (c_path(path)?, format(layout));
    // SAFETY: both names are NUL-terminated and the value is as long as said.
    let rc = unsafe {
        libc::setxattr(name.as_ptr(), ATTRIBUTE.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    if rc == 0 { Ok(()) } else { Err(explain(path)) }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("the path holds a NUL byte")
}

fn explain(path: &Path) -> anyhow::Error {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => " (it is not in a mount of weft)",
        Some(libc::EBUSY) => {
            " (it holds data, whose layout stays: set that of its folder, and copy it to a new \
             file there)"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("the layout of {}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<SetArgs, clap::Error> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            set: SetArgs,
        }
        let words = ["set", "/x"].into_iter().chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).map(|l| l.set)
    }

    #[test]
    fn a_layout_survives_its_text() {
        for profile in ["4+2", "replica=3", "20+4"] {
            let layout = Layout::for_profile(profile.parse().unwrap());
            assert_eq!(parse(&format(&layout)).unwrap(), layout);
        }
        for text in ["", "4+2", "4+2 unit=1 segment=1 inline=0", "garbage"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_layout_that_is_wider_than_the_cluster_is_not_silent() {
        let narrower = |profile: &str, seats| {
            narrower(&Layout::for_profile(profile.parse().unwrap()), seats).unwrap_or_default()
        };
        assert_eq!(narrower("4+2", 6), "");
        assert!(narrower("8+2", 6).ends_with("data is written as 4+2"), "{}", narrower("8+2", 6));
        assert!(narrower("4+2", 2).contains("nothing can be written"), "{}", narrower("4+2", 2));
        assert_eq!(narrower("replica=3", 3), "");
    }

    #[test]
    fn only_what_is_named_changes_and_the_segment_follows_the_stripe() {
        let old = Layout::for_profile("4+2".parse().unwrap());
        let new = change(old, &args("--ec 5+1").unwrap()).unwrap();
        assert_eq!((new.profile.to_string().as_str(), new.unit), ("5+1", old.unit));
        assert_eq!(new.segment_len % (5 * u64::from(new.unit)), 0);
        let new = change(old, &args("--replica 3 --unit 1MiB --segment 8MiB").unwrap()).unwrap();
        assert_eq!((new.profile.m(), new.unit, new.segment_len), (2, 1 << 20, 8 << 20));
        assert_eq!(change(old, &args("--inline 0").unwrap()).unwrap().inline_limit, 0);
        for bad in [
            "",
            "--unit 100",
            "--unit 0",
            "--segment 1",
            "--inline 1GiB",
            "--replica 9",
            "--unit 8GiB",
        ] {
            assert!(change(old, &args(bad).unwrap()).is_err(), "{bad:?}");
        }
        for bad in ["--ec 3", "--ec replica=3", "--ec 4+9", "--ec 4+2 --replica 3"] {
            assert!(args(bad).is_err(), "{bad:?}");
        }
    }
}
