//! Many small reads together.

use crate::args;
use crate::buffers::Target;
use crate::errors::os_error;
use crate::value::{Value, to_bytes};
use crate::wait::wait;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use weft_client::blocking::Connection;
use weft_client::{Caller, ReadData, ReadItem};
use weft_proto::{Error, ErrorKind, Result};

/// A path, the first byte, and how many bytes; `None`: to the end.
pub type Item<'py> = (Bound<'py, PyAny>, u64, Option<usize>);

/// What the client is asked for.
pub fn items(wanted: &[Item<'_>]) -> PyResult<Vec<ReadItem>> {
    let item = |(path, off, len): &Item<'_>| {
        Ok(ReadItem { path: args::path(path)?, off: *off, len: *len })
    };
    wanted.iter().map(item).collect()
}

fn missing<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Internal, "a read of a batch was not answered"))
}

/// Reads many; each fails alone.
pub async fn read_all(caller: Caller, items: Vec<ReadItem>) -> Vec<Result<ReadData>> {
    let mut reads: Vec<_> = items.iter().map(|_| missing()).collect();
    caller.read_many(items, |at, read| reads[at] = read).await;
    reads
}

/// The same for an event loop.
pub async fn begun(caller: Caller, items: Vec<ReadItem>) -> Result<Value> {
    Ok(Value::Batch(read_all(caller, items).await))
}

/// A list with `bytes`, or an `OSError`, for each.
pub fn to_new<'py>(
    py: Python<'py>,
    connection: &Connection,
    caller: &Caller,
    wanted: &[Item<'py>],
) -> PyResult<Bound<'py, PyList>> {
    let items = items(wanted)?;
    let read = || async { Ok(read_all(caller.clone(), items).await) };
    let reads = wait(py, connection, read).map_err(|e| e.raise(None))?;
    answers(py, wanted, reads, |data| Ok(to_bytes(py, &data)?.into_any()))
}

/// Fills a buffer for each. A list with the number of bytes, or an `OSError`, for each. What finds
/// no room is an error.
pub fn into<'py>(
    py: Python<'py>,
    connection: &Connection,
    caller: &Caller,
    wanted: &[Item<'py>],
    buffers: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyList>> {
    let targets = buffers.iter().map(Target::of).collect::<PyResult<Vec<_>>>()?;
    if targets.len() != wanted.len() {
        let what = format!("{} reads, but {} buffers for them", wanted.len(), targets.len());
        return Err(PyValueError::new_err(what));
    }
    let mut asked = items(wanted)?;
    for (at, (item, target)) in asked.iter_mut().zip(&targets).enumerate() {
        // One byte more tells whether all of it has found room.
        let most = target.len().saturating_add(1);
        if item.len.is_some_and(|len| len >= most) {
            let what = format!("read {at} of the batch is longer than its buffer");
            return Err(PyValueError::new_err(what));
        }
        item.len = item.len.or(Some(most));
    }
    let mut reads: Vec<_> = targets.iter().map(|_| missing()).collect();
    let take = |at: usize, read: Result<ReadData>| {
        reads[at] = read.and_then(|data| whole(&targets[at], &data));
    };
    let read = || async {
        caller.read_many(asked, take).await;
        Ok(())
    };
    wait(py, connection, read).map_err(|e| e.raise(None))?;
    answers(py, wanted, reads, |len| Ok(len.into_pyobject(py)?.into_any()))
}

fn whole(target: &Target, data: &ReadData) -> Result<usize> {
    if data.len() > target.len() {
        let what = format!("it is longer than its buffer of {} bytes", target.len());
        return Err(Error::new(ErrorKind::TooLarge, what));
    }
    Ok(target.fill(0, data))
}

/// The answers of a batch: what `good` makes of them, or an `OSError`.
pub fn answers<'py, T>(
    py: Python<'py>,
    wanted: &[Item<'py>],
    reads: Vec<Result<T>>,
    good: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    for (read, (path, ..)) in reads.into_iter().zip(wanted) {
        match read {
            Ok(read) => all.append(good(read)?)?,
            Err(e) => all.append(os_error(&e, Some(path)).into_value(py))?,
        }
    }
    Ok(all)
}
