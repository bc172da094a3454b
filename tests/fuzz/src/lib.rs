//! What Weft reads that others have written, given whatever comes to mind: bytes from the network,
//! from drives, from the kernel, from people. Nothing of it may crash, hang, or take more memory
//! than it was sent; what is taken for good is written as it was read.
//!
//! [`TARGETS`] is what can be given something. `make fuzz` gives each what reaches code that
//! nothing before has reached (libFuzzer); the tests give each some of that in every run.
//!
//! - `targets`: a target a function;
//! - [`asker`]: a client that asks for what is drawn, of the state machine and of servers;
//! - [`draw`]: messages of any type, drawn from bytes: what is well formed and means nothing.

pub mod asker;
pub mod draw;
mod targets;

/// Something that reads bytes.
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// What it reads, for people.
    pub what: &'static str,
    /// Reads them. Panics if that goes wrong; answers whether they were taken for good.
    pub read: fn(&[u8]) -> bool,
    /// Some that are.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What `make fuzz` has found to reach more, a line each, in hexadecimal digits.
    corpus: &'static str,
}

/// All of them.
pub const TARGETS: &[Target] = targets::ALL;

impl Target {
    /// The one with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// What was found to reach more than the seeds do.
    pub fn corpus(&self) -> impl Iterator<Item = Vec<u8>> {
        self.corpus.lines().map(|line| {
            let (digits, _) = line.as_bytes().as_chunks::<2>();
            let byte = |two: &[u8; 2]| {
                let two = str::from_utf8(two).ok().and_then(|two| u8::from_str_radix(two, 16).ok());
                two.unwrap_or_else(|| panic!("corpus/{}: {line}", self.name))
            };
            digits.iter().map(byte).collect()
        })
    }
}
