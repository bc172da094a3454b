//! `weft ca revoke`: has certificates count no more.

use super::args::DirArgs;
use super::authority::{Authority, Which};
use super::crl;
use super::request::Role;
use crate::output::say;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// Revoke certificates: crl.pem says then that they count no more
///
/// Servers and clients find that out when their copy of crl.pem is replaced.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["name", "serial", "cert"]))]
pub struct Args {
    #[command(flatten)]
    dir: DirArgs,
    /// All certificates of this name and --role
    #[arg(long, value_name = "NAME", requires = "role")]
    name: Option<String>,
    /// The role that goes with --name
    #[arg(long, value_enum, value_name = "ROLE", requires = "name")]
    role: Option<Role>,
    /// The certificate with this serial number, as weft ca list shows it
    #[arg(long, value_name = "HEX")]
    serial: Option<String>,
    /// The certificate in this file
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<()> {
    let which = match (args.serial, args.cert, args.role, args.name) {
        (Some(serial), ..) => Which::Serial(serial),
        (_, Some(path), ..) => {
            let read = fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
            Which::Certificate(read?)
        }
        (_, _, Some(role), Some(name)) => Which::Named(role, name),
        _ => anyhow::bail!("which certificate? --serial, --cert, or --name with --role"),
    };
    let dir = args.dir.dir;
    let mut said = String::new();
    for record in Authority::open(&dir)?.revoke(&which)? {
        said += &format!("{} {} (serial {}) ", record.role, record.name, record.serial);
        said += &match record.revoked {
            None => "is revoked\n".into(),
            Some(when) => format!("was revoked already, at {when}\n"),
        };
    }
    said += &format!(
        "Copy {} to the servers and clients, in the place of the one that they have: they notice \
         it by themselves",
        dir.join(crl::FILE).display()
    );
    say(&said)
}
