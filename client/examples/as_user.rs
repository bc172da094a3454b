//! Keeps a note of a user in a filesystem that is mounted nowhere: the user makes it and reads it,
//! and another user may not.
//!
//! `cargo run --release --example as_user -- HOST:PORT[,HOST:PORT...]` with a cluster whose root
//! directory everybody may write in; with certificates where `WEFT_TLS_CA` and its like name them.

use weft_client::{Credentials, Filesystem, OpenFlags, Options};
use weft_proto::{Error, ErrorKind};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let Some(servers) = std::env::args().nth(1) else {
        return Err(Error::new(ErrorKind::Invalid, "name the metadata servers"));
    };
    let servers = servers.split(',').map(str::to_owned).collect();
    let fs = Filesystem::connect(Options::new(servers, weft_net::from_env()?)).await?;
    let user = fs.as_user(Credentials::new(1000, 1000)).with_umask(0o077);

    let note = b"/note";
    let file = user.create(note, 0o666, OpenFlags { write: true, ..Default::default() }).await?;
    file.write(0, b"for my eyes only").await?;
    file.close().await?;

    let file = user.open(note, OpenFlags::default()).await?;
    let content = file.read(0, 4096).await?.into_bytes();
    println!("{} reads {:?}", user.credentials().uid, String::from_utf8_lossy(&content));
    file.close().await?;

    let other = fs.as_user(Credentials::new(1001, 1001));
    match other.open(note, OpenFlags::default()).await {
        Ok(_) => println!("1001 reads it, too"),
        Err(error) => println!("1001 does not: {error}"),
    }
    user.unlink(note).await?;
    fs.shutdown().await
}
