//! Lists directories.

use crate::at::at;
use crate::connect::weft_fs;
use crate::error::{Answer, Failure, call_int, call_unit, failed, of_this_process};
use crate::pointers::{object, out};
use libc::{c_char, c_int, c_uchar};
use std::collections::VecDeque;
use weft_client::blocking::User;
use weft_client::sync::Mutex;
use weft_client::{DirEntry, HandleId};
use weft_proto::InodeId;

/// Names that are asked for at once.
const PAGE: u32 = 1024;
/// Bytes of a name in an entry, with its NUL; `cbindgen` knows numbers only.
const NAME: usize = 256;
/// Where `.` is, and `..`; the names of the directory come after.
const DOTS: [u64; 2] = [1, 2];

/// A directory that is being listed. Threads that share it get each entry once.
#[allow(non_camel_case_types)]
pub struct weft_dir {
    user: User,
    ino: InodeId,
    handle: HandleId,
    place: Mutex<Place>,
}

/// How far a listing got.
#[derive(Default)]
struct Place {
    /// That of the last entry that was given; 0: none yet.
    off: u64,
    /// What comes next.
    ready: VecDeque<DirEntry>,
    /// Nothing comes after these.
    end: bool,
    /// The directory that this one is in, once that is known.
    parent: Option<InodeId>,
}

/// One name in a directory.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct weft_dirent {
    /// The inode that it leads to.
    pub ino: u64,
    /// Where it is: weft_seekdir goes on after it.
    pub off: u64,
    /// DT_REG, DT_DIR, DT_LNK, DT_FIFO, DT_SOCK, DT_CHR or DT_BLK of dirent.h.
    pub r#type: c_uchar,
    /// The name, with a NUL at its end.
    pub name: [c_char; 256],
}

/// Opens a directory to list it. Until weft_closedir it outlives its removal, as an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_opendir(
    fs: *mut weft_fs,
    path: *const c_char,
    dir: *mut *mut weft_dir,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_opendir", || unsafe {
        let dir = out(dir)?;
        at(fs, path, |user, path| {
            // Looked at and opened as one inode: the path may lead elsewhere by then.
            let attr = user.find_dir(path)?;
            let connection = user.connection();
            let handle = connection.run(connection.filesystem().open_dir(attr.ino))?;
            let place = Mutex::default();
            let opened = weft_dir { user: user.clone(), ino: attr.ino, handle, place };
            *dir = Box::into_raw(Box::new(opened));
            Ok(())
        })
    })
}

/// Answers 1 and the next name, "." and ".." among them, or 0 when there is no more. Names that are
/// made or taken away meanwhile may be given or not; all others are, each once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_readdir(dir: *mut weft_dir, entry: *mut weft_dirent) -> c_int {
    call_int("weft_readdir", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (dir, entry) = unsafe { (object(dir)?, out(entry)?) };
        // Before the lock.
        of_this_process(dir.user.connection())?;
        match dir.next()? {
            None => Ok(0),
            Some((ino, off, kind, name)) => {
                write(entry, ino, off, kind, &name)?;
                Ok(1)
            }
        }
    })
}

/// The next entry comes after that which had this off; 0: from the start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_seekdir(dir: *mut weft_dir, off: u64) -> c_int {
    call_unit("weft_seekdir", || {
        // SAFETY: the caller's pointer, see `crate`.
        let dir = unsafe { object(dir)? };
        of_this_process(dir.user.connection())?;
        *dir.place.lock() = Place { off, ..Default::default() };
        Ok(())
    })
}

/// Ends the listing and frees dir, whatever it answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_closedir(dir: *mut weft_dir) -> c_int {
    call_unit("weft_closedir", || {
        // SAFETY: the caller's pointer, see `crate`.
        unsafe { object(dir)? };
        // SAFETY: it was made by `weft_opendir`, and is not used any more.
        let dir = unsafe { Box::from_raw(dir) };
        let connection = dir.user.connection();
        of_this_process(connection)?;
        Ok(connection.run(connection.filesystem().release(dir.handle))?)
    })
}

type Given = (InodeId, u64, libc::mode_t, Vec<u8>);

impl weft_dir {
    fn next(&self) -> Answer<Option<Given>> {
        let mut place = self.place.lock();
        let [dot, dot_dot] = DOTS;
        if place.off < dot {
            place.off = dot;
            return Ok(Some((self.ino, dot, libc::S_IFDIR, b".".to_vec())));
        }
        if place.off < dot_dot {
            if place.parent.is_none() {
                self.fetch(&mut place)?;
            }
            place.off = dot_dot;
            let parent = place.parent.unwrap_or(self.ino);
            return Ok(Some((parent, dot_dot, libc::S_IFDIR, b"..".to_vec())));
        }
        while place.ready.is_empty() && !place.end {
            self.fetch(&mut place)?;
        }
        Ok(place.ready.pop_front().map(|entry| {
            place.off = entry.cookie;
            (entry.ino, entry.cookie, entry.kind.type_bits(), entry.name.to_vec())
        }))
    }

    /// Gets what comes after the last entry that was given or is ready. Names that were made since
    /// the directory was last read from the start are left out.
    fn fetch(&self, place: &mut Place) -> Answer<()> {
        let last = place.ready.back().map_or(place.off, |entry| entry.cookie);
        let after = if last <= DOTS[1] { 0 } else { last };
        let connection = self.user.connection();
        let page = connection
            .run(connection.filesystem().read_open_dir(self.handle, after, PAGE))
            .map_err(|e| Failure::from(e).at(&format!("inode {}", self.ino)))?;
        place.ready.extend(page.entries);
        (place.end, place.parent) = (page.end, Some(page.parent));
        Ok(())
    }
}

fn write(
    entry: &mut weft_dirent,
    ino: InodeId,
    off: u64,
    kind: libc::mode_t,
    name: &[u8],
) -> Answer<()> {
    if name.len() >= NAME {
        return failed(libc::EOVERFLOW, format!("a name has {} bytes", name.len()));
    }
    let mut text = [0; NAME];
    text.iter_mut().zip(name).for_each(|(to, from)| *to = *from as c_char);
    // IFTODT of dirent.h.
    *entry = weft_dirent { ino: ino.0, off, r#type: (kind >> 12) as c_uchar, name: text };
    Ok(())
}
