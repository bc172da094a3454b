//! What people write: configuration, and where a drive is. What is taken says the same when it is
//! written.

use std::path::Path;
use weft_metadata::Manifest;
use weft_storaged::Location;

/// A metadata server's.
pub fn metadata(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let Ok(config) = weft_metadata::Config::parse(text) else { return false };
    let written = toml::to_string(&config).expect("what was read can be written");
    let again = weft_metadata::Config::parse(&written).expect("what was written can be read");
    assert_eq!(format!("{again:?}"), format!("{config:?}"), "{written}");
    true
}

/// A storage daemon's.
pub fn storage(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let Ok(config) = toml::from_str::<weft_storaged::Config>(text) else { return false };
    if config.validate().is_err() {
        return false;
    }
    let written = toml::to_string(&config).expect("what was read can be written");
    assert_eq!(toml::from_str(&written).as_ref(), Ok(&config), "{written}");
    true
}

/// A backup's.
pub fn manifest(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let Ok(manifest) = Manifest::parse(text) else { return false };
    let written = manifest.to_text().expect("what was read can be written");
    assert_eq!(Manifest::parse(&written).expect("what was written can be read"), manifest);
    true
}

/// A path, or a namespace behind a fabric.
pub fn location(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let Ok(location) = Location::parse(Path::new(text)) else { return false };
    let written = location.to_string();
    assert_eq!(Location::parse(Path::new(&written)).ok(), Some(location), "{written:?}");
    true
}

pub fn metadata_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../../deploy/config/metadata.toml").to_vec()]
}

pub fn storage_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../../deploy/config/storaged.toml").to_vec()]
}

pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let text = r#"
format = 1
weft = "0.1.0"
cluster = "6e8b4a9c0b1d4c2e9f3a5d6c7b8a9e0f"
index = 9
term = 2
taken = 1700000000
servers = [1, 2, 3]
[[files]]
name = "000007.sst"
len = 100
crc32 = 7
"#;
    vec![text.into()]
}

pub fn location_seeds() -> Vec<Vec<u8>> {
    let seeds = [
        "/dev/disk/by-id/nvme-x",
        "nvme-tcp://host-1:4420/nqn.2014-08.org.a:b?uuid=6e8b4a9c-0b1d-4c2e-9f3a-5d6c7b8a9e0f",
        "nvme-rdma://[fe80::1%eth0]/nqn.2014-08.org.example:a?nsid=1",
    ];
    seeds.map(|seed| seed.into()).to_vec()
}
