//! Options of `weft mount` as text.

use crate::size::Size;
use std::fmt;
use std::path::PathBuf;
use weft_client::HotOptions;
use weft_fuse::{IoUring, MountFlags};

pub fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".into()),
    }
}

/// Share of operations that are traced where nothing else was said.
pub const TRACE_RATIO: &str = "0.001";

/// A share, 0 to 1; an empty one is that which is usual.
pub fn ratio(text: &str) -> Result<f64, String> {
    match if text.is_empty() { TRACE_RATIO } else { text }.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("write a number from 0 to 1".into()),
    }
}

/// What follows `-o`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MountOptions {
    pub flags: MountFlags,
    /// Seconds after which an operation that finds no cluster fails; else it waits.
    pub soft: Option<u64>,
    /// A close waits until what was written is durable.
    pub closesync: bool,
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let close = if self.closesync { ",closesync" } else { "" };
        match self.soft {
            Some(seconds) => write!(f, "{},soft={seconds}{close}", self.flags),
            None => write!(f, "{},hard{close}", self.flags),
        }
    }
}

pub fn mount_options(text: &str) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for option in text.split(',') {
        match option.split_once('=') {
            _ if option == "hard" => options.soft = None,
            _ if option == "closesync" => options.closesync = true,
            _ if option == "noclosesync" => options.closesync = false,
            Some(("soft", seconds)) => match seconds.parse() {
                Ok(seconds @ 1..) => options.soft = Some(seconds),
                _ => return Err(format!("soft={seconds}: write whole seconds, as soft=60")),
            },
            _ if option == "soft" => return Err("say after how many seconds, as soft=60".into()),
            _ if options.flags.set(option) => {}
            _ => return Err(format!("there is no option {option:?}")),
        }
    }
    Ok(options)
}

/// The folder of a hot tier, from the root on: the process that serves may work in another one.
pub fn hot_dir(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|e| e.to_string())
}

/// The size of a hot tier.
pub fn hot_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let least = HotOptions::MIN_SIZE;
    if size.0 < least {
        return Err(format!("a hot tier has {} MiB at least", least >> 20));
    }
    Ok(size)
}

pub fn io_uring(text: &str) -> Result<IoUring, String> {
    match text {
        "auto" => Ok(IoUring::Auto),
        "on" => Ok(IoUring::On),
        "off" => Ok(IoUring::Off),
        _ => Err("write auto, on or off".into()),
    }
}
