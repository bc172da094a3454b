//! Generates the messages and the gRPC stubs from `proto/weft/v1/*.proto`, and a table of which of
//! their fields are messages themselves (`src/parts.rs`).

use prost::Message as _;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tonic_prost_build::FileDescriptorSet;

fn main() -> std::io::Result<()> {
    let files = ["types", "chunk", "meta", "control", "frame", "handover"];
    let files = files.map(|f| format!("proto/weft/v1/{f}.proto"));
    let mut prost = tonic_prost_build::Config::new();
    prost.bytes(["."]);
    prost.enable_type_names();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let described = out.join("weft.v1.descriptors");
    tonic_prost_build::configure().file_descriptor_set_path(&described).compile_with_config(
        prost,
        &files,
        &["proto".to_string()],
    )?;
    write_nested(&described, &out.join("nested.rs"))
}

/// Of each message, by name, its fields that are messages: their numbers, and whose name it is.
fn write_nested(described: &Path, table: &Path) -> std::io::Result<()> {
    let set = FileDescriptorSet::decode(&*std::fs::read(described)?)?;
    let mut messages = BTreeMap::new();
    let mut waiting: Vec<_> = (set.file.into_iter())
        .flat_map(|file| {
            let package = file.package().to_owned();
            file.message_type.into_iter().map(move |message| (format!(".{package}"), message))
        })
        .collect();
    while let Some((within, message)) = waiting.pop() {
        let name = format!("{within}.{}", message.name());
        waiting.extend(message.nested_type.into_iter().map(|nested| (name.clone(), nested)));
        let fields = message.field.iter().filter(|f| f.type_name().starts_with('.'));
        let fields: Vec<_> = fields.map(|f| (f.number(), f.type_name().to_owned())).collect();
        messages.insert(name, fields);
    }
    let names: Vec<_> = messages.keys().cloned().collect();
    let mut code = format!("static NESTED: [(&str, &[(u32, usize)]); {}] = [\n", names.len());
    for (name, fields) in messages {
        // Those of an enum are none.
        let place = |of: &String| names.binary_search(of).ok();
        let fields = fields.iter().filter_map(|(number, of)| Some((*number, place(of)?)));
        let mut fields: Vec<_> = fields.collect();
        fields.sort_unstable();
        let _ = writeln!(code, "({name:?}, &{fields:?}),");
    }
    code.push_str("];\n");
    std::fs::write(table, code)
}
