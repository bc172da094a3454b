//! An open file: the bare calls. The file objects of the package are built on it.

use crate::buffers::{Source, Target};
use crate::completions::{Later, call};
use crate::gpu::{self, Place};
use crate::link::Link;
use crate::value::{Value, to_bytes};
use crate::wait::wait;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use weft_client::{AppendTo, Appends, OpenFile, Seek};
use weft_proto::Result;

/// So much of one read is held beside the memory that it goes to.
const READ_BYTES: usize = 32 << 20;

/// An open file, without a position. Any number of threads may use it.
#[pyclass(frozen, module = "weft._weft")]
pub struct File {
    file: Arc<OpenFile>,
    /// Read-locked by each change that was begun for an event loop: closing waits for them, also
    /// for those whose turn has not come yet.
    begun: Arc<RwLock<()>>,
    appends: Appends,
    // Dropped last.
    connection: Link,
}

/// The answer of a call that opened a file.
pub fn opened(file: OpenFile) -> Value {
    Value::Made(Box::new(|py, connection| {
        let (file, connection) = (Arc::new(file), connection.clone());
        let (begun, appends) = Default::default();
        let file = File { file, begun, appends, connection };
        Ok(file.into_pyobject(py)?.into_any())
    }))
}

impl File {
    /// The file for a change that is begun now. One that is begun after closing finds it closed; in
    /// a process that was forked, where locks may be held for ever, it is refused anyway.
    fn begin(&self) -> (Arc<OpenFile>, Option<OwnedRwLockReadGuard<()>>) {
        let here = self.connection.is_of_this_process();
        let begun = here.then(|| Arc::clone(&self.begun).try_read_owned().ok());
        (Arc::clone(&self.file), begun.flatten())
    }
}

/// Reads until a target is full, or the file ends.
async fn read_into(file: &OpenFile, off: u64, target: &Target) -> Result<usize> {
    let mut done = 0;
    while done < target.len() {
        let want = READ_BYTES.min(target.len() - done);
        let data = file.read(off.saturating_add(done as u64), want).await?;
        done += target.fill(done, &data);
        if data.len() < want {
            break;
        }
    }
    Ok(done)
}

/// Writes all of it, and answers how many bytes that were.
async fn write_all(file: &OpenFile, off: u64, data: &[u8]) -> Result<Value> {
    let mut written = 0;
    while written < data.len() {
        written += file.write(off + written as u64, &data[written..]).await?;
    }
    Ok(Value::Number(written as u64))
}

#[pymethods]
impl File {
    /// The number of its inode.
    #[getter]
    fn ino(&self) -> u64 {
        self.file.ino().0
    }

    /// Whether it was opened by this process, and not by one that this one was forked from.
    fn is_of_this_process(&self) -> bool {
        self.connection.is_of_this_process()
    }

