//! The definition that this driver speaks by is that of the specification: compared with
//! `official.txt`, which was made by [`list`] of the official definition of version 1.3, with what
//! later versions have added behind it.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::BTreeSet;

const OFFICIAL: &str = include_str!("official.txt");

fn ours() -> BTreeSet<String> {
    list(include_bytes!(concat!(env!("OUT_DIR"), "/csi.pb")))
}

/// A line for each field, value of an enumeration and method.
fn list(descriptors: &[u8]) -> BTreeSet<String> {
    let all = FileDescriptorSet::decode(descriptors).expect("what protoc has made");
    let file = all.file.iter().find(|file| file.package() == "csi.v1").expect("csi.v1");
    let mut lines = BTreeSet::new();
    for message in &file.message_type {
        of_message(message, message.name(), &mut lines);
    }
    for service in &file.service {
        for method in &service.method {
            let stream = method.client_streaming() || method.server_streaming();
            assert!(!stream, "nothing streams");
            let (service, name) = (service.name(), method.name());
            let (from, to) = (short(method.input_type()), short(method.output_type()));
            lines.insert(format!("rpc {service}.{name} {from} {to}"));
        }
    }
    lines
}

fn of_message(message: &DescriptorProto, path: &str, lines: &mut BTreeSet<String>) {
    for field in &message.field {
        lines.insert(format!("field {path}.{} {}", field.name(), kind(field)));
    }
    for nested in &message.nested_type {
        of_message(nested, &format!("{path}.{}", nested.name()), lines);
    }
    for of in &message.enum_type {
        of_enum(of, &format!("{path}.{}", of.name()), lines);
    }
}

fn of_enum(of: &EnumDescriptorProto, path: &str, lines: &mut BTreeSet<String>) {
    for value in &of.value {
        lines.insert(format!("value {path}.{} {}", value.name(), value.number()));
    }
}

/// Number, how often, type, and whether others exclude it.
fn kind(field: &FieldDescriptorProto) -> String {
    let label = if field.label() == Label::Repeated { "repeated" } else { "one" };
    let name = match field.r#type() {
        Type::Message | Type::Enum => short(field.type_name()),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    let oneof = if field.oneof_index.is_some() { " oneof" } else { "" };
    format!("{} {label} {name}{oneof}", field.number())
}

fn short(name: &str) -> String {
    name.trim_start_matches(".csi.v1.").to_owned()
}

fn official() -> BTreeSet<String> {
    let lines = OFFICIAL.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// What a line says of: all but numbers and types.
fn subject(line: &str) -> String {
    line.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// The message or enumeration that a line is part of.
fn whole(line: &str) -> String {
    subject(line).rsplit_once('.').map(|(whole, _)| whole.to_owned()).unwrap_or_default()
}

#[test]
fn all_that_is_spoken_is_official() {
    let official = official();
    assert!(official.len() > 250, "the list is not whole: {}", official.len());
    let other: Vec<_> = ours().into_iter().filter(|line| !official.contains(line)).collect();
    assert!(other.is_empty(), "not as the specification has it: {other:#?}");
}

#[test]
fn messages_lack_nothing_that_is_official() {
    let (ours, official) = (ours(), official());
    let known: BTreeSet<_> = ours.iter().map(|line| whole(line)).collect();
    // What makes no snapshots needs no calls about them.
    let snapshots = |line: &str| line.starts_with("rpc ") && line.contains("Snapshot");
    let absent: Vec<_> = official
        .iter()
        .filter(|line| known.contains(&whole(line)) && !ours.contains(*line) && !snapshots(line))
        .collect();
    assert!(absent.is_empty(), "absent: {absent:#?}");
}

/// With `WEFT_CSI_DESCRIPTORS`, the list is made of another definition, as protoc has it.
#[test]
fn lists_are_made_of_definitions() {
    let text = match std::env::var_os("WEFT_CSI_DESCRIPTORS") {
        Some(file) => list(&std::fs::read(file).expect("descriptors")),
        None => ours(),
    };
    for line in &text {
        println!("{line}");
    }
    assert!(text.contains("field CapacityRange.limit_bytes 2 one int64"));
    assert!(text.contains("rpc Node.NodeGetInfo NodeGetInfoRequest NodeGetInfoResponse"));
}
