//! Each target takes what it is meant for, and some thousands of inputs made of that and at random.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::Cell;
use std::sync::Once;
use weft_fuzz::{TARGETS, Target};

/// Inputs that each target is given.
const INPUTS: u32 = 3000;

/// What is changed in an input, at most so often.
const CHANGES: u32 = 6;

fn mutated(seeds: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut input = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..=CHANGES) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..6) {
            0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            1 if at < input.len() => input[at] = random.random(),
            2 => input.truncate(at),
            3 => {
                let some: Vec<u8> =
                    (0..random.random_range(0..20)).map(|_| random.random()).collect();
                input.splice(at..at, some);
            }
            4 => {
                let other = &seeds[random.random_range(0..seeds.len())];
                let from = random.random_range(0..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let end = input.len().min(at + 8);
                input[at..end].fill([0, 255][random.random_range(0..2)]);
            }
        }
    }
    input
}

thread_local! {
    /// Something panicked in whatever task: servers go on after that.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

fn notice_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.set(true);
            told(info);
        }));
    });
}

/// Nothing of it panics. Its seeds are taken for good: else it would refuse everything, and find
/// nothing.
fn try_out(target: &Target, random: &mut StdRng) {
    notice_panics();
    let name = target.name;
    let seeds = (target.seeds)();
    let taken = seeds.iter().filter(|seed| (target.read)(seed)).count();
    assert!(taken * 2 > seeds.len(), "{name}: {taken} of {} seeds are taken", seeds.len());
    // What was found once, as it was.
    let corpus: Vec<_> = target.corpus().collect();
    for input in &corpus {
        (target.read)(input);
    }
    let all = [&seeds[..], &corpus[..]].concat();
    let mut good = 0;
    for _ in 0..INPUTS {
        let input = match random.random_range(0..10) {
            0 => (0..random.random_range(0..400)).map(|_| random.random()).collect(),
            // Of what was found most is refused.
            1..=5 => mutated(&seeds, random),
            _ => mutated(&all, random),
        };
        good += u32::from((target.read)(&input));
        assert!(!PANICKED.get(), "{name}: {input:02x?}");
    }
    println!("{name}: {good} of {INPUTS} were taken");
    assert!(good < INPUTS, "{name}: all of {INPUTS} were taken");
}

macro_rules! targets {
    ($($test:ident $name:literal,)+) => {
        /// No target is without a test.
        #[test]
        fn each_is_tried() {
            let tried = [$($name),+];
            assert!(TARGETS.iter().map(|target| target.name).eq(tried));
        }

        $(#[test]
        fn $test() {
            let seed = rand::random();
            println!("seed {seed}");
            let target = Target::named($name).expect("there is one");
            try_out(target, &mut StdRng::seed_from_u64(seed));
        })+
    };
}

targets! {
    served "served",
    answered "answered",
    rdma "rdma",
    messages "messages",
    kernel "kernel",
    superblock "superblock",
    header "header",
    journal "journal",
    index "index",
    hot_record "hot-record",
    hot_list "hot-list",
    raft "raft",
    log "log",
    acl "acl",
    metadata_config "metadata-config",
    storage_config "storage-config",
    manifest "manifest",
    location "location",
    layout "layout",
    quota "quota",
    state "state",
}
