//! A connection, and what is done by paths. `weft.Filesystem` is built on it.

use crate::args::{self, path as bytes_of};
use crate::batch::{self, Item};
use crate::buffers::Source;
use crate::completions::{Completions, Later, call};
use crate::dirs::{self, Cursor};
use crate::file::opened;
use crate::gpu::{self, Place};
use crate::link::Link;
use crate::settings::Settings;
use crate::value::Value;
use crate::wait::connect;
use pyo3::prelude::*;
use pyo3::types::PyList;
use weft_client::{Caller, SetTime};
use weft_proto::InodeId;

type Object<'py> = PyResult<Bound<'py, PyAny>>;
type Path<'a, 'py> = &'a Bound<'py, PyAny>;

/// A connection to a cluster with the rights of one user. Calls with `later`, a `Completions` and a
/// number, are begun for an event loop.
#[pyclass(frozen, module = "weft._weft")]
pub struct Connection {
    caller: Caller,
    // Dropped last.
    connection: Link,
}

fn time(ns: Option<i64>) -> SetTime {
    ns.map_or(SetTime::Now, SetTime::At)
}

#[pymethods]
impl Connection {
    /// Connects to `HOST:PORT[,HOST:PORT...]`.
    #[new]
    fn new(py: Python<'_>, cluster: &str, settings: Settings) -> PyResult<Self> {
        let options = settings.options(cluster)?;
        let connection = connect(py, options).map_err(|e| e.raise(None))?;
        Ok(Self { caller: settings.user(&connection), connection: Link::new(connection) })
    }

    /// The same connection with paths that begin at a directory, which its inode names: whatever
    /// becomes of the directory's name.
    fn at(&self, ino: u64) -> Self {
        Self { caller: self.caller.at(InodeId(ino)), connection: self.connection.clone() }
    }

