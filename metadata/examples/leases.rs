//! Measures the lease table alone: what a look at the sessions costs, which the leader takes on the
//! thread that answers everybody, and what the end of a session does.
//!
//! `cargo run --release -p weft-metadata --example leases [LEASES]`

use std::time::Duration;
use tokio::time::Instant;
use weft_metadata::soft::leases::{Leases, Mode, Use};
use weft_proto::{InodeId, SessionId};

/// Leases of one session.
const EACH: u64 = 200_000;
const LOOKS: u32 = 100;
const ANSWER: Duration = Duration::from_secs(30);

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20_000_000);
    let mut leases = Leases::of_term(1);
    let sessions = count.div_ceil(EACH).max(2);
    (1..=sessions).for_each(|id| leases.joined(SessionId(id)));
    let begun = Instant::now();
    for ino in 0..count {
        let now = Instant::now();
        let of = SessionId(1 + ino / EACH);
        leases.grant(now, of, InodeId(ino), Mode::Read, false).expect("a lease");
    }
    println!("{count} leases of {sessions} sessions, granted in {:?}", begun.elapsed());

    let look = |leases: &mut Leases, what: &str| {
        let begun = Instant::now();
        for _ in 0..LOOKS {
            let now = Instant::now();
            assert!(leases.deaf(now, ANSWER).is_empty());
            leases.sweep(now);
        }
        println!("a look at the sessions, {what}: {:?}", begun.elapsed() / LOOKS);
    };
    look(&mut leases, "nothing recalled");
    let begun = Instant::now();
    for ino in (0..count).step_by(200) {
        leases.recall(Instant::now(), SessionId(sessions), InodeId(ino), Use::Change);
    }
    println!("recalled {} of them in {:?}", count / 200, begun.elapsed());
    look(&mut leases, "those recalled");
    let begun = Instant::now();
    leases.ended(SessionId(1));
    println!("the end of one session with {EACH} leases: {:?}", begun.elapsed());
}
