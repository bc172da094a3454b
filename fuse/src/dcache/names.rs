//! Whether the kernel may be given names, and what administrators are told if not.

use crate::abi::EXPIRES;
use crate::proc::sees_walks;

/// Whether the kernel may be given names, of which it says that it knows FUSE 7.`minor`.
pub fn may_be_kept(minor: u32) -> bool {
    if minor < EXPIRES {
        tracing::info!("this kernel keeps no names, and asks for each: Linux 6.6 and later do");
        return false;
    }
    let sees = sees_walks();
    if !sees {
        tracing::warn!(
            "the kernel keeps no names, and asks for each: this mount may not read \
             /proc/self/stack and /proc/kallsyms, as root may where the kernel has them"
        );
    }
    sees
}

/// Names are given no more: who uses the mount cannot be seen from here.
pub fn warn_of_strangers() {
    tracing::warn!(
        "a program uses this mount that it cannot see, of another PID namespace: the kernel keeps \
         no names from now on, and asks for each; mount it in the host's PID namespace (hostPID: \
         true of a pod)"
    );
}
