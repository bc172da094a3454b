//! Extended attributes: what each costs, and that every mount sees the same.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weft_tests::{Cluster, await_free, cost, path, run};

const FILES: usize = 300;
/// What `ls -l` and `cp -a` ask for of every name.
const ASKED: [&str; 4] =
    ["security.selinux", "system.posix_acl_access", "user.short", "trusted.other"];

type Errno = i32;

fn answer(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn name_of(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL")
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<usize, Errno> {
    let (path, name) = (name_of(path), CString::new(name).expect("no NUL"));
    let (value, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: the names end with NUL, and the value is as long as is said.
    answer(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value, len, 0) } as isize)
}

fn remove(path: &Path, name: &str) -> Result<usize, Errno> {
    let (path, name) = (name_of(path), CString::new(name).expect("no NUL"));
    // SAFETY: the names end with NUL.
    answer(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) } as isize)
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (name_of(path), CString::new(name).expect("no NUL"));
    let mut value = vec![0u8; 65_536];
    let (room, len) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: the names end with NUL, and there is as much room as is said.
    let len = answer(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), room, len) })?;
    value.truncate(len);
    Ok(value)
}

fn list(path: &Path) -> Result<BTreeSet<String>, Errno> {
    let path = name_of(path);
    let mut names = vec![0u8; 65_536];
    // SAFETY: the name ends with NUL, and there is as much room as is said.
    let len =
        answer(unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) })?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// A list that lets user 7 read.
fn acl() -> Vec<u8> {
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, 7), (4, 4, u32::MAX), (16, 4, u32::MAX)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.into_iter().chain([(32, 0, u32::MAX)]) {
        out.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Looks at each file as `ls -l` does. Answers how many attributes there were.
fn look(files: &[PathBuf]) -> Result<usize> {
    let mut found = 0;
    for file in files {
        fs::symlink_metadata(file)?;
        for name in ASKED {
            match get(file, name) {
                Ok(_) => found += 1,
                Err(libc::ENODATA) => {}
                Err(errno) => anyhow::bail!("{name} of {}: {errno}", file.display()),
            }
        }
        found += list(file).map_err(|e| anyhow::anyhow!("list: {e}"))?.len();
    }
    Ok(found)
}

#[test]
fn who_lists_a_directory_asks_for_no_attribute_of_its_own() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("d");
    fs::create_dir(&dir)?;
    let files: Vec<_> = (0..FILES).map(|i| dir.join(format!("f{i}"))).collect();
    for (i, file) in files.iter().enumerate() {
        fs::write(file, "content")?;
        let done = match i % 10 {
            0 => set(file, "user.short", b"value"),
            1 => set(file, "system.posix_acl_access", &acl()),
            2 => set(file, "user.long", &[7; 2000]),
            _ => Ok(0),
        };
        done.map_err(|errno| anyhow::anyhow!("{}: {errno}", file.display()))?;
    }
    cluster.remount()?;
    let walk = || -> Result<()> {
        let names = fs::read_dir(&dir)?.count();
        ensure!(names == FILES);
        let found = look(&files)?;
        // Two for what has a short one or a list, asked for and listed; one for what has a long
        // one.
        ensure!(found == FILES / 10 * 5, "{found} attributes");
        Ok(())
    };
    let cold = cost(cluster.mnt(), walk)?;
    ensure!(
        cold < FILES as u64 / 2,
        "{cold} requests for {FILES} files whose attributes nobody knew"
    );
    await_free(cluster.mnt(), "look at files that are known", walk)?;
    // The value that does not come along costs something, once.
    let value = || {
        ensure!(get(&files[2], "user.long").is_ok_and(|value| value == [7; 2000]));
        Ok(())
    };
    let asked = cost(cluster.mnt(), value)?;
    ensure!(asked > 0, "the long value came along");
    await_free(cluster.mnt(), "look at a value again", value)?;
    // Nor does a file that was made here, and that the group has not heard of.
    let mut made = 0;
    await_free(cluster.mnt(), "look at a new file", || {
        made += 1;
        let fresh = dir.join(format!("fresh-{made}"));
        let open = File::create(&fresh)?;
        look(std::slice::from_ref(&fresh))?;
        drop(open);
        Ok(())
    })?;
    cluster.await_clean()
}

