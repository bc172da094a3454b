//! What two processes say to each other when one takes a mount over from the other: messages with
//! their length before them, over a Unix socket that only this user can use.

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use prost::Message;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;
use weft_proto::{Error, ErrorKind, v1};

/// Version of the conversation.
pub const VERSION: u32 = 1;
/// Longest message, bytes: the state of a mount with some millions of open files.
const MAX_MESSAGE: u32 = 1 << 30;

/// Sends a message.
pub async fn say(socket: &mut UnixStream, message: &impl Message) -> Result<()> {
    let bytes = message.encode_to_vec();
    let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= MAX_MESSAGE);
    let len = len.context("the mount has too much open to be handed over")?;
    socket.write_all(&len.to_le_bytes()).await?;
    Ok(socket.write_all(&bytes).await?)
}

/// Waits this long for a message.
pub async fn hear<M: Message + Default>(socket: &mut UnixStream, limit: Duration) -> Result<M> {
    let heard = timeout(limit, async {
        let len = socket.read_u32_le().await?;
        ensure!(len <= MAX_MESSAGE, "a message of {len} bytes");
        let mut bytes = Vec::new();
        let read = socket.take(len.into()).read_to_end(&mut bytes).await?;
        ensure!(read == len as usize, "it ended within a message");
        Ok(M::decode(&bytes[..])?)
    });
    heard.await.context("it says nothing")?
}

/// Waits this long for the next message to begin, or for the end.
pub async fn begins(socket: &UnixStream, limit: Duration) -> Result<()> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let look = || -> io::Result<usize> { Ok(recv(socket.as_raw_fd(), &mut [0], flags)?) };
    let begun = timeout(limit, socket.async_io(Interest::READABLE, look)).await;
    begun.context("it says nothing")??;
    Ok(())
}

/// Sends a descriptor.
pub async fn give(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> Result<()> {
    let send = || weft_fuse::send_descriptor(socket.as_fd(), descriptor);
    Ok(socket.async_io(Interest::WRITABLE, send).await?)
}

/// Waits this long for a descriptor.
pub async fn take(socket: &UnixStream, limit: Duration) -> Result<OwnedFd> {
    let receive = || weft_fuse::receive_descriptor(socket.as_fd());
    let received = timeout(limit, socket.async_io(Interest::READABLE, receive));
    Ok(received.await.context("it says nothing")??)
}

/// Takes an offer back: after this the other end cannot answer any more. Answers whether it has
/// already said that it takes it. Does not wait.
pub fn take_back(socket: &UnixStream) -> bool {
    let what = "the mount is not handed over after all";
    let error = Some(Error::new(ErrorKind::Busy, what).into());
    let word = v1::TakeoverWord { error }.encode_to_vec();
    let len = (word.len() as u32).to_le_bytes();
    // Who cannot be told finds the conversation at its end.
    let _ = socket.try_write(&[&len[..], &word].concat());
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
    let mut said = [0; 4];
    // An error is longer.
    matches!(try_read(socket, &mut said), Ok(4)) && said == [0; 4]
}

/// Without asking the runtime, which may not have heard of what has just come.
fn try_read(socket: &UnixStream, into: &mut [u8]) -> Result<usize> {
    Ok(recv(socket.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?)
}

/// An error that the other end told.
pub fn told(error: Option<v1::ErrorHead>) -> Result<()> {
    error.map_or(Ok(()), |error| Err(Error::from(error).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// Either the word was said before, or it cannot be said any more.
    #[tokio::test]
    async fn an_offer_is_taken_or_taken_back_and_both_ends_know() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        say(&mut ours, &v1::TakeoverWord::default()).await.unwrap();
        assert!(take_back(&theirs), "it was said");
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(!take_back(&theirs));
        assert!(say(&mut ours, &v1::TakeoverWord::default()).await.is_err());
        let word: v1::TakeoverWord = hear(&mut ours, SOON).await.unwrap();
        assert!(told(word.error).is_err());
        // Who cannot take it says so.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let error = Some(Error::from(ErrorKind::Io).into());
        say(&mut ours, &v1::TakeoverWord { error }).await.unwrap();
        assert!(!take_back(&theirs));
    }

    #[tokio::test]
    async fn what_is_said_is_heard_and_garbage_is_refused() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let offer = v1::TakeoverOffer { metadata: vec!["a:1".into()], ..Default::default() };
        assert!(begins(&theirs, Duration::ZERO).await.is_err(), "nothing was said");
        say(&mut ours, &offer).await.unwrap();
        begins(&theirs, SOON).await.unwrap();
        assert_eq!(hear::<v1::TakeoverOffer>(&mut theirs, SOON).await.unwrap(), offer);
        give(&ours, std::io::stderr().as_fd()).await.unwrap();
        take(&theirs, SOON).await.unwrap();
        ours.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(hear::<v1::TakeoverOffer>(&mut theirs, SOON).await.is_err(), "too long");
        ours.write_all(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).await.unwrap();
        assert!(hear::<v1::TakeoverOffer>(&mut theirs, SOON).await.is_err(), "no message");
        ours.write_all(&[9, 0, 0, 0, 1]).await.unwrap();
        drop(ours);
        assert!(hear::<v1::TakeoverOffer>(&mut theirs, SOON).await.is_err(), "cut short");
        assert!(take(&theirs, SOON).await.is_err(), "nobody is there");
    }
}
