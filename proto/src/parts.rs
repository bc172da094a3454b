//! How many parts an encoded message has, before it is decoded: a repeated message of two bytes
//! becomes hundreds in memory.

use prost::Name;

include!(concat!(env!("OUT_DIR"), "/nested.rs"));

/// Wire types of the protocol buffers' encoding.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const DELIMITED: u64 = 2;
const BEGIN_GROUP: u64 = 3;
const END_GROUP: u64 = 4;
const FIXED_32: u64 = 5;

/// Whether an encoded `M` has at most `most` parts: messages, texts and runs of bytes, at any
/// depth. What does not read ends the count there, as it ends the decoding.
pub fn has_at_most<M: Name>(most: usize, encoded: &[u8]) -> bool {
    let name = format!(".{}", M::full_name());
    let Ok(root) = NESTED.binary_search_by(|(known, _)| (*known).cmp(&name)) else { return true };
    let mut waiting = vec![(root, encoded)];
    let mut parts = 0;
    while let Some((message, mut rest)) = waiting.pop() {
        let fields = NESTED[message].1;
        loop {
            let (number, value) = match next_field(&mut rest) {
                Next::Part(number, value) => (number, value),
                Next::Number => continue,
                Next::Group => return false,
                Next::End => break,
            };
            parts += 1;
            if parts > most {
                return false;
            }
            if let Ok(at) = fields.binary_search_by_key(&number, |(number, _)| *number) {
                waiting.push((fields[at].1, value));
            }
        }
    }
    true
}

/// A field of a message.
enum Next<'a> {
    /// Its number, and its bytes.
    Part(u32, &'a [u8]),
    Number,
    /// No message has one; decoding passes over it, whatever it holds.
    Group,
    /// There is none, or none that reads.
    End,
}

/// Takes the next field off.
fn next_field<'a>(rest: &mut &'a [u8]) -> Next<'a> {
    let read = |rest: &mut &'a [u8]| {
        let tag = varint(rest)?;
        let length = match tag & 7 {
            VARINT => return varint(rest).map(|_| Next::Number),
            FIXED_64 => 8,
            FIXED_32 => 4,
            DELIMITED => usize::try_from(varint(rest)?).ok()?,
            BEGIN_GROUP | END_GROUP => return Some(Next::Group),
            _ => return None,
        };
        let (value, behind) = rest.split_at_checked(length)?;
        *rest = behind;
        let number = u32::try_from(tag >> 3).ok()?;
        Some(if tag & 7 == DELIMITED { Next::Part(number, value) } else { Next::Number })
    };
    read(rest).unwrap_or(Next::End)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use proptest::prelude::*;
    use prost::Message;
    use v1::batch_op::{Step, step};
    use v1::meta_request::Op;

    /// A batch of steps without anything, and of one that commits `extents` empty extents.
    fn batch(steps: usize, extents: usize) -> Vec<u8> {
        let mut steps = vec![Step::default(); steps];
        let extents = vec![v1::Extent::default(); extents];
        let commit = v1::CommitExtentsOp { extents, ..Default::default() };
        steps.push(Step { op: Some(step::Op::Commit(commit)), ..Default::default() });
        let op = Some(Op::Batch(v1::BatchOp { steps, ..Default::default() }));
        v1::MetaRequest { session: 7, op, ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn parts_are_counted_at_any_depth() {
        let most = |most, bytes: &[u8]| has_at_most::<v1::MetaRequest>(most, bytes);
        // The batch, its steps, the commit and its extents.
        let wide = batch(1000, 0);
        assert!(most(1003, &wide) && !most(1002, &wide));
        let deep = batch(0, 1000);
        assert!(most(1003, &deep) && !most(1002, &deep));
        assert!(most(0, &[]));
    }

    /// Decoding passes over it, and reads what follows.
    #[test]
    fn a_group_hides_nothing() {
        let hidden = [&[0xfb, 0x3e, 0xfc, 0x3e][..], &batch(1000, 0)].concat();
        assert!(v1::MetaRequest::decode(&*hidden).is_ok());
        assert!(!has_at_most::<v1::MetaRequest>(1_000_000, &hidden));
    }

    proptest! {
        /// What decodes has no more steps than were counted.
        #[test]
        fn no_more_is_decoded_than_is_counted(
            front in prop::collection::vec(
                prop::sample::select(vec![0, 8, 0x0b, 0x0c, 0x1a, 0x7f, 0x80, 0xfb]),
                0..8,
            ),
            steps in 1usize..50,
        ) {
            let bytes = [&front[..], &batch(steps, 0)].concat();
            if let Ok(read) = v1::MetaRequest::decode(&*bytes) {
                let decoded = match read.op {
                    Some(Op::Batch(batch)) => batch.steps.len(),
                    _ => 0,
                };
                prop_assert!(decoded == 0 || !has_at_most::<v1::MetaRequest>(decoded, &bytes));
            }
        }

        #[test]
        fn garbage_is_counted_as_far_as_it_reads(bytes: Vec<u8>) {
            has_at_most::<v1::MetaRequest>(bytes.len(), &bytes);
        }
    }
}
