//! Folders that clients change in turns, each under a lock that holds on all mounts. So there is
//! one order of all that is done there, and everybody can say what must be there.
//!
//! Who is told of an error, or loses its session, does not know what became of its changes: then
//! the folder is given up, and the next one takes its place. What was found wrong in it meanwhile
//! proves nothing, since its lock may have been another's.

use super::calls::{shared, until};
use super::folders::{File, Folder, Place, TURNS, differ, put};
use super::history::Shared;
use rand::{Rng, RngCore, rngs::SmallRng};
use weft_client::{Attr, Creator, Filesystem, HandleId, Lock, LockKind, OpenFlags, SetAttr};
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Longest file.
const LONGEST: usize = 40_000;
/// Most changes in one turn.
const CHANGES: usize = 3;

/// What one client has open of them.
pub struct Turns {
    owner: u64,
    history: Shared,
    locks: Vec<HandleId>,
    /// A file that stays open, also without a name.
    kept: Option<Kept>,
}

struct Kept {
    place: Place,
    handle: HandleId,
    ino: InodeId,
    session: SessionId,
}

impl Turns {
    pub async fn open(fs: &Filesystem, owner: u64, history: Shared) -> Self {
        let mut locks = Vec::new();
        for turn in 0..TURNS {
            locks.push(shared(fs, &lock_name(turn)).await.handle);
        }
        Self { owner, history, locks, kept: None }
    }

    fn lock(&self, kind: LockKind) -> Lock {
        Lock { flock: false, owner: self.owner, kind, start: 0, end: 0, pid: 1 }
    }

    /// A turn, if the lock is free.
    pub async fn take(&mut self, fs: &Filesystem, random: &mut SmallRng) {
        let turn = random.random_range(0..TURNS);
        let session = fs.session();
        match fs.set_lock(self.locks[turn], self.lock(LockKind::Write)).await {
            Ok(()) => {}
            Err(e) if e.kind == ErrorKind::WouldBlock => return,
            // It may have been taken: whatever is this owner's goes with the close.
            Err(_) => return self.open_again(fs, turn).await,
        }
        let (mut visit, mut folder) = Visit::begin(&self.history, turn);
        let done = self.visit(fs, visit.place, &mut folder, random).await;
        let sure = done.is_ok() && fs.session() == session;
        visit.end(sure.then_some(folder));
        let unlocked = fs.set_lock(self.locks[turn], self.lock(LockKind::None)).await;
        visit.gives_up = !sure || unlocked.is_err() || fs.session() != session;
        let gave_up = visit.gives_up;
        drop(visit);
        if gave_up {
            self.open_again(fs, turn).await;
        }
    }

    /// Takes a lock that the end of the session is to free.
    pub async fn die_with(&mut self, fs: &Filesystem, turn: usize) {
        let _ = fs.set_lock(self.locks[turn % TURNS], self.lock(LockKind::Write)).await;
    }

    async fn open_again(&mut self, fs: &Filesystem, turn: usize) {
        let _ = fs.close(self.locks[turn], self.owner).await;
        let _ = fs.release(self.locks[turn]).await;
        self.locks[turn] = shared(fs, &lock_name(turn)).await.handle;
    }

    /// Looks whether what must be there is, and changes some of it, durably.
    async fn visit(
        &mut self,
        fs: &Filesystem,
        place: Place,
        folder: &mut Folder,
        random: &mut SmallRng,
    ) -> Result<()> {
        let dir = match folder.dir {
            Some(dir) => dir,
            None => {
                let (turn, number) = place;
                let name = format!("folder-{turn}.{number}");
                let made =
                    fs.mk_dir(InodeId::ROOT, name.as_bytes(), 0o755, Creator::default()).await?;
                *folder.dir.insert(made.ino)
            }
        };
        self.look_at_kept(fs, place, folder).await?;
        let name = NAMES[random.random_range(0..NAMES.len())];
        let found = look(fs, dir, name).await?;
        if let Err(what) = found.is(name, folder.files.get(name)) {
            let table = &mut self.history.borrow_mut().folders;
            table.accuse(place, what);
            table.leave(place);
            return Ok(());
        }
        for _ in 0..random.random_range(0..=CHANGES) {
            change(fs, dir, folder, random).await?;
        }
        fs.sync_dir(dir).await?;
        self.keep(fs, place, folder, random).await
    }

