//! What calls answer, before and after it becomes an object of Python.

use crate::buffers::Target;
use crate::dirs::Page;
use crate::errors::os_error;
use crate::link::Link;
use crate::{args, stats};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use weft_client::{Attr, ReadData, StatFs, note_copied};
use weft_proto::Result;

/// Makes an object of Python of something that came through a connection.
pub type Make = Box<dyn for<'py> FnOnce(Python<'py>, &Link) -> PyResult<Bound<'py, PyAny>> + Send>;

/// What a call answers.
pub enum Value {
    Done,
    Number(u64),
    Attr(Attr),
    /// A value that is not a name.
    Bytes(Bytes),
    Name(Bytes),
    Names(Vec<Bytes>),
    Page(Page),
    Room(StatFs),
    Made(Make),
    Data(ReadData),
    Batch(Vec<Result<ReadData>>),
}

impl Value {
    /// As an object of Python. What was read is a [`Data`], which has yet to be copied to its
    /// place.
    pub fn object<'py>(self, py: Python<'py>, connection: &Link) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Done => py.None().into_bound(py),
            Self::Number(number) => number.into_pyobject(py)?.into_any(),
            Self::Attr(attr) => stats::stat(py, &attr)?,
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
            Self::Name(name) => args::name(py, &name)?,
            Self::Names(names) => {
                let names = names.iter().map(|name| args::name(py, name));
                PyList::new(py, names.collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
            Self::Page(page) => page.object(py)?,
            Self::Room(room) => stats::stat_fs(py, &room)?,
            Self::Made(make) => make(py, connection)?,
            Self::Data(data) => Data(data).into_pyobject(py)?.into_any(),
            Self::Batch(reads) => {
                let all = PyList::empty(py);
                for read in reads {
                    match read {
                        Ok(data) => all.append(Data(data))?,
                        Err(e) => all.append(os_error(&e, None).into_value(py))?,
                    }
                }
                all.into_any()
            }
        })
    }
}

/// Copies what was read into a `bytes` object of its own.
pub fn to_bytes<'py>(py: Python<'py>, data: &ReadData) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, data.len(), |mut room| {
        note_copied(data.len());
        for part in data.parts() {
            let (here, rest) = room.split_at_mut(part.len());
            here.copy_from_slice(part);
            room = rest;
        }
        Ok(())
    })
}

/// Bytes that were read, where the network left them: to be copied once, to where they belong.
#[pyclass(frozen, module = "weft._weft")]
pub struct Data(ReadData);

#[pymethods]
impl Data {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// A copy as bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        to_bytes(py, &self.0)
    }

    /// Copies them to the start of a writable buffer, and answers how many there was room for.
    fn copy_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let target = Target::of(buffer)?;
        Ok(py.detach(|| target.fill(0, &self.0)))
    }
}
