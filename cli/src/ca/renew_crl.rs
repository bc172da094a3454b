//! `weft ca renew-crl`: signs the list of what was revoked anew.

use super::args::DirArgs;
use super::authority::Authority;
use super::crl;
use crate::output::say;
use anyhow::Result;

/// Sign crl.pem anew, with a later date
///
/// Weft itself takes a list whose date has passed; other programs (openssl verify -crl_check) do
/// not.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    dir: DirArgs,
    /// When the next is due [default: 365, or at the end of the authority]
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
}

pub fn run(args: &Args) -> Result<()> {
    let dir = &args.dir.dir;
    let records = Authority::open(dir)?.renew_crl(args.days)?;
    let path = dir.join(crl::FILE);
    let (path, number, until) = (path.display(), records.crl_number, records.crl_until);
    say(&format!("{path} is list {number} now; the next is due until {until}"))
}
