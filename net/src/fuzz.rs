//! Doors to what reads bytes from the network, for `tests/fuzz`. Each says whether it took what it
//! was given for good: who knocks has to see that some of it is.
//!
//! Checksums of frame headers are put right first ([`seal`]): nothing would get past them.

use crate::address::Address;
use crate::frame::{HEADER_LEN, Header};
use crate::rdma::wire::{Piece, Places, Prefix};
use crate::server::{Incoming, Outgoing, ServerOptions, Service, serve};
use crate::stream::{BoxStream, link};
use crate::transport::{Link, Listener, Opening, Speaks, Transport};
use crate::{Body, Buffer, Identity, Kind, Peers};
use prost::Message;
use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::Instant;
use weft_proto::{Call, Error, ErrorKind, Result, op, v1};

/// Bytes that a pipe between the two sides holds: frames come in pieces.
const PIPE: usize = 300;
/// Of the simulated time of a call.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Puts the checksum of each header right that would be read from this stream.
pub fn seal(stream: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = stream.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        let header: &mut [u8; HEADER_LEN] = header;
        let crc = crc32fast::hash(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        let Ok(header) = Header::decode(header) else { return };
        at += HEADER_LEN + header.head_len as usize + header.payload_len as usize;
    }
}

/// A request as it crosses the wire, for seeds.
pub fn request<C: Call>(id: u64, request: &C, payload: &[u8]) -> Vec<u8> {
    wire(Header::new(Kind::Request, C::OP, id), &request.encode_to_vec(), payload)
}

/// An answer as it crosses the wire, for seeds.
pub fn answer(op: u16, id: u64, answer: &impl Message, payload: &[u8]) -> Vec<u8> {
    wire(Header::new(Kind::Answer, op, id), &answer.encode_to_vec(), payload)
}

/// The hello that a connection begins with, of who calls or of who answers.
pub fn hello(kind: Kind) -> Vec<u8> {
    wire(Header::new(kind, op::HELLO, 1), &Identity::default().hello().encode_to_vec(), &[])
}

fn wire(header: Header, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let (head_len, payload_len) = (head.len() as u32, payload.len() as u32);
    let header = Header { head_len, payload_len, ..header };
    [&header.encode(), head, payload].concat()
}

/// Somebody connects to a server, says this and goes.
pub fn served(stream: &[u8]) -> bool {
    let mut sent = stream.to_vec();
    seal(&mut sent);
    let asked = Arc::new(AtomicBool::default());
    run(async {
        let (mut caller, accepted) = duplex(PIPE);
        let (stop, stopped) = watch::channel(false);
        let listener = Box::new(Once(Some(Box::new(accepted))));
        let service = Arc::new(Decoder(asked.clone()));
        let options =
            ServerOptions { max_payload: 1 << 16, ..ServerOptions::new(Identity::default()) };
        let serving = tokio::spawn(serve(listener, service, options, stopped));
        let (mut answers, mut requests) = tokio::io::split(&mut caller);
        let says = async {
            // It may be hung up on before all is said.
            let _ = requests.write_all(&sent).await;
            let _ = requests.shutdown().await;
        };
        let hears = async {
            let mut heard = [0; 4096];
            while matches!(answers.read(&mut heard).await, Ok(1..)) {}
        };
        tokio::join!(says, hears);
        stop.send_replace(true);
        serving.await.expect("the server does not fail");
    });
    asked.load(Ordering::Relaxed)
}

/// A server answers the hello and a read of 100 bytes with this.
pub fn answered(stream: &[u8]) -> bool {
    let mut sent = stream.to_vec();
    seal(&mut sent);
    run(async {
        let peers = Peers::new(Arc::new(Scripted(sent)), Identity::default());
        let body = Body { into: vec![Buffer::take(60), Buffer::take(40)], ..Body::default() };
        let request = v1::GetRequest::default();
        let deadline = Instant::now() + CALL_TIMEOUT;
        match peers.peer("server:1").exchange(&request, body, deadline).await {
            Ok(answer) => {
                let lengths: Vec<_> = answer.payload.iter().map(Buffer::len).collect();
                assert_eq!(lengths, [60, 40], "of the buffers that were given");
                true
            }
            Err(_) => false,
        }
    })
}

