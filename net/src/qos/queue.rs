//! Start-time fair queueing: in which order the requests of tenants begin.
//!
//! Requests are of two classes, each with room of its own, so that one that is short never waits
//! for room that is taken by the other class. In each class a tenant has a tag, the virtual time up
//! to which it has been served there: a request moves it on by its cost over the tenant's weight.
//! The tenant with the lowest tag is next. One that was idle starts at the virtual time that the
//! others have come to: it has saved up nothing, and owes nothing.
//!
//! What binds the classes together is a tag of both, by which nobody who has much in service gets
//! further ahead of one who waits than [`LEAD`]. It does not say who is next in a class: so nobody
//! waits for ever there because of what it has done in the other.
//!
//! Whatever changes the queue may let others begin, of either class: whoever changes it asks
//! [`FairQueue::next`] until that answers nothing, under the same lock.
//!
//! Room is used up by large requests; a short one of whoever is next finds a reserve.
//!
//! Invariants, after that: of one tenant and class, requests begin in the order in which they came;
//! while there is room in a class, nobody waits in it but who has much in service and is far ahead
//! of another who waits; so while anybody waits, something is in service, and its end is heard of
//! here. Tags only grow, and never come to their end.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// What a tenant of the usual weight may be ahead of another that waits in the other class, as
/// cost.
pub(super) const LEAD: u64 = 16 << 20;
/// Who has less than this in service is not kept back for being ahead, as cost: it asks for one
/// thing after the other, and waits for each.
const LITTLE: u64 = 1 << 20;
/// A request that costs no more is short: whoever is next with one, and has less in service, need
/// not wait until what is in service has made room for it.
pub(super) const SHORT: u64 = 96 << 10;
/// Room of each class for such requests beyond all others, as cost.
const RESERVE: u64 = 2 << 20;
/// What one request costs at most: what it says of itself may be anything.
pub(super) const MAX_COST: u64 = 1 << 30;
/// The weight by which cost counts once.
pub(super) const UNIT: u64 = weft_proto::qos::USUAL_WEIGHT as u64;
/// Tenants that nobody asks for are forgotten when there are more than this.
const KEPT: usize = 64;

/// Of two classes.
pub(super) const CLASSES: usize = 2;

/// Virtual time. One request moves a tag on by less than 2^37, so none comes to its end.
type Tag = u128;

pub(super) struct FairQueue<T> {
    flows: HashMap<u64, Flow<T>>,
    /// Of each class, the tags of those that wait in it, and who they are.
    order: [BTreeSet<(Tag, u64)>; CLASSES],
    /// The same by the tags of both classes, of all that wait.
    both: BTreeSet<(Tag, u64)>,
    /// Virtual time of each class, and of both.
    now: [Tag; CLASSES],
    now_both: Tag,
    used: [u64; CLASSES],
    room: [u64; CLASSES],
    /// Flows when the idle ones were last forgotten.
    swept: usize,
    /// Requests that have waited here.
    tickets: u64,
}

/// A tenant.
struct Flow<T> {
    tags: [Tag; CLASSES],
    both: Tag,
    /// Cost of it in service.
    inside: u64,
    waiting: [VecDeque<Waiting<T>>; CLASSES],
}

impl<T> Flow<T> {
    fn waits(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Whether it may begin something while `first` is the lowest tag of those that wait.
    fn may_lead(&self, first: Tag) -> bool {
        self.both <= first + Tag::from(LEAD) || self.inside < LITTLE
    }

    /// Whether it has next to nothing in service, and asks for no more in a class.
    fn asks_little(&self, class: usize) -> bool {
        let next = self.waiting[class].front();
        self.inside < SHORT && next.is_some_and(|next| next.cost <= SHORT)
    }

    /// It begins a request. Answers the tags that it had.
    fn begin(&mut self, begun: Begun, share: Tag) -> (Tag, Tag) {
        let had = (self.tags[begun.class], self.both);
        self.tags[begun.class] += share;
        self.both += share;
        self.inside += begun.cost;
        had
    }

    /// It comes to a class where it has nothing that waits.
    fn come(&mut self, class: usize, now: Tag, now_both: Tag) {
        // Before those that have just come to the same: they have had something.
        self.tags[class] = self.tags[class].max(now.saturating_sub(1));
        if !self.waits() {
            self.both = self.both.max(now_both);
        }
    }
}

struct Waiting<T> {
    ticket: u64,
    cost: u64,
    share: Tag,
    what: T,
}

/// A request of a tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub tenant: u64,
    pub weight: u32,
    pub class: usize,
    pub cost: u64,
}

/// A request in service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begun {
    pub tenant: u64,
    pub class: usize,
    pub cost: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    tenant: u64,
    class: usize,
    ticket: u64,
}

impl Asked {
    /// What it counts for.
    fn cost(&self) -> u64 {
        self.cost.clamp(1, MAX_COST)
    }

    /// What it moves the tenant's tag on by.
    fn share(&self) -> Tag {
        let share = Tag::from(self.cost()) * Tag::from(UNIT) / Tag::from(self.weight.max(1));
        share.max(1)
    }

    fn begun(&self) -> Begun {
        Begun { tenant: self.tenant, class: self.class, cost: self.cost() }
    }
}

impl<T> FairQueue<T> {
    pub fn new(room: [u64; CLASSES]) -> Self {
        Self {
            flows: HashMap::new(),
            order: Default::default(),
            both: BTreeSet::new(),
            now: [0; CLASSES],
            now_both: 0,
            used: [0; CLASSES],
            room,
            swept: KEPT,
            tickets: 0,
        }
    }

