//! Generates the messages and the gRPC stubs from `proto/csi.proto`, and keeps what protoc made of
//! it for the comparison with the official definition.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let mut prost = tonic_prost_build::Config::new();
    prost.enable_type_names();
    tonic_prost_build::configure().file_descriptor_set_path(out.join("csi.pb")).compile_with_config(
        prost,
        &["proto/csi.proto"],
        &["proto"],
    )
}
