//! `weft ca list`: what an authority has issued. Its key is not needed.

use super::args::DirArgs;
use super::records::{Moment, Record, Records};
use crate::output::{OutputArgs, Table};
use anyhow::Result;
use serde::Serialize;

/// Seconds before its end from which on the authority, or its list, is said to end.
const SOON: u64 = 90 * 86_400;

/// List certificates: those that expire soonest first, then what is expired or revoked
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    dir: DirArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Valid,
    Expired,
    Revoked,
}

#[derive(Serialize)]
struct Listed {
    state: State,
    #[serde(flatten)]
    record: Record,
}

#[derive(Serialize)]
struct List {
    name: String,
    until: Moment,
    crl_number: u64,
    crl_until: Moment,
    certificates: Vec<Listed>,
}

pub fn run(args: &Args) -> Result<()> {
    let now = Moment::now();
    let list = list(Records::read(&args.dir.dir)?, now);
    args.output.print(&list, |list| text(list, now))
}

fn list(records: Records, now: Moment) -> List {
    let state = |record: &Record| match record {
        Record { revoked: Some(_), .. } => State::Revoked,
        Record { until, .. } if *until < now => State::Expired,
        _ => State::Valid,
    };
    let all = records.certificates.into_iter();
    let mut certificates: Vec<_> =
        all.map(|record| Listed { state: state(&record), record }).collect();
    certificates.sort_by_key(|listed| (listed.state, listed.record.until));
    let Records { name, until, crl_number, crl_until, .. } = records;
    List { name, until, crl_number, crl_until, certificates }
}

fn text(list: &List, now: Moment) -> String {
    let mut table = Table::new(&["ROLE", "NAME", "SERIAL", "EXPIRES", "STATE"]);
    for Listed { state, record } in &list.certificates {
        let state = match (state, record.revoked) {
            (State::Revoked, Some(when)) => format!("revoked {when}"),
            (State::Expired, _) => "expired".into(),
            _ => "valid".into(),
        };
        let Record { role, name, serial, until, .. } = record;
        table.row([&role.to_string(), name, serial, &until.to_string(), &state]);
    }
    let mut text = table.render("");
    let soon = |until: Moment| until.minus(SOON) < now;
    if soon(list.until) {
        text += &format!("The authority itself expires at {}\n", list.until);
    }
    if soon(list.crl_until) {
        text += &format!("crl.pem is due at {}: weft ca renew-crl\n", list.crl_until);
    }
    text
}
