//! `weft ca init`: makes an authority.

use super::args::DirArgs;
use super::authority::Authority;
use crate::output::say;
use anyhow::Result;

/// Make an authority, with a key of its own, in a folder that is not there yet or is empty
///
/// The folder then holds ca.pem, which everybody in the cluster trusts; ca.key, which signs, and
/// which nobody but you may read; crl.pem, which says what was revoked; and issued.toml, the
/// records. Keep a copy of the whole folder.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    dir: DirArgs,
    /// What the authority is called in its certificate
    #[arg(long, value_name = "NAME", default_value = "Weft CA")]
    name: String,
    /// How long it is valid; nothing that it issues is valid longer
    #[arg(long, value_name = "DAYS", default_value_t = 3650)]
    days: u32,
}

pub fn run(args: &Args) -> Result<()> {
    let dir = &args.dir.dir;
    Authority::create(dir, &args.name, args.days)?;
    let dir = dir.display();
    say(&format!(
        "{dir} is an authority now. Servers and clients get {dir}/ca.pem and {dir}/crl.pem; \
         {dir}/ca.key stays, and a copy of the folder in a safe place is wise"
    ))
}
