//! Who may do what: decided as Linux decides, from attributes, access control lists and the
//! credentials of the caller.
//!
//! Nothing here asks anybody or changes anything. A file of root's is no exception to the rules
//! but by the capabilities that root has: `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_CHOWN`,
//! `CAP_FSETID`, `CAP_SYS_ADMIN`.

mod acl;
mod bits;
mod credentials;
mod link;
mod owner;
mod permission;
mod sticky;
mod xattr;

#[cfg(test)]
mod tests;

pub use bits::Access;
pub use credentials::Credentials;
pub(crate) use link::link;
pub(crate) use owner::{chmod, chown, kept_mode, mode_of_new, owns, utimes};
pub use permission::allows_in_any_group;
pub(crate) use permission::{check, depends_on_acl};
pub(crate) use sticky::{check_create, check_sticky};
pub(crate) use xattr::{read_xattr, write_xattr};
