//! Attributes, directories and room, as `os` shows them.

use crate::args;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};
use weft_client::{Attr, DirPage, StatFs};

/// Good size of one read or write, bytes.
const BLOCK_SIZE: u64 = 1 << 20;
/// Unit of `os.statvfs`.
const FRAGMENT: u64 = 4096;

fn class<'py>(
    py: Python<'py>,
    once: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let made = once.get_or_try_init(py, || py.import("os")?.getattr(name).map(Bound::unbind))?;
    Ok(made.bind(py).clone())
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// An `os.stat_result`; its `st_dev` is 0.
pub fn stat<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let whole = |ns: i64| ns.div_euclid(1_000_000_000);
    let mode = attr.kind.type_bits() | attr.mode;
    let (atime, mtime, ctime) = (attr.atime_ns, attr.mtime_ns, attr.ctime_ns);
    let first = (mode, attr.ino.0, 0, attr.nlink, attr.uid, attr.gid, attr.size);
    let times = (whole(atime), whole(mtime), whole(ctime));
    let fields = first.into_pyobject(py)?.add(times.into_pyobject(py)?)?;
    let named = PyDict::new(py);
    for (name, ns) in [("st_atime", atime), ("st_mtime", mtime), ("st_ctime", ctime)] {
        named.set_item(name, seconds(ns))?;
        named.set_item(format!("{name}_ns"), ns)?;
    }
    named.set_item("st_blksize", BLOCK_SIZE)?;
    named.set_item("st_blocks", attr.blocks)?;
    named.set_item("st_rdev", attr.rdev)?;
    class(py, &CLASS, "stat_result")?.call1((fields, named))
}

/// Names of a directory with inode numbers, type bits and attributes.
pub fn entries<'py>(py: Python<'py>, page: &DirPage) -> PyResult<Bound<'py, PyList>> {
    let entries = PyList::empty(py);
    for entry in &page.entries {
        let attr = entry.attr.as_ref().map(|attr| stat(py, attr)).transpose()?;
        let name = args::name(py, &entry.name)?;
        entries.append((name, entry.ino.0, entry.kind.type_bits(), attr))?;
    }
    Ok(entries)
}

/// An `os.statvfs_result`. The filesystem has no highest number of inodes: as many are free as
/// there are.
pub fn stat_fs<'py>(py: Python<'py>, room: &StatFs) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let blocks = |bytes: u64| bytes / FRAGMENT;
    let bytes = [room.capacity_bytes, room.free_bytes, room.available_bytes].map(blocks);
    let (files, flags, longest) = (room.inodes.saturating_mul(2), 0, 255);
    let fields = [
        BLOCK_SIZE,
        FRAGMENT,
        bytes[0],
        bytes[1],
        bytes[2],
        files,
        room.inodes,
        room.inodes,
        flags,
        longest,
    ];
    class(py, &CLASS, "statvfs_result")?.call1((PyTuple::new(py, fields)?,))
}
