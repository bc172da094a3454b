//! What a program says when it connects.

use crate::errors::os_error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;
use weft_client::blocking::{ConnectOptions, Connection};
use weft_client::{Caller, Credentials};

/// What of the options a program may set; see `weft.connect`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Option<Vec<u32>>,
    umask: Option<u32>,
    cache_bytes: Option<usize>,
    write_buffer_bytes: Option<usize>,
    /// Seconds.
    timeout: Option<f64>,
    close_sync: bool,
    threads: usize,
    name: Option<String>,
}

impl Settings {
    /// How to connect to a cluster. Errors: `OSError`, `ValueError`.
    pub fn options(&self, cluster: &str) -> PyResult<ConnectOptions> {
        let mut options = ConnectOptions::new(cluster).map_err(|e| os_error(&e, None))?;
        options.threads = self.threads;
        let client = &mut options.client;
        client.close_sync = self.close_sync;
        client.cache_bytes = self.cache_bytes.unwrap_or(client.cache_bytes);
        client.write_buffer_bytes = self.write_buffer_bytes.unwrap_or(client.write_buffer_bytes);
        if let Some(name) = &self.name {
            client.client_name.clone_from(name);
        }
        if let Some(seconds) = self.timeout {
            client.op_deadline = match Duration::try_from_secs_f64(seconds) {
                Ok(time) => time,
                // Longer than can be told is for ever.
                Err(_) if seconds > 0.0 => Duration::MAX,
                Err(_) => return Err(PyValueError::new_err("timeout must not be negative")),
            };
        }
        Ok(options)
    }

    /// The filesystem with the rights of whom is named: by default, of this process.
    pub fn user(&self, connection: &Connection) -> Caller {
        let process = connection.as_this_process();
        let who = process.credentials();
        let other = self.uid.is_some() || self.gid.is_some();
        let groups = match &self.groups {
            Some(groups) => groups.clone(),
            // Another user is in none of the groups of this one.
            None if other => Vec::new(),
            None => who.groups.clone(),
        };
        let (uid, gid) = (self.uid.unwrap_or(who.uid), self.gid.unwrap_or(who.gid));
        let user = connection.as_user(Credentials { uid, gid, groups });
        user.caller().with_umask(self.umask.unwrap_or_else(umask))
    }
}

/// The umask of this process, which no call tells without setting it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
