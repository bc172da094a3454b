//! What a change of mode or owner leaves of the mode: the same for the state, and for a client that
//! shows the change before it is committed.

/// Permission bits with set-user-id, set-group-id and sticky.
pub const MODE_MASK: u32 = 0o7777;
/// Set-group-id bit: of a directory, its children inherit its group.
pub const SETGID: u32 = 0o2000;
/// The bit by which a program runs as its owner.
pub const SETUID: u32 = 0o4000;
const GROUP_EXEC: u32 = 0o010;

const PERMISSIONS: u32 = 0o777;

/// The mode of a new file that inherits no access control list.
pub fn mode_of_new(mode: u32, umask: u32) -> u32 {
    mode & MODE_MASK & !(umask & PERMISSIONS)
}

/// Set-user-id and set-group-id bits.
pub const SET_IDS: u32 = SETUID | SETGID;

/// The mode of what is no directory without set-id bits, as Linux takes them. Without group
/// execution SETGID means locking, and stays for who is in the group.
pub fn without_set_ids(mode: u32, in_group: bool) -> u32 {
    match mode & GROUP_EXEC == 0 && in_group {
        true => mode & !SETUID,
        false => mode & !SET_IDS,
    }
}

/// The mode after it was `set`, or after the owner or the group was: that takes the set-id bits of
/// what is no directory.
pub fn mode_after(mode: u32, is_dir: bool, set: Option<u32>, chowned: bool) -> u32 {
    match set {
        Some(set) => set & MODE_MASK,
        None if !chowned || is_dir => mode,
        // Who is in the group is not known here.
        None => without_set_ids(mode, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_umask_takes_permissions_only() {
        assert_eq!([mode_of_new(0o106_777, 0o7022), mode_of_new(0o640, 0)], [0o6755, 0o640]);
    }

    #[test]
    fn the_bit_for_locking_is_its_groups() {
        let left = |mode| [true, false].map(|in_group| without_set_ids(mode, in_group));
        assert_eq!(left(0o6767), [0o2767, 0o767]);
        assert_eq!(left(0o6777), [0o777, 0o777]);
        assert_eq!(left(0o1644), [0o1644, 0o1644]);
    }

    #[test]
    fn a_new_owner_gets_no_set_id_bits() {
        let mode_of = |mode| mode_after(mode, false, None, true);
        assert_eq!([mode_of(0o6755), mode_of(0o6745), mode_of(0o1644)], [0o755, 0o2745, 0o1644]);
        assert_eq!(mode_after(0o6755, true, None, true), 0o6755);
        assert_eq!(mode_after(0o755, false, Some(0o106_755), true), 0o6755);
        assert_eq!(mode_after(0o6755, false, None, false), 0o6755);
    }
}
