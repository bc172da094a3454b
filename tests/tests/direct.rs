//! Writes past the kernel's pages, and what Linux says and does of them by itself: flags that an
//! open file has now, pieces of one append, a cut after a failure.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weft_proto::layout::MAX_FILE;
use weft_tests::aio::{Aio, Aligned};
use weft_tests::{Cluster, path, tries, weft_ok};

const PAGE: u64 = 4096;

/// A cluster, its mount and a second one.
fn two_mounts() -> Result<(Cluster, PathBuf, PathBuf)> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    Ok((cluster, a, b))
}

/// Takes the second mount away; nothing is left that does not belong there.
fn end(cluster: &Cluster, second: &Path) -> Result<()> {
    weft_ok(&["umount", path(second)])?;
    cluster.await_clean()
}

fn direct(at: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(at)
}

/// Sets or clears `O_APPEND` of what is open.
fn append(file: &File, on: bool) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let wanted = if on { flags | libc::O_APPEND } else { flags & !libc::O_APPEND };
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, wanted) } {
        0 if flags >= 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// pwritev2(2) of one buffer.
fn write_with(file: &File, data: &[u8], offset: i64, flags: i32) -> io::Result<()> {
    let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the buffer outlives the call, which only reads it.
    let done = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, offset, flags) };
    match done {
        done if done == data.len() as isize => Ok(()),
        done if done >= 0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program may end that what it has open appends, and have it again.
#[test]
fn a_write_that_does_not_append_any_more_goes_where_it_says() -> Result<()> {
    let (cluster, a, b) = two_mounts()?;
    let opened = OpenOptions::new().read(true).append(true).create(true).open(a.join("f"))?;
    (&opened).write_all(b"abc")?;
    append(&opened, false)?;
    opened.write_all_at(b"x", 0)?;
    append(&opened, true)?;
    (&opened).write_all(b"y")?;
    for at in [&a, &b] {
        let found = fs::read(at.join("f"))?;
        ensure!(found == b"xbcy", "{:?}", String::from_utf8_lossy(&found));
    }
    end(&cluster, &b)
}

/// Programs make what they were given append (fdopen(3), make, dd). On two mounts, whose kernels do
/// not hear of each other's appends; through pages and past them.
#[test]
fn a_write_that_appends_by_now_goes_to_the_end() -> Result<()> {
    let (cluster, a, b) = two_mounts()?;
    for flags in [0, libc::O_DIRECT] {
        fs::write(a.join("log"), "")?;
        let open = |at: &Path| -> Result<File> {
            let log = at.join("log");
            let file = OpenOptions::new().write(true).custom_flags(flags).open(log)?;
            append(&file, true)?;
            Ok(file)
        };
        let (here, reader) = (open(&a)?, File::open(a.join("log"))?);
        (&here).write_all(Aligned::from(&[1; 512]).bytes())?;
        let there = open(&b)?;
        let mut wanted = vec![1; 512];
        for round in 0..tries(20) as u8 {
            for (file, who) in [(&there, 100), (&here, 200)] {
                let line = [who + round % 50; 512];
                (&*file).write_all(Aligned::from(&line).bytes())?;
                wanted.extend(line);
            }
            let mut found = vec![0; wanted.len()];
            reader.read_exact_at(&mut found, 0)?;
            ensure!(found == wanted, "flags {flags:#o}, round {round}: a line is gone");
        }
        ensure!(fs::read(a.join("log"))? == wanted && fs::read(b.join("log"))? == wanted);
    }
    end(&cluster, &b)
}

/// Where Linux leaves that to the filesystem: asynchronous writes past the pages, and appends.
#[test]
fn one_write_that_is_to_be_durable_is() -> Result<()> {
    let (cluster, a, b) = two_mounts()?;
    fs::write(b.join("f"), vec![0; 4 * PAGE as usize])?;
    let (file, aio) = (direct(&b.join("f"))?, Aio::new()?);
    let mut log = OpenOptions::new().append(true).create(true).open(b.join("log"))?;
    log.write_all(b"before ")?;
    file.sync_all()?;
    log.sync_all()?;
    let page = Aligned::from(&[7; PAGE as usize]);
    // Known before, since what is written later is durable by itself.
    let mount = cluster.pid_of_mount(&b)?;
    aio.write_with(&file, PAGE, page.bytes(), libc::RWF_DSYNC)?;
    write_with(&log, b"durable", -1, libc::RWF_DSYNC)?;
    kill(mount, Signal::SIGKILL)?;
    let found = fs::read(a.join("f"))?;
    ensure!(found[PAGE as usize..2 * PAGE as usize] == [7; PAGE as usize], "the page is lost");
    let found = fs::read(a.join("log"))?;
    ensure!(found == b"before durable", "the line is lost: {found:?}");
    drop((file, log));
    cluster.await_clean()
}

/// Words of one append, each with its number.
fn words(call: u64, len: usize) -> Aligned {
    let words = (0..len as u64 / 8).flat_map(|word| (call << 32 | word).to_le_bytes());
    Aligned::from(&words.collect::<Vec<_>>())
}

/// The kernel sends an asynchronous append in pieces, all at once.
#[test]
fn pieces_of_an_append_lie_in_order() -> Result<()> {
    const LEN: usize = 4 << 20;
    const LINE: [u8; 16] = [0xff; 16];
    let (cluster, a, b) = two_mounts()?;
    // By itself, each lands; beside others, each that says so.
    for others in [false, true] {
        let name = format!("log-{others}");
        let appends = || {
            let mut how = OpenOptions::new();
            how.append(true).create(true);
            how
        };
        let log = appends().custom_flags(libc::O_DIRECT).open(a.join(&name))?;
        let (mut beside, aio) = (appends().open(b.join(&name))?, Aio::new()?);
        let mut landed = Vec::new();
        for call in 0..tries(12) {
            if others {
                beside.write_all(&LINE)?;
            }
            match aio.write(&log, 0, words(call, LEN).bytes()) {
                Ok(()) => landed.push(call),
                Err(error) => {
                    let told = error.raw_os_error() == Some(libc::EIO);
                    ensure!(others && told, "call {call}, others {others}: {error}");
                }
            }
        }
        println!("others {others}: {} of {} landed", landed.len(), tries(12));
        let found = fs::read(b.join(&name))?;
        let mut next = vec![0; tries(12) as usize];
        for word in found.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into()?);
            let (call, word) = (word >> 32, word & u64::from(u32::MAX));
            if landed.contains(&call) {
                let wanted = std::mem::replace(&mut next[call as usize], word + 1);
                ensure!(word == wanted, "call {call}, others {others}: {word} after {wanted}");
            }
        }
        let all = landed.iter().all(|call| next[*call as usize] == LEN as u64 / 8);
        ensure!(all, "others {others}: an append is not whole");
    }
    end(&cluster, &b)
}

