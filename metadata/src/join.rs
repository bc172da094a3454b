//! How a server whose data folder is empty comes back into its group.
//!
//! It may have voted, and acknowledged entries, before its disk was lost. So it is silent until the
//! leader has had an entry committed that names it, and that was proposed after it fell silent.
//! That entry was committed without it, by a majority that does not count on it; so whatever it
//! helped to commit lies below that entry. (Had it helped to commit something in a later term, one
//! of that majority would have been in that term already and have refused the entry.)
//!
//! From then on it acknowledges what its log holds, and *votes as one whose log reaches that
//! entry*: for whoever has it, whatever its own log lacks. So what it forgot counts for nobody:
//! - an entry that it helped to commit lies below, and it elects nobody who lacks it, as if it
//!   still had it. No less will do. That one of the others is asked, too, is not enough: those may
//!   lose their disks, one after the other, and be admitted while it still catches up;
//! - a vote that it gave before elects nobody any more: who asked for it lacks the entry, which
//!   each of that majority has, or answers for in turn. Who led by it led a term that is over, or
//!   is the one in which it was admitted, in which it votes no more.
//!
//! It need not hold the log for that, and must not wait for it: were the leader lost meanwhile,
//! with its disk or without, the vote that the last whole server needs would be this one. But it
//! stands for no election before its log holds the entry.
//!
//! Invariant: while a majority of the servers have empty folders and none of them is admitted, none
//! is: nothing is committed without one of them.

use crate::config::Config;
use crate::env::Env;
use crate::folder::{LOG, STATE};
use crate::identity::{Identity, Standing};
use crate::raftlog::{LogStorage, Position};
use crate::serving::options;
use raft::eraftpb::HardState;
use rand::RngCore;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use weft_net::{Incoming, Listener, Outgoing, Peers, Service, Transport};
use weft_proto::{Error, ErrorKind, Result, Uuid, op, v1};

/// How long one server may take to have the entry committed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is said that the server still waits.
const REMIND_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until the group has admitted this server, and prepares its folder to follow. False: it is
/// to stop before that.
pub async fn admitted(
    config: &Config,
    transport: &Arc<dyn Transport>,
    env: &Env,
    identity: &mut Identity,
    listener: Box<dyn Listener>,
    mut shutdown: watch::Receiver<bool>,
) -> Result<bool> {
    let name = format!("metadata {}", config.id);
    let me = weft_net::Identity { name, cluster: identity.cluster() };
    let peers = Peers::new(transport.clone(), me.clone());
    // Clients are sent on at once; other servers that wait learn that this one does.
    let (_ended, end) = watch::channel(false);
    let waiting = Arc::new(Waiting { folder: config.data_dir.display().to_string() });
    let reply = tokio::select! {
        biased;
        _ = shutdown.wait_for(|&stop| stop) => return Ok(false),
        () = weft_net::serve(listener, waiting, options(me, config.max_connections as usize,
            None, None), end) => {
            return Err(Error::new(ErrorKind::Internal, "the listener ended"));
        }
        reply = ask(config, env, &peers) => reply?,
    };
    if let Some(cluster) = Uuid::from_slice(&reply.cluster) {
        identity.set_cluster(cluster)?;
    }
    // With these the log begins; who has come or gone since is told by its entries.
    let (folder, voters) = (config.data_dir.clone(), reply.members);
    // It voted for nobody else in this term, whatever it did in that.
    let promised = HardState { term: reply.term, vote: config.id.0, commit: 0 };
    env.blocking(move || {
        // Left by an earlier try, which did not come to be recorded.
        [LOG, STATE].iter().try_for_each(|data| remove(&folder.join(data)))?;
        LogStorage::make(&folder.join(LOG), voters, &promised)
    })
    .await?;
    let at = Position { index: reply.index, term: reply.term };
    identity.stand(Standing::CatchingUp, at)?;
    tracing::info!(index = reply.index, term = reply.term, "admitted to the group");
    Ok(true)
}

/// Asks all other servers, again and again, until a leader has had this one admitted.
async fn ask(config: &Config, env: &Env, peers: &Peers) -> Result<v1::JoinReply> {
    // With the time, so that no two starts have the same, whatever the generator begins with.
    let mut nonce = [0; 16];
    env.rng(env.clock.now_ns() as u64).fill_bytes(&mut nonce);
    let request = v1::JoinRequest { node: config.id.0, nonce: nonce.to_vec().into() };
    let mut remind = Instant::now();
    loop {
        let (mut empty, mut said) = (1, "nobody was asked yet".to_string());
        let others = config.peers.iter().filter(|p| p.id != config.id);
        let mut addresses: Vec<String> = others.map(|p| p.address.clone()).collect();
        let mut next = 0;
        while let Some(address) = addresses.get(next).cloned() {
            next += 1;
            let deadline = Instant::now() + REQUEST_TIMEOUT;
            match peers.peer(&address).call(&request, deadline).await {
                Ok(reply) if reply.empty => empty += 1,
                Ok(reply) => return checked(reply),
                Err(e) => {
                    // The leader may be one that is not configured here.
                    let hint = Some(&e.hint).filter(|h| !h.is_empty() && !addresses.contains(h));
                    addresses.extend(hint.filter(|_| next < 2 * config.peers.len()).cloned());
                    said = format!("{address} said last: {e}");
                }
            }
        }
        if Instant::now() >= remind {
            remind = Instant::now() + REMIND_INTERVAL;
            tell(config, empty, &said);
        }
        sleep(config.election_timeout()).await;
    }
}

fn tell(config: &Config, empty: usize, said: &str) {
    let (folder, servers) = (config.data_dir.display(), config.peers.len());
    let first = "if this group has never run, stop its servers and run `weft metadata --bootstrap` \
                 once with the settings of each";
    // This one is empty itself.
    if empty == 1 || servers - empty > servers / 2 {
        tracing::warn!(
            "the data folder {folder} is empty: this server takes no part before the leader has \
             admitted it, and asks for that; {said}; {first}"
        );
    } else {
        tracing::error!(
            "the data folder {folder} is empty, and so are those of {empty} of {servers} servers \
             in all: the others may lack what was acknowledged, so none of these is admitted and \
             the group stands still; give one of them its folder back; {first}"
        );
    }
}

/// Refuses an answer that does not fit.
fn checked(reply: v1::JoinReply) -> Result<v1::JoinReply> {
    if reply.term == 0 || reply.index == 0 || reply.members.is_empty() {
        let what = "the leader admits this server without saying where";
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    Ok(reply)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Io, format!("cannot remove {}: {e}", dir.display())))
        }
        _ => Ok(()),
    }
}

/// Answers for a server that takes no part.
struct Waiting {
    folder: String,
}

#[async_trait::async_trait]
impl Service for Waiting {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        match request.op {
            op::JOIN => {
                let empty = v1::JoinReply { empty: true, ..Default::default() };
                request.answer(async |_: v1::JoinRequest| Ok(empty)).await
            }
            _ => Err(Error::new(
                ErrorKind::NotLeader,
                format!("the data folder {} is empty: no part of its group yet", self.folder),
            )),
        }
    }
}