    /// A file that was left open has the content that it should have.
    async fn look_at_kept(&mut self, fs: &Filesystem, at: Place, folder: &Folder) -> Result<()> {
        let Some(kept) = self.kept.take_if(|kept| kept.place.0 == at.0) else { return Ok(()) };
        let read = fs.read(kept.handle, 0, 2 * LONGEST).await.map(|read| read.into_bytes());
        let released = fs.release(kept.handle).await;
        if kept.place != at || kept.session != fs.session() {
            return Ok(());
        }
        let named = folder.files.values().find(|file| file.ino == kept.ino);
        let bytes = named.map(|file| &file.bytes).or_else(|| folder.nameless.get(&kept.ino));
        let what = match read {
            Ok(read) => match bytes.map(|bytes| differ(&read, bytes)) {
                Some(None) => return released,
                Some(Some(what)) => {
                    format!("{}, open (named: {}), {what}", kept.ino, named.is_some())
                }
                None => format!("{} is open, and of another folder", kept.ino),
            },
            Err(e) if e.kind == ErrorKind::Stale || e.kind == ErrorKind::NotFound => {
                format!("{} is gone though it is open: {e}", kept.ino)
            }
            Err(e) => return Err(e),
        };
        self.history.borrow_mut().folders.accuse(at, what);
        released
    }

    /// Leaves a file open.
    async fn keep(
        &mut self,
        fs: &Filesystem,
        place: Place,
        folder: &Folder,
        random: &mut SmallRng,
    ) -> Result<()> {
        let file = folder.files.values().nth(random.random_range(0..NAMES.len()));
        let (Some(file), None) = (file, &self.kept) else { return Ok(()) };
        let session = fs.session();
        let handle = fs.open(file.ino, OpenFlags::default()).await?.handle;
        self.kept = Some(Kept { place, handle, ino: file.ino, session });
        Ok(())
    }
}

/// Somebody holds the lock of a folder, as far as he knows. Who dies meanwhile does not know what
/// became of his changes.
struct Visit {
    history: Shared,
    place: Place,
    /// How much was found wrong before.
    accused: usize,
    is_inside: bool,
    /// The folder is given up when this is dropped.
    gives_up: bool,
}

impl Visit {
    /// Answers what must be there as well.
    fn begin(history: &Shared, turn: usize) -> (Self, Folder) {
        let table = &mut history.borrow_mut().folders;
        let (place, accused) = (table.place(turn), table.accused());
        let folder = table.folder(place);
        folder.inside += 1;
        let (inside, folder) = (folder.inside, folder.clone());
        if inside > 1 {
            table.accuse(place, format!("{inside} hold its lock"));
        }
        let (is_inside, gives_up) = (true, true);
        (Self { history: history.clone(), place, accused, is_inside, gives_up }, folder)
    }

