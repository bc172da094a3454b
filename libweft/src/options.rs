//! How to connect, as C says it.

use crate::error::{Answer, Failure, failed};
use crate::pointers::string;
use libc::{c_char, gid_t, uid_t};
use std::mem::{offset_of, size_of};
use std::time::Duration;
use weft_client::Credentials;
use weft_client::blocking::ConnectOptions;

/// Act as uid, gid and groups, and not as this process.
pub const WEFT_OPTION_CREDENTIALS: u64 = 1;
/// Take umask, and not that of this process, off the modes of what is made.
pub const WEFT_OPTION_UMASK: u64 = 2;
/// weft_close makes durable what was written.
pub const WEFT_OPTION_CLOSE_SYNC: u64 = 4;
/// A name that is made, moved or taken away is durable before that is answered.
pub const WEFT_OPTION_DIR_SYNC: u64 = 8;
const KNOWN_FLAGS: u64 = 15;

/// For op_timeout_s: operations wait for the cluster, however long.
pub const WEFT_NO_TIMEOUT: u32 = u32::MAX;

/// How to connect. Begin with WEFT_OPTIONS_INIT and set what is to differ: 0 is the default of each
/// field. A program that was compiled with an older header gives a shorter one, and the rest is 0;
/// a longer one is refused (-E2BIG) if it sets what this library does not know.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_options {
    /// sizeof(struct weft_options): which version it is.
    pub size: usize,
    /// WEFT_OPTION_...
    pub flags: u64,
    /// With WEFT_OPTION_CREDENTIALS: the user; 0 is root.
    pub uid: uid_t,
    /// With WEFT_OPTION_CREDENTIALS: the group.
    pub gid: gid_t,
    /// With WEFT_OPTION_CREDENTIALS: supplementary groups.
    pub groups: *const gid_t,
    /// How many groups there are, at most 65536.
    pub ngroups: usize,
    /// With WEFT_OPTION_UMASK: bits that new files do not get.
    pub umask: u32,
    /// Threads that do the work. Default: one for each core, at most 8.
    pub threads: u32,
    /// Most bytes that are read ahead. Default: 256 MiB.
    pub cache_bytes: u64,
    /// Most bytes that were written and are not durable yet. Default: 256 MiB.
    pub write_buffer_bytes: u64,
    /// Seconds after which an operation that cannot be done fails. Default: 300.
    pub op_timeout_s: u32,
    /// 0.
    pub reserved: u32,
    /// What the list of sessions shows. Default: the host, the name of the program and its
    /// number. Servers share what they have among those that differ before the first colon.
    pub client_name: *const c_char,
}

const KNOWN: usize = size_of::<weft_options>();
/// Sizes are multiples of this, so that none ends within a field.
const STEP: usize = 8;
/// A longer one is none of ours.
const MAX_SIZE: usize = 4096;
/// Most supplementary groups that Linux gives a process.
const MAX_GROUPS: usize = 65_536;

// Fields lie at these places for ever.
const _: () = assert!(offset_of!(weft_options, client_name) == 72 && KNOWN == 80);

/// Options that were understood.
pub struct Settings {
    options: weft_options,
    /// Default: this process.
    pub who: Option<Credentials>,
    pub umask: u32,
    client_name: Option<String>,
}

impl Settings {
    /// Takes in what the caller gives, of whatever version. Errors: `EINVAL`, `E2BIG`, `EFAULT`.
    ///
    /// # Safety
    /// See [`crate`].
    pub unsafe fn read(options: *const weft_options) -> Answer<Self> {
        // SAFETY: numbers and pointers may all be 0.
        let mut known: weft_options = unsafe { std::mem::zeroed() };
        if !options.is_null() {
            // SAFETY: the size is there in each version, as is as much as it says.
            unsafe { copy(options, &mut known)? };
        }
        let unknown = known.flags & !KNOWN_FLAGS;
        if unknown != 0 || known.reserved != 0 {
            return failed(libc::EINVAL, format!("unknown flags {unknown:#x} among the options"));
        }
        // SAFETY: the caller's pointers, see `crate`.
        let (who, client_name) = unsafe { (credentials(&known)?, client_name(&known)?) };
        let umask = match known.flags & WEFT_OPTION_UMASK {
            0 => process_umask(),
            _ => known.umask & 0o777,
        };
        Ok(Self { options: known, who, umask, client_name })
    }

