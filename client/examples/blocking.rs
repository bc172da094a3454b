//! Copies a file into a filesystem that is mounted nowhere, and reads it back, without a runtime of
//! its own.
//!
//! `cargo run --release --example blocking -- HOST:PORT[,HOST:PORT...] FILE PATH`

use std::error::Error;
use weft_client::OpenFlags;
use weft_client::blocking::{ConnectOptions, Connection};

const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cluster, file, path] = &arguments[..] else {
        return Err("name the cluster, a local file and where it is to go".into());
    };
    let content = std::fs::read(file)?;
    let connection = Connection::connect(ConnectOptions::new(cluster)?)?;
    let user = connection.as_this_process().with_umask(0o022);

    let flags = OpenFlags { write: true, truncate: true, ..Default::default() };
    let to = user.create(path, 0o666, flags)?;
    for (at, piece) in (0..).step_by(PIECE).zip(content.chunks(PIECE)) {
        to.write(at, piece)?;
    }
    to.sync()?;
    to.close()?;

    let from = user.open(path, OpenFlags::default())?;
    let mut read = Vec::new();
    loop {
        let piece = from.read(read.len() as u64, PIECE)?;
        if piece.is_empty() {
            break;
        }
        piece.parts().iter().for_each(|part| read.extend_from_slice(part));
    }
    from.close()?;
    connection.disconnect()?;
    println!(
        "{path}: {} bytes, {}",
        read.len(),
        if read == content { "the same" } else { "other" }
    );
    Ok(())
}
