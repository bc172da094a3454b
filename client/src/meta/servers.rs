//! The servers of the metadata group: who was last seen to lead, and whom to try next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::sync::Mutex;
use weft_proto::ErrorKind;
use weft_segments::MapWatch;

/// Who did not answer is left alone for so long, if there are others.
const SILENT_INTERVAL: Duration = Duration::from_secs(1);

struct Known {
    list: Vec<String>,
    leader: Option<String>,
    /// Did not answer, and when: others are asked for a while.
    silent: Option<(String, Instant)>,
    next: usize,
}

pub(super) struct Servers {
    map: Arc<MapWatch>,
    known: Mutex<Known>,
}

impl Servers {
    /// `list` is what the mount was told, at least one; the map names those that are there now.
    pub fn new(list: Vec<String>, map: Arc<MapWatch>) -> Self {
        Self { map, known: Mutex::new(Known { list, leader: None, silent: None, next: 0 }) }
    }

    /// The server to ask now.
    pub fn next(&self) -> String {
        let mut known = self.known.lock();
        if let Some(leader) = &known.leader {
            return leader.clone();
        }
        let mut servers = self.map.servers(&known.list);
        let turn = known.next % servers.len();
        known.next += 1;
        let skips = |(silent, at): &(String, Instant)| {
            *silent == servers[turn] && at.elapsed() < SILENT_INTERVAL
        };
        let skips = known.silent.as_ref().is_some_and(skips);
        let turn = (turn + usize::from(skips)) % servers.len();
        servers.swap_remove(turn)
    }

    /// `server` could not be asked at all: it is left alone as one that does not answer. Those that
    /// refuse to be asked are noted in `refusing`: they are of another cluster, say, which has an
    /// address that a member had once. Answers whether there is no other than those.
    pub fn not_asked(&self, server: &str, why: ErrorKind, refusing: &mut BTreeSet<String>) -> bool {
        self.silent(server);
        self.redirect(server, "");
        if matches!(why, ErrorKind::Unavailable | ErrorKind::TimedOut) {
            refusing.remove(server);
            return false;
        }
        refusing.insert(server.to_string());
        self.map.servers(&self.known.lock().list).iter().all(|known| refusing.contains(known))
    }

    /// This one answers as the leader does.
    pub fn leads(&self, server: String) {
        self.known.lock().leader = Some(server);
    }

    /// `server` does not answer.
    pub fn silent(&self, server: &str) {
        self.known.lock().silent = Some((server.to_string(), Instant::now()));
    }

    /// `server` does not lead; `hint` may. Answers whether there is a hint to follow.
    pub fn redirect(&self, server: &str, hint: &str) -> bool {
        let mut known = self.known.lock();
        if !hint.is_empty() && hint != server {
            known.leader = Some(hint.to_string());
            return true;
        }
        if known.leader.as_deref() == Some(server) {
            known.leader = None;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_behind_others() {
        let all = ["a:1", "b:1", "c:1"];
        let servers = Servers::new(all.map(String::from).to_vec(), MapWatch::new());
        for dead in all {
            servers.leads(dead.into());
            assert_eq!(servers.next(), dead);
            servers.silent(dead);
            assert!(!servers.redirect(dead, ""));
            assert!((0..6).all(|_| servers.next() != dead));
        }
        // There is nobody else.
        let alone = Servers::new(vec!["a:1".into()], MapWatch::new());
        alone.silent("a:1");
        assert_eq!(alone.next(), "a:1");
    }

    #[test]
    fn who_refuses_to_be_asked_is_passed_over_unless_all_do() {
        let all = ["a:1", "b:1"].map(String::from);
        let servers = Servers::new(all.to_vec(), MapWatch::new());
        servers.leads("a:1".into());
        let mut refusing = BTreeSet::new();
        assert!(!servers.not_asked("a:1", ErrorKind::WrongCluster, &mut refusing));
        assert!((0..4).all(|_| servers.next() == "b:1"), "it does not lead");
        assert!(!servers.not_asked("b:1", ErrorKind::Unavailable, &mut refusing));
        assert!(servers.not_asked("b:1", ErrorKind::NotPermitted, &mut refusing));
        // One that is just not there may be the leader.
        assert!(!servers.not_asked("a:1", ErrorKind::TimedOut, &mut refusing));
        assert!(!servers.not_asked("b:1", ErrorKind::NotPermitted, &mut refusing));
    }
}
