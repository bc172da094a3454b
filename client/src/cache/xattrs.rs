//! Extended attributes of an inode, as far as they are known under its lease.

use bytes::Bytes;
use weft_proto::v1;

/// What attributes begin with that are access control lists.
pub(crate) const ACLS: &[u8] = b"system.posix_acl_";
/// Names and values that are kept of one inode, in bytes.
const MAX_BYTES: usize = 8 << 10;

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
