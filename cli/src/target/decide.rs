//! `weft target out`, `in` and `drain`: what an admin decides about a target.

use crate::control::ClusterArgs;
use crate::output::say;
use anyhow::{Context, Result};
use weft_control::Group;
use weft_net::tcp;
use weft_proto::v1::SetTargetRequest;
pub use weft_proto::v1::set_target_request::Action;

/// Which target is meant, and of which cluster.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The target's number, as `weft target list` shows it
    #[arg(value_name = "ID")]
    id: u32,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub async fn run(args: Args, action: Action) -> Result<()> {
    let mut group = Group::new(tcp(), args.cluster.cluster);
    let request = SetTargetRequest { target: args.id, action: action.into() };
    let reply = group.call(request).await.context("the metadata servers refused")?;
    let target = reply.target.context("an answer without a target")?;
    let (id, path) = (target.id, target.path);
    say(&match action {
        Action::GiveUp => format!(
            "target {id} ({path}) is given up: what it held is made at others, as far as there are \
             any; weft status shows how far it is. weft target in {id} takes it back"
        ),
        Action::Drain => format!(
            "target {id} ({path}) is being drained: it serves on while what it holds is made at \
             others; weft status shows how far it is. weft target in {id} keeps it"
        ),
        Action::TakeBack | Action::Look | Action::Unknown => format!(
            "target {id} ({path}) is wanted: it takes new data as soon as its daemon serves it and \
             what it holds was looked at"
        ),
    })
}
