//! Arrivals of every pattern, and what must hold of the order in which they begin.

use super::*;
use proptest::prelude::*;

const ROOM: u64 = 8 << 20;
const LARGE: u64 = 4 << 20;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A request comes.
    Come { tenant: u64, class: usize, cost: u64 },
    /// One that is inside ends.
    End(usize),
    /// One that waits is not wanted any more.
    Cancel(usize),
    /// The room of a class is another.
    Room(usize, u64),
}

fn steps(tenants: u64) -> impl Strategy<Value = Vec<Step>> {
    let come = |cost| (0..tenants, 0..CLASSES, cost);
    let request = |(tenant, class, cost)| Step::Come { tenant, class, cost };
    let step = prop_oneof![
        4 => come(1..=LARGE).prop_map(request),
        // So that tenants get far ahead of each other.
        4 => come(LARGE..=LARGE).prop_map(request),
        1 => come(0..=u64::MAX).prop_map(request),
        6 => any::<usize>().prop_map(Step::End),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..CLASSES, 1..=4 * ROOM).prop_map(|(class, room)| Step::Room(class, room)),
    ];
    prop::collection::vec(step, 1..400)
}

/// A queue, and beside it what came, began, waits and is inside.
struct Model {
    queue: FairQueue<(u64, usize)>,
    weights: Vec<u32>,
    inside: Vec<Begun>,
    /// Tenant, class and number of each.
    began: Vec<(u64, usize, usize)>,
    waiting: Vec<(usize, Place)>,
    came: usize,
    cancelled: usize,
}

impl Model {
    fn new(weights: Vec<u32>) -> Self {
        let queue = FairQueue::new([ROOM, ROOM]);
        let (inside, began, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Self { queue, weights, inside, began, waiting, came: 0, cancelled: 0 }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Come { tenant, class, cost } => self.come(tenant, class, cost),
            Step::End(which) => self.end(which),
            Step::Cancel(which) => self.cancel(which),
            Step::Room(class, room) => {
                self.queue.set_room(class, room);
                self.pump();
            }
        }
    }

    fn come(&mut self, tenant: u64, class: usize, cost: u64) {
        let weight = self.weights[tenant as usize];
        let asked = Asked { tenant, weight, class, cost };
        self.came += 1;
        if let Some(begun) = self.queue.try_begin(asked) {
            self.inside.push(begun);
            self.began.push((tenant, class, self.came));
        } else {
            let place = self.queue.push(asked, (tenant, self.came));
            self.waiting.push((self.came, place));
            self.pump();
        }
    }

    fn end(&mut self, which: usize) {
        if !self.inside.is_empty() {
            self.queue.end(self.inside.swap_remove(which % self.inside.len()));
            self.pump();
        }
    }

    /// What began first ends: nothing stays inside while others pass by.
    fn end_first(&mut self) {
        let first = self.inside.remove(0);
        self.queue.end(first);
        self.pump();
    }

    fn cancel(&mut self, which: usize) {
        if !self.waiting.is_empty() {
            let (_, place) = self.waiting.swap_remove(which % self.waiting.len());
            self.queue.cancel(place);
            // Once more: it is not there any more.
            self.queue.cancel(place);
            self.cancelled += 1;
            self.pump();
        }
    }

    fn pump(&mut self) {
        while let Some((begun, (tenant, number))) = self.queue.next() {
            assert_eq!(begun.tenant, tenant);
            self.waiting.retain(|(waits, _)| *waits != number);
            self.inside.push(begun);
            self.began.push((tenant, begun.class, number));
        }
    }