    /// Makes all that was written durable, and ends the session. Files fail from now on. A signal
    /// handler that raises something ends the wait, and not what is waited for: the next call waits
    /// for that. Once it is done nothing happens, nor does in a process that was forked.
    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        self.connection.disconnect(py).map_err(|e| e.raise(None))
    }

    /// Whether it has disconnected, and `disconnect` has answered or raised what came of that.
    fn is_disconnected(&self) -> bool {
        self.connection.is_disconnected()
    }

    /// Whether it was made by this process, and not by one that this one was forked from.
    fn is_of_this_process(&self) -> bool {
        self.connection.is_of_this_process()
    }

    /// Whose rights it has: user, group, further groups.
    fn credentials(&self) -> (u32, u32, Vec<u32>) {
        let who = self.caller.credentials();
        (who.uid, who.gid, who.groups.clone())
    }

    /// What an event loop begins calls with.
    fn completions(&self) -> PyResult<Completions> {
        Completions::of(&self.connection)
    }

    /// Opens a file, by the flags of `os.open`.
    #[pyo3(signature = (path, flags, mode=0o666, later=None))]
    fn open<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        flags: i32,
        mode: u32,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let (flags, create) = args::flags(flags);
        let open = async move {
            let file = match create {
                true => caller.create(&at, mode, flags).await,
                false => caller.open(&at, flags).await,
            };
            file.map(opened)
        };
        call(py, &self.connection, Some(path), later, open)
    }

    /// Reads many files, or pieces of files: into new bytes, or into a buffer for each.
    #[pyo3(signature = (items, buffers=None))]
    fn read_batch<'py>(
        &self,
        py: Python<'py>,
        items: Vec<Item<'py>>,
        buffers: Option<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyList>> {
        match buffers {
            Some(into) => batch::into(py, &self.connection, &self.caller, &items, &into),
            None => batch::to_new(py, &self.connection, &self.caller, &items),
        }
    }

    /// Reads many files, or pieces of files, into memory of GPUs.
    fn read_batch_gpu<'py>(
        &self,
        py: Python<'py>,
        items: Vec<Item<'py>>,
        places: Vec<Place>,
    ) -> PyResult<Bound<'py, PyList>> {
        gpu::read_many(py, &self.connection, &self.caller, &items, places)
    }

    /// The same for an event loop, which is given a `Data` or an `OSError` for each.
    fn begin_read_batch<'py>(
        &self,
        py: Python<'py>,
        items: Vec<Item<'py>>,
        later: Later<'py>,
    ) -> Object<'py> {
        let (caller, items) = (self.caller.clone(), batch::items(&items)?);
        let read = batch::begun(caller, items);
        call(py, &self.connection, None, Some(later), read)
    }

    /// An `os.stat_result`.
    #[pyo3(signature = (path, follow=true, later=None))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        follow: bool,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let stat = async move {
            let found = if follow { caller.stat(&at).await } else { caller.lstat(&at).await };
            found.map(Value::Attr)
        };
        call(py, &self.connection, Some(path), later, stat)
    }

    /// Up to `limit` names, the cursor to go on with (at first `None`), and whether that is all.
    /// The path of a listing that goes on is for errors only.
    #[pyo3(signature = (path, cursor, limit, attrs, later=None))]
    fn read_dir<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        cursor: Option<Cursor>,
        limit: u32,
        attrs: bool,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let fs = self.connection.filesystem().clone();
        let read = async move {
            dirs::page(&fs, &caller, &at, cursor, limit, attrs).await.map(Value::Page)
        };
        call(py, &self.connection, Some(path), later, read)
    }

    #[pyo3(signature = (path, mode, later=None))]
    fn mkdir<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        mode: u32,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let make = async move { caller.mkdir(&at, mode).await.map(Value::Attr) };
        call(py, &self.connection, Some(path), later, make)
    }

    #[pyo3(signature = (path, later=None))]
    fn unlink<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let remove = async move { caller.unlink(&at).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(path), later, remove)
    }

    #[pyo3(signature = (path, later=None))]
    fn rmdir<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let remove = async move { caller.rmdir(&at).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(path), later, remove)
    }

    /// Moves a name, by the flags of `renameat2(2)`.
    #[pyo3(signature = (source, target, flags=0, later=None))]
    fn rename<'py>(
        &self,
        py: Python<'py>,
        source: Path<'_, 'py>,
        target: Path<'_, 'py>,
        flags: u32,
        later: Option<Later<'py>>,
    ) -> Object<'py> {
        let (caller, from, to) = (self.caller.clone(), bytes_of(source)?, bytes_of(target)?);
        let rename = async move { caller.rename(&from, &to, flags).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(source), later, rename)
    }

    fn link<'py>(
        &self,
        py: Python<'py>,
        source: Path<'_, 'py>,
        target: Path<'_, 'py>,
    ) -> Object<'py> {
        let (caller, from, to) = (self.caller.clone(), bytes_of(source)?, bytes_of(target)?);
        let link = async move { caller.link(&from, &to).await.map(Value::Attr) };
        call(py, &self.connection, Some(source), None, link)
    }

    fn symlink<'py>(
        &self,
        py: Python<'py>,
        target: Path<'_, 'py>,
        path: Path<'_, 'py>,
    ) -> Object<'py> {
        let (caller, to, at) = (self.caller.clone(), bytes_of(target)?, bytes_of(path)?);
        let link = async move { caller.symlink(&to, &at).await.map(Value::Attr) };
        call(py, &self.connection, Some(path), None, link)
    }

    fn readlink<'py>(&self, py: Python<'py>, path: Path<'_, 'py>) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let read = async move { caller.readlink(&at).await.map(Value::Name) };
        call(py, &self.connection, Some(path), None, read)
    }

    fn chmod<'py>(&self, py: Python<'py>, path: Path<'_, 'py>, mode: u32) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let change = async move { caller.chmod(&at, mode).await.map(Value::Attr) };
        call(py, &self.connection, Some(path), None, change)
    }

    /// `None` stays.
    fn chown<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        owner: (Option<u32>, Option<u32>),
        follow: bool,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let change = async move {
            let changed = match follow {
                true => caller.chown(&at, owner.0, owner.1).await,
                false => caller.lchown(&at, owner.0, owner.1).await,
            };
            changed.map(Value::Attr)
        };
        call(py, &self.connection, Some(path), None, change)
    }

    /// Nanoseconds since 1970; `None`: now.
    fn utime<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        times: (Option<i64>, Option<i64>),
        follow: bool,
    ) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let (atime, mtime) = (Some(time(times.0)), Some(time(times.1)));
        let change = async move {
            let changed = match follow {
                true => caller.utimes(&at, atime, mtime).await,
                false => caller.lutimes(&at, atime, mtime).await,
            };
            changed.map(Value::Attr)
        };
        call(py, &self.connection, Some(path), None, change)
    }

    fn truncate<'py>(&self, py: Python<'py>, path: Path<'_, 'py>, size: u64) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let cut = async move { caller.truncate(&at, size).await.map(Value::Attr) };
        call(py, &self.connection, Some(path), None, cut)
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        name: Path<'_, 'py>,
    ) -> Object<'py> {
        let (caller, at, name) = (self.caller.clone(), bytes_of(path)?, bytes_of(name)?);
        let get = async move { caller.get_xattr(&at, &name).await.map(Value::Bytes) };
        call(py, &self.connection, Some(path), None, get)
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: Path<'_, 'py>) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let list = async move { caller.list_xattr(&at).await.map(Value::Names) };
        call(py, &self.connection, Some(path), None, list)
    }

    fn setxattr<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        name: Path<'_, 'py>,
        value: &Bound<'py, PyAny>,
        flags: u32,
    ) -> Object<'py> {
        let (caller, at, name) = (self.caller.clone(), bytes_of(path)?, bytes_of(name)?);
        let value = Source::of(value)?.bytes().to_vec();
        let set =
            async move { caller.set_xattr(&at, &name, &value, flags).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(path), None, set)
    }

    fn removexattr<'py>(
        &self,
        py: Python<'py>,
        path: Path<'_, 'py>,
        name: Path<'_, 'py>,
    ) -> Object<'py> {
        let (caller, at, name) = (self.caller.clone(), bytes_of(path)?, bytes_of(name)?);
        let remove = async move { caller.remove_xattr(&at, &name).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(path), None, remove)
    }

    /// An `os.statvfs_result`.
    fn statvfs<'py>(&self, py: Python<'py>) -> Object<'py> {
        let fs = self.connection.filesystem().clone();
        call(py, &self.connection, None, None, async move { fs.stat_fs().await.map(Value::Room) })
    }

    /// All that was done through this connection is durable and visible to all.
    #[pyo3(signature = (later=None))]
    fn sync<'py>(&self, py: Python<'py>, later: Option<Later<'py>>) -> Object<'py> {
        let fs = self.connection.filesystem().clone();
        let sync = async move { fs.sync().await.map(|()| Value::Done) };
        call(py, &self.connection, None, later, sync)
    }

    /// What `os.fsync` of a directory does.
    fn sync_dir<'py>(&self, py: Python<'py>, path: Path<'_, 'py>) -> Object<'py> {
        let (caller, at) = (self.caller.clone(), bytes_of(path)?);
        let sync = async move { caller.sync_dir(&at).await.map(|()| Value::Done) };
        call(py, &self.connection, Some(path), None, sync)
    }
}
