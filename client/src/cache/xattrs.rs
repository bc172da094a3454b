//! Extended attributes of an inode, as far as they are known under its lease, and how they are
//! changed here.

use bytes::Bytes;
use weft_proto::v1;

/// What attributes begin with that are access control lists.
pub(crate) const ACLS: &[u8] = b"system.posix_acl_";
/// Names and values that are kept of one inode, in bytes.
const MAX_BYTES: usize = 8 << 10;
/// Longest name, in bytes.
const MAX_NAME: usize = 255;
/// What `setxattr(2)` may ask for: that there is none of this name yet, or that there is.
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Xattrs {
    /// Names in the order in which they are listed, with values unless those have to be asked for.
    known: Vec<(Bytes, Option<Bytes>)>,
    /// There are no names but these.
    whole: bool,
}

impl Xattrs {
    /// All that an inode has.
    pub fn all(told: &v1::Xattrs) -> Self {
        // Copies, so that the answer that they came in does not stay in memory with them.
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let known = told.items.iter().map(|item| (copy(&item.name), item.value.as_ref().map(copy)));
        let all = Self { known: known.collect(), whole: true };
        if all.bytes() > MAX_BYTES { Self::default() } else { all }
    }

    /// That there are none.
    pub fn none() -> Self {
        Self { known: Vec::new(), whole: true }
    }

