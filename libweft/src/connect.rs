//! Connects and disconnects.

use crate::error::{Failure, call_unit, failed};
use crate::exit::{self, Ticket};
use crate::options::{Settings, weft_options};
use crate::pointers::{object, out, string};
use crate::shield::shielded;
use libc::{c_char, c_int};
use weft_client::blocking::{Connection, User};

/// A filesystem that this process is connected to, with the rights of a user. Any number of threads
/// may use it.
#[allow(non_camel_case_types)]
pub struct weft_fs {
    pub(crate) user: User,
    ticket: Ticket,
}

/// Connects to the cluster with these metadata servers, "HOST:PORT[,HOST:PORT...]"; options may be
/// NULL. Waits for a cluster that is away, at most as long as one operation may take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_connect(
    cluster: *const c_char,
    options: *const weft_options,
    fs: *mut *mut weft_fs,
) -> c_int {
    call_unit("weft_connect", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (cluster, options, fs) =
            unsafe { (string(cluster)?, Settings::read(options)?, out(fs)?) };
        let Ok(cluster) = std::str::from_utf8(cluster) else {
            return failed(libc::EINVAL, "the address of the cluster is no text in UTF-8");
        };
        let connect = options.to_connect(cluster)?;
        let connection = shielded(|| Connection::connect(connect)).map_err(Failure::no_thread)?;
        let connection = connection.map_err(|e| Failure::from(e).at(cluster))?;
        let user = match &options.who {
            Some(who) => connection.as_user(who.clone()),
            None => connection.as_this_process(),
        };
        let user = user.with_umask(options.umask);
        let ticket = exit::enter(&connection);
        *fs = Box::into_raw(Box::new(weft_fs { user, ticket }));
        Ok(())
    })
}

/// Makes all that was written durable, disconnects and frees fs. It does so whatever it answers:
/// the first error of what could not be made durable, of which nobody was told. Files, directories
/// and rings that are open still answer -ENOTCONN from now on and are closed, each by its own call,
/// before or after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_disconnect(fs: *mut weft_fs) -> c_int {
    call_unit("weft_disconnect", || {
        // SAFETY: the caller's pointer, see `crate`.
        unsafe { object(fs)? };
        // SAFETY: it was made by `weft_connect`, and is not used any more.
        let fs = unsafe { Box::from_raw(fs) };
        let connection = fs.user.connection();
        crate::error::of_this_process(connection)?;
        let ended = connection.disconnect();
        exit::leave(fs.ticket);
        Ok(ended?)
    })
}