    fn check(&self) {
        let queue = &self.queue;
        for class in 0..CLASSES {
            let inside = self.inside.iter().filter(|i| i.class == class).map(|i| i.cost);
            assert_eq!(inside.sum::<u64>(), queue.used[class]);
            assert!(queue.used[class] <= ROOM * 4 + RESERVE + MAX_COST, "beyond all room");
            let waits = self.waiting.iter().filter(|(_, place)| place.class == class).count();
            let queued = queue.flows.values().map(|flow| flow.waiting[class].len()).sum::<usize>();
            assert_eq!(queued, waits, "nobody is lost");
            let in_order: Vec<_> = queue.order[class].iter().map(|(_, tenant)| *tenant).collect();
            let waits = |tenant: &u64| !queue.flows[tenant].waiting[class].is_empty();
            assert!(in_order.iter().all(waits), "who is in the order waits");
            assert_eq!(in_order.len(), queue.flows.keys().filter(|id| waits(id)).count());
            // No room is left for who could use it.
            let first = queue.both.first().map_or(0, |(first, _)| *first);
            let far = |tenant: &u64| {
                let flow = &queue.flows[tenant];
                flow.both > first + Tag::from(LEAD) && flow.inside >= LITTLE
            };
            assert!(!queue.has_room(class) || in_order.iter().all(far), "work is left undone");
        }
        let waits = queue.flows.iter().filter(|(_, flow)| flow.waits());
        let waits = waits.map(|(tenant, flow)| (flow.both, *tenant)).collect::<BTreeSet<_>>();
        assert_eq!(queue.both, waits);
        assert!(self.waiting.is_empty() || !self.inside.is_empty(), "nobody will wake them");
        assert_eq!(self.began.len() + self.waiting.len() + self.cancelled, self.came);
    }
}

proptest! {
    #[test]
    fn nobody_is_lost_or_overtaken_by_their_own_and_no_room_is_left(steps in steps(5)) {
        let mut model = Model::new(vec![100, 100, 50, 10_000, 1]);
        let mut before = [0; CLASSES + 1];
        for step in steps {
            model.take(&step);
            model.check();
            let now = [model.queue.now[0], model.queue.now[1], model.queue.now_both];
            prop_assert!(now.iter().zip(before).all(|(now, before)| *now >= before));
            before = now;
        }
        while !model.inside.is_empty() {
            model.end(0);
            model.check();
        }
        prop_assert_eq!(model.began.len() + model.cancelled, model.came, "all begin at the end");
        for tenant in 0..5 {
            for class in 0..CLASSES {
                let of = model.began.iter().filter(|b| (b.0, b.1) == (tenant, class));
                let order: Vec<_> = of.map(|b| b.2).collect();
                prop_assert!(order.is_sorted());
            }
        }
        prop_assert!(model.queue.flows.is_empty(), "nothing is kept of who is not here");
    }

    /// However others come and go after it, who waits begins when so much of others has ended.
    #[test]
    fn nobody_starves(before in steps(5), class in 0..CLASSES, kinds in prop::collection::vec(
        (0..5u64, 0..CLASSES, 1..=LARGE), 1..8,
    )) {
        let mut model = Model::new(vec![100, 100, 50, 1000, 10, 10]);
        before.iter().filter(|step| !matches!(step, Step::Room(..))).for_each(|s| model.take(s));
        model.come(5, class, LARGE);
        let number = model.came;
        let has_begun = |model: &Model| model.began.iter().any(|b| b.2 == number);
        let mut ended = 0;
        while !has_begun(&model) {
            // The others want all there is, all the time; what they asked for ends in any order.
            kinds.iter().for_each(|&(tenant, class, cost)| model.come(tenant, class, cost));
            for which in 0..kinds.len() + 1 {
                model.end(which * 7);
                ended += 1;
            }
            model.check();
            prop_assert!(ended < 20_000, "it waits for ever");
        }
    }

    /// In one class: who is ahead of others in the other class is kept back for them, but not who
    /// has little in service.
    #[test]
    fn who_always_waits_gets_what_its_weight_says(
        class in 0..CLASSES,
        costs in prop::collection::vec(4096..=LARGE, 4),
        weights in prop::collection::vec(10u32..1000, 4),
    ) {
        let mut model = Model::new(weights.clone());
        let mut served = [0u64; 4];
        for _ in 0..40 {
            (0..4).for_each(|t| model.come(t as u64, class, costs[t]));
        }
        // Until one of them runs out.
        let mut counted = 0;
        let mut left = [40; 4];
        while left.iter().all(|left| *left > 0) {
            for (tenant, ..) in &model.began[counted..] {
                served[*tenant as usize] += costs[*tenant as usize];
                left[*tenant as usize] -= 1;
            }
            counted = model.began.len();
            model.end_first();
        }
        let share = |t: usize| served[t] as f64 * UNIT as f64 / f64::from(weights[t]);
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        for (a, b) in pairs {
            let quanta = |t: usize| 2.0 * (LARGE + ROOM + RESERVE) as f64 * UNIT as f64
                / f64::from(weights[t]);
            let bound = quanta(a).max(quanta(b)) + 2.0 * LEAD as f64;
            let by = (share(a) - share(b)).abs();
            prop_assert!(by <= bound, "{a} and {b}: {by} over {bound}");
        }
    }
}

