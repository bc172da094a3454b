//! Keeps the session alive: one task renews it; when the cluster has declared it dead, that opens
//! another, declares what is open in it, and everyone who waits goes on with that.

use crate::cache::Forgotten;
use crate::file::Files;
use crate::locks::Locks;
use crate::meta::{Group, RENEWAL_INTERVAL, Session, open_session, renew};
use crate::namespace::{ChangeLog, Opens};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};
use weft_net::{Transport, network_stat};
use weft_proto::{ErrorKind, InodeId, MapEpoch, Result, SessionId, Uuid, v1};
use weft_segments::Rng;

/// Most opens, and most leases, in one piece of a declaration: some 2 MiB, half of what a request
/// may be.
const MAX_PIECE: usize = 1 << 12;

pub(crate) struct KeepAlive {
    pub group: Arc<Group>,
    pub log: Arc<ChangeLog>,
    pub opens: Arc<Opens>,
    pub locks: Arc<Locks>,
    pub files: Weak<Files>,
    /// What people see in the list of sessions.
    pub client: String,
    pub cluster: Option<Uuid>,
    pub transport: Arc<dyn Transport>,
    pub rng: Arc<Rng>,
}

impl KeepAlive {
    /// Keeps the mount's session, which lives for `ttl`, alive for ever.
    pub async fn run(self, mut ttl: Duration) {
        let group = &self.group;
        let mut deaths = group.sessions.deaths();
        let mut declares = self.opens.owes_declaration();
        let mut missing = MapEpoch(0);
        loop {
            let session = group.sessions.current();
            if *deaths.borrow_and_update() >= session.id {
                ttl = self.replace(session.id, ttl).await.unwrap_or(ttl);
                if group.sessions.have_ended() {
                    return;
                }
                declares = true;
                continue;
            }
            // What is granted from here on is not in what is gathered.
            let term = self.opens.leader_term();
            let kept = match declares {
                true => {
                    let kept = group.leases.keep_writes();
                    self.forget_content(ttl).await;
                    kept
                }
                false => Default::default(),
            };
            match self.renew(&session, declares.then_some(term), kept, ttl).await {
                Ok(reply) => {
                    ttl = Duration::from_millis(reply.ttl_ms.max(1));
                    self.look_for_map(MapEpoch(reply.epoch), &mut missing);
                    self.opens.hear_leader(reply.term);
                    // Also if it was gathered for another leader.
                    if reply.need_declare {
                        let is_new = !declares || self.opens.leader_term() != term;
                        declares = true;
                        if is_new {
                            continue;
                        }
                    } else if std::mem::replace(&mut declares, false) {
                        self.opens.declared();
                    }
                }
                Err(error) if error.kind == ErrorKind::SessionExpired => {
                    group.sessions.died(session.id);
                    continue;
                }
                Err(error) => debug!(%error, "cannot renew the session; trying on"),
            }
            let pause = RENEWAL_INTERVAL.min(ttl / 4).max(Duration::from_millis(1));
            tokio::select! {
                biased;
                _ = deaths.changed() => {}
                () = self.opens.declare_now.notified() => declares = true,
                () = sleep(pause) => {}
            }
        }
    }

    /// The leader has a map of this epoch. If the server that is watched has not told of what was
    /// `missing` at the last renewal, it is cut off from the others, and another is watched.
    fn look_for_map(&self, newest: MapEpoch, missing: &mut MapEpoch) {
        let known = self.group.map.current().epoch;
        if known < *missing {
            debug!(%known, %newest, "the map that is watched is old; watching another server");
            self.group.map.follow_another();
        }
        *missing = newest;
    }

    /// Opens another session in place of one that is over, which lived for `ttl`. Answers its time
    /// to live, unless none could be opened.
    async fn replace(&self, over: SessionId, ttl: Duration) -> Option<Duration> {
        warn!(session = %over, "the cluster declared this mount dead; opening a new session");
        let group = &self.group;
        group.leases.lost();
        let names = group.leases.forget_all_above();
        self.log.lost();
        self.opens.owe_declaration();
        self.opens.lose_rights_to_map();
        if let Some(files) = self.files.upgrade() {
            self.locks.lost_with(over);
            files.lose_content().await;
        }
        forgotten(names, ttl).await;
        let deadline = group.deadline();
        match open_session(group, self.cluster, &self.client, &self.rng, deadline).await {
            Ok((ttl, _)) => {
                // What was on its way in the old one goes soon.
                let files = self.files.upgrade().map(|files| files.all()).unwrap_or_default();
                files.iter().filter(|f| f.has_unwritten()).for_each(|f| f.flush_behind());
                Some(ttl)
            }
            // That does not change any more, and programs are not to wait for it.
            Err(error) if error.kind == ErrorKind::Stale => {
                error!("{error}");
                group.sessions.end_stale();
                None
            }
            Err(error) => {
                warn!(%error, "cannot open a new session; trying on");
                sleep(RENEWAL_INTERVAL).await;
                None
            }
        }
    }

    /// What is cached above this library is of leases that are held no more, or about to be so.
    async fn forget_content(&self, ttl: Duration) {
        let names = self.group.leases.forget_all_above();
        if let Some(files) = self.files.upgrade() {
            files.forget_content().await;
        }
        forgotten(names, ttl).await;
    }

    /// Renews the session; with a term, and tells what it holds, gathered for the leader of that
    /// term, in pieces that fit into a request.
    async fn renew(
        &self,
        session: &Session,
        declares: Option<u64>,
        (write_leases, ranges): (Vec<InodeId>, Vec<v1::HeldRange>),
        ttl: Duration,
    ) -> Result<v1::RenewReply> {
        let open_files = Some(self.opens.count());
        let network = Some(network_stat(false, &*self.transport));
        let Some(term) = declares else {
            let op = v1::RenewOp { open_files, network, ..Default::default() };
            return renew(&self.group, session.id, op, ttl).await;
        };
        let declaration = self.opens.begin_declaration();
        let mut leases = write_leases.chunks(MAX_PIECE);
        let maps = self.opens.all_maps();
        let mut maps = maps.chunks(MAX_PIECE);
        let mut ranges = ranges.chunks(MAX_PIECE);
        let (mut after, mut piece) = (None, 0);
        loop {
            let opens = self.opens.declare_some(after, MAX_PIECE);
            after = opens.last().map(|open| InodeId(open.ino)).or(after);
            let write_leases = leases.next().unwrap_or_default().iter().map(|ino| ino.0).collect();
            let maps_of = maps.next().unwrap_or_default().iter().map(|ino| ino.0).collect();
            let ranges_of = ranges.next().unwrap_or_default().to_vec();
            let left = leases.len() + maps.len() + ranges.len();
            let more = opens.len() == MAX_PIECE || left > 0;
            let op = v1::RenewOp {
                declares: true,
                term,
                opens,
                write_leases,
                open_files,
                declaration,
                piece,
                more,
                maps: maps_of,
                ranges: ranges_of,
                network: network.clone(),
            };
            let reply = renew(&self.group, session.id, op, ttl).await?;
            if !more {
                return Ok(reply);
            }
            piece += 1;
        }
    }
}

/// Returns when names and attributes are forgotten above, or not used any more: they may be for no
/// longer than a session that is not renewed lives. What is waited for there may be waiting for the
/// session, as the kernel's threads for pages that are being read.
async fn forgotten(names: Forgotten, ttl: Duration) {
    if timeout(ttl, names).await.is_err() {
        warn!("the kernel has not said for {ttl:?} that it has forgotten what it was told");
    }
}
