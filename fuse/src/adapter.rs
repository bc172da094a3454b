//! One arm a FUSE request: call the client, turn its answer into a reply.
//!
//! Not here, on purpose: `access` (the kernel checks permissions itself): "no such call" is
//! answered once and the kernel does not ask again.

use crate::abi::{Errno, Header, Op, Reply, Request};
use crate::dcache::{Dcache, Elsewhere};
use crate::handler::{Handler, Outcome};
use crate::root::Root;
use crate::set_ids::{self, Caller};
use crate::writes::{Write, Writes};
use crate::{attr, reply, unwanted};
use bytes::Bytes;
use std::sync::Arc;
use weft_client::{Creator, FileKind, Filesystem, HandleId, OpenFlags, Seek, Writing};
use weft_proto::{ErrorKind, InodeId};

/// Entries to fetch at once; a reply of the kernel's usual 32 KiB holds about as many.
const DIR_PAGE: u32 = 512;
/// Attributes that are neither kept nor looked for. File capabilities are refused, which older
/// kernels ask for before every write. There are no labels, which `ls -l` asks for of every name.
const REFUSED: [&[u8]; 2] = [b"security.capability", b"security.selinux"];

/// How often a file is made that others make and remove all the while, before the kernel is told.
const CREATES: usize = 16;
/// Most bytes that the older form of a copy can say it has copied, in whole pages.
const COPY_32: u64 = 0xffff_f000;

/// Answers with what a client's operations answer.
pub struct Adapter {
    fs: Filesystem,
    dcache: Dcache,
    root: Root,
    writes: Arc<Writes>,
    /// Shared with whoever closes what nobody wanted.
    closing: Arc<()>,
}

impl Adapter {
    /// One that gives the kernel no time to live.
    pub fn new(fs: Filesystem) -> Self {
        let dcache = Dcache::new(Root::new(fs.root()));
        Self::giving(fs, dcache)
    }

    /// `dcache`: what the kernel is given of the mount.
    pub(crate) fn giving(fs: Filesystem, dcache: Dcache) -> Self {
        let root = Root::new(fs.root());
        let writes = Writes::new(fs.clone());
        Self { fs, dcache, root, writes, closing: Arc::default() }
    }

    /// What the client knows an inode by, and whoever asks.
    fn ours(&self, header: &Header) -> Header {
        let mut ours = *header;
        ours.node = self.root.swap(header.node);
        (ours.uid, ours.gid) = (self.fs.squashed(header.uid), self.fs.squashed(header.gid));
        ours
    }
}

fn done(reply: Reply) -> Outcome {
    Outcome::Done(Ok(reply))
}

fn refuse(errno: i32) -> Outcome {
    Outcome::Done(Err(Errno(errno)))
}

/// Names and values outlive the buffer that they came in.
fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn permissions(mode: u32) -> u32 {
    mode & 0o7777
}

