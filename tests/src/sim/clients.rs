//! What clients do.

use super::calls::{RETRY_INTERVAL, is_transient, shared};
use super::clocks::{CLIENT_CLOCKS, now};
use super::history::*;
use super::hosts::connect;
use super::linear::{Call, Op};
use super::names::CLIENTS;
use super::turns::Turns;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;
use weft_client::{Creator, Filesystem, OpenFlags, Opened, SetAttr};
use weft_proto::mode::SET_IDS;
use weft_proto::{ErrorKind, InodeId, Layout, SessionId};

pub const CALLS_PER_CLIENT: u64 = 200;
/// Longest pause between two looks of a client, in milliseconds.
const WATCH_PAUSE: u64 = 4000;
/// Longest pauses between two calls, in milliseconds: of a busy client, and of one that is there
/// for many faults.
const PAUSES: [u64; 3] = [40, 150, 500];
/// And while everybody turns to one register, which is what most calls are about then.
const SPOTLIT_PAUSE: u64 = 60;
const SPOTLIT: f64 = 0.8;
/// Longest pause between two glimpses at it, in milliseconds.
const GLIMPSE_PAUSE: u64 = 40;
/// So many calls are given up before they end, each after at most so long.
const DROPPED: f64 = 0.1;
const DROPPED_AFTER: Duration = Duration::from_millis(60);

/// One client, to its end. If it is killed before, the next process goes on with the next call.
pub async fn client(number: u64, seed: u64, calls: u64, history: Shared) -> turmoil::Result {
    let own = {
        let own = &mut history.borrow_mut().clients[number as usize - 1];
        if own.is_done {
            return Ok(());
        }
        own.count += 1;
        own.clone()
    };
    // The process before.
    died(&history, &own);
    let seed = seed ^ number << 40 ^ own.count << 48;
    let fs = connect(&format!("client {number}"), seed, CLIENT_CLOCKS[number as usize - 1]).await?;
    lay_out(&fs).await;
    tokio::select! {
        biased;
        () = work(&fs, (number, calls), seed, &history, &own) => {}
        () = watch(&fs, number, !seed, &history, &own) => {}
        () = glimpses(&fs, seed.rotate_left(8), &history, &own) => {}
    }
    history.borrow_mut().clients[number as usize - 1].is_done = true;
    Ok(())
}

