//! Files that are opened by handle (`open_by_handle_at(2)`), as an NFS server does: by a mount that
//! has never seen them.

use anyhow::{Result, ensure};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use weft_tests::Cluster;

/// As `struct file_handle` begins; a handle follows.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

type Errno = i32;

fn errno() -> Errno {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn handle_of(path: &Path) -> Result<Handle, Errno> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0i32;
    // SAFETY: the name ends with NUL, and the handle has as much room as it says.
    let done = unsafe {
        let at = &raw mut handle;
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, name.as_ptr(), at, &mut mount, 0)
    };
    if done == 0 { Ok(handle) } else { Err(errno()) }
}

/// Opens by way of the mount that `any` lies on.
fn open(any: &File, handle: &Handle, flags: i32) -> Result<File, Errno> {
    let mut handle = handle.clone();
    // SAFETY: the handle is as long as it says; the descriptor is new, and nobody else's.
    unsafe {
        let at = &raw mut handle;
        let fd = libc::syscall(libc::SYS_open_by_handle_at, any.as_raw_fd(), at, flags);
        if fd < 0 { Err(errno()) } else { Ok(File::from_raw_fd(fd as i32)) }
    }
}

fn place(of: &File) -> Result<String> {
    let path = fs::read_link(format!("/proc/self/fd/{}", of.as_raw_fd()))?;
    Ok(path.to_string_lossy().into_owned())
}

#[test]
fn handles_lead_to_what_they_were_made_of_on_every_mount() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::create_dir_all(a.join("d/e/deep"))?;
    fs::write(a.join("d/e/f"), "content")?;
    fs::hard_link(a.join("d/e/f"), a.join("d/other"))?;
    symlink("nowhere", a.join("d/link"))?;
    let handle = |name: &str| handle_of(&a.join(name)).map_err(|e| anyhow::anyhow!("{name}: {e}"));
    let (file, dir, link) = (handle("d/e/f")?, handle("d/e/deep")?, handle("d/link")?);
    let root = File::open(&b)?;
    let opened = |handle: &Handle, flags| {
        open(&root, handle, flags).map_err(|e| anyhow::anyhow!("by handle: errno {e}"))
    };

    // Nobody has looked at them there.
    let mut text = String::new();
    opened(&file, libc::O_RDONLY)?.read_to_string(&mut text)?;
    ensure!(text == "content", "{text:?}");
    ensure!(opened(&link, libc::O_PATH)?.metadata()?.is_symlink());
    // A directory gets its path, up to the root, from its number.
    let deep = opened(&dir, libc::O_RDONLY | libc::O_DIRECTORY)?;
    ensure!(place(&deep)? == b.join("d/e/deep").to_string_lossy(), "{}", place(&deep)?);
    ensure!(deep.metadata()?.ino() == fs::metadata(a.join("d/e/deep"))?.ino());
    ensure!(place(&opened(&handle("")?, libc::O_RDONLY)?)? == b.to_string_lossy());

    // After a restart, and after what was moved.
    fs::create_dir(a.join("new"))?;
    fs::rename(a.join("d/e"), a.join("new/e"))?;
    cluster.remount()?;
    let root = File::open(&a)?;
    let deep = open(&root, &dir, libc::O_RDONLY).map_err(|e| anyhow::anyhow!("errno {e}"))?;
    ensure!(place(&deep)? == a.join("new/e/deep").to_string_lossy(), "{}", place(&deep)?);
    let read = open(&root, &file, libc::O_RDONLY).map_err(|e| anyhow::anyhow!("errno {e}"))?;
    drop((deep, read));

    // One name is enough; what is open stays; with the last name and the last open it ends.
    fs::remove_file(b.join("new/e/f"))?;
    let mut kept = opened(&file, libc::O_RDONLY)?;
    fs::remove_file(a.join("d/other"))?;
    let gone = open(&File::open(&a)?, &file, libc::O_RDONLY).map(drop);
    ensure!(gone == Err(libc::ESTALE), "of what has no name: {gone:?}");
    text.clear();
    kept.read_to_string(&mut text)?;
    ensure!(text == "content", "{text:?} of what is open");
    drop(kept);
    fs::remove_dir(a.join("new/e/deep"))?;
    let gone = open(&File::open(&a)?, &dir, libc::O_RDONLY).map(drop);
    ensure!(gone == Err(libc::ESTALE), "of a directory that was removed: {gone:?}");
    cluster.await_clean()
}

/// The root of a mount may be any directory: handles lead to it, and up to it and no further.
#[test]
fn handles_lead_to_the_root_of_a_subdirectory() -> Result<()> {
    let cluster = Cluster::start()?;
    fs::create_dir_all(cluster.mnt().join("team/a/deep"))?;
    let part = |name| cluster.mount_with(name, &["--subdir", "/team/a"]);
    let (one, other) = (part("one")?, part("other")?);
    let handles = [&one, &one.join("deep")].map(|path| handle_of(path));
    for (handle, below) in handles.into_iter().zip(["", "deep"]) {
        let handle = handle.map_err(io::Error::from_raw_os_error)?;
        let opened = open(&File::open(&other)?, &handle, libc::O_RDONLY | libc::O_DIRECTORY);
        let opened = opened.map_err(io::Error::from_raw_os_error)?;
        ensure!(place(&opened)? == other.join(below).to_string_lossy().trim_end_matches('/'));
        let inode = fs::metadata(cluster.mnt().join("team/a").join(below))?.ino();
        ensure!(opened.metadata()?.ino() == inode, "{below:?}");
    }
    Ok(())
}
