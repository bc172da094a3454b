//! Which part somebody plays in a cluster, and which parts may ask for what.

use std::fmt;
use std::str::FromStr;

/// The part that the holder of a certificate plays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Decides about servers, targets and limits.
    Admin,
    /// A storage daemon.
    Storage,
    /// A metadata server.
    Metadata,
    /// Mounts and native clients.
    Client,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Storage, Self::Metadata, Self::Client];

    /// As it is written in certificates and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Storage => "storage",
            Self::Metadata => "metadata",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let named = Self::ALL.into_iter().find(|role| role.name() == text);
        named.ok_or_else(|| format!("{text:?} is no role: {}", known()))
    }
}

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roles(u8);

impl Roles {
    /// These.
    pub const fn of(roles: &[Role]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < roles.len() {
            set |= 1 << roles[at] as u8;
            at += 1;
        }
        Self(set)
    }

    /// Whether this one is among them.
    pub const fn has(self, role: Role) -> bool {
        self.0 & (1 << role as u8) != 0
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Role::ALL.iter().filter(|role| self.has(**role)).collect();
        names.iter().enumerate().try_for_each(|(n, role)| {
            let between = if n == 0 { "" } else { ", " };
            write!(f, "{between}{role}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_written_and_sets_have_what_was_put_in() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert!(Roles::of(&Role::ALL).has(role) && !Roles::of(&[]).has(role));
        }
        assert!("Admin".parse::<Role>().unwrap_err().contains("admin, storage"));
        let some = Roles::of(&[Role::Client, Role::Storage]);
        assert!(some.has(Role::Client) && !some.has(Role::Admin));
        assert_eq!(some.to_string(), "storage, client");
    }
}