    /// For the cluster with these metadata servers. Errors: `EINVAL`.
    pub fn to_connect(&self, cluster: &str) -> Answer<ConnectOptions> {
        let mut connect = ConnectOptions::new(cluster)?;
        let options = &self.options;
        connect.threads = options.threads as usize;
        let client = &mut connect.client;
        client.close_sync = options.flags & WEFT_OPTION_CLOSE_SYNC != 0;
        client.dir_sync = options.flags & WEFT_OPTION_DIR_SYNC != 0;
        set_bytes(&mut client.cache_bytes, options.cache_bytes)?;
        set_bytes(&mut client.write_buffer_bytes, options.write_buffer_bytes)?;
        match options.op_timeout_s {
            0 => {}
            WEFT_NO_TIMEOUT => client.op_deadline = Duration::MAX,
            seconds => client.op_deadline = Duration::from_secs(seconds.into()),
        }
        if let Some(name) = &self.client_name {
            client.client_name.clone_from(name);
        }
        Ok(connect)
    }
}

/// Copies what both know; what only the caller knows has to be 0.
///
/// # Safety
/// `from` starts with its size and has that many bytes.
unsafe fn copy(from: *const weft_options, known: &mut weft_options) -> Answer<()> {
    // SAFETY: it starts with it; an old version need not be aligned for what came later.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if !(STEP..=MAX_SIZE).contains(&size) || !size.is_multiple_of(STEP) {
        let what = format!(
            "options cannot have {size} bytes: begin with WEFT_OPTIONS_INIT, which sets their size"
        );
        return failed(libc::EINVAL, what);
    }
    // SAFETY: it has `size` bytes.
    let given = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    if given.iter().skip(KNOWN).any(|byte| *byte != 0) {
        let what = "the options set what this version of the library does not know: install the \
                    one that the program was compiled for";
        return failed(libc::E2BIG, what);
    }
    let both = size.min(KNOWN);
    // SAFETY: both have that many bytes, and any bytes are numbers and pointers.
    unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut *known).cast::<u8>(), both) };
    Ok(())
}

/// # Safety
/// See [`crate`].
unsafe fn credentials(options: &weft_options) -> Answer<Option<Credentials>> {
    if options.flags & WEFT_OPTION_CREDENTIALS == 0 {
        return Ok(None);
    }
    let (groups, count) = (options.groups, options.ngroups);
    let groups = match count {
        0 => Vec::new(),
        _ if count > MAX_GROUPS => {
            return failed(libc::EINVAL, format!("{count} groups are over {MAX_GROUPS}"));
        }
        _ if groups.is_null() => return failed(libc::EFAULT, "groups are NULL"),
        // SAFETY: that of the caller.
        _ => unsafe { std::slice::from_raw_parts(groups, count) }.to_vec(),
    };
    Ok(Some(Credentials { uid: options.uid, gid: options.gid, groups }))
}

/// # Safety
/// See [`crate`].
unsafe fn client_name(options: &weft_options) -> Answer<Option<String>> {
    if options.client_name.is_null() {
        return Ok(None);
    }
    // SAFETY: that of the caller.
    let name = unsafe { string(options.client_name)? };
    Ok(Some(String::from_utf8_lossy(name).into_owned()))
}

fn set_bytes(field: &mut usize, bytes: u64) -> Answer<()> {
    if bytes != 0 {
        *field = usize::try_from(bytes)
            .map_err(|_| Failure::new(libc::EINVAL, format!("{bytes} bytes are too many")))?;
    }
    Ok(())
}

/// That of this process; the usual one if the kernel does not tell. Asking `umask(2)` would change
/// it for other threads.
fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok()).unwrap_or(0o022)
}