#[test]
fn two_that_write_get_the_same_within_one_request() {
    let mut model = Model::new(vec![100; 2]);
    for _ in 0..100 {
        model.come(0, 1, LARGE);
    }
    for _ in 0..6400 {
        model.come(1, 1, LARGE / 64);
    }
    let from = model.began.len();
    for _ in 0..2000 {
        model.end(0);
        let bytes = |tenant, cost| {
            model.began[from..].iter().filter(|b| b.0 == tenant).count() as u64 * cost
        };
        let (large, small) = (bytes(0, LARGE), bytes(1, LARGE / 64));
        // The first began with what was inside before the second came.
        assert!(small + LARGE >= large, "{large} {small}");
        assert!(small <= large + ROOM + 2 * LARGE, "{large} {small}");
    }
}

#[test]
fn who_comes_seldom_is_next_and_waits_for_no_writes() {
    let mut model = Model::new(vec![100; 2]);
    for _ in 0..100 {
        model.come(0, 1, LARGE);
    }
    model.come(1, 0, 4096);
    assert_eq!(model.began.last(), Some(&(1, 0, 101)), "there is room for reads");
    model.come(1, 1, LARGE);
    let before = model.began.len();
    model.end(0);
    assert_eq!(model.began[before], (1, 1, 102), "before those that came earlier");
}

#[test]
fn who_wants_little_and_has_nothing_need_not_wait_for_room() {
    let mut model = Model::new(vec![100; 40]);
    for _ in 0..100 {
        model.come(0, 1, LARGE);
    }
    model.come(1, 1, SHORT);
    assert_eq!(model.began.last(), Some(&(1, 1, 101)));
    let begun = model.began.len();
    model.come(1, 1, SHORT);
    assert_eq!(model.began.len(), begun, "it has something now");
    (2..40).for_each(|tenant| model.come(tenant, 1, SHORT));
    let most = ROOM + RESERVE;
    assert!((most..most + SHORT).contains(&model.queue.used[1]), "{}", model.queue.used[1]);
}

#[test]
fn who_reads_all_the_time_is_not_kept_from_writing_by_that() {
    let mut model = Model::new(vec![100; 3]);
    for n in 0..1000 {
        (0..2).for_each(|tenant| model.come(tenant, 1, LARGE));
        if n == 100 {
            model.come(2, 1, 4096);
        }
        // Far more than the others write.
        for _ in 0..8 {
            model.come(2, 0, LARGE);
            let read = model.inside.iter().position(|inside| inside.class == 0);
            model.end(read.expect("it has begun"));
        }
        model.end(0);
    }
    let written = model.began.iter().filter(|b| (b.0, b.1) == (2, 1)).count();
    assert_eq!(written, 1, "its write is done");
}

#[test]
fn who_reads_much_waits_for_who_writes_as_much() {
    let mut model = Model::new(vec![100, 100]);
    (0..10).for_each(|_| model.come(0, 1, LARGE));
    let ahead = |model: &Model| model.began.iter().filter(|b| b.0 == 1).count();
    for _ in 0..100 {
        model.come(1, 0, LARGE);
        // Of what it reads, half ends at once.
        let reads = model.inside.iter().filter(|inside| inside.class == 0).count();
        if let Some(at) = model.inside.iter().position(|i| i.class == 0).filter(|_| reads > 1) {
            model.end(at);
        }
    }
    let most = (LEAD + ROOM) / LARGE + 2;
    assert!(ahead(&model) as u64 <= most, "{} reads", ahead(&model));
    while !model.inside.is_empty() {
        model.end(0);
    }
    assert_eq!(ahead(&model), 100);
}

#[test]
fn who_reads_one_thing_after_the_other_is_not_kept_back_for_being_ahead() {
    let mut model = Model::new(vec![100, 100]);
    (0..10).for_each(|_| model.come(0, 1, LARGE));
    for _ in 0..1000 {
        model.come(1, 0, 128 << 10);
        let at = model.inside.iter().position(|inside| inside.class == 0);
        model.end(at.expect("it has begun"));
    }
}

