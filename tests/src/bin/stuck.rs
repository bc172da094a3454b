//! Hangs on purpose, for `tests/limits.rs`: `stuck read` waits for a mount whose process stands
//! still, `stuck forever` for nothing that anybody could end. Prints the folder of its cluster
//! first.

use anyhow::{Result, bail};
use std::fs;
use std::time::Duration;
use weft_tests::Cluster;

fn main() -> Result<()> {
    let how = std::env::args().nth(1).unwrap_or_default();
    let cluster = Cluster::start()?;
    println!("{}", cluster.dir().display());
    let file = cluster.mnt().join("file");
    fs::write(&file, "x")?;
    let _paused = cluster.pause_mount(cluster.mnt())?;
    cluster.allow(Duration::from_secs(1))?;
    match how.as_str() {
        "read" => bail!("it ended: {:?}", fs::read(&file)),
        "forever" => loop {
            std::thread::park();
        },
        _ => bail!("stuck read|forever"),
    }
}
