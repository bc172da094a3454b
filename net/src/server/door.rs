//! Who may be connected at once.
//!
//! A server has a limited number of places. When none is free, somebody new gets that of a
//! connection that has been idle for long, of the host that has most of them; else, if one host has
//! more than the newcomer's would have, that of its newest connection; else it is refused, and told
//! why. So no host can shut others out, and one that comes back after it lost its connections finds
//! room.

use super::window::Window;
use crate::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Looks at all places without a request after which a connection is idle, and after which it has
/// to go.
const IDLE: u32 = 1;
const TOO_LONG: u32 = 90;

pub(super) struct Door {
    max: usize,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    next: u64,
    /// In the order in which they were taken.
    taken: BTreeMap<u64, Place>,
    of_host: HashMap<Arc<str>, usize>,
}

struct Place {
    host: Arc<str>,
    leave: Arc<Notify>,
    /// What it is at work on, once it said that it speaks frames.
    window: Weak<Window>,
    /// Requests at the last look, and looks since the last one came.
    requests: u64,
    idle: u32,
}

/// The place of one connection; free again when dropped.
pub(super) struct Seat {
    door: Arc<Door>,
    number: u64,
    leave: Arc<Notify>,
}

impl Door {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, places: Mutex::default() })
    }

    /// Takes a place for a connection from `host`, if there is one for it. The error says why not.
    pub fn enter(self: &Arc<Self>, host: &str) -> Result<Seat, String> {
        let mut places = self.places.lock();
        if places.taken.len() >= self.max && !places.make_room(Some(host)) {
            let (max, of_host) = (self.max, places.count(host));
            return Err(format!(
                "all {max} connections are taken, {of_host} of them by {host}, and none is idle: \
                 close some, or raise max_connections"
            ));
        }
        let number = places.next;
        places.next += 1;
        let (host, leave): (Arc<str>, _) = (host.into(), Arc::new(Notify::new()));
        *places.of_host.entry(host.clone()).or_default() += 1;
        let place = Place { host, leave: leave.clone(), window: Weak::new(), requests: 0, idle: 0 };
        places.taken.insert(number, place);
        Ok(Seat { door: self.clone(), number, leave })
    }

    /// Makes an idle connection end, if there is one: something else than places has run out.
    pub fn make_room(&self) -> bool {
        self.places.lock().make_room(None)
    }

    /// Counts how long connections have been idle, and ends those that were for too long. To be
    /// called at equal intervals.
    pub fn look(&self) {
        let mut places = self.places.lock();
        let mut gone = Vec::new();
        for (number, place) in &mut places.taken {
            let Some(window) = place.window.upgrade() else { continue };
            let requests = window.entered();
            let works = requests != place.requests || window.is_at_work();
            (place.requests, place.idle) = (requests, if works { 0 } else { place.idle + 1 });
            if place.idle > TOO_LONG {
                gone.push(*number);
            }
        }
        gone.into_iter().for_each(|number| places.end(number));
    }
}

impl Places {
    fn count(&self, host: &str) -> usize {
        self.of_host.get(host).copied().unwrap_or(0)
    }

    /// Ends a connection in favour of one from `host`, or of nobody in particular.
    fn make_room(&mut self, host: Option<&str>) -> bool {
        let idle = self.taken.iter().filter(|(_, place)| place.idle >= IDLE && place.rests());
        let idlest = idle.max_by_key(|(number, place)| {
            (self.count(&place.host), place.idle, std::cmp::Reverse(**number))
        });
        let victim = idlest.map(|(number, _)| *number).or_else(|| {
            let mine = self.count(host?);
            let most = self.of_host.values().copied().max().filter(|most| *most > mine + 1)?;
            let newest = self.taken.iter().rev();
            newest.map(|(n, p)| (*n, p)).find(|(_, p)| self.count(&p.host) == most).map(|(n, _)| n)
        });
        if let Some(number) = victim {
            self.end(number);
        }
        victim.is_some()
    }

    fn end(&mut self, number: u64) {
        if let Some(place) = self.leave(number) {
            place.leave.notify_one();
        }
    }

    fn leave(&mut self, number: u64) -> Option<Place> {
        let place = self.taken.remove(&number)?;
        if let Some(count) = self.of_host.get_mut(&place.host) {
            *count -= 1;
            if *count == 0 {
                self.of_host.remove(&place.host);
            }
        }
        Some(place)
    }
}

