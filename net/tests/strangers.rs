//! What a server spends on those who have not said who they are. By itself: it counts what this
//! process allocates.

#[path = "support/authority.rs"]
mod authority;
mod support;

use authority::{Authority, transport_of};
use std::io::ErrorKind;
use std::sync::Arc;
use support::{Handle, options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use weft_net::{Outgoing, Transport, serve, tcp};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

fn transport() -> Arc<dyn Transport> {
    tcp()
}

/// Has asked a server who it is, and says nothing about itself.
async fn stranger(address: &str) -> TcpStream {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(rustls::RootCertStore::empty());
    let (config, name) = (Arc::new(config.with_no_client_auth()), "127.0.0.1".try_into().unwrap());
    let mut hello = Vec::new();
    rustls::ClientConnection::new(config, name).unwrap().write_tls(&mut hello).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&hello).await.unwrap();
    stream.read_u8().await.unwrap();
    stream
}

fn is_open(stranger: &TcpStream) -> bool {
    let mut answer = [0; 64 << 10];
    loop {
        match stranger.try_read(&mut answer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn who_has_not_said_who_he_is_gets_little_memory() {
    let authority = Authority::new();
    let server = authority.issue("weft://storage/s");
    let listener = transport_of(&server).bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_address().unwrap().to_string();
    let service = Handle::new(|_| async { Ok(Outgoing::message(&0u32)) });
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(serve(listener, service, options(), stopped));
    // SAFETY: it only reads what the allocator counts.
    let heap = || unsafe { libc::mallinfo2() }.uordblks;
    let (before, mut all) = (heap(), Vec::new());
    for _ in 0..100 {
        all.push(stranger(&address).await);
    }
    let after = heap();
    // The first are let go after some seconds: on a slow machine, before the last have come.
    let there = all.iter().filter(|stranger| is_open(stranger)).count();
    if there < 20 {
        return println!("not tested: the machine is too slow: {there} of 100 are there");
    }
    let each = after.saturating_sub(before) / there;
    assert!(each < 40 << 10, "{each} bytes each");
}
