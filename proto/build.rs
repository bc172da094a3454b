//! Generates the messages and the gRPC stubs from `proto/weft/v1/*.proto`.

fn main() -> std::io::Result<()> {
    let files = ["types", "chunk", "meta", "control", "frame", "handover"];
    let files = files.map(|f| format!("proto/weft/v1/{f}.proto"));
    let mut prost = tonic_prost_build::Config::new();
    prost.bytes(["."]);
    prost.enable_type_names();
    let described = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default())
        .join("weft.v1.descriptors");
    tonic_prost_build::configure().file_descriptor_set_path(described).compile_with_config(
        prost,
        &files,
        &["proto".to_string()],
    )
}
