//! Content of files in the memory of GPUs, which Python names by address.

use crate::batch::{Item, answers, items};
use crate::errors::os_error;
use crate::wait::wait;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use weft_client::blocking::Connection;
use weft_client::{Caller, OpenFile};
use weft_gpu::{Memory, Slice, Stream, after_each};
use weft_proto::{Error, ErrorKind};

/// Where it starts, how many bytes it has, and the stream whose work comes first (`None`: nobody's
/// does).
pub type Place = (u64, usize, Option<usize>);

/// Memory whose owners, objects that the caller holds, keep it.
struct Held {
    memory: Vec<(Memory, Option<usize>)>,
}

impl Held {
    /// Errors: `OSError`.
    fn of(py: Python<'_>, places: Vec<Place>) -> PyResult<Self> {
        // The driver may wait for what needs the interpreter's lock.
        let held = py.detach(|| {
            let memory = places.into_iter().map(|(start, len, after)| {
                // SAFETY: the package passes on what tensors and arrays say of memory that they
                // own, and holds them until the call is over.
                unsafe { Memory::new(start, len) }.map(|memory| (memory, after))
            });
            memory.collect::<weft_proto::Result<Vec<_>>>()
        });
        Ok(Self { memory: held.map_err(|error| os_error(&error, None))? })
    }

    /// All of each, after what its stream has been asked for until now.
    fn slices(&self) -> weft_proto::Result<Vec<Slice<'_>>> {
        // SAFETY: as above: it is the current stream of a library, which keeps it.
        let stream = |after: usize| unsafe { Stream::new(after) };
        after_each(self.memory.iter().map(|(memory, after)| (memory.all(), after.map(stream))))
    }

    fn slice(&self) -> weft_proto::Result<Slice<'_>> {
        let missing = || Error::new(ErrorKind::Invalid, "there is no memory");
        self.slices()?.pop().ok_or_else(missing)
    }
}

/// Fills memory from offset `off`, and answers how many bytes there were.
pub fn read(
    py: Python<'_>,
    connection: &Connection,
    file: &OpenFile,
    place: Place,
    off: u64,
) -> PyResult<usize> {
    let held = Held::of(py, vec![place])?;
    let read = wait(py, connection, || {
        let slice = held.slice();
        async move { weft_gpu::read(file, off, slice?).await }
    });
    // Copies of a call that was given up are waited for.
    py.detach(|| drop(held));
    read.map_err(|error| error.raise(None))
}

/// Writes memory at offset `off`, and answers how many bytes that were: all of them.
pub fn write(
    py: Python<'_>,
    connection: &Connection,
    file: &OpenFile,
    place: Place,
    (off, whole): (u64, bool),
) -> PyResult<usize> {
    let held = Held::of(py, vec![place])?;
    let written = wait(py, connection, || {
        let slice = held.slice();
        async move { weft_gpu::write(file, off, slice?, whole).await }
    });
    py.detach(|| drop(held));
    written.map_err(|error| error.raise(None))
}

/// Fills memory for each of many reads. A list with the number of bytes, or an `OSError`, for each.
pub fn read_many<'py>(
    py: Python<'py>,
    connection: &Connection,
    caller: &Caller,
    wanted: &[Item<'py>],
    places: Vec<Place>,
) -> PyResult<Bound<'py, PyList>> {
    if places.len() != wanted.len() {
        let what = format!("{} reads, but {} places for them", wanted.len(), places.len());
        return Err(PyValueError::new_err(what));
    }
    for (at, (item, place)) in wanted.iter().zip(&places).enumerate() {
        if item.2.is_some_and(|len| len > place.1) {
            let what = format!("read {at} of the batch is longer than its place");
            return Err(PyValueError::new_err(what));
        }
    }
    let (asked, held) = (items(wanted)?, Held::of(py, places)?);
    let read = wait(py, connection, || {
        let slices = held.slices();
        async move { weft_gpu::read_many(caller, asked, &slices?).await }
    });
    py.detach(|| drop(held));
    let reads = read.map_err(|error| error.raise(None))?;
    answers(py, wanted, reads, |len| Ok(len.into_pyobject(py)?.into_any()))
}

/// The GPUs that this process sees: number, name, place on the bus.
pub fn gpus(py: Python<'_>) -> PyResult<Vec<(i32, String, String)>> {
    let gpus = py.detach(weft_gpu::gpus).map_err(|error| os_error(&error, None))?;
    Ok(gpus.into_iter().map(|gpu| (gpu.ordinal, gpu.name, gpu.pci)).collect())
}
