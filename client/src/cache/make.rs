//! Files that are made here, under a lease to write their directory.

use super::leases::Leases;
use super::table::{Held, Mode, Start};
use weft_proto::mode::{SETGID, mode_of_new};
use weft_proto::v1::make_files_op;
use weft_proto::{InodeId, v1};

impl Leases {
    /// Makes a file in a directory, if it may be written, its name is free, and all is known that
    /// the file inherits. The times are set here, so that those of the directory grow. Answers what
    /// an open would.
    pub fn make(&self, file: &mut make_files_op::File) -> Option<v1::OpenReply> {
        let table = &mut *self.table.lock();
        let (parent, ino) = (InodeId(file.parent), InodeId(file.ino));
        let dir = table.inodes.get_mut(&parent).filter(|dir| dir.mode == Mode::Write)?;
        let free = match dir.names.get(&file.name) {
            Some(known) => known.is_none(),
            None => dir.complete,
        };
        let layout = dir.layout.filter(|_| free && self.live())?;
        // A list that is inherited is the group's to make something of.
        let above = dir.attr.as_mut().filter(|dir| dir.nlink > 0 && !dir.acls)?;
        let now = file.made_ns.max(above.ctime_ns.saturating_add(1));
        (above.mtime_ns, above.ctime_ns, file.made_ns) = (now, now, now);
        let attr = v1::Attr {
            ino: file.ino,
            kind: v1::FileKind::Regular.into(),
            mode: mode_of_new(file.mode, file.umask),
            nlink: 1,
            uid: file.uid,
            gid: if above.mode & SETGID != 0 { above.gid } else { file.gid },
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            no_xattrs: true,
            ..Default::default()
        };
        dir.listing = None;
        let fresh = dir.names.insert(file.name.clone(), Some(ino)).is_none();
        table.names += usize::from(fresh);
        table.change(parent);
        self.forget_attr_above(parent);
        let extents = Some(v1::ExtentsReply { attr: Some(attr), ..Default::default() });
        let reply = v1::OpenReply { attr: Some(attr), layout: Some(layout), extents };
        let since = table.epoch;
        let held = Held { locks: true, maps: true, since, ..Held::new(Mode::Write) };
        table.inodes.insert(ino, held);
        table.learn_content(Start(table.epoch), &reply);
        self.shrink(table);
        Some(reply)
    }

    /// A file that was made here could not be made by the group.
    pub fn not_made(&self, file: &make_files_op::File) {
        let table = &mut *self.table.lock();
        table.forget_name(InodeId(file.parent), &file.name);
        table.mark(InodeId(file.ino));
        if table.drop_lease(InodeId(file.ino)).is_some() {
            // Whatever the leader has entered.
            self.release_later(InodeId(file.ino), u64::MAX);
        }
        // It goes on by itself.
        drop(self.forget_above(InodeId(file.parent)));
    }
}