    /// Begins a request if there is room and nobody waits for anything: then nobody is passed by,
    /// and nobody else may begin for that.
    pub fn try_begin(&mut self, asked: Asked) -> Option<Begun> {
        if !self.both.is_empty() || !self.has_room(asked.class) {
            return None;
        }
        let (begun, share) = (asked.begun(), asked.share());
        let (now, now_both) = (self.now[begun.class], self.now_both);
        let flow = self.flow(asked.tenant);
        flow.come(begun.class, now, now_both);
        let (tag, both) = flow.begin(begun, share);
        self.began(begun, tag, both);
        Some(begun)
    }

    /// Has a request wait.
    pub fn push(&mut self, asked: Asked, what: T) -> Place {
        let Asked { tenant, class, .. } = asked;
        self.tickets += 1;
        let (ticket, now, now_both) = (self.tickets, self.now[class], self.now_both);
        let flow = self.flow(tenant);
        if flow.waiting[class].is_empty() {
            flow.come(class, now, now_both);
        }
        let (cost, share) = (asked.cost(), asked.share());
        flow.waiting[class].push_back(Waiting { ticket, cost, share, what });
        let (tag, both) = (flow.tags[class], flow.both);
        self.order[class].insert((tag, tenant));
        self.both.insert((both, tenant));
        Place { tenant, class, ticket }
    }

    /// A request is not wanted any more. It counts for nothing if it still waits.
    pub fn cancel(&mut self, place: Place) {
        let Place { tenant, class, ticket } = place;
        let Some(flow) = self.flows.get_mut(&tenant) else { return };
        let waiting = &mut flow.waiting[class];
        let Ok(at) = waiting.binary_search_by_key(&ticket, |w| w.ticket) else { return };
        waiting.remove(at);
        if waiting.is_empty() {
            self.order[class].remove(&(flow.tags[class], tenant));
        }
        if !flow.waits() {
            self.both.remove(&(flow.both, tenant));
        }
        self.forget_all_if_idle();
    }

    /// The next that may begin, with what was asked; it is in service from now on.
    pub fn next(&mut self) -> Option<(Begun, T)> {
        let first = self.both.first()?.0;
        let (tenant, class) = self.pick(first)?;
        let flow = self.flows.get_mut(&tenant)?;
        let Waiting { cost, share, what, .. } = flow.waiting[class].pop_front()?;
        let begun = Begun { tenant, class, cost };
        let (tag, both) = flow.begin(begun, share);
        self.order[class].remove(&(tag, tenant));
        if !flow.waiting[class].is_empty() {
            self.order[class].insert((flow.tags[class], tenant));
        }
        self.both.remove(&(both, tenant));
        if flow.waits() {
            self.both.insert((flow.both, tenant));
        }
        self.began(begun, tag, both.min(first));
        Some((begun, what))
    }

    /// Who is next, and with a request of which class, while `first` is the lowest tag of those
    /// that wait.
    fn pick(&self, first: Tag) -> Option<(u64, usize)> {
        let of = |class: usize| {
            let mut flows =
                self.order[class].iter().filter_map(|(_, id)| Some((id, self.flows.get(id)?)));
            let (tenant, flow) = flows.find(|(_, flow)| flow.may_lead(first))?;
            let fits = self.has_room(class) || flow.asks_little(class) && self.has_reserve(class);
            fits.then_some((*tenant, class))
        };
        (0..CLASSES).find_map(of)
    }

    /// A request begins that had these tags.
    fn began(&mut self, begun: Begun, tag: Tag, both: Tag) {
        let now = &mut self.now[begun.class];
        *now = tag.max(*now);
        self.now_both = both.max(self.now_both);
        self.used[begun.class] += begun.cost;
    }

    /// A request that began has ended.
    pub fn end(&mut self, begun: Begun) {
        let Begun { tenant, class, cost } = begun;
        self.used[class] -= cost;
        if let Some(flow) = self.flows.get_mut(&tenant) {
            flow.inside -= cost;
        }
        self.forget_all_if_idle();
    }

    /// If there is nobody, nobody is ahead of anybody any more.
    fn forget_all_if_idle(&mut self) {
        if self.used == [0; CLASSES] && self.both.is_empty() {
            self.flows.clear();
        }
    }

    pub fn room(&self, class: usize) -> u64 {
        self.room[class]
    }

    /// From now on so much of a class may be in service at once.
    pub fn set_room(&mut self, class: usize, room: u64) {
        self.room[class] = room;
    }

    /// Whether somebody waits for room in a class.
    pub fn is_short(&self, class: usize) -> bool {
        !self.has_room(class) && !self.order[class].is_empty()
    }

    fn has_room(&self, class: usize) -> bool {
        self.used[class] == 0 || self.used[class] < self.room[class]
    }

    fn has_reserve(&self, class: usize) -> bool {
        self.used[class] < self.room[class].saturating_add(RESERVE)
    }

    fn flow(&mut self, tenant: u64) -> &mut Flow<T> {
        if self.flows.len() > self.swept {
            // Whoever is not ahead of the virtual time would start there anyway.
            let (now, now_both) = (self.now, self.now_both);
            let is_ahead = |flow: &Flow<T>| {
                flow.both > now_both || flow.tags.iter().zip(now).any(|(tag, now)| *tag > now)
            };
            let is_used = |flow: &Flow<T>| flow.inside > 0 || flow.waits() || is_ahead(flow);
            self.flows.retain(|id, flow| *id == tenant || is_used(flow));
            self.swept = (self.flows.len() * 2).max(KEPT);
        }
        let new = || Flow { tags: [0; CLASSES], both: 0, inside: 0, waiting: Default::default() };
        self.flows.entry(tenant).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests;
