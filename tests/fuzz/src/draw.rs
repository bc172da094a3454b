//! Messages of any type, drawn from bytes.
//!
//! Numbers are mostly small, since what they name then exists; everything else is drawn as it is
//! described. The same bytes give the same message, and when they are used up all that follows is
//! as little as it can be.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, Value};
use prost_reflect::{MessageDescriptor, OneofDescriptor};
use std::sync::LazyLock;

/// So deep do messages hold messages, and so many does a list have at most.
const DEPTH: u32 = 6;
const LONGEST_LIST: u8 = 4;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(weft_proto::DESCRIPTORS).expect("the build has described the messages")
});

/// Bytes that are used up.
pub struct Source<'a> {
    left: &'a [u8],
    /// What fields that name a directory, and those that name any inode, are mostly drawn from.
    pub directories: Vec<u64>,
    pub inodes: Vec<u64>,
}

impl<'a> Source<'a> {
    /// Of all of these.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes, directories: Vec::new(), inodes: Vec::new() }
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The next; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.left.split_first() else { return 0 };
        self.left = rest;
        *first
    }

    /// As many as there are, at most so many.
    fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.left.split_at(most.min(self.left.len()));
        self.left = rest;
        taken
    }

    /// The number of an inode, for a field of this name.
    fn inode(&mut self, field: &str) -> Option<u64> {
        let which = self.byte();
        let from = match field {
            "parent" | "new_parent" | "dir" => &self.directories,
            "ino" | "from" | "to" => &self.inodes,
            _ => return None,
        };
        // One in sixteen is any number.
        let at = usize::from(which).checked_rem(from.len())?;
        (which % 16 != 15).then(|| from[at])
    }

    /// Mostly small, sometimes at an edge, sometimes any.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ ..=159 => (small % 8).into(),
            more @ 160..=199 => more.into(),
            power @ 200..=219 => 1 << (3 * (power - 200)),
            power @ 220..=229 => (1 << (6 * (power - 219) + 3)) - 1,
            back @ 230..=239 => u64::MAX - u64::from(back - 230),
            _ => {
                let mut whole = [0; 8];
                let taken = self.bytes(8);
                whole[..taken.len()].copy_from_slice(taken);
                u64::from_le_bytes(whole)
            }
        }
    }

    /// A short name that others have, too; 16 bytes, as ids have them; some zeros; any. What is a
    /// name is mostly the first.
    fn blob(&mut self, field: &str) -> Vec<u8> {
        match self.byte() {
            name @ ..=239 if matches!(field, "name" | "new_name") => vec![b'a' + name % 5],
            name @ ..=99 => vec![b'a' + name % 8],
            id @ 100..=149 => vec![id % 8; 16],
            zeros @ 150..=179 => vec![0; usize::from(zeros - 150) * 600],
            180..=189 => Vec::new(),
            len => self.bytes(usize::from(len - 180) * 3).to_vec(),
        }
    }
}

/// A message of the type with this name, such as `MetaRequest`, encoded.
pub fn encoded(name: &str, source: &mut Source<'_>) -> Vec<u8> {
    message(&described(name), source, DEPTH).encode_to_vec()
}

/// A message of which nothing is drawn but one of these fields, decoded.
pub fn one_of<M: Message + prost::Name + Default>(fields: &[&str], source: &mut Source<'_>) -> M {
    let descriptor = described(M::NAME);
    let name = fields[usize::from(source.byte()) % fields.len()];
    let field = descriptor.get_field_by_name(name);
    let field = field.unwrap_or_else(|| panic!("{} has no field {name}", M::NAME));
    let mut message = DynamicMessage::new(descriptor);
    message.set_field(&field, value(&field, source, DEPTH));
    M::decode(&message.encode_to_vec()[..]).expect("it was drawn as it is described")
}

fn described(name: &str) -> MessageDescriptor {
    let descriptor = POOL.get_message_by_name(&format!("weft.v1.{name}"));
    descriptor.unwrap_or_else(|| panic!("there is no message {name}"))
}

/// A message, decoded.
pub fn drawn<M: Message + prost::Name + Default>(source: &mut Source<'_>) -> M {
    M::decode(&encoded(M::NAME, source)[..]).expect("it was drawn as it is described")
}

fn message(of: &MessageDescriptor, source: &mut Source<'_>, depth: u32) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for choice in of.oneofs().filter(is_choice) {
        let fields: Vec<_> = choice.fields().collect();
        // One that is not chosen is a message of another version, which has its own tests.
        let field = &fields[usize::from(source.byte()) % fields.len()];
        message.set_field(field, value(field, source, depth));
    }
    for field in of.fields() {
        if field.containing_oneof().is_some_and(|choice| is_choice(&choice)) {
            continue;
        }
        // Some are left out: of those that hold others three of four.
        let present = match field.kind() {
            Kind::Message(_) if field.is_list() => depth > 0,
            Kind::Message(_) => depth > 0 && source.byte() & 3 == 3,
            _ => source.byte() < 230,
        };
        if !present {
            continue;
        }
        let drawn = if field.is_list() {
            let len = source.byte() % (LONGEST_LIST + 1);
            Value::List((0..len).map(|_| value(&field, source, depth)).collect())
        } else {
            value(&field, source, depth)
        };
        message.set_field(&field, drawn);
    }
    message
}

/// Not one of those that stand for `optional`.
fn is_choice(oneof: &OneofDescriptor) -> bool {
    !oneof.is_synthetic()
}

fn value(field: &FieldDescriptor, source: &mut Source<'_>, depth: u32) -> Value {
    match field.kind() {
        Kind::Message(of) => Value::Message(message(&of, source, depth.saturating_sub(1))),
        Kind::Bytes => Value::Bytes(source.blob(field.name()).into()),
        Kind::String => {
            Value::String(String::from_utf8_lossy(&source.blob(field.name())).into_owned())
        }
        Kind::Bool => Value::Bool(source.byte() & 1 == 1),
        Kind::Double => Value::F64(source.number() as f64),
        Kind::Float => Value::F32(source.number() as f32),
        Kind::Enum(of) => {
            let known: Vec<_> = of.values().map(|value| value.number()).collect();
            let at = usize::from(source.byte());
            // One in many that this version does not know.
            Value::EnumNumber(if at == 255 { 1000 } else { known[at % known.len()] })
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(source.number() as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(source.number() as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(source.number() as u32),
        Kind::Uint64 | Kind::Fixed64 => {
            Value::U64(source.inode(field.name()).unwrap_or_else(|| source.number()))
        }
    }
}