#[test]
fn every_mount_sees_what_another_has_set() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_path_buf(), cluster.mount_again("second")?];
    fs::create_dir(mounts[0].join("d"))?;
    fs::write(mounts[0].join("d/f"), "content")?;
    for name in ["d", "d/f"] {
        for round in 0..40 {
            let (by, on) = (round % 2, [round % 2, 1 - round % 2]);
            let value = round.to_string().into_bytes();
            let attribute = format!("user.{}", round % 3);
            let wanted = match round % 5 {
                4 => {
                    remove(&mounts[by].join(name), &attribute).ok();
                    None
                }
                _ => {
                    set(&mounts[by].join(name), &attribute, &value)
                        .map_err(|errno| anyhow::anyhow!("{errno}"))?;
                    Some(value)
                }
            };
            for on in on {
                let (at, case) = (mounts[on].join(name), format!("{name} {round} on {on}"));
                // Twice: asked for, and known.
                for _ in 0..2 {
                    let got = get(&at, &attribute);
                    ensure!(got.clone().ok() == wanted, "{case}: {got:?}, not {wanted:?}");
                    ensure!(got.is_ok() || got == Err(libc::ENODATA), "{case}: {got:?}");
                    let names = list(&at).map_err(|errno| anyhow::anyhow!("{errno}"))?;
                    ensure!(names.contains(&attribute) == wanted.is_some(), "{case}: {names:?}");
                }
            }
        }
    }
    let f = mounts[0].join("d/f");
    // What a file capability of no rights looks like, which the kernel checks before it asks.
    let capability = [2u32 << 24, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
    for (name, value) in [("security.selinux", &b"label"[..]), ("security.capability", &capability)]
    {
        ensure!(get(&f, name) == Err(libc::ENODATA), "{name}");
        let refused = set(&f, name, value);
        ensure!(refused == Err(libc::EOPNOTSUPP), "{name}: {refused:?}");
    }
    cluster.await_clean()
}

/// Root's own attributes are nobody else's business, not even that there are any.
#[test]
fn who_is_not_root_sees_nothing_of_what_is_roots() -> Result<()> {
    let cluster = Cluster::start()?;
    let file = cluster.mnt().join("f");
    File::create(&file)?;
    for name in ["trusted.secret", "user.known"] {
        set(&file, name, b"value").map_err(|errno| anyhow::anyhow!("{name}: {errno}"))?;
    }
    let known = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
    let names = list(&file).map_err(|errno| anyhow::anyhow!("{errno}"))?;
    ensure!(known(names) == "trusted.secret user.known");
    fs::set_permissions(cluster.mnt(), fs::Permissions::from_mode(0o755))?;
    let script = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); \
                  print(*sorted(os.listxattr('f')))";
    let said = run("python3", &["-c", script], cluster.mnt())?;
    ensure!(said.trim() == "user.known", "{said}");
    cluster.await_clean()
}

/// As many as fit elsewhere, and the longest that there may be.
#[test]
fn many_attributes_and_long_ones() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let file = a.join("f");
    File::create(&file)?;
    for i in 0..1200 {
        set(&file, &format!("user.name{i}"), format!("value {i}").as_bytes())
            .map_err(|errno| anyhow::anyhow!("number {i}: {errno}"))?;
    }
    let long = vec![9; 65_536];
    set(&file, "user.long", &long).map_err(|errno| anyhow::anyhow!("long: {errno}"))?;
    ensure!(set(&file, "user.longer", &vec![9; 65_537]) == Err(libc::E2BIG));
    for at in [&a, &b].map(|m| m.join("f")) {
        let names = list(&at).map_err(|errno| anyhow::anyhow!("{errno}"))?;
        ensure!(names.len() == 1201, "{} names", names.len());
        ensure!(get(&at, "user.long") == Ok(long.clone()));
        for i in [0, 600, 1199] {
            let value = get(&at, &format!("user.name{i}"));
            ensure!(value == Ok(format!("value {i}").into_bytes()), "{i}: {value:?}");
        }
        ensure!(get(&at, "user.none") == Err(libc::ENODATA));
    }
    fs::remove_file(path(&file)).context("remove")?;
    cluster.await_clean()
}
