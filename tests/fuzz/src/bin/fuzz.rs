//! Gives one target, which `WEFT_FUZZ` names, what libFuzzer finds for it. Arguments are
//! libFuzzer's; the folder that it keeps what it found in is given the target's seeds first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::LazyLock;
use weft_fuzz::{TARGETS, Target};

/// No input of a few thousand bytes is a reason for more at once, touched or not.
const MOST: usize = 256 << 20;

/// The system's memory, of which nobody gets more than [`MOST`] at once.
struct Bounded;

// SAFETY: it is the system's allocator, or the end of the process.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST {
            // Nothing may be allocated here: libFuzzer tells which input it was.
            std::process::abort();
        }
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static BOUNDED: Bounded = Bounded;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("WEFT_FUZZ").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        eprintln!("WEFT_FUZZ={name:?}: it names one of");
        TARGETS.iter().for_each(|target| eprintln!("    {:16} {}", target.name, target.what));
        std::process::exit(2);
    })
});

fuzz_target!(init: give_seeds(), |bytes: &[u8]| {
    (TARGET.read)(bytes);
});

fn give_seeds() {
    let Some(folder) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) else {
        return;
    };
    for (number, seed) in (TARGET.seeds)().into_iter().chain(TARGET.corpus()).enumerate() {
        let path = Path::new(&folder).join(format!("seed-{number}"));
        if let Err(error) = std::fs::write(&path, &seed) {
            eprintln!("cannot write {}: {error}", path.display());
            std::process::exit(2);
        }
    }
}
