//! Open files and directories, from one process that serves a mount to the next.
//!
//! Invariants: nothing that was written is kept back; a failure is told once to each handle, by
//! whichever process (I8); what the kernel has cached of an open file is taken back with its lease,
//! as what was cached before the file was opened.

use super::handle::Handle;
use super::inode::File;
use super::lease::attr_and_layout;
use super::table::Files;
use crate::types::{HandleId, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_proto::{InodeId, Result, v1};

impl Files {
    /// How many handles are open, of files and directories.
    pub fn handles_open(&self) -> usize {
        self.handles.read().len() + self.directories.len()
    }

    /// All that is open, if everything that was written is committed, or given up, and nothing is
    /// in doubt; else the inode of which that is not so.
    pub fn at_rest(&self) -> Result<(Vec<v1::OpenFile>, Vec<v1::OpenDirectory>), InodeId> {
        let mut files: Vec<_> =
            self.all().iter().map(|file| self.file_at_rest(file)).collect::<Result<_, _>>()?;
        let place = |ino| files.binary_search_by_key(&ino, |file| InodeId(of(file)));
        let handles = self.handles.read();
        let placed = handles.iter().map(|(id, handle)| {
            place(handle.file.ino)
                .map(|at| (at, handle.hand_over(*id)))
                .map_err(|_| handle.file.ino)
        });
        for (at, handle) in placed.collect::<Result<Vec<_>, _>>()? {
            files[at].handles.push(handle);
        }
        Ok((files, self.directories.hand_over()))
    }

    fn file_at_rest(&self, file: &File) -> Result<v1::OpenFile, InodeId> {
        if file.is_dirty() || file.above.is_lost() || !file.above.is_open() {
            return Err(file.ino);
        }
        let state = file.state.lock();
        let mut of = v1::OpenFile {
            attr: Some(state.attr.into()),
            layout: Some(state.layout.into()),
            may_map: self.context.opens.is_entitled(file.ino),
            ..v1::OpenFile::default()
        };
        file.hand_losses_over(&state, &mut of);
        Ok(of)
    }

    /// Takes [`Self::at_rest`] over. Errors: `Protocol` if it makes no sense.
    pub fn adopt(
        &self,
        files: Vec<v1::OpenFile>,
        directories: Vec<v1::OpenDirectory>,
    ) -> Result<()> {
        let opens = &self.context.opens;
        for of in files {
            let v1::OpenFile { attr, layout, may_map, .. } = of;
            let reply = v1::OpenReply { attr, layout, ..v1::OpenReply::default() };
            let (attr, layout) = attr_and_layout(&reply)?;
            let file = Arc::new(File::new(self.context.clone(), attr, layout));
            file.adopt_losses(&of);
            for handle in &of.handles {
                opens.adopt(attr.ino, handle.maps);
                let id = HandleId(handle.number);
                let handle = Handle::adopted(file.clone(), handle);
                self.handles.write().insert(id, Arc::new(handle));
            }
            if may_map {
                opens.entitle(attr.ino);
            }
            self.adopt_file(file, of.handles.len());
        }
        for v1::OpenDirectory { number, ino, end } in directories {
            opens.adopt(InodeId(ino), false);
            self.directories.insert(HandleId(number), InodeId(ino), end);
        }
        Ok(())
    }
}

fn of(file: &v1::OpenFile) -> u64 {
    file.attr.map_or(0, |attr| attr.ino)
}

impl Handle {
    fn hand_over(&self, id: HandleId) -> v1::OpenHandle {
        v1::OpenHandle {
            number: id.0,
            append: self.append,
            sync: self.sync,
            no_atime: self.no_atime,
            writes: self.may_write(),
            maps: self.maps.load(Ordering::Relaxed),
            closing: self.closing.load(Ordering::Relaxed),
            told: self.was_told(),
        }
    }

    fn adopted(file: Arc<File>, of: &v1::OpenHandle) -> Self {
        let flags = OpenFlags {
            append: of.append,
            sync: of.sync,
            no_atime: of.no_atime,
            write: of.writes,
            ..OpenFlags::default()
        };
        // Nothing is known of what the kernel has cached: the next open does not rely on it.
        let handle = Self::new(file, flags, Arc::default());
        handle.maps.store(of.maps, Ordering::Relaxed);
        handle.closing.store(of.closing, Ordering::Relaxed);
        if !of.told {
            handle.forget_told();
        }
        handle
    }
}
