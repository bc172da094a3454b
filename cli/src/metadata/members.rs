//! Changes of the group of metadata servers, while they serve.

use super::{backup, list, restore, salvage, verify};
use crate::control::{ClusterArgs, leader_status};
use crate::daemon;
use crate::network::transport;
use crate::output::say;
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};
use weft_control::Group;
use weft_proto::v1::set_member_request::Action;
use weft_proto::v1::set_server_entry::{Add, Change, Move};
use weft_proto::v1::{MemberRole, NodeInfo, SetMemberRequest, SetServerEntry, StatusReply};

/// Between two looks at how far a change is.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Show the servers of the group, and what a change of it waits for
    List(list::Args),
    /// Have one more server in the group
    ///
    /// It is sent all that the others have, and gets its vote then. Start it before or after, with
    /// an empty folder, itself and one of the others as its peers.
    Add(AddArgs),
    /// Have a new server take the place of another, which may be dead
    ///
    /// The other leaves in the step in which the new one gets its vote, and ends.
    Replace(ReplaceArgs),
    /// Have one server less in the group
    ///
    /// Its number is never given again. Refused if it is the last one; waits while without it too
    /// few of the others would answer.
    Remove(RemoveArgs),
    /// Say that a server is reached at another address
    Move(AddArgs),
    /// Have another server lead: before the one that leads is taken down, for example
    TransferLeader(TransferArgs),
    /// Copy all that the metadata servers have into a folder, while they serve
    ///
    /// Everything that was acknowledged before is in it: names, attributes, and where the data
    /// lies. The data itself is on the targets, and not in it. All of it is read before it counts.
    Backup(backup::Args),
    /// Look whether a backup is whole: read all of it, as a restore would
    ///
    /// It asks no server, and changes nothing.
    Verify(verify::Args),
    /// Make the data folder of a server that begins the group anew, from a backup
    ///
    /// When the old group is lost: more than half of its servers, with their disks. None of them
    /// may run any more. What was changed after the backup was made is lost, and so is what was
    /// overwritten or moved to other targets since, as docs/backup.md says. The server needs a
    /// number that none had before; at an address of the old group daemons find it by themselves.
    Restore(restore::Args),
    /// Make a backup from the folder of a server which is stopped, when most of its group is lost
    ///
    /// Everything is in it that this server had been told. The folder stays as it is.
    Salvage(salvage::Args),
}

/// Of which cluster, and how long it is waited for.
#[derive(clap::Args, Debug)]
struct ChangeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Return as soon as it is noted; the servers bring it about all the same
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait until it is done
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
}

#[derive(clap::Args, Debug)]
pub struct AddArgs {
    /// Number of the server; of a new one, a number that no server of this cluster has had
    #[arg(value_name = "ID")]
    id: u64,
    /// host:port at which the others, daemons and clients reach it
    #[arg(value_name = "ADDR")]
    address: String,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::Args, Debug)]
pub struct ReplaceArgs {
    /// Number of the server that leaves
    #[arg(value_name = "OLD")]
    old: u64,
    #[command(flatten)]
    by: AddArgs,
}

#[derive(clap::Args, Debug)]
pub struct RemoveArgs {
    /// Number of the server
    #[arg(value_name = "ID")]
    id: u64,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::Args, Debug)]
pub struct TransferArgs {
    /// Number of the server that is to lead [default: the one that is furthest]
    #[arg(value_name = "ID")]
    id: Option<u64>,
    #[command(flatten)]
    change: ChangeArgs,
}

