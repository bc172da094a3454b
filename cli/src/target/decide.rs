//! What an admin decides about a target: `weft target out`, `in`, `drain` and `weight`.

use crate::control::ClusterArgs;
use crate::network::transport;
use crate::output::say;
use anyhow::{Context, Result, ensure};
use weft_control::Group;
use weft_proto::map::{MAX_WEIGHT, WEIGHT_OF_ONE};
pub use weft_proto::v1::set_target_request::Action;
use weft_proto::v1::{SetTargetRequest, TargetInfo};

/// Which target is meant, and of which cluster.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The target's number, as `weft target list` shows it
    #[arg(value_name = "ID")]
    id: u32,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args, Debug)]
pub struct WeightArgs {
    /// The target's number, as `weft target list` shows it
    #[arg(value_name = "ID")]
    id: u32,
    /// What it is to hold, beside what its capacity says: 1 is that, 0.5 half of it (0.001 to 10)
    #[arg(value_name = "WEIGHT", value_parser = weight)]
    weight: u32,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub async fn run(args: Args, action: Action) -> Result<()> {
    let mut group = Group::new(transport(), args.cluster.cluster);
    let target = decide(&mut group, args.id, action).await?;
    say(&said(&target, action))
}

/// Has the cluster do this with a target. Answers the target as it is then.
pub async fn decide(group: &mut Group, target: u32, action: Action) -> Result<TargetInfo> {
    ask(group, SetTargetRequest { target, action: action.into(), weight: 0 }).await
}

pub async fn weigh(args: WeightArgs) -> Result<()> {
    let WeightArgs { id: target, weight, cluster } = args;
    let mut group = Group::new(transport(), cluster.cluster);
    let action = Action::Weigh.into();
    let TargetInfo { id, path, .. } =
        ask(&mut group, SetTargetRequest { target, action, weight }).await?;
    say(&format!(
        "target {id} ({path}) has a weight of {} now: data moves until it holds what that says; \
         weft status shows how far it is",
        f64::from(weight) / f64::from(WEIGHT_OF_ONE)
    ))
}

async fn ask(group: &mut Group, request: SetTargetRequest) -> Result<TargetInfo> {
    let reply = group.call(request).await.context("the metadata servers refused")?;
    reply.target.context("an answer without a target")
}

/// In thousandths.
fn weight(text: &str) -> Result<u32> {
    let weight: f64 = text.parse().context("not a number")?;
    let thousandths = (weight * f64::from(WEIGHT_OF_ONE)).round();
    let may = 1.0..=f64::from(MAX_WEIGHT);
    ensure!(
        may.contains(&thousandths),
        "a weight is 0.001 to 10; weft target drain empties a target"
    );
    Ok(thousandths as u32)
}

/// For people.
pub fn said(target: &TargetInfo, action: Action) -> String {
    let TargetInfo { id, path, .. } = target;
    match action {
        Action::GiveUp => format!(
            "target {id} ({path}) is given up: what it held is made at others, as far as there are \
             any; weft status shows how far it is. weft target in {id} takes it back"
        ),
        Action::Drain => format!(
            "target {id} ({path}) is being drained: it serves on while what it holds is made at \
             others; weft status shows how far it is. weft target in {id} keeps it"
        ),
        _ => format!(
            "target {id} ({path}) is wanted: it takes new data as soon as its daemon serves it and \
             what it holds was looked at"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_that_says_something() {
        let read = |text| weight(text).ok();
        assert_eq!((read("1"), read("0.5"), read("10")), (Some(1000), Some(500), Some(10_000)));
        for wrong in ["0", "-1", "0.0001", "10.1", "nan", "inf", "", "heavy"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
