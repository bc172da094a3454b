//! Who makes a call.

/// Who makes a call: what a process of Linux has for its calls to filesystems.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The user; 0 is root, who has all capabilities.
    pub uid: u32,
    /// The group, which new files get.
    pub gid: u32,
    /// Supplementary groups, in any order.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Of root.
    pub fn root() -> Self {
        Self::new(0, 0)
    }

    /// Of a user without supplementary groups.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new() }
    }

    /// The same of other users and groups.
    pub(crate) fn map(self, id: impl Fn(u32) -> u32) -> Self {
        let groups = self.groups.into_iter().map(&id).collect();
        Self { uid: id(self.uid), gid: id(self.gid), groups }
    }

    /// Whether the rules that root's capabilities override hold for somebody else only.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Whether the user is in a group, or stands above groups.
    pub(super) fn may_act_for(&self, group: u32) -> bool {
        self.is_root() || self.is_in(group)
    }
}