/// Whether the kernel has heard that the file was cut or not, what is appended next is no piece
/// that comes too late, nor one that waits for ever.
#[test]
fn who_appends_to_a_file_that_others_cut_appends() -> Result<()> {
    let (cluster, a, b) = two_mounts()?;
    let (line, aio) = (Aligned::from(&[7; PAGE as usize]), Aio::new()?);
    // Whether it hears of it before the first append, or only before the second.
    let [never, first, second] = [(false, false), (true, false), (false, true)];
    let plain = [never, first].map(|hears| (false, hears));
    let asynchronous = [never, first, second].map(|hears| (true, hears));
    let cases = plain.into_iter().chain(asynchronous);
    for (round, (asynchronous, (hears, hears_later))) in cases.enumerate() {
        let name = format!("log{round}");
        let append = |at: &Path| {
            let mut how = OpenOptions::new();
            how.append(true).create(true).custom_flags(libc::O_DIRECT).open(at.join(&name))
        };
        let (here, there) = (append(&a)?, append(&b)?);
        let write = || match asynchronous {
            true => aio.write(&here, 0, line.bytes()),
            false => (&here).write_all(line.bytes()),
        };
        write()?;
        write()?;
        for (kept, added) in [(0, 0), (512, 3), (0, 1)] {
            OpenOptions::new().write(true).open(b.join(&name))?.set_len(kept)?;
            // By another thread.
            let hear = || {
                std::thread::scope(|scope| {
                    scope.spawn(|| here.metadata()).join().expect("it does not panic")
                })
            };
            if hears {
                ensure!(hear()?.len() == kept);
            }
            for _ in 0..added {
                (&there).write_all(line.bytes())?;
            }
            let heard = format!("heard {hears}, later {hears_later}");
            let what = format!("asynchronous {asynchronous}, {heard}, kept {kept}");
            write().context(what.clone())?;
            if hears_later {
                ensure!(hear()?.len() == kept + (added + 1) * PAGE, "{what}");
            }
            write().context(what.clone())?;
            let found = fs::metadata(b.join(&name))?.len();
            ensure!(found == kept + (added + 2) * PAGE, "{what}: {found} bytes");
        }
    }
    end(&cluster, &b)
}