    /// Up to `n` bytes from offset `off`: fewer at the end of the file only.
    fn pread<'py>(&self, py: Python<'py>, n: usize, off: u64) -> PyResult<Bound<'py, PyBytes>> {
        let read = wait(py, &self.connection, || self.file.read(off, n));
        to_bytes(py, &read.map_err(|e| e.raise(None))?)
    }

    /// The same for an event loop, which is given a `Data`.
    fn begin_pread<'py>(
        &self,
        py: Python<'py>,
        n: usize,
        off: u64,
        later: Later<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let file = Arc::clone(&self.file);
        let read = async move { file.read(off, n).await.map(Value::Data) };
        call(py, &self.connection, None, Some(later), read)
    }

    /// Fills a writable buffer from offset `off`, and answers how many bytes there were.
    fn pread_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, off: u64) -> PyResult<usize> {
        let target = Target::of(buffer)?;
        let read = || read_into(&self.file, off, &target);
        wait(py, &self.connection, read).map_err(|e| e.raise(None))
    }

    /// Writes a buffer at offset `off`. Answers how many bytes that were: all of them.
    fn pwrite<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        off: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let source = Source::of(buffer)?;
        let write = || write_all(&self.file, off, source.bytes());
        let written = wait(py, &self.connection, write).map_err(|e| e.raise(None))?;
        written.object(py, &self.connection)
    }

    /// Writes a buffer at the end of a file that was opened to append. Answers how many bytes that
    /// were: all of them. The same memory with the same content, offered again after an error, or
    /// after a signal handler has raised something, goes on where that has ended: nothing is there
    /// twice. The path is for errors only; `moves`: it is counted.
    fn append(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        moves: bool,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let source = Source::of(buffer)?;
        let (file, begun) = self.begin();
        let (fs, begun) = (self.connection.filesystem(), begun.map(Arc::new));
        let mut call = self.appends.begin(source.bytes(), moves);
        let run = || call.run(AppendTo { fs, file, begun });
        wait(py, &self.connection, run).map_err(|e| e.raise(Some(path)))?;
        Ok(call.end())
    }

    /// How often something was appended that was counted, or was to be.
    #[getter]
    fn appends(&self) -> u64 {
        self.appends.calls()
    }

    /// `pread_into`, into memory of a GPU.
    fn pread_gpu(&self, py: Python<'_>, place: Place, off: u64) -> PyResult<usize> {
        gpu::read(py, &self.connection, &self.file, place, off)
    }

    /// `pwrite`, from memory of a GPU; `whole`: as one write, for a file that was opened to append.
    fn pwrite_gpu(&self, py: Python<'_>, place: Place, off: u64, whole: bool) -> PyResult<usize> {
        gpu::write(py, &self.connection, &self.file, place, (off, whole))
    }

    /// The same for an event loop. The bytes are copied: the buffer may be changed at once.
    fn begin_pwrite<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        off: u64,
        later: Later<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let data = Bytes::copy_from_slice(Source::of(buffer)?.bytes());
        let (file, begun) = self.begin();
        let write = async move {
            let _begun = begun;
            write_all(&file, off, &data).await
        };
        call(py, &self.connection, None, Some(later), write)
    }

    /// Cuts it, or extends it by a hole, to so many bytes.
    #[pyo3(signature = (size, later=None))]
    fn truncate<'py>(
        &self,
        py: Python<'py>,
        size: u64,
        later: Option<Later<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (file, begun) = self.begin();
        let cut = async move {
            let _begun = begun;
            file.truncate(size).await.map(Value::Attr)
        };
        call(py, &self.connection, None, later, cut)
    }

    /// Its attributes, an `os.stat_result`.
    #[pyo3(signature = (later=None))]
    fn stat<'py>(&self, py: Python<'py>, later: Option<Later<'py>>) -> PyResult<Bound<'py, PyAny>> {
        let file = Arc::clone(&self.file);
        call(py, &self.connection, None, later, async move { file.stat().await.map(Value::Attr) })
    }

    /// What was written is durable and visible to all.
    #[pyo3(signature = (later=None))]
    fn sync<'py>(&self, py: Python<'py>, later: Option<Later<'py>>) -> PyResult<Bound<'py, PyAny>> {
        let (file, begun) = self.begin();
        let sync = async move {
            let _begun = begun;
            file.sync().await.map(|()| Value::Done)
        };
        call(py, &self.connection, None, later, sync)
    }

    /// The next data at or behind an offset, or, `hole`, the next hole.
    fn seek<'py>(&self, py: Python<'py>, off: u64, hole: bool) -> PyResult<Bound<'py, PyAny>> {
        let what = if hole { Seek::Hole } else { Seek::Data };
        let file = Arc::clone(&self.file);
        let seek = async move { file.seek(off, what).await.map(Value::Number) };
        call(py, &self.connection, None, None, seek)
    }

    /// Closes it. The first error of what was written and nobody was told of is raised; it is
    /// closed all the same. A second time nothing happens, nor does in a process that was forked.
    #[pyo3(signature = (later=None))]
    fn close<'py>(
        &self,
        py: Python<'py>,
        later: Option<Later<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if later.is_none() && !self.connection.is_of_this_process() {
            return Ok(py.None().into_bound(py));
        }
        let (file, begun) = (Arc::clone(&self.file), Arc::clone(&self.begun));
        let close = async move {
            let _all_have_ended = begun.write().await;
            file.finish().await.map(|()| Value::Done)
        };
        call(py, &self.connection, None, later, close)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // In a process that was forked it is the parent's.
        if !self.connection.is_of_this_process() {
            std::mem::forget(Arc::clone(&self.file));
        }
    }
}