impl Handler for Adapter {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        let header = self.ours(&request.header);
        let (fs, dcache, thread) = (self.fs.clone(), self.dcache.clone(), header.pid);
        dcache.heard(&header);
        let node = header.node;
        let ino = InodeId(node);
        let by = |umask| Creator { uid: header.uid, gid: header.gid, umask };
        match request.op {
            Op::Lookup { name } => {
                let name = own(name);
                Outcome::working(async move {
                    let found = fs.lookup(ino, &name).await;
                    dcache.looked_up(&fs, ino, name, thread, found)
                })
            }
            Op::GetAttr => {
                dcache.asks(thread, ino);
                Outcome::working(async move { reply::attr(dcache.attr(&fs, ino, thread).await) })
            }
            Op::StatX => {
                dcache.asks(thread, ino);
                Outcome::working(async move { reply::statx(dcache.attr(&fs, ino, thread).await) })
            }
            Op::SetAttr(change) => {
                let (caller, writes) = (Caller::of(&header), self.writes.clone());
                let handle = change.size.and(change.fh).map(HandleId);
                let undoes = handle.is_some_and(|handle| writes.may_undo(handle, thread));
                Outcome::writing(|waiter| async move {
                    let mut only = None;
                    if undoes && let Some((handle, size)) = handle.zip(change.size) {
                        match writes.undo(ino, (handle, thread), size).await {
                            Ok(while_alone) => only = while_alone.map(|alone| (handle, alone)),
                            Err(answer) => return answer,
                        }
                    }
                    let of = fs.clone();
                    let is_alone = move |(handle, alone)| {
                        of.size_alone(handle).is_some_and(|(now, _)| now == alone)
                    };
                    let permitted = move || waiter.waits() && only.is_none_or(&is_alone);
                    let changed = set_ids::set_attr(&fs, ino, change, caller, permitted).await;
                    reply::attr(changed.map(reply::asked_again))
                })
            }
            Op::ReadLink => Outcome::working(async move { reply::data(fs.read_link(ino).await) }),
            Op::SymLink { name, target } => {
                let (name, target, by) = (own(name), own(target), by(0));
                Outcome::working(async move {
                    let made = fs.sym_link(ino, &name, &target, by).await;
                    dcache.made(&fs, ino, name, thread, made)
                })
            }
            Op::MkNod { name, mode, rdev, umask } => {
                let (name, rdev, by) = (own(name), rdev.into(), by(umask));
                let Some(kind) = FileKind::from_mode(mode) else { return refuse(libc::EINVAL) };
                let mode = permissions(mode);
                Outcome::working(async move {
                    let made = fs.mk_nod(ino, &name, kind, mode, rdev, by).await;
                    dcache.made(&fs, ino, name, thread, made)
                })
            }
            Op::MkDir { name, mode, umask } => {
                let (name, mode, by) = (own(name), permissions(mode), by(umask));
                Outcome::working(async move {
                    let made = fs.mk_dir(ino, &name, mode, by).await;
                    dcache.made(&fs, ino, name, thread, made)
                })
            }
            Op::Unlink { name } => {
                let name = own(name);
                Outcome::working(async move { reply::empty(fs.unlink(ino, &name).await) })
            }
            Op::RmDir { name } => {
                let name = own(name);
                Outcome::working(async move { reply::empty(fs.rm_dir(ino, &name).await) })
            }
            // The device that a whiteout is would be root's.
            Op::Rename { flags, .. } if flags & libc::RENAME_WHITEOUT != 0 && header.uid != 0 => {
                refuse(libc::EPERM)
            }
            Op::Rename { name, new_parent, new_name, flags } => {
                let to = InodeId(self.root.swap(new_parent));
                let (name, new_name) = (own(name), own(new_name));
                Outcome::working(async move {
                    let moving = dcache.moves();
                    let moved = fs.rename(ino, &name, to, &new_name, flags).await;
                    let exchanged = flags & libc::RENAME_EXCHANGE != 0;
                    if moved.is_ok() {
                        dcache.moved(&fs, (ino, name), (to, new_name), exchanged, moving).await;
                    }
                    reply::empty(moved)
                })
            }
            Op::Link { node, name } => {
                let (name, node) = (own(name), InodeId(self.root.swap(node)));
                Outcome::working(async move {
                    let made = fs.link(node, ino, &name).await;
                    dcache.made(&fs, ino, name, thread, made)
                })
            }
            Op::Open { flags } => {
                let wanted = OpenFlags::from_bits(flags as i32);
                Outcome::working(async move {
                    let opened = fs.open(ino, wanted).await;
                    opened.iter().for_each(|_| dcache.told(thread, ino));
                    reply::opened(opened)
                })
            }
            Op::Create { name, mode, umask, flags } => {
                let (name, mode, by) = (own(name), permissions(mode), by(umask));
                let wanted = OpenFlags::from_bits(flags as i32);
                Outcome::working(async move {
                    // The kernel takes what this opens for new, and checks no permissions.
                    let new = OpenFlags { exclusive: true, ..wanted };
                    for _ in 0..CREATES {
                        let made = fs.create(ino, &name, mode, by, new).await;
                        let is_there = made.as_ref().is_err_and(|e| e.kind == ErrorKind::Exists);
                        if !is_there || wanted.exclusive {
                            return reply::created(made, |attr| {
                                dcache.new_entry(&fs, ino, name, thread, attr)
                            });
                        }
                        let (of, by) = ((ino, &name), (thread, header.uid));
                        match dcache.open_new_elsewhere(&fs, of, by, flags as i32).await {
                            Elsewhere::Opened(there) => {
                                let (opened, entry) = *there;
                                return reply::created(Ok(opened), |_| entry);
                            }
                            Elsewhere::Gone => {}
                            Elsewhere::MayNot => break,
                        }
                    }
                    Err(Errno(libc::ESTALE))
                })
            }
            Op::TmpFile { mode, umask, flags } => {
                let (mode, by) = (permissions(mode), by(umask));
                let wanted = OpenFlags::from_bits(flags as i32);
                Outcome::working(async move {
                    let opened = fs.tmp_file(ino, mode, by, wanted).await;
                    reply::created(opened, |attr| dcache.unnamed(thread, attr))
                })
            }
            Op::SyncFs => Outcome::working(async move { reply::empty(fs.sync().await) }),
            Op::Read { fh, offset, size, direct } => {
                let (fh, len, via) = (HandleId(fh), size as usize, attr::via(direct, false));
                Outcome::working(
                    async move { reply::content(fs.read_via(fh, offset, len, via).await) },
                )
            }
            Op::Write { fh, offset, data, direct, write_back, drop_set_ids, append, sync } => {
                let drop_first = drop_set_ids && set_ids::may_be_there(&fs, ino);
                let via = attr::via(direct, write_back);
                let how = Writing { via, append: Some(append), sync };
                let write = Write { ino, handle: HandleId(fh), offset, how, thread };
                if !drop_first && let Some(written) = self.writes.write_now(&write, data) {
                    return Outcome::Done(reply::written(written));
                }
                let (caller, writes) = (Caller::of(&header), self.writes.clone());
                let (data, room) = writes.copy(&write, data);
                Outcome::writing(|waiter| async move {
                    let before = async {
                        room?;
                        match drop_first {
                            true => set_ids::drop(&fs, ino, caller).await,
                            false => Ok(()),
                        }
                    };
                    reply::written(writes.write(&write, &data, before, &waiter).await)
                })
            }
            Op::Flush { fh, lock_owner } => match fs.close_now(HandleId(fh), lock_owner) {
                Some(closed) => Outcome::Done(reply::empty(closed)),
                None => Outcome::working(async move {
                    reply::empty(fs.close(HandleId(fh), lock_owner).await)
                }),
            },
            Op::GetLk(lock) | Op::SetLk(lock) | Op::SetLkW(lock) => {
                let (fh, lock) = (HandleId(lock.fh), attr::lock_to_client(&lock));
                let Some(lock) = lock else { return refuse(libc::EINVAL) };
                match request.op {
                    Op::GetLk(_) => {
                        Outcome::working(async move { reply::lock(fs.get_lock(fh, lock).await) })
                    }
                    Op::SetLk(_) => Outcome::waiting(|caller| async move {
                        reply::empty(fs.set_lock_while(fh, lock, move || caller.waits()).await)
                    }),
                    _ => Outcome::waiting(|caller| async move {
                        let (heard, waits) = (caller.clone(), move || caller.waits());
                        let locked = fs.wait_lock_while(fh, lock, heard.notified(), waits).await;
                        reply::empty(locked)
                    }),
                }
            }
            Op::Fsync { fh, data_only } => {
                Outcome::working(
                    async move { reply::empty(fs.fsync(HandleId(fh), data_only).await) },
                )
            }
            Op::Release { fh, .. } | Op::ReleaseDir { fh } => {
                self.writes.released(ino, HandleId(fh));
                Outcome::working(async move { reply::empty(fs.release(HandleId(fh)).await) })
            }
            Op::Fallocate { fh, offset, len, mode } => {
                let Some((what, keep_size)) = attr::allocation(mode) else {
                    return refuse(libc::EOPNOTSUPP);
                };
                Outcome::working(async move {
                    let done = fs.fallocate(HandleId(fh), offset, len, what, keep_size).await;
                    reply::empty(done)
                })
            }
            Op::Lseek { fh, offset, whence } => {
                let what = match whence as i32 {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return refuse(libc::EINVAL),
                };
                Outcome::working(
                    async move { reply::offset(fs.seek(HandleId(fh), offset, what).await) },
                )
            }
            Op::CopyFileRange { flags, .. } if flags != 0 => refuse(libc::EINVAL),
            Op::CopyFileRange { fh, offset, to_fh, to_offset, len, wide, .. } => {
                let len = if wide { len } else { len.min(COPY_32) };
                let (from, to) = (HandleId(fh), HandleId(to_fh));
                Outcome::working(async move {
                    let copied = fs.copy_range(from, offset, to, to_offset, len).await;
                    reply::copied(copied, wide)
                })
            }
            Op::OpenDir => {
                Outcome::working(async move { reply::opened_dir(fs.open_dir(ino).await) })
            }
            Op::FsyncDir => Outcome::working(async move { reply::empty(fs.sync_dir(ino).await) }),
            Op::ReadDir { fh, after, size } => Outcome::working(async move {
                // The names of ours come first: cookies 1 and 2.
                let page = fs.read_open_dir(HandleId(fh), after, DIR_PAGE).await;
                reply::directory(page, node, after, size)
            }),
            Op::StatFs => Outcome::working(async move { reply::statfs(fs.stat_fs_at(ino).await) }),
            Op::SetXattr { name, .. } if REFUSED.contains(&name) => refuse(libc::EOPNOTSUPP),
            Op::SetXattr { name, value, flags, clear_setgid } => {
                let (name, value) = (own(name), own(value));
                Outcome::working(async move {
                    reply::empty(fs.set_xattr(ino, &name, &value, flags, clear_setgid).await)
                })
            }
            Op::GetXattr { name, .. } if REFUSED.contains(&name) => refuse(libc::ENODATA),
            Op::GetXattr { name, size } => {
                let name = own(name);
                Outcome::working(async move {
                    dcache.asked_xattr(ino, &name);
                    let value = fs.get_xattr(ino, &name).await;
                    dcache.asked_xattr(ino, &name);
                    reply::xattr(value, size)
                })
            }
            Op::ListXattr { size } => {
                let is_root = header.uid == 0;
                Outcome::working(async move {
                    let names = fs.list_xattr(ino).await;
                    reply::xattr_names(names.map(|names| reply::shown(names, is_root)), size)
                })
            }
            Op::RemoveXattr { name } => {
                let name = own(name);
                Outcome::working(async move { reply::empty(fs.remove_xattr(ino, &name).await) })
            }
            Op::Destroy => done(Reply::Empty),
            _ => refuse(libc::ENOSYS),
        }
    }

    fn unwanted(&self, header: &Header, reply: &Reply) {
        let header = self.ours(header);
        unwanted::undo(&self.fs, &self.dcache, &self.closing, &header, reply);
    }

    fn root(&self) -> Root {
        self.root
    }

    fn forgotten(&self, ino: u64, answers: u64) {
        let ino = self.root.swap(ino);
        if self.dcache.forgotten(ino, answers) {
            self.fs.forgotten(InodeId(ino));
        }
    }

    fn rests(&self) -> bool {
        Arc::strong_count(&self.closing) == 1
    }
}
