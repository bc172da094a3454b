//! What an inode's owner may do, and what becomes of set-id bits when somebody changes the inode.

use super::bits::Access;
use super::credentials::Credentials;
use crate::types::{Attr, FileKind, SetAttr, SetTime};
use weft_proto::mode::{MODE_MASK, SET_IDS, SETGID, without_set_ids};
use weft_proto::{Error, ErrorKind, Result};

const GROUP_EXEC: u32 = 0o010;

/// The owner, or who stands above owners (`CAP_FOWNER`).
pub(crate) fn owns(who: &Credentials, attr: &Attr) -> bool {
    who.is_root() || who.uid == attr.uid
}

fn refused(who: &Credentials, attr: &Attr, what: &str) -> Error {
    let what = format!("user {} may not change {what} of inode {}", who.uid, attr.ino);
    Error::new(ErrorKind::NotPermitted, what)
}

/// The mode that a user sets: without the set-group-id bit of a group that the user is not in.
/// Errors: `NotPermitted`.
pub(crate) fn chmod(who: &Credentials, attr: &Attr, mode: u32) -> Result<u32> {
    if !owns(who, attr) {
        return Err(refused(who, attr, "the mode"));
    }
    let kept = if who.may_act_for(attr.gid) { MODE_MASK } else { MODE_MASK & !SETGID };
    Ok(mode & kept)
}

/// What a change of owner and group changes: nobody gives files away but root, the owner may
/// choose among the own groups, and programs lose their set-id bits. Errors: `NotPermitted`.
pub(crate) fn chown(
    who: &Credentials,
    attr: &Attr,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<SetAttr> {
    let owner = who.uid == attr.uid;
    let keeps = uid.is_none_or(|uid| owner && uid == attr.uid);
    let own_group = gid.is_none_or(|gid| owner && (gid == attr.gid || who.is_in(gid)));
    let allowed = who.is_root() || keeps && own_group;
    if !allowed {
        return Err(refused(who, attr, "the owner"));
    }
    let left = without_set_ids(attr.mode, who.may_act_for(attr.gid));
    // With a change of either, what nobody keeps is taken with it. Who changes neither changes
    // nothing else.
    let changes = uid.is_some() || gid.is_some();
    let by_itself = if changes { without_set_ids(attr.mode, true) } else { attr.mode };
    let taken = left != by_itself;
    let mode = (attr.kind != FileKind::Directory && taken).then_some(left);
    Ok(SetAttr { uid, gid, mode, ..Default::default() })
}

/// What must be permitted beside to set times: the owner sets any, others may say that the file
/// was read and written now if they may write it. Errors: `NotPermitted`.
pub(crate) fn utimes(
    who: &Credentials,
    attr: &Attr,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<Access> {
    match (atime, mtime) {
        _ if owns(who, attr) => Ok(Access::NONE),
        (None, None) => Ok(Access::NONE),
        (Some(SetTime::Now), Some(SetTime::Now)) => Ok(Access::WRITE),
        _ => Err(refused(who, attr, "the times")),
    }
}

/// The mode that a file has after its content was changed, if that is another: who changes a
/// program takes the rights that it gave.
pub(crate) fn kept_mode(who: &Credentials, attr: &Attr) -> Option<u32> {
    if who.is_root() || attr.kind == FileKind::Directory || attr.mode & SET_IDS == 0 {
        return None;
    }
    Some(without_set_ids(attr.mode, who.is_in(attr.gid))).filter(|left| *left != attr.mode)
}

/// The mode of a new file in `dir`, before the umask: who is not in the group that a directory
/// hands down makes no program that runs as that group.
pub(crate) fn mode_of_new(who: &Credentials, dir: &Attr, mode: u32) -> u32 {
    let runs_as_group = mode & SETGID != 0 && mode & GROUP_EXEC != 0;
    match runs_as_group && dir.mode & SETGID != 0 && !who.may_act_for(dir.gid) {
        true => mode & MODE_MASK & !SETGID,
        false => mode & MODE_MASK,
    }
}
