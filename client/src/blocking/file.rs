//! An open file, each call to its end.

use super::connection::Connection;
use crate::paths::OpenFile;
use crate::types::{Allocate, Attr, LockKind, ReadData, Seek};
use std::sync::Arc;
use weft_proto::{InodeId, Result};

/// [`OpenFile`] for programs that wait: each call is that of the same name, which says what it does
/// and its errors, and may fail with `Disconnected`. Any number of threads may use it.
pub struct File {
    connection: Connection,
    file: Arc<OpenFile>,
}

impl File {
    pub(super) fn new(connection: Connection, file: OpenFile) -> Self {
        Self { connection, file: Arc::new(file) }
    }

    /// The asynchronous face of the same. It is closed when both are gone.
    pub fn open_file(&self) -> Arc<OpenFile> {
        Arc::clone(&self.file)
    }

    /// The connection that it goes through.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// [`OpenFile::ino`].
    pub fn ino(&self) -> InodeId {
        self.file.ino()
    }

    fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.connection.run(call)
    }

    /// [`OpenFile::stat`].
    pub fn stat(&self) -> Result<Attr> {
        self.run(self.file.stat())
    }

    /// [`OpenFile::read`].
    pub fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        self.run(self.file.read(off, len))
    }

    /// [`OpenFile::write`].
    pub fn write(&self, off: u64, data: &[u8]) -> Result<usize> {
        self.run(self.file.write(off, data))
    }

    /// [`OpenFile::truncate`].
    pub fn truncate(&self, size: u64) -> Result<Attr> {
        self.run(self.file.truncate(size))
    }

    /// [`OpenFile::allocate`].
    pub fn allocate(&self, off: u64, len: u64, what: Allocate, keep_size: bool) -> Result<()> {
        self.run(self.file.allocate(off, len, what, keep_size))
    }

    /// [`OpenFile::seek`].
    pub fn seek(&self, off: u64, what: Seek) -> Result<u64> {
        self.run(self.file.seek(off, what))
    }

    /// [`OpenFile::lock`].
    pub fn lock(&self, kind: LockKind, wait: bool) -> Result<()> {
        self.run(self.file.lock(kind, wait))
    }

    /// [`OpenFile::sync`].
    pub fn sync(&self) -> Result<()> {
        self.run(self.file.sync())
    }

    /// [`OpenFile::finish`]: other calls of the same file fail from now on.
    pub fn close(self) -> Result<()> {
        self.run(self.file.finish())
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
