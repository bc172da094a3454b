//! Memory of Python programs, held while it is read or filled without the interpreter's lock.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use weft_client::{ReadData, note_copied};

/// Memory to read from: any contiguous object with the buffer protocol.
pub struct Source(PyUntypedBuffer);

impl Source {
    /// Holds it. Errors: `BufferError`, `ValueError`.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self(buffer)),
            false => Err(PyValueError::new_err("the buffer is not C-contiguous")),
        }
    }

    /// Its bytes. A program that changes them meanwhile gets a mix of old and new written, as with
    /// `os.pwrite`.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is held and contiguous, so that as many bytes are there. Bytes have no
        // invalid values, so that a program which writes them meanwhile breaks no rule but its own.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// Memory to fill: any contiguous object with the buffer protocol that may be written to.
pub struct Target(PyUntypedBuffer);

impl Target {
    /// Holds it. Errors: `BufferError`, `ValueError`.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        match buffer.is_c_contiguous() {
            true => Ok(Self(buffer)),
            false => Err(PyValueError::new_err("the buffer is not C-contiguous")),
        }
    }

    /// Bytes that there is room for.
    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Copies what was read to a place in it, at most its end, and answers how many bytes that
    /// were; what finds no room is left out.
    pub fn fill(&self, at: usize, data: &ReadData) -> usize {
        let start = self.0.buf_ptr().cast::<u8>();
        let mut end = at;
        for part in data.parts() {
            let len = part.len().min(self.len() - end);
            // SAFETY: the buffer is held, contiguous and writable, and there is room for so many
            // bytes at that place. What was read is memory of its own, which does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(end), len) };
            end += len;
        }
        note_copied(end - at);
        end - at
    }
}