/// Call after call; one that hangs holds up the next.
async fn work(
    fs: &Filesystem,
    (number, calls): (u64, u64),
    seed: u64,
    history: &Shared,
    own: &Lives,
) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut files = OpenFiles::open(fs, history.clone(), own.unsynced.clone()).await;
    let mut turns = Turns::open(fs, number, history.clone()).await;
    let mut session = fs.session();
    let pause = PAUSES[rng.random_range(0..PAUSES.len())];
    loop {
        let i = {
            let own = &mut history.borrow_mut().clients[number as usize - 1];
            own.calls += 1;
            own.calls
        };
        if i > calls {
            break;
        }
        let spotlight = history.borrow().spotlight;
        let turns_to = |only: Option<usize>| only.is_none_or(|only| only as u64 + 1 == number);
        let spotlight = spotlight.filter(|at| turns_to(at.alone) && rng.random_bool(SPOTLIT));
        let pause = if spotlight.is_some() { pause.min(SPOTLIT_PAUSE) } else { pause };
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..pause))).await;
        let value = number << 32 | i;
        let (register, kind) = match spotlight {
            Some(at) => {
                let writes = rng.random_bool(if at.alone.is_some() { 0.7 } else { 0.2 });
                (at.register, if writes { 0 } else { 2 })
            }
            None => (rng.random_range(0..REGISTERS), rng.random_range(0..7)),
        };
        let kind = if kind < 2 && !has_room(history, register) { 2 } else { kind };
        let caller = Caller::draw(&mut rng);
        match (kind, register) {
            (6, _) => turns.take(fs, &mut rng).await,
            (0 | 1, CONTENTS..) => {
                let sync = rng.random_bool(0.3).then(|| Caller::draw(&mut rng));
                files.write(fs, register, value, caller, sync).await;
            }
            (2 | 3, CONTENTS..) => files.read(fs, register).await,
            (0 | 1, OPEN_MODES..) => {
                let sync = rng.random_bool(0.3).then(|| Caller::draw(&mut rng));
                let value = mode_value(number, i);
                // Who writes data may keep the mode, too, and sends it late perhaps; where others
                // wrote data, it is by that that what comes late is refused.
                let writes = number == 1 + (register - OPEN_MODES) as u64 && rng.random_bool(0.7);
                files.set_mode(fs, register, value, writes, caller, sync).await;
            }
            (0 | 1, MODES..) => {
                set_mode(fs, history, own, (register, mode_value(number, i)), caller).await;
                if rng.random_bool(0.3) {
                    tell(fs, history, own, &mut session).await;
                }
            }
            (2 | 3, MODES..) => get_mode(fs, history, register, Some(own)).await,
            (0 | 1, _) => {
                write(fs, history, own, (register, value), caller).await;
                if rng.random_bool(0.3) {
                    tell(fs, history, own, &mut session).await;
                }
            }
            (2 | 3, _) => read(fs, history, register, Some(own)).await,
            (4, _) => append(fs, history, value, caller).await,
            _ => {
                let name = format!("{number}.{i}");
                make(fs, history, &name, register >= MODES, caller).await
            }
        }
    }
    files.sync_all(fs).await;
    tell(fs, history, own, &mut session).await;
    turns.die_with(fs, number as usize).await;
}

/// Does beside that what leases allow: who is cut off goes on doing so. It looks at modes, and
/// writes to a file of its own, of which nothing is asked but that no chunks are left of it.
async fn watch(fs: &Filesystem, number: u64, seed: u64, history: &Shared, own: &Lives) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let file = shared(fs, &format!("own-{number}")).await.handle;
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..WATCH_PAUSE))).await;
        get_mode(fs, history, rng.random_range(MODES..CONTENTS), Some(own)).await;
        let (at, bytes) = (rng.random_range(0..4) * LARGE_LEN, vec![rng.random(); LARGE_LEN]);
        // What comes of it is not waited for.
        let _ = Caller(Some(DROPPED_AFTER)).call(fs.write(file, at as u64, &bytes)).await;
    }
}

/// Looks at the register that everybody turns to as often as leases allow it, without asking
/// anybody: while a client is cut off, and while changes are under way. Most that is seen so says
/// nothing; what looks old is noted.
async fn glimpses(fs: &Filesystem, seed: u64, history: &Shared, own: &Lives) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut inos = BTreeMap::new();
    for register in MODES..CONTENTS {
        let opened = shared(fs, &name(register)).await;
        let _ = fs.release(opened.handle).await;
        inos.insert(register, opened.attr.ino);
    }
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(1..GLIMPSE_PAUSE))).await;
        let Some(Spotlight { register, .. }) = history.borrow().spotlight else { continue };
        let Some(attr) = inos.get(&register).and_then(|ino| fs.get_attr_now(*ino)) else {
            continue;
        };
        let (value, start) = (attr.mode.into(), now());
        let is_older = is_older(&history.borrow().registers[register], value, start);
        if is_older {
            let at = note(history, register, Call::new(Op::Read(value), start, now()));
            own.unsure(register).borrow_mut().extend(at.map(|at| (register, at)));
        }
    }
}

/// What a client's call sets a mode to: without the bits that a write of data takes away, of which
/// one that comes late does so, too.
fn mode_value(number: u64, call: u64) -> u64 {
    const { assert!(CALLS_PER_CLIENT < 1 << 8 && CLIENTS.len() < 4 && SET_IDS == 0o6000) };
    number << 8 | call
}