    /// Nothing more is done there, and this is there from now on, if that is known.
    fn end(&mut self, known: Option<Folder>) {
        let history = &mut *self.history.borrow_mut();
        self.is_inside = false;
        let folder = history.folders.folder(self.place);
        folder.inside -= 1;
        // It held the lock until all was durable. Whoever dies while it unlocks leaves that.
        self.gives_up = known.is_none();
        match known {
            Some(known) => {
                *folder = Folder { inside: folder.inside, ..known };
                history.answered += 1;
            }
            None => {
                history.unknown += 1;
                history.folders.give_up(self.place, self.accused);
            }
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.is_inside {
            self.end(None);
        }
        if self.gives_up {
            self.history.borrow_mut().folders.give_up(self.place, self.accused);
        }
    }
}

/// One change, of the files and of what must be there.
async fn change(
    fs: &Filesystem,
    dir: InodeId,
    folder: &mut Folder,
    random: &mut SmallRng,
) -> Result<()> {
    let name = NAMES[random.random_range(0..NAMES.len())];
    let other = NAMES[random.random_range(0..NAMES.len())];
    match (random.random_range(0..7), folder.files.get(name).cloned()) {
        (0, Some(file)) => {
            let size = random.random_range(0..=LONGEST);
            let change = SetAttr { size: Some(size as u64), ..Default::default() };
            fs.set_attr(file.ino, None, change).await?;
            folder.edit(name, |bytes| bytes.resize(size, 0));
        }
        (1, Some(file)) if name != other => {
            fs.rename(dir, name.as_bytes(), dir, other.as_bytes(), 0).await?;
            folder.forget(other);
            folder.files.remove(name);
            folder.files.insert(other, file);
        }
        (2, Some(_)) => {
            fs.unlink(dir, name.as_bytes()).await?;
            folder.forget(name);
        }
        (3, Some(from)) if name != other && folder.files.contains_key(other) => {
            let to = folder.files[other].ino;
            let off = random.random_range(0..=from.bytes.len());
            // So that no file grows beyond what is read.
            let off = off.max(from.bytes.len().saturating_sub(LONGEST));
            let at = random.random_range(0..LONGEST / 2);
            let copied = copy(fs, (from.ino, off), (to, at)).await?;
            // What was copied beyond its end must not be there, and so is found to be wrong, unless
            // the folder is another's by now.
            let mut there = from.bytes[off..].to_vec();
            there.resize(copied, !0);
            folder.edit(other, |bytes| put(bytes, at, &there));
        }
        _ => {
            let at = random.random_range(0..LONGEST / 2);
            let mut bytes = vec![0; random.random_range(1..LONGEST / 2)];
            random.fill_bytes(&mut bytes);
            let ino = write(fs, dir, name, at, &bytes).await?;
            let file = File { ino, bytes: Vec::new() };
            let file = folder.files.entry(name).or_insert(file);
            put(&mut file.bytes, at, &bytes);
        }
    }
    Ok(())
}

async fn write(
    fs: &Filesystem,
    dir: InodeId,
    name: &str,
    at: usize,
    bytes: &[u8],
) -> Result<InodeId> {
    let flags = OpenFlags { write: true, ..Default::default() };
    let opened = fs.create(dir, name.as_bytes(), 0o644, Creator::default(), flags).await?;
    let written = async {
        let mut done = 0;
        while done < bytes.len() {
            done += fs.write(opened.handle, (at + done) as u64, &bytes[done..]).await?;
        }
        fs.fsync(opened.handle, false).await
    };
    let written = written.await;
    fs.release(opened.handle).await.and(written).map(|()| opened.attr.ino)
}

/// Copies as much as there is; answers how much that was.
async fn copy(fs: &Filesystem, from: (InodeId, usize), to: (InodeId, usize)) -> Result<usize> {
    let source = fs.open(from.0, OpenFlags::default()).await?.handle;
    let target = fs.open(to.0, OpenFlags { write: true, ..Default::default() }).await?.handle;
    let mut done = 0;
    let copied = async {
        loop {
            let (off, at) = ((from.1 + done) as u64, (to.1 + done) as u64);
            match fs.copy_range(source, off, target, at, LONGEST as u64).await? {
                0 => return fs.fsync(target, false).await,
                more => done += more as usize,
            }
        }
    };
    let copied = copied.await;
    fs.release(source).await.and(fs.release(target).await).and(copied).map(|()| done)
}

/// What is under a name.
struct Found(Option<(Attr, Vec<u8>)>);

async fn look(fs: &Filesystem, dir: InodeId, name: &str) -> Result<Found> {
    let attr = match fs.lookup(dir, name.as_bytes()).await {
        Ok(attr) => attr,
        Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(Found(None)),
        Err(error) => return Err(error),
    };
    let handle = fs.open(attr.ino, OpenFlags::default()).await?.handle;
    let read = fs.read(handle, 0, 2 * LONGEST).await;
    fs.release(handle).await?;
    Ok(Found(Some((attr, read?.into_bytes().to_vec()))))
}

impl Found {
    /// Whether it is what must be there, or what differs.
    fn is(&self, name: &str, wanted: Option<&File>) -> std::result::Result<(), String> {
        match (&self.0, wanted) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(format!("{name} is lost")),
            (Some(_), None) => Err(format!("{name} is there again")),
            (Some((attr, _)), Some(wanted)) if attr.ino != wanted.ino => {
                Err(format!("{name} is {}, not {}", attr.ino, wanted.ino))
            }
            (Some((attr, bytes)), Some(wanted)) if attr.size != bytes.len() as u64 => {
                let (has, of) = (bytes.len(), wanted.bytes.len());
                Err(format!("{name} has {has} bytes and says {}, not {of}", attr.size))
            }
            (Some((_, bytes)), Some(wanted)) => match differ(bytes, &wanted.bytes) {
                Some(what) => Err(format!("{name} {what}")),
                None => Ok(()),
            },
        }
    }
}

/// Takes the lock of a turn for good. A handle is of no use once the session is another, as it may
/// be at any attempt: each opens the file.
async fn lock_anew(fs: &Filesystem, turn: usize) -> Result<()> {
    let lock = Lock { flock: false, owner: 1, kind: LockKind::Write, start: 0, end: 0, pid: 1 };
    let handle = shared(fs, &lock_name(turn)).await.handle;
    let locked = fs.set_lock(handle, lock).await;
    if locked.is_err() {
        // It may have been taken: whatever is this owner's goes with the close.
        let _ = fs.close(handle, lock.owner).await;
        let _ = fs.release(handle).await;
    }
    locked
}

/// With all faults over: the locks can be had, and in the folders is what must be there.
pub async fn judge(fs: &Filesystem, history: &Shared) -> Vec<String> {
    let mut broken = Vec::new();
    for turn in 0..TURNS {
        if let Err(why) = until(async || lock_anew(fs, turn).await).await {
            broken.push(format!("{} cannot be locked: {why}", lock_name(turn)));
        }
        let (place, folder) = {
            let table = &mut history.borrow_mut().folders;
            let place = table.place(turn);
            (place, table.folder(place).clone())
        };
        let Some(dir) = folder.dir else { continue };
        for name in NAMES {
            let found = until(async || look(fs, dir, name).await).await;
            let found = found.map_err(|why| format!("{name} cannot be read: {why}"));
            let what = found.and_then(|found| found.is(name, folder.files.get(name)));
            if let Err(what) = what {
                history.borrow_mut().folders.accuse(place, what);
            }
        }
    }
    broken.extend(history.borrow().folders.broken());
    broken
}

fn lock_name(turn: usize) -> String {
    format!("turn-{turn}")
}
