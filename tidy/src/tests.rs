//! Each rule is broken on purpose.
