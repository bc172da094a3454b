//! The two ways to the filesystem, with the same calls.

use anyhow::{Context, Result, ensure};
use std::ffi::CString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use weft_client::blocking::User;
use weft_client::{OpenFlags, ReadItem};
use weft_proto::ErrorKind;
use weft_tests::path;

/// A way to the filesystem.
pub trait Side {
    fn write(&self, name: &str, content: &[u8]) -> Result<()>;
    fn append(&self, name: &str, content: &[u8]) -> Result<()>;
    fn read(&self, name: &str) -> Result<Vec<u8>>;
    /// Mode and size; `None` if it is not there.
    fn stat(&self, name: &str) -> Result<Option<(u32, u64)>>;
    fn list(&self, dir: &str) -> Result<Vec<String>>;
    fn unlink(&self, name: &str) -> Result<()>;
    fn mkdir(&self, name: &str) -> Result<()>;
    fn rmdir(&self, name: &str) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn link(&self, from: &str, to: &str) -> Result<()>;
    fn symlink(&self, target: &str, name: &str) -> Result<()>;
    fn readlink(&self, name: &str) -> Result<Vec<u8>>;
    fn chmod(&self, name: &str, mode: u32) -> Result<()>;
    fn truncate(&self, name: &str, size: u64) -> Result<()>;
    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()>;
    fn xattr(&self, name: &str) -> Result<Vec<u8>>;
}

const XATTR: &str = "user.weft-test";

pub struct Mount(pub PathBuf);

impl Side for Mount {
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        Ok(fs::write(self.0.join(name), content)?)
    }
    fn append(&self, name: &str, content: &[u8]) -> Result<()> {
        Ok(OpenOptions::new().append(true).open(self.0.join(name))?.write_all(content)?)
    }
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        Ok(fs::read(self.0.join(name))?)
    }
    fn stat(&self, name: &str) -> Result<Option<(u32, u64)>> {
        match fs::symlink_metadata(self.0.join(name)) {
            Ok(found) => Ok(Some((found.mode() & 0o7777, found.len()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.0.join(dir))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }
    fn unlink(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.0.join(name))?)
    }
    fn mkdir(&self, name: &str) -> Result<()> {
        Ok(fs::create_dir(self.0.join(name))?)
    }
    fn rmdir(&self, name: &str) -> Result<()> {
        Ok(fs::remove_dir(self.0.join(name))?)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.0.join(from), self.0.join(to))?)
    }
    fn link(&self, from: &str, to: &str) -> Result<()> {
        Ok(fs::hard_link(self.0.join(from), self.0.join(to))?)
    }
    fn symlink(&self, target: &str, name: &str) -> Result<()> {
        Ok(symlink(target, self.0.join(name))?)
    }
    fn readlink(&self, name: &str) -> Result<Vec<u8>> {
        Ok(fs::read_link(self.0.join(name))?.into_os_string().into_encoded_bytes())
    }
    fn chmod(&self, name: &str, mode: u32) -> Result<()> {
        Ok(fs::set_permissions(self.0.join(name), Permissions::from_mode(mode))?)
    }
    fn truncate(&self, name: &str, size: u64) -> Result<()> {
        Ok(OpenOptions::new().write(true).open(self.0.join(name))?.set_len(size)?)
    }
    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        let (path, key) = (CString::new(path(&self.0.join(name)))?, CString::new(XATTR)?);
        let (data, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: strings that end with NUL, and as many bytes as are said.
        let done = unsafe { libc::setxattr(path.as_ptr(), key.as_ptr(), data, len, 0) };
        ensure!(done == 0, std::io::Error::last_os_error());
        Ok(())
    }
    fn xattr(&self, name: &str) -> Result<Vec<u8>> {
        let (path, key) = (CString::new(path(&self.0.join(name)))?, CString::new(XATTR)?);
        let mut value = vec![0; 64];
        let (into, room) = (value.as_mut_ptr().cast(), value.len());
        // SAFETY: strings that end with NUL, and room for as many bytes as are said.
        let len = unsafe { libc::getxattr(path.as_ptr(), key.as_ptr(), into, room) };
        value.truncate(usize::try_from(len).map_err(|_| std::io::Error::last_os_error())?);
        Ok(value)
    }
}

pub struct Library(pub User);

impl Library {
    fn put(&self, name: &str, content: &[u8], flags: OpenFlags) -> Result<()> {
        let flags = OpenFlags { write: true, ..flags };
        let file = self.0.create(name, 0o644, flags)?;
        ensure!(file.write(0, content)? == content.len());
        Ok(file.close()?)
    }
}

impl Side for Library {
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content, OpenFlags { truncate: true, ..Default::default() })
    }
    fn append(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content, OpenFlags { append: true, ..Default::default() })
    }
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.0.open(name, OpenFlags::default())?;
        let size = file.stat()?.size as usize;
        let one = file.read(0, size + 1)?.into_bytes();
        file.close()?;
        let mut many = None;
        self.0.read_many(vec![ReadItem::whole(name.to_owned())], |_, read| many = Some(read))?;
        let many = many.context("a read is answered")??.into_bytes();
        ensure!(one == many, "a batch reads something else: {one:?}, {many:?}");
        Ok(one.to_vec())
    }
    fn stat(&self, name: &str) -> Result<Option<(u32, u64)>> {
        match self.0.lstat(name) {
            Ok(attr) => Ok(Some((attr.mode, attr.size))),
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.0.read_dir(dir, cookie, 100, false)?;
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let more = page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned());
            names.extend(more);
            if page.end {
                return Ok(names);
            }
        }
    }
    fn unlink(&self, name: &str) -> Result<()> {
        Ok(self.0.unlink(name)?)
    }
    fn mkdir(&self, name: &str) -> Result<()> {
        Ok(self.0.mkdir(name, 0o755).map(drop)?)
    }
    fn rmdir(&self, name: &str) -> Result<()> {
        Ok(self.0.rmdir(name)?)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(self.0.rename(from, to, 0)?)
    }
    fn link(&self, from: &str, to: &str) -> Result<()> {
        Ok(self.0.link(from, to).map(drop)?)
    }
    fn symlink(&self, target: &str, name: &str) -> Result<()> {
        Ok(self.0.symlink(target, name).map(drop)?)
    }
    fn readlink(&self, name: &str) -> Result<Vec<u8>> {
        Ok(self.0.readlink(name)?.to_vec())
    }
    fn chmod(&self, name: &str, mode: u32) -> Result<()> {
        Ok(self.0.chmod(name, mode).map(drop)?)
    }
    fn truncate(&self, name: &str, size: u64) -> Result<()> {
        Ok(self.0.truncate(name, size).map(drop)?)
    }
    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        Ok(self.0.set_xattr(name, XATTR.as_bytes(), value, 0)?)
    }
    fn xattr(&self, name: &str) -> Result<Vec<u8>> {
        Ok(self.0.get_xattr(name, XATTR.as_bytes())?.to_vec())
    }
}
