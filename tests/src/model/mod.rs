//! A model test of POSIX semantics: random operations by way of one mount or several, each compared
//! with what a tree in memory answers to it, and with what it leaves there.
//!
//! [`draw`] draws the operations ([`op`]), [`tree`] is the model, [`real`] the same operations as
//! system calls, [`run`] does and compares them. [`faulty`] is a mount with a fault, by which the
//! test is tested.

mod content;
mod draw;
pub mod faulty;
mod node;
mod op;
mod real;
mod run;
mod tree;

pub use run::{Differs, Model};
