//! Limits, times and owners as people write them.

use crate::size::Size;
use anyhow::{Context, Result, bail};
use nix::unistd::{Group, User};
use std::str::FromStr;

/// A number of bytes or inodes; 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(pub u64);

const NO_LIMIT: &str = "none";

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            NO_LIMIT => Ok(Self(0)),
            text => positive(text.parse::<Size>()?.0),
        }
    }
}

/// Of inodes, where 1K is 1000.
pub fn count(text: &str) -> Result<Limit, String> {
    let bad = || format!("{text:?} is not a number of inodes; write for example 500 or none");
    match text {
        NO_LIMIT => Ok(Limit(0)),
        text => positive(text.parse().map_err(|_| bad())?),
    }
}

fn positive(number: u64) -> Result<Limit, String> {
    match number {
        0 => Err(format!("0 is no limit that anything fits in: write {NO_LIMIT} for no limit")),
        number => Ok(Limit(number)),
    }
}

/// A time, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grace(pub u64);

impl FromStr for Grace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |e| format!("{text:?} is not a time; write for example 7d or 12h: {e}");
        match humantime::parse_duration(text).map_err(bad)?.as_secs() {
            0 => Err("a time of grace is at least a second: set a hard limit instead".into()),
            seconds => Ok(Self(seconds)),
        }
    }
}

/// The number of a user.
pub fn user(text: &str) -> Result<u32> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let known = User::from_name(text).with_context(|| format!("user {text}"))?;
    let Some(user) = known else { bail!("there is no user {text:?} on this machine") };
    Ok(user.uid.as_raw())
}

/// The number of a group.
pub fn group(text: &str) -> Result<u32> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    let known = Group::from_name(text).with_context(|| format!("group {text}"))?;
    let Some(group) = known else { bail!("there is no group {text:?} on this machine") };
    Ok(group.gid.as_raw())
}

/// The name of a user, if this machine knows one.
pub fn user_name(uid: u64) -> Option<String> {
    let user = User::from_uid(u32::try_from(uid).ok()?.into()).ok()??;
    Some(user.name)
}

/// The name of a group, if this machine knows one.
pub fn group_name(gid: u64) -> Option<String> {
    let group = Group::from_gid(u32::try_from(gid).ok()?.into()).ok()??;
    Some(group.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_times_are_read() {
        assert_eq!("64MiB".parse(), Ok(Limit(64 << 20)));
        assert_eq!(("none".parse(), count("none")), (Ok(Limit(0)), Ok(Limit(0))));
        assert_eq!(count("500"), Ok(Limit(500)));
        assert_eq!("7d".parse(), Ok(Grace(7 * 24 * 3600)));
        assert!("0".parse::<Limit>().is_err() && count("1K").is_err() && count("0").is_err());
        assert!("soon".parse::<Grace>().is_err() && "0s".parse::<Grace>().is_err());
        assert_eq!((user("root").unwrap(), user("1000").unwrap()), (0, 1000));
        assert!(user("nobody-is-called-this").is_err());
    }
}
