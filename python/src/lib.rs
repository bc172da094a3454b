//! The Python face of the client: the extension module `weft._weft`, on which the pure Python
//! package `weft` beside it is built.
//!
//! What holds here:
//! - The interpreter's lock is released around every call that may wait, and taken back now and
//!   then to let signal handlers run.
//! - No thread of a connection ever takes the interpreter's lock: what is done for an event loop is
//!   put into a [`completions::Completions`], and the loop is woken through a descriptor. So no
//!   thread hangs, or is ended in the middle, when the interpreter exits.
//! - A thread of the program that waits never comes back to an interpreter that has ended
//!   ([`wait`]).
//! - Memory of Python that is read or filled without the lock is held by its buffer protocol.
//! - In a process that was forked, what comes from its parent is refused (`ENOTCONN`) and forgotten
//!   without a word to the cluster.

#![warn(missing_docs)]

mod args;
mod batch;
mod buffers;
mod completions;
mod connection;
mod dirs;
mod errors;
mod file;
mod gpu;
mod link;
mod settings;
mod stats;
mod value;
mod wait;

/// The extension module behind the package `weft`, which is what programs import.
#[pyo3::pymodule]
mod _weft {
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::value::Data;
    use pyo3::pyfunction;

    /// The GPUs that this process sees: number, name, place on the bus.
    #[pyfunction]
    fn gpus(py: pyo3::Python<'_>) -> pyo3::PyResult<Vec<(i32, String, String)>> {
        crate::gpu::gpus(py)
    }

    /// Bytes of file content that this process has copied in memory on their way, so far.
    #[pyfunction]
    fn copied_bytes() -> u64 {
        weft_client::copied_bytes()
    }
}
