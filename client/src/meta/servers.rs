//! The servers of the metadata group: who was last seen to lead, and whom to try next.

use parking_lot::Mutex;
use std::sync::Arc;
use weft_segments::MapWatch;

struct Known {
    list: Vec<String>,
    leader: Option<String>,
    next: usize,
}

pub(super) struct Servers {
    map: Arc<MapWatch>,
    known: Mutex<Known>,
}

impl Servers {
    /// `list` is what the mount was told, at least one; the map names those that are there now.
    pub fn new(list: Vec<String>, map: Arc<MapWatch>) -> Self {
        Self { map, known: Mutex::new(Known { list, leader: None, next: 0 }) }
    }

    /// The server to ask now.
    pub fn next(&self) -> String {
        let mut known = self.known.lock();
        if let Some(leader) = &known.leader {
            return leader.clone();
        }
        let mut servers = self.map.servers(&known.list);
        let turn = known.next % servers.len().max(1);
        known.next += 1;
        servers.swap_remove(turn)
    }

    /// This one answers as the leader does.
    pub fn leads(&self, server: String) {
        self.known.lock().leader = Some(server);
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
