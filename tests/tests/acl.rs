//! Access control lists: two mounts do what the local filesystem does.
//!
//! `WEFT_SEED` repeats a run; one without it prints the seed that it took.

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_tests::{Cluster, run};

const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";
/// The first few are folders.
const NAMES: [&str; 9] = ["d", "d/d", "e", "d/d/a", "d/a", "d/b", "e/a", "a", "b"];
const FOLDERS: usize = 3;
/// Who lists name, and who is asked what it may do.
const IDS: [u32; 3] = [7, 8, 9];
const OPERATIONS: u32 = 250;

/// Owner, owning group and others, as `chmod 640` leaves them.
const PLAIN: [[u8; 8]; 3] = [
    [1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff],
    [4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff],
    [32, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
];

type Errno = i32;

fn answer(result: i64) -> Result<i64, Errno> {
    match result {
        ..0 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => Ok(result),
    }
}

#[derive(Clone, Debug)]
enum Step {
    MkDir(u32),
    Create(u32),
    /// Without a name first.
    TmpFile(u32),
    MkFifo(u32),
    Chmod(u32),
    Chown(u32),
    Set(&'static CStr, Vec<u8>),
    Remove(&'static CStr),
}

/// Mostly valid.
fn list(rng: &mut SmallRng) -> Vec<u8> {
    let mut entries = vec![(1u16, 0u32)];
    let ids = |rng: &mut SmallRng| IDS.iter().filter(|_| rng.random()).copied().collect::<Vec<_>>();
    entries.extend(ids(rng).into_iter().map(|id| (2, id)));
    entries.push((4, 0));
    entries.extend(ids(rng).into_iter().map(|id| (8, id)));
    if entries.len() > 2 || rng.random() {
        entries.push((16, 0));
    }
    entries.push((32, 0));
    if rng.random_ratio(1, 10) {
        entries.remove(rng.random_range(0..entries.len()));
    }
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(rng.random_range(0u16..8).to_le_bytes());
        out.extend(if tag == 2 || tag == 8 { id } else { u32::MAX }.to_le_bytes());
    }
    out
}

fn step(rng: &mut SmallRng, folder: bool) -> Step {
    let mode = rng.random_range(0..0o10000);
    let which = if rng.random() { ACCESS } else { DEFAULT };
    match rng.random_range(0..12) {
        0..6 if folder => Step::MkDir(mode),
        0..4 => Step::Create(mode),
        4 => Step::TmpFile(mode),
        5 => Step::MkFifo(mode),
        6 => Step::Chmod(mode),
        7 => Step::Chown(IDS[0]),
        8 => Step::Remove(which),
        _ => Step::Set(which, list(rng)),
    }
}

fn open(path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    // SAFETY: a path that ends with NUL.
    answer(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.into())
        .map(|fd| fd as i32)
}

impl Step {
    fn run(&self, path: &Path) -> Result<i64, Errno> {
        let c = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        let (name, parent) = (c(path), c(path.parent().expect("a folder")));
        let at = name.as_ptr();
        // SAFETY: paths end with NUL, and values are as long as is said.
        unsafe {
            match self {
                Self::MkDir(mode) => answer(libc::mkdir(at, *mode).into()),
                Self::Create(mode) => {
                    let fd = open(&name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, *mode)?;
                    answer(libc::close(fd).into())
                }
                Self::TmpFile(mode) => {
                    let fd = open(&parent, libc::O_TMPFILE | libc::O_WRONLY, *mode)?;
                    let (here, empty) = (libc::AT_FDCWD, c"".as_ptr());
                    let named =
                        answer(libc::linkat(fd, empty, here, at, libc::AT_EMPTY_PATH).into());
                    libc::close(fd);
                    named
                }
                Self::MkFifo(mode) => answer(libc::mkfifo(at, *mode).into()),
                Self::Chmod(mode) => answer(libc::chmod(at, *mode).into()),
                Self::Chown(gid) => answer(libc::chown(at, u32::MAX, *gid).into()),
                Self::Set(which, value) => answer(
                    libc::setxattr(at, which.as_ptr(), value.as_ptr().cast(), value.len(), 0)
                        .into(),
                ),
                Self::Remove(which) => answer(libc::removexattr(at, which.as_ptr()).into()),
            }
        }
    }
}

fn xattr(path: &Path, name: &CStr) -> Result<Vec<u8>, Errno> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let mut value = vec![0; 8192];
    // SAFETY: there is room for as much as is said.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    value.truncate(answer(len as i64)? as usize);
    Ok(value)
}

/// All that there is, and what lists say of it.
fn picture(top: &Path) -> Vec<String> {
    let show = |name: &&str| {
        let path = top.join(name);
        let meta = fs::symlink_metadata(&path).ok()?;
        let lists = [ACCESS, DEFAULT].map(|which| xattr(&path, which));
        Some(format!("{name} {:o} {} {lists:?}", meta.mode(), meta.gid()))
    };
    NAMES.iter().filter_map(show).collect()
}

/// What a user may do with each name.
fn allowed(top: &Path, id: u32) -> Result<Vec<String>> {
    let mut find = Command::new("find");
    find.arg(".").args(["(", "-readable", "-printf", "r %p\\n", ")", ","]);
    find.args(["(", "-writable", "-printf", "w %p\\n", ")", ","]);
    find.args(["(", "-executable", "-printf", "x %p\\n", ")"]);
    let out = find.current_dir(top).uid(id).gid(id).output().context("find")?;
    let mut lines: Vec<String> =
        String::from_utf8_lossy(&out.stdout).lines().map(String::from).collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn lists_are_kept_inherited_and_obeyed_as_on_a_local_filesystem() -> Result<()> {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(seed) => seed.parse().context("WEFT_SEED")?,
        Err(_) => rand::random(),
    };
    println!("WEFT_SEED={seed}");
    let rng = &mut SmallRng::seed_from_u64(seed);
    let cluster = Cluster::start()?;
    let second = cluster.mount_again("second")?;
    let local = cluster.scratch("local")?;
    // Others have to get there.
    let above = local.parent().context("a folder above")?;
    fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
    let mut tops: Vec<PathBuf> = vec![local.join("t")];
    tops.extend([cluster.mnt(), &second].map(|m| m.join("t")));
    fs::create_dir(&tops[0])?;
    fs::create_dir(&tops[1])?;
    for top in &tops[..2] {
        std::os::unix::fs::chown(top, Some(0), Some(0))?;
        ensure!(Step::Chmod(0o2777).run(top).is_ok());
    }
    let mut trace = Vec::new();
    for number in 0..OPERATIONS {
        let name = rng.random_range(0..NAMES.len());
        let step = step(rng, name < FOLDERS);
        let name = NAMES[name];
        let umask = rng.random_range(0..0o1000);
        let on = if rng.random() { &tops[1] } else { &tops[2] };
        trace.push(format!("umask {umask:o} {name} {step:?}"));
        let recent = || trace[trace.len().saturating_sub(12)..].join("\n");
        // SAFETY: changes nothing but the mask of this process, which has no other thread that
        // makes files.
        let usual = unsafe { libc::umask(umask) };
        let (want, got) = (step.run(&tops[0].join(name)), step.run(&on.join(name)));
        // SAFETY: as above.
        unsafe { libc::umask(usual) };
        ensure!(got == want, "seed {seed}, {number}: {got:?}, not {want:?}\n{}", recent());
        let want = picture(&tops[0]);
        for top in &tops[1..] {
            let got = picture(top);
            ensure!(got == want, "seed {seed}, {number}: {got:#?}\nnot {want:#?}\n{}", recent());
        }
        if number % 10 == 9 {
            for id in IDS {
                let want = allowed(&tops[0], id)?;
                for top in &tops[1..] {
                    let got = allowed(top, id)?;
                    ensure!(
                        got == want,
                        "seed {seed}, {number}: {id} may {got:#?}\nnot {want:#?}\n{}",
                        recent()
                    );
                }
            }
        }
    }
    ensure!(picture(&tops[0]).len() == NAMES.len(), "too few names: {:?}", picture(&tops[0]));
    cluster.await_clean()
}

/// Sets a list on what is open.
fn set_list_of_open(file: &fs::File, value: &[u8]) -> Result<i64, Errno> {
    // SAFETY: the descriptor is open, and the value as long as is said.
    answer(i64::from(unsafe {
        libc::fsetxattr(file.as_raw_fd(), ACCESS.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    }))
}

/// `cp -a` sets a list of each file and directory, which mostly says no more than the mode.
#[test]
fn lists_that_are_modes_cost_no_request() -> Result<()> {
    const FILES: [usize; 2] = [10, 20];
    let cluster = Cluster::start()?;
    let mnt = cluster.mnt();
    for d in 0..FILES[0] {
        let dir = mnt.join("from").join(d.to_string());
        fs::create_dir_all(&dir)?;
        for f in 0..FILES[1] {
            let name = dir.join(f.to_string());
            fs::write(&name, vec![f as u8; 500 * (d + f)])?;
            fs::set_permissions(&name, fs::Permissions::from_mode(0o600 | (f as u32 % 8)))?;
        }
    }
    let copy = || run("cp", &["-a", "from", "to"], mnt).map(drop);
    let cost = weft_tests::cost(mnt, copy)?;
    let files = (FILES[0] * FILES[1]) as u64;
    // What is read is opened.
    ensure!(cost <= files + files / 2, "{cost} requests for {files} files");
    run("diff", &["-r", "from", "to"], mnt)?;
    let modes = |top: &str| -> Result<Vec<String>> {
        let found = run("find", &[top, "-printf", "%P %m %T@\\n"], mnt)?;
        let mut lines: Vec<_> = found.lines().map(String::from).collect();
        lines.sort();
        Ok(lines)
    };
    let (from, to) = (modes("from")?, modes("to")?);
    let differ: Vec<_> = from.iter().zip(&to).filter(|(from, to)| from != to).take(5).collect();
    ensure!(from.len() == to.len() && differ.is_empty(), "not copied: {differ:?}");
    cluster.await_clean()
}

#[test]
fn a_list_that_is_a_mode_takes_the_place_of_one_that_says_more() -> Result<()> {
    let cluster = Cluster::start()?;
    let second = cluster.mount_again("second")?;
    let mnt = cluster.mnt();
    let plain = [&[2, 0, 0, 0][..], &PLAIN.concat()].concat();
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat();
    let nobody = u32::MAX;
    let named = [(1, nobody), (2, IDS[0]), (4, nobody), (16, nobody), (32, nobody)];
    let named = named.map(|(tag, id)| entry(tag, id)).concat();
    let named = [&[2, 0, 0, 0][..], &named].concat();
    for round in 0..3 {
        // Made here, and all that others do to it is known here only when they have.
        let path = mnt.join(format!("f{round}"));
        let mut file = fs::File::create(&path)?;
        file.write_all(b"data")?;
        file.set_permissions(fs::Permissions::from_mode(0o4711))?;
        let there = second.join(format!("f{round}"));
        let theirs = Step::Set(ACCESS, named.clone()).run(&there);
        ensure!(theirs.is_ok(), "{theirs:?}");
        ensure!(xattr(&path, ACCESS).is_ok_and(|list| list == named), "round {round}");
        match round {
            0 => ensure!(set_list_of_open(&file, &plain).is_ok()),
            1 => ensure!(Step::Set(ACCESS, plain.clone()).run(&path).is_ok()),
            _ => {
                drop(file);
                ensure!(Step::Set(ACCESS, plain.clone()).run(&path).is_ok());
            }
        }
        for path in [&path, &there] {
            ensure!(xattr(path, ACCESS) == Err(libc::ENODATA), "round {round}: {path:?}");
            let mode = fs::metadata(path)?.mode() & 0o7777;
            ensure!(mode == 0o4640, "round {round}: {path:?} has {mode:o}");
        }
    }
    cluster.await_clean()
}
