//! The target of the namespace finds a rule that is broken.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weft_fuzz::Target;
use weft_proto::planted::{self, Bug};

/// Inputs that are tried.
const INPUTS: u32 = 20_000;
/// The first of them find nothing without the bug.
const CONTROL: u32 = 5_000;
/// Bytes of each.
const LONG: usize = 600;

#[test]
fn a_file_that_a_rename_loses_is_found() {
    let state = Target::named("state").expect("there is one");
    let mut input = vec![0; LONG];
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..CONTROL {
        random.fill_bytes(&mut input);
        (state.read)(&input);
    }
    planted::plant(Bug::RenameLosesInode).expect("bugs can be planted here");
    let mut random = StdRng::seed_from_u64(1);
    let found = (0..INPUTS).find(|_| {
        random.fill_bytes(&mut input);
        catch_unwind(AssertUnwindSafe(|| (state.read)(&input))).is_err()
    });
    println!("found by input {found:?}");
    assert!(found.is_some(), "nothing found in {INPUTS} inputs");
}
