//! Whose sessions are, and how many each owner has.

use std::collections::HashMap;

/// Whose a session is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Client {
    /// In its own words, for people.
    pub name: String,
    /// Who was proved to have opened it; empty: nobody had to.
    pub owner: String,
}

impl Client {
    /// Who answers for the session: who was proved to have opened it; where nobody has to prove
    /// that, the host in its own words.
    pub fn whose(&self) -> &str {
        match self.owner.is_empty() {
            true => self.name.split(':').next().unwrap_or_default(),
            false => &self.owner,
        }
    }
}

#[derive(Default)]
pub(super) struct Owners(HashMap<String, usize>);

impl Owners {
    pub fn joined(&mut self, client: &Client) {
        *self.0.entry(client.whose().to_owned()).or_default() += 1;
    }

    pub fn left(&mut self, client: &Client) {
        if let Some(count) = self.0.get_mut(client.whose()) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(client.whose());
            }
        }
    }

    pub fn count(&self, client: &Client) -> usize {
        self.0.get(client.whose()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_counted_by_who_opened_them() {
        let client = |name: &str, owner: &str| Client { name: name.into(), owner: owner.into() };
        let (one, two) = (client("host:/a", ""), client("host:program[7]", ""));
        let (proved, other) = (client("host:/a", "client team"), client("other:/a", ""));
        let mut owners = Owners::default();
        let all = [&one, &two, &proved];
        all.iter().for_each(|client| owners.joined(client));
        let counts = |owners: &Owners| [&one, &two, &proved, &other].map(|c| owners.count(c));
        assert_eq!(counts(&owners), [2, 2, 1, 0]);
        owners.left(&two);
        owners.left(&proved);
        assert_eq!(counts(&owners), [1, 1, 0, 0]);
        owners.left(&one);
        owners.left(&other);
        assert!(owners.0.is_empty(), "nothing is kept of who has none");
    }
}