impl Place {
    fn rests(&self) -> bool {
        self.window
            .upgrade()
            .is_some_and(|window| !window.is_at_work() && window.entered() == self.requests)
    }
}

impl Seat {
    /// The connection has requests, which pass this window.
    pub fn works_through(&self, window: &Arc<Window>) {
        if let Some(place) = self.door.places.lock().taken.get_mut(&self.number) {
            place.window = Arc::downgrade(window);
        }
    }

    /// Returns when the place is another's.
    pub async fn lost(&self) {
        self.leave.notified().await;
    }

    /// As [`Self::lost`], for whoever cannot hold on to the seat.
    pub fn loss(&self) -> impl Future<Output = ()> + Send + use<> {
        let leave = self.leave.clone();
        async move { leave.notified().await }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.door.places.lock().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request comes, whose answer has not left yet.
    fn begin(window: &Arc<Window>) {
        window.try_enter(1).unwrap().answered(1);
    }

    fn works(seat: &Seat) -> Arc<Window> {
        let window = Arc::new(Window::new(usize::MAX));
        seat.works_through(&window);
        begin(&window);
        window
    }

    fn is_lost(seat: &Seat) -> bool {
        let mut lost = std::pin::pin!(seat.lost());
        lost.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_idle_connection_goes_and_a_busy_one_does_not() {
        let door = Door::new(3);
        let seats: Vec<_> = (0..3).map(|_| door.enter("a").unwrap()).collect();
        let windows: Vec<_> = seats.iter().map(works).collect();
        door.look();
        let refused = door.enter("a").err().unwrap();
        assert!(refused.contains("3 of them by a") && refused.contains("max_connections"));
        windows[1].left(1, 1);
        assert!(door.enter("a").is_err(), "it was at work a moment ago");
        door.look();
        windows[2].left(1, 1);
        door.look();
        let _fourth = door.enter("a").unwrap();
        assert_eq!(seats.iter().map(is_lost).collect::<Vec<_>>(), [false, true, false]);
        let _fifth = door.enter("a").unwrap();
        assert!(is_lost(&seats[2]) && !is_lost(&seats[0]));
        assert!(door.enter("a").is_err());
        drop(seats);
        assert!(door.enter("a").is_ok());
    }

    #[test]
    fn who_waits_for_memory_is_not_idle() {
        let door = Door::new(1);
        let seat = door.enter("a").unwrap();
        let window = Arc::new(Window::new(10));
        seat.works_through(&window);
        let account = super::super::budget::Budget::new(10).account("a");
        account.overdraw(10);
        window.draw_on(account);
        let mut entering = Box::pin(window.enter(super::super::window::OWN + 1));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(entering.as_mut().poll(&mut cx).is_pending());
        (0..2).for_each(|_| door.look());
        assert!(!door.make_room() && !is_lost(&seat));
        drop(entering);
        door.look();
        assert!(door.make_room() && is_lost(&seat));
    }

    #[test]
    fn a_host_with_many_makes_room_for_one_with_few() {
        let door = Door::new(6);
        let hog: Vec<_> = (0..6).map(|_| door.enter("hog").unwrap()).collect();
        let _busy: Vec<_> = hog.iter().map(works).collect();
        let others: Vec<_> = (0..3).map(|_| door.enter("other").unwrap()).collect();
        assert!(door.enter("other").is_err() && door.enter("hog").is_err(), "three each");
        assert!(!door.make_room());
        let lost: Vec<_> = hog.iter().map(is_lost).collect();
        assert_eq!(lost, [false, false, false, true, true, true], "its newest went");
        assert!(!others.iter().any(is_lost));
        let third = door.enter("third").unwrap();
        assert!(!is_lost(&third));
    }

    #[test]
    fn who_is_idle_for_too_long_goes_though_there_is_room() {
        let door = Door::new(100);
        let (used, idle, silent) =
            (door.enter("a").unwrap(), door.enter("b").unwrap(), door.enter("c").unwrap());
        let windows = [works(&used), works(&idle)];
        windows[1].left(1, 1);
        for _ in 0..=TOO_LONG {
            assert!(!is_lost(&idle));
            door.look();
            windows[0].left(1, 1);
            begin(&windows[0]);
        }
        door.look();
        assert!(is_lost(&idle) && !is_lost(&used));
        assert!(!is_lost(&silent), "what is not ours to judge stays");
    }
}