fn name(register: usize) -> String {
    format!("r{register}")
}

/// Who makes a call. It may give up before the call ends.
struct Caller(Option<Duration>);

impl Caller {
    fn draw(rng: &mut SmallRng) -> Self {
        let leaves = rng.random_bool(DROPPED);
        Self(leaves.then(|| DROPPED_AFTER.mul_f64(rng.random())))
    }

    /// The answer; `None` if nobody waited for it.
    async fn call<T>(
        &mut self,
        call: impl Future<Output = weft_proto::Result<T>>,
    ) -> Option<weft_proto::Result<T>> {
        match self.0 {
            Some(patience) => timeout(patience, call).await.ok(),
            None => Some(call.await),
        }
    }
}

/// Stripes are short, so that files have several, with parity. A register is one segment: what
/// fails, fails as a whole.
async fn lay_out(fs: &Filesystem) {
    let layout = async || {
        let layout = fs.get_layout(InodeId::ROOT).await?;
        let layout = Layout { unit: 4096, segment_len: 32768, inline_limit: 2048, ..layout };
        fs.set_layout(InodeId::ROOT, layout).await
    };
    while layout().await.is_err() {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// What a mode register leads to: its name is looked up each time, which a lease may answer.
pub async fn get_mode(fs: &Filesystem, history: &Shared, register: usize, own: Option<&Lives>) {
    let start = now();
    let Ok(attr) = fs.lookup(InodeId::ROOT, name(register).as_bytes()).await else {
        return;
    };
    history.borrow_mut().answered += 1;
    let at = note(history, register, Call::new(Op::Read(attr.mode.into()), start, now()));
    if let (Some(at), Some(own)) = (at, own) {
        own.unsure(register).borrow_mut().push((register, at));
    }
}

/// Has all be told that was done without asking: from then on it outlives the process. If the
/// session is not that of the last time, or it is not for time that this fails, some of it may be
/// lost, and nobody says what.
async fn tell(fs: &Filesystem, history: &Shared, own: &Lives, session: &mut SessionId) {
    let before = own.untold.borrow().len();
    match fs.sync().await {
        Ok(()) => {
            own.untold.borrow_mut().drain(..before);
            *session = fs.session();
        }
        Err(error) if fs.session() == *session && is_transient(&error) => {}
        Err(_) => drop(forgive(history, &own.untold, None)),
    }
}

async fn set_mode(
    fs: &Filesystem,
    history: &Shared,
    own: &Lives,
    (register, value): (usize, u64),
    mut caller: Caller,
) {
    let ino = loop {
        if let Ok(attr) = fs.lookup(InodeId::ROOT, name(register).as_bytes()).await {
            break attr.ino;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    };
    let begun = Begun::now(history, &own.untold, register, value);
    let change = SetAttr { mode: Some(value as u32), ..Default::default() };
    let set = caller.call(fs.set_attr(ino, None, change)).await;
    let start = begun.over();
    let end = match set {
        Some(Ok(_)) => {
            history.borrow_mut().answered += 1;
            now()
        }
        _ => {
            history.borrow_mut().unknown += 1;
            u64::MAX
        }
    };
    let at = note(history, register, Call::new(Op::Write(value), start, end));
    own.untold.borrow_mut().extend(at.map(|at| (register, at)));
}

/// Registers of one client that are files which stay open: modes and contents.
struct OpenFiles {
    history: Shared,
    files: BTreeMap<usize, Opened>,
    unsynced: Unsynced,
    session: SessionId,
}

impl OpenFiles {
    async fn open(fs: &Filesystem, history: Shared, unsynced: Unsynced) -> Self {
        let mut files = BTreeMap::new();
        for register in MODES..REGISTERS {
            let opened = shared(fs, &name(register)).await;
            match register {
                OPEN_MODES.. => drop(files.insert(register, opened)),
                _ => drop(fs.release(opened.handle).await),
            }
        }
        Self { history, files, unsynced, session: fs.session() }
    }

    async fn write(
        &mut self,
        fs: &Filesystem,
        register: usize,
        value: u64,
        mut caller: Caller,
        sync: Option<Caller>,
    ) {
        let begun = Begun::now(&self.history, &self.unsynced, register, value);
        let handle = self.files[&register].handle;
        let written = caller.call(fs.write(handle, 0, &content(register, value))).await;
        let start = begun.over();
        self.wrote(fs, (register, value), start, written.map(|done| done.map(drop)), sync).await;
    }

    /// The mode of an open file, perhaps beside data that is written to it.
    async fn set_mode(
        &mut self,
        fs: &Filesystem,
        register: usize,
        value: u64,
        writes: bool,
        mut caller: Caller,
        sync: Option<Caller>,
    ) {
        let (ino, handle) = (self.files[&register].attr.ino, self.files[&register].handle);
        if writes {
            // What comes of it shows at the next sync.
            let _ = Caller(Some(DROPPED_AFTER)).call(fs.write(handle, 0, b"data")).await;
        }
        let begun = Begun::now(&self.history, &self.unsynced, register, value);
        let change = SetAttr { mode: Some(value as u32), ..Default::default() };
        let set = caller.call(fs.set_attr(ino, Some(handle), change)).await;
        let start = begun.over();
        self.wrote(fs, (register, value), start, set.map(|done| done.map(drop)), sync).await;
    }

    /// Notes what became of a write to a register (`None`: nobody waited), and syncs it.
    async fn wrote(
        &mut self,
        fs: &Filesystem,
        (register, value): (usize, u64),
        start: u64,
        written: Option<weft_proto::Result<()>>,
        sync: Option<Caller>,
    ) {
        self.check_session(fs);
        let done = matches!(written, Some(Ok(())));
        let end = if done { now() } else { u64::MAX };
        let call = Call::new(Op::Write(value), start, end);
        let Some(at) = note(&self.history, register, call) else { return };
        if !done {
            self.history.borrow_mut().unknown += 1;
            match written {
                // Who gave up was told of nothing: it is in the buffer, or not.
                None => self.unsynced.borrow_mut().push((register, at)),
                Some(_) => drop(forgive(&self.history, &self.unsynced, Some(register))),
            }
            return;
        }
        self.history.borrow_mut().answered += 1;
        self.unsynced.borrow_mut().push((register, at));
        if let Some(caller) = sync {
            self.sync(fs, register, caller).await;
        }
    }

    async fn sync(&mut self, fs: &Filesystem, register: usize, mut caller: Caller) {
        let synced = caller.call(fs.fsync(self.files[&register].handle, false)).await;
        self.check_session(fs);
        match synced {
            Some(Ok(())) => self.unsynced.borrow_mut().retain(|(of, _)| *of != register),
            Some(Err(_)) => drop(forgive(&self.history, &self.unsynced, Some(register))),
            None => {}
        }
    }

    async fn sync_all(&mut self, fs: &Filesystem) {
        for register in OPEN_MODES..REGISTERS {
            self.sync(fs, register, Caller(None)).await;
        }
    }

    fn check_session(&mut self, fs: &Filesystem) {
        if fs.session() != self.session {
            self.session = fs.session();
            let _ = forgive(&self.history, &self.unsynced, None);
        }
    }

    async fn read(&mut self, fs: &Filesystem, register: usize) {
        let start = now();
        let Ok(data) = fs.read(self.files[&register].handle, 0, LARGE_LEN).await else { return };
        self.check_session(fs);
        let value = match value_of(register, &data.into_bytes()) {
            Ok(value) => value,
            Err(what) => return self.history.borrow_mut().broken.push(what),
        };
        self.history.borrow_mut().answered += 1;
        if let Some(at) = note(&self.history, register, Call::new(Op::Read(value), start, now())) {
            self.unsynced.borrow_mut().push((register, at));
        }
    }
}

async fn write(
    fs: &Filesystem,
    history: &Shared,
    own: &Lives,
    (register, value): (usize, u64),
    mut caller: Caller,
) {
    let (name, bytes) = (format!("user.r{register}"), value.to_be_bytes());
    let begun = Begun::now(history, &own.untold, register, value);
    let written = fs.set_xattr(InodeId::ROOT, name.as_bytes(), &bytes, 0, false);
    let written = caller.call(written).await;
    let start = begun.over();
    let end = match written {
        Some(Ok(())) => {
            history.borrow_mut().answered += 1;
            now()
        }
        _ => {
            history.borrow_mut().unknown += 1;
            u64::MAX
        }
    };
    let at = note(history, register, Call::new(Op::Write(value), start, end));
    own.untold.borrow_mut().extend(at.map(|at| (register, at)));
}

pub async fn read(fs: &Filesystem, history: &Shared, register: usize, own: Option<&Lives>) {
    let (start, name) = (now(), format!("user.r{register}"));
    let value = match fs.get_xattr(InodeId::ROOT, name.as_bytes()).await {
        Ok(bytes) => bytes.as_ref().try_into().ok().map(u64::from_be_bytes),
        Err(e) if e.kind == ErrorKind::NoAttribute => Some(0),
        Err(_) => None,
    };
    if let Some(value) = value {
        history.borrow_mut().answered += 1;
        let at = note(history, register, Call::new(Op::Read(value), start, now()));
        if let (Some(at), Some(own)) = (at, own) {
            own.untold.borrow_mut().push((register, at));
        }
    }
}

/// A directory or a file, of which the group may hear later: acknowledged once the directory that
/// it is in is synced in the session in which it was made.
async fn make(fs: &Filesystem, history: &Shared, name: &str, file: bool, mut caller: Caller) {
    let (session, by) = (fs.session(), Creator::default());
    let made = async {
        if !file {
            return fs.mk_dir(InodeId::ROOT, name.as_bytes(), 0o755, by).await.map(|_| None);
        }
        let flags = OpenFlags { exclusive: true, ..Default::default() };
        fs.create(InodeId::ROOT, name.as_bytes(), 0o644, by, flags).await.map(Some)
    };
    match caller.call(made).await {
        Some(Ok(opened)) => {
            if let Some(opened) = opened {
                let _ = fs.release(opened.handle).await;
            }
        }
        Some(Err(e)) if e.kind == ErrorKind::Exists => {
            let what = format!("{name} was made once and refused as existing");
            return history.borrow_mut().broken.push(what);
        }
        _ => return history.borrow_mut().unknown += 1,
    }
    let synced = fs.sync_dir(InodeId::ROOT).await;
    let mut history = history.borrow_mut();
    if synced.is_ok() && fs.session() == session {
        history.answered += 1;
        history.made.insert(name.into());
    } else {
        history.unknown += 1;
    }
}

/// One record to the end of the log, through a handle of its own: an answer is about this record.
async fn append(fs: &Filesystem, history: &Shared, value: u64, mut caller: Caller) {
    let flags = OpenFlags { append: true, ..Default::default() };
    let made = fs.create(InodeId::ROOT, b"log", 0o644, Creator::default(), flags).await;
    let Ok(opened) = made else { return };
    let session = fs.session();
    history.borrow_mut().appended.insert(value, false);
    let appended = async {
        fs.write(opened.handle, 0, &value.to_be_bytes()).await?;
        fs.fsync(opened.handle, false).await
    };
    let acknowledged = matches!(caller.call(appended).await, Some(Ok(())));
    if acknowledged && fs.session() == session {
        history.borrow_mut().appended.insert(value, true);
        history.borrow_mut().answered += 1;
    } else {
        history.borrow_mut().unknown += 1;
    }
    let _ = fs.release(opened.handle).await;
}