/// The kernel cuts a file where it believes that it ends when a write beyond fails.
#[test]
fn a_write_that_fails_cuts_off_nothing_that_others_wrote() -> Result<()> {
    let (cluster, a, b) = two_mounts()?;
    let page = Aligned::from(&[7; PAGE as usize]);
    for asynchronous in [false, true] {
        let name = format!("f{asynchronous}");
        let aio = Aio::new()?;
        let write = |file: &File, at: u64| match asynchronous {
            true => aio.write(file, at, page.bytes()),
            false => file.write_all_at(page.bytes(), at),
        };
        fs::write(a.join(&name), "")?;
        let (here, there) = (direct(&a.join(&name))?, direct(&b.join(&name))?);
        write(&here, 0)?;
        write(&there, PAGE)?;
        there.sync_all()?;
        // None is as long.
        let refused = write(&here, MAX_FILE);
        let errno = refused.err().and_then(|error| error.raw_os_error());
        ensure!(errno == Some(libc::EFBIG), "{errno:?}");
        let kept = |at: &Path| fs::read(at.join(&name)).context("read it");
        for at in [&b, &a] {
            let found = kept(at)?;
            ensure!(found == [7; 2 * PAGE as usize], "{} bytes are left", found.len());
        }
        // A program may cut, also right after a failure: what of the two has sent it is known.
        for file in [&here, &there] {
            ensure!(write(file, MAX_FILE).is_err());
            file.set_len(PAGE)?;
            ensure!(kept(&a)?.len() as u64 == PAGE && kept(&b)?.len() as u64 == PAGE);
            write(file, PAGE)?;
        }
        // Nor does the kernel make longer what others have cut.
        there.set_len(0)?;
        ensure!(write(&here, MAX_FILE).is_err());
        ensure!(kept(&b)?.is_empty() && kept(&a)?.is_empty(), "it has grown");
    }
    end(&cluster, &b)
}

/// The kernel sends it in pieces, of which some land.
#[test]
fn a_write_that_fails_leaves_nothing_behind_where_nobody_else_writes() -> Result<()> {
    const LEN: usize = 4 << 20;
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("limited");
    fs::create_dir(&dir)?;
    weft_ok(&["quota", "set", path(&dir), "--bytes", "2MiB"])?;
    let (aio, page) = (Aio::new()?, Aligned::from(&[7; PAGE as usize]));
    for asynchronous in [false, true] {
        let at = dir.join(format!("f{asynchronous}"));
        fs::write(&at, "")?;
        let file = direct(&at)?;
        let write = |data: &[u8], at: u64| match asynchronous {
            true => aio.write(&file, at, data),
            false => file.write_all_at(data, at),
        };
        for pages in 1..4 {
            let end = pages * PAGE;
            write(page.bytes(), end - PAGE)?;
            let refused = write(words(1, LEN).bytes(), end);
            let errno = refused.err().and_then(|error| error.raw_os_error());
            ensure!(errno == Some(libc::EDQUOT), "asynchronous {asynchronous}: {errno:?}");
            let found = fs::metadata(&at)?.len();
            ensure!(found == end, "asynchronous {asynchronous}: {found} bytes, and not {end}");
            ensure!(fs::read(&at)? == vec![7; end as usize], "asynchronous {asynchronous}");
        }
    }
    cluster.await_clean()
}
