//! A CUDA driver without a GPU, for tests: what of its calls Weft makes, with copies that are made
//! late, by threads of their own.
//!
//! What it is strict about, and a real one may let pass:
//! - An address of a GPU is nothing to this process: who follows it is killed (SIGSEGV).
//! - A copy from or to pinned memory looks at it when its turn comes, after a pause.
//! - Memory of a GPU that is freed while a copy to or from it is under way, or a card has it
//!   mapped, ends the process.

mod calls;
mod load;
mod memory;
mod streams;

pub use load::{Cuda, library};