/// Tenant 0 fills the room for writes and waits for more; tenant 1 reads until it is too far ahead.
fn one_is_kept_back_for_another() -> Model {
    let mut model = Model::new(vec![100; 3]);
    (0..2).for_each(|_| model.come(0, 1, LARGE));
    model.come(2, 1, LARGE);
    (0..20).for_each(|_| model.come(1, 0, LARGE / 2));
    let reads_wait = |model: &Model| model.waiting.iter().any(|(_, p)| p.class == 0);
    while !(model.queue.has_room(0) && reads_wait(&model)) {
        let read = model.inside.iter().position(|inside| inside.class == 0);
        model.end(read.expect("a read is inside"));
    }
    model
}

#[test]
fn who_was_kept_back_begins_when_the_other_begins_or_goes() {
    for goes in [true, false] {
        let mut model = one_is_kept_back_for_another();
        let reads = |model: &Model| model.began.iter().filter(|b| b.1 == 0).count();
        let (before, write) = (reads(&model), model.inside.iter().position(|i| i.class == 1));
        match goes {
            true => {
                let at = model.waiting.iter().position(|(_, p)| p.class == 1);
                model.cancel(at.expect("a write waits"));
            }
            false => model.end(write.expect("a write is inside")),
        }
        assert!(reads(&model) > before, "nobody waits behind it any more: {goes}");
        model.check();
    }
}

#[test]
fn what_is_not_wanted_any_more_costs_nobody_anything() {
    let mut queue = FairQueue::new([1, 1]);
    let asked = |tenant, cost| Asked { tenant, weight: 100, class: 1, cost };
    // None of them finds a reserve.
    let (large, small) = (100 * SHORT, 10 * SHORT);
    let first = queue.try_begin(asked(0, large)).unwrap();
    let places = [queue.push(asked(0, u64::MAX), 1), queue.push(asked(1, small), 3)];
    queue.push(asked(0, small), 2);
    places.into_iter().for_each(|place| queue.cancel(place));
    assert_eq!(queue.next(), None);
    queue.end(first);
    let (begun, what) = queue.next().unwrap();
    assert_eq!((begun, what), (asked(0, small).begun(), 2));
    assert_eq!(
        queue.flows[&0].tags[1],
        u128::from(large + small),
        "of what nobody wanted nothing is counted"
    );
    queue.end(begun);
    assert_eq!(queue.next(), None);
    assert!(queue.order.iter().all(BTreeSet::is_empty) && queue.flows.is_empty());
    assert!(queue.both.is_empty());
}

#[test]
fn costs_without_sense_are_cut_and_tags_do_not_come_to_their_end() {
    let mut queue: FairQueue<()> = FairQueue::new([ROOM, ROOM]);
    let asked = |tenant, cost| Asked { tenant, weight: 1, class: 0, cost };
    // Where 64 bits would have come to their end long ago.
    (queue.now, queue.now_both) = ([Tag::from(u64::MAX); CLASSES], Tag::from(u64::MAX));
    let long = queue.try_begin(asked(0, u64::MAX)).unwrap();
    assert_eq!(long.cost, MAX_COST);
    queue.push(asked(0, u64::MAX), ());
    queue.push(asked(1, 0), ());
    queue.end(long);
    let (small, ()) = queue.next().unwrap();
    assert_eq!((small.tenant, small.cost), (1, 1), "who has had less is next");
    let (long, ()) = queue.next().unwrap();
    assert_eq!(queue.next(), None);
    [small, long].into_iter().for_each(|begun| queue.end(begun));
    assert_eq!(queue.used, [0; CLASSES]);
    let share = Asked { cost: u64::MAX, ..asked(0, 0) }.share();
    assert!(share < 1 << 37, "as is said of tags: {share}");
}

#[test]
fn tenants_that_come_once_are_forgotten_while_others_go_on() {
    let mut queue: FairQueue<()> = FairQueue::new([ROOM, ROOM]);
    let asked = |tenant| Asked { tenant, weight: 100, class: 0, cost: 4096 };
    queue.try_begin(asked(0)).unwrap();
    for tenant in 1..100_000 {
        let begun = [tenant, 0].map(|tenant| queue.try_begin(asked(tenant)).unwrap());
        begun.into_iter().for_each(|begun| queue.end(begun));
        assert!(queue.flows.len() <= 4 * KEPT, "{}", queue.flows.len());
    }
}
