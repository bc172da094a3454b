//! The cluster map as those see it who read and write.

use std::collections::HashMap;
use std::sync::Arc;
use weft_proto::{MapEpoch, PgId, TargetId, v1};

/// The pool that new segments go to.
const POOL: u32 = 1;

/// A target as those see it who use it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its id, for ever.
    pub id: TargetId,
    /// `host:port` of the storage daemon that serves it.
    pub address: String,
    /// Its daemon serves it, as far as the metadata servers know.
    pub up: bool,
    /// It takes no more chunks.
    pub full: bool,
    /// Given up: nothing is looked for on it.
    pub out: bool,
}

/// A placement group: its seats in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pg {
    /// Its id, never used twice.
    pub id: PgId,
    /// The target in each.
    pub seats: Vec<TargetId>,
    /// Seats that are being given to other targets.
    pub moves: Vec<(u8, TargetId)>,
    /// It takes new segments.
    pub open: bool,
}

/// One version of the cluster map.
#[derive(Default, Debug)]
pub struct Map {
    /// Its number.
    pub epoch: MapEpoch,
    /// All of it, as it was sent.
    pub wire: Arc<v1::ClusterMap>,
    /// Some target takes no more chunks.
    pub has_full_targets: bool,
    targets: HashMap<TargetId, Target>,
    pgs: HashMap<PgId, Pg>,
    /// Placement groups that take new segments.
    open: Vec<PgId>,
}

impl Map {
    /// The map that a metadata server sent.
    pub fn new(wire: v1::ClusterMap) -> Self {
        let targets = wire.targets.iter().map(|t| {
            let up = t.state() == v1::TargetState::Up;
            let out = t.state() == v1::TargetState::Out;
            let id = TargetId(t.id);
            (id, Target { id, address: t.address.clone(), up, full: t.full, out })
        });
        let (epoch, targets) = (MapEpoch(wire.epoch), targets.collect());
        let has_full_targets = wire.targets.iter().any(|t| t.full);
        let mut map = Self { epoch, has_full_targets, targets, ..Self::default() };
        for pool in &wire.pools {
            for pg in &pool.pgs {
                let seats = pg.targets.iter().map(|&t| TargetId(t)).collect();
                let moves = pg
                    .moves
                    .iter()
                    .filter_map(|m| Some((u8::try_from(m.seat).ok()?, TargetId(m.to))));
                let moves = moves.collect();
                let open = pool.id == POOL && !pg.retired;
                map.pgs.insert(PgId(pg.id), Pg { id: PgId(pg.id), seats, moves, open });
                if open {
                    map.open.push(PgId(pg.id));
                }
            }
        }
        map.wire = Arc::new(wire);
        map
    }

    /// A target by its id.
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        self.targets.get(&id)
    }

    /// All targets, in no order.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values()
    }

    /// Whether the placement group is in the map.
    pub fn has(&self, pg: PgId) -> bool {
        self.pgs.contains_key(&pg)
    }

    /// Whether the placement group takes new segments.
    pub fn is_open(&self, pg: PgId) -> bool {
        self.pgs.get(&pg).is_some_and(|pg| pg.open)
    }

    /// Whether there was such a placement group, and no segment is in it any more.
    pub fn has_dropped(&self, pg: PgId) -> bool {
        pg.0 < self.wire.next_pg && !self.has(pg)
    }

    /// The target in a seat of a placement group.
    pub fn seat(&self, pg: PgId, seat: u8) -> Option<&Target> {
        self.target(*self.pgs.get(&pg)?.seats.get(usize::from(seat))?)
    }

    /// The target that a seat is being given to: chunks of it may be there already.
    pub fn heir(&self, pg: PgId, seat: u8) -> Option<&Target> {
        let moves = &self.pgs.get(&pg)?.moves;
        let to = moves.iter().find(|(moved, _)| *moved == seat)?.1;
        self.target(to)
    }

    /// Whether a seat is the target's, or is being given to it.
    pub fn is_for(&self, target: TargetId, pg: PgId, seat: u8) -> bool {
        let Some(group) = self.pgs.get(&pg) else { return false };
        group.seats.get(usize::from(seat)) == Some(&target) || group.moves.contains(&(seat, target))
    }

    /// How many placement groups take new segments.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// One of the placement groups that take new segments, by its place among them.
    pub fn open_pg(&self, at: usize) -> Option<&Pg> {
        self.pgs.get(self.open.get(at)?)
    }

    /// Placement groups that take new segments.
    pub fn open_pgs(&self) -> impl Iterator<Item = &Pg> {
        self.open.iter().filter_map(|id| self.pgs.get(id))
    }
}