pub async fn run(command: Command) -> Result<()> {
    // A backup has many files, and all are read.
    daemon::raise_descriptor_limit();
    match command {
        Command::List(args) => list::run(args).await,
        Command::Add(AddArgs { id, address, change }) => {
            let add = Change::Add(Add { id, address, replaces: 0 });
            let what = format!("server {id} has its vote");
            set(change, add, &what, |reply| role(reply, id) == Some(MemberRole::Voter)).await
        }
        Command::Replace(ReplaceArgs { old, by: AddArgs { id, address, change } }) => {
            let add = Change::Add(Add { id, address, replaces: old });
            let done = |reply: &StatusReply| {
                role(reply, id) == Some(MemberRole::Voter) && role(reply, old).is_none()
            };
            let what = format!("server {id} has taken the place of server {old}");
            set(change, add, &what, done).await
        }
        Command::Remove(RemoveArgs { id, change }) => {
            let what = format!("server {id} has left the group");
            set(change, Change::Remove(id), &what, |reply| role(reply, id).is_none()).await
        }
        Command::Move(AddArgs { id, address, change }) => {
            let to = Change::Move(Move { id, address });
            set(change, to, &format!("server {id} is known there"), |_| true).await
        }
        Command::TransferLeader(args) => transfer(args).await,
        Command::Backup(args) => backup::run(args).await,
        // It asks nobody.
        Command::Verify(args) => verify::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Salvage(args) => salvage::run(args),
    }
}

/// Has a change noted, and waits until the group has made it.
async fn set(
    args: ChangeArgs,
    change: Change,
    what: &str,
    done: impl Fn(&StatusReply) -> bool,
) -> Result<()> {
    let cluster = args.cluster.cluster;
    let mut group = Group::new(transport(), cluster.clone());
    let request = SetServerEntry { change: Some(change) };
    let request = SetMemberRequest { action: Some(Action::Set(request)) };
    let reply = group.call(request).await.context("the metadata servers refused")?;
    if args.no_wait {
        return say("noted; weft metadata list shows how far it is");
    }
    let members = reply.members.iter().map(|m| m.address.clone()).collect();
    wait(cluster, members, args.timeout, done).await?;
    say(what)
}

async fn transfer(args: TransferArgs) -> Result<()> {
    let cluster = args.change.cluster.cluster;
    let before = leader_status(&cluster).await?;
    if args.id == Some(before.leader) {
        return say(&format!("server {} leads already", before.leader));
    }
    let mut group = Group::new(transport(), cluster.clone());
    let request =
        SetMemberRequest { action: Some(Action::TransferTo(args.id.unwrap_or_default())) };
    let reply = group.call(request).await.context("the metadata servers refused")?;
    if args.change.no_wait {
        return say("the lead is being handed over");
    }
    let members = reply.members.iter().map(|m| m.address.clone()).collect();
    let another = |reply: &StatusReply| reply.term > before.term;
    let now = wait(cluster, members, args.change.timeout, another).await?;
    if args.id.is_some_and(|wanted| wanted != now.leader) {
        bail!("server {} leads now: the one that was wanted did not take the lead", now.leader);
    }
    say(&format!("server {} leads now", now.leader))
}

/// Looks at the leader's state until it is as wanted. Which servers there are may change meanwhile.
async fn wait(
    mut servers: Vec<String>,
    mut members: Vec<String>,
    seconds: u64,
    done: impl Fn(&StatusReply) -> bool,
) -> Result<StatusReply> {
    let mut progress = Progress::new("the group changes");
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        servers.append(&mut members);
        servers.sort();
        servers.dedup();
        let waits = match leader_status(&servers).await {
            Ok(reply) if done(&reply) => return Ok(reply),
            Ok(reply) => {
                let map = reply.map.iter().flat_map(|map| &map.members);
                members = map.map(|m| m.address.clone()).collect();
                match reply.membership.as_str() {
                    "" => "the next step of the change".to_owned(),
                    waits => waits.to_owned(),
                }
            }
            Err(error) => error.to_string(),
        };
        progress.set(format!("waiting: {waits}"));
        if Instant::now() >= until {
            bail!(
                "not done within {seconds} s: {waits}. It goes on all the same; weft metadata list \
                 shows how far it is"
            );
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn role(reply: &StatusReply, id: u64) -> Option<MemberRole> {
    let mut members = reply.map.iter().flat_map(|map| &map.members);
    members.find(|m| m.id == id).map(NodeInfo::role)
}