/// A message of a connection over RDMA, with where the payload of a frame in it is.
pub fn rdma(message: &[u8]) -> bool {
    let Ok(prefix) = Prefix::decode(message) else { return false };
    assert_eq!(Prefix::decode(&prefix.encode()).expect("it was read"), prefix);
    let Some((places, pieces)) = message[prefix.encode().len()..].split_first_chunk() else {
        return false;
    };
    let Ok(places) = Places::decode(*places) else { return false };
    let Some(pieces) = pieces.get(..places.pieces_len()) else { return false };
    Piece::decode_all(pieces).is_ok()
}

/// On a clock that goes on when there is nothing else to do.
fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(work)
}

/// Reads the message of every request, and gives its payload back.
struct Decoder(Arc<AtomicBool>);

#[async_trait::async_trait]
impl Service for Decoder {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        let read = match request.op {
            op::META => request.decode::<v1::MetaRequest>().map(drop),
            op::PUT => request.decode::<v1::PutRequest>().map(drop),
            op::GET => request.decode::<v1::GetRequest>().map(drop),
            unknown => Err(Error::new(ErrorKind::Protocol, format!("operation {unknown}"))),
        };
        read?;
        self.0.store(true, Ordering::Relaxed);
        Ok(Outgoing { payload: vec![request.payload], ..Outgoing::default() })
    }

    fn weigh(&self, _op: u16, head: &bytes::Bytes) -> usize {
        head.len() * 100
    }
}

/// Accepts one connection.
struct Once(Option<BoxStream>);

#[async_trait::async_trait]
impl Listener for Once {
    async fn accept(&mut self) -> io::Result<(Box<dyn Opening>, Address)> {
        match self.0.take() {
            Some(stream) => Ok((Box::new(Framed(stream)), Address::of_host("caller", 1)?)),
            None => pending().await,
        }
    }

    fn local_address(&self) -> io::Result<Address> {
        Address::of_host("server", 1)
    }
}

/// A connection of frames.
struct Framed(BoxStream);

#[async_trait::async_trait]
impl Opening for Framed {
    async fn speaks(self: Box<Self>) -> io::Result<Speaks> {
        Ok(Speaks::Frames(link::link(self.0, &[])))
    }
}

/// Whoever connects is told this, whatever he asks: a frame when he has said hello, and the rest
/// when he has asked for something.
struct Scripted(Vec<u8>);

impl Scripted {
    async fn speak(&self, server: DuplexStream) -> io::Result<()> {
        let (mut requests, mut answers) = tokio::io::split(server);
        let first = frame_len(&self.0).min(self.0.len());
        let (first, rest) = self.0.split_at(first);
        for said in [first, rest] {
            let mut header = [0; HEADER_LEN];
            requests.read_exact(&mut header).await?;
            let asked = frame_len(&header) - HEADER_LEN;
            requests.read_exact(&mut vec![0; asked]).await?;
            answers.write_all(said).await?;
        }
        answers.shutdown().await
    }
}

/// Bytes of the frame that begins here; of what is none, all.
fn frame_len(stream: &[u8]) -> usize {
    let header = stream.first_chunk().and_then(|header| Header::decode(header).ok());
    header.map_or(stream.len(), |h| HEADER_LEN + h.head_len as usize + h.payload_len as usize)
}

#[async_trait::async_trait]
impl Transport for Scripted {
    async fn connect(&self, _address: &Address) -> io::Result<Link> {
        let (caller, server) = duplex(PIPE);
        let this = Self(self.0.clone());
        // It may be hung up on before all is said.
        tokio::spawn(async move { this.speak(server).await });
        Ok(link::link(Box::new(caller), &[]))
    }

    async fn stream(&self, _address: &Address) -> io::Result<BoxStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn bind(&self, _address: &Address) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
