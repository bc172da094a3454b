//! `weft ca`: certificates for a cluster whose owner has no certificate authority.
//!
//! All of it happens in a folder, which may lie on a machine that no server can reach.

mod args;
pub mod authority;
mod crl;
mod csr;
mod init;
mod issue;
mod list;
mod records;
mod renew_crl;
pub mod request;
mod revoke;

use anyhow::Result;

/// Be a small certificate authority: issue and revoke the certificates of a cluster
///
/// The authority is a folder, and its key is all that a cluster's security rests on: keep it where
/// no server can read it, and a copy of it. Any other authority will do as well, if its
/// certificates name their holder in a URI weft://ROLE/NAME.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft ca init --dir /root/weft-ca
  weft ca issue --dir /root/weft-ca --role metadata --name 1 --host m1 --host 10.0.0.1 --out m1
  weft ca issue --dir /root/weft-ca --role storage --name s1 --host s1 --out s1
  weft ca issue --dir /root/weft-ca --role admin --name ops --out ops
  weft ca issue --dir /root/weft-ca --role client --name a --subtree /a --out client-a
  weft ca revoke --dir /root/weft-ca --role client --name a")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Init(init::Args),
    Issue(issue::Args),
    Revoke(revoke::Args),
    RenewCrl(renew_crl::Args),
    List(list::Args),
}

pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Init(args) => init::run(&args),
        Command::Issue(args) => issue::run(args),
        Command::Revoke(args) => revoke::run(args),
        Command::RenewCrl(args) => renew_crl::run(&args),
        Command::List(args) => list::run(&args),
    }
}