    /// Sets an attribute, or removes it without `value`, where all that there are is known, and is
    /// within limits after it. Answers whether any is left but access control lists; `None`, with
    /// nothing changed, where only the group can say what becomes of it.
    pub fn change(&mut self, name: &[u8], value: Option<&[u8]>, flags: u32) -> Option<bool> {
        // A long value counts for what all take.
        let all_known = self.whole && self.known.iter().all(|(_, value)| value.is_some());
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&0);
        if !all_known || !is_name || name.starts_with(ACLS) || flags & !(CREATE | REPLACE) != 0 {
            return None;
        }
        let at = self.known.iter().position(|(known, _)| known == name);
        let refused = match value {
            Some(_) if at.is_some() => flags & CREATE != 0,
            Some(_) => flags & REPLACE != 0,
            None => at.is_none(),
        };
        let more = value.map_or(0, |value| name.len() + value.len());
        if refused || self.bytes() + more > MAX_BYTES {
            return None;
        }
        let value = value.map(Bytes::copy_from_slice);
        match (at, value) {
            (Some(at), None) => drop(self.known.remove(at)),
            (Some(at), value) => self.known[at].1 = value,
            (None, value) => {
                // As the group lists them: in order, behind access control lists.
                let is_before = |(known, _): &&(Bytes, _)| known.starts_with(ACLS) || known < name;
                let at = self.known.iter().take_while(is_before).count();
                self.known.insert(at, (Bytes::copy_from_slice(name), value));
            }
        }
        Some(self.known.iter().any(|(name, _)| !name.starts_with(ACLS)))
    }

    /// Names and values in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        self.known.iter().map(|(name, known)| name.len() + value(known)).sum()
    }

    /// The value of an attribute, or that it is not there, if that is known.
    pub fn get(&self, name: &[u8]) -> Option<Option<Bytes>> {
        match self.known.iter().find(|(known, _)| known == name) {
            Some((_, value)) => value.clone().map(Some),
            None => self.whole.then_some(None),
        }
    }

    /// All names, if they are known.
    pub fn names(&self) -> Option<Vec<Bytes>> {
        self.whole.then(|| self.known.iter().map(|(name, _)| name.clone()).collect())
    }

    /// An attribute that is there has this value.
    pub fn learn(&mut self, name: &[u8], value: &[u8]) {
        if self.bytes() + name.len() + value.len() > MAX_BYTES {
            return;
        }
        let value = Some(Bytes::copy_from_slice(value));
        match self.known.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.known.push((Bytes::copy_from_slice(name), value)),
        }
    }

    /// What they were changed with the mode.
    pub fn forget_acls(&mut self) {
        let before = self.known.len();
        self.known.retain(|(name, _)| !name.starts_with(ACLS));
        self.whole &= self.known.len() == before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::xattrs::Item;

    const LIST: &[u8] = b"system.posix_acl_access";

    fn told(items: &[(&'static [u8], Option<&'static [u8]>)]) -> v1::Xattrs {
        let item = |&(name, value): &(&'static [u8], Option<&'static [u8]>)| Item {
            name: Bytes::from_static(name),
            value: value.map(Bytes::from_static),
        };
        v1::Xattrs { ino: 7, items: items.iter().map(item).collect() }
    }

    fn value(bytes: &'static [u8]) -> Option<Option<Bytes>> {
        Some(Some(Bytes::from_static(bytes)))
    }

    #[test]
    fn what_is_not_among_all_is_not_there() {
        let mut some = Xattrs::default();
        assert_eq!((some.get(b"a"), some.names()), (None, None));
        some.learn(b"a", b"1");
        assert_eq!((some.get(b"a"), some.get(b"b"), some.names()), (value(b"1"), None, None));

        let mut all = Xattrs::all(&told(&[(b"a", Some(b"1")), (b"long", None)]));
        assert_eq!(
            (all.get(b"a"), all.get(b"b"), all.get(b"long")),
            (value(b"1"), Some(None), None)
        );
        assert_eq!(all.names().unwrap(), ["a", "long"]);
        all.learn(b"long", b"2");
        assert_eq!((all.get(b"long"), all.names().unwrap().len()), (value(b"2"), 2));
        assert_eq!(Xattrs::all(&told(&[])).get(b"a"), Some(None));
    }

    #[test]
    fn a_changed_mode_leaves_only_lists_unknown() {
        let mut with = Xattrs::all(&told(&[(LIST, Some(b"1")), (b"a", Some(b"2"))]));
        with.forget_acls();
        assert_eq!((with.get(LIST), with.get(b"a"), with.names()), (None, value(b"2"), None));
        let mut without = Xattrs::all(&told(&[(b"a", Some(b"2"))]));
        without.forget_acls();
        assert_eq!(without.get(LIST), Some(None), "a mode makes no list");
    }

    #[test]
    fn only_what_is_known_is_changed() {
        let mut some = Xattrs::default();
        some.learn(b"a", b"1");
        assert_eq!(some.change(b"a", Some(b"2"), 0), None, "there may be others");
        let mut long = Xattrs::all(&told(&[(b"a", None)]));
        assert_eq!(long.change(b"b", Some(b"2"), 0), None, "it may be too much");
        let mut all = Xattrs::all(&told(&[(LIST, Some(b"1")), (b"b", Some(b"2"))]));
        assert_eq!(all.change(LIST, None, 0), None);
        assert_eq!(all.change(b"c\0", Some(b"3"), 0), None);
        assert_eq!(all.change(&[b'n'; MAX_NAME + 1], Some(b"3"), 0), None);
        assert_eq!(all.change(b"c", Some(&[0; MAX_BYTES]), 0), None);
        assert_eq!(all, Xattrs::all(&told(&[(LIST, Some(b"1")), (b"b", Some(b"2"))])));
        assert_eq!(all.change(b"c", Some(b"3"), 0), Some(true));
        assert_eq!(all.change(b"a", Some(b"4"), CREATE), Some(true));
        assert_eq!(all.change(b"b", Some(b"5"), REPLACE), Some(true));
        let (list, text) = (std::str::from_utf8(LIST).unwrap(), ["a", "b", "c"]);
        assert_eq!(all.names().unwrap(), [&[list][..], &text].concat());
        assert_eq!((all.get(b"a"), all.get(b"b")), (value(b"4"), value(b"5")));
        assert_eq!(all.change(b"a", None, 0), Some(true));
        assert_eq!(all.change(b"a", None, 0), None);
        assert_eq!(
            (all.change(b"b", None, 0), all.change(b"c", None, 0)),
            (Some(true), Some(false))
        );
        assert_eq!((all.get(LIST), all.names().unwrap().len()), (value(b"1"), 1));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut some = Xattrs::default();
        some.learn(b"a", &[1; MAX_BYTES]);
        assert_eq!(some.get(b"a"), None);
        (0..10_000).for_each(|i: u32| some.learn(&i.to_be_bytes(), b"1234"));
        assert_eq!(some.bytes(), MAX_BYTES);
        let name = Bytes::from_static(&[b'a'; MAX_BYTES]);
        let items = vec![Item { name, value: Some(Bytes::from_static(b"x")) }];
        assert_eq!(Xattrs::all(&v1::Xattrs { ino: 7, items }), Xattrs::default());
    }
}
