//! Generates the messages and the gRPC stubs from `proto/weft/v1/*.proto`.

fn main() -> std::io::Result<()> {
    let files = ["types", "chunk", "meta", "control", "frame", "handover"];
    let files = files.map(|f| format!("proto/weft/v1/{f}.proto"));
    let mut prost = tonic_prost_build::Config::new();
    prost.bytes(["."]);
    prost.enable_type_names();
    tonic_prost_build::configure().compile_with_config(prost, &files, &["proto".to_string()])
}
