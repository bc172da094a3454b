//! What can be given bytes, one list.

mod messages;
mod requests;
mod settings;
mod state;

use crate::Target;
use weft_client::fuzz as client;
use weft_hot::fuzz as hot;
use weft_metadata::fuzz as metadata;
use weft_net::{Kind, fuzz as net};
use weft_proto::{op, v1};
use weft_storaged::engine::fuzz as engine;

macro_rules! targets {
    ($($name:literal: $read:expr, $seeds:expr, $what:literal;)+) => {
        pub const ALL: &[Target] = &[$(
            Target {
                name: $name,
                what: $what,
                read: $read,
                seeds: || $seeds,
                corpus: include_str!(concat!("../../corpus/", $name)),
            },
        )+];
    };
}

targets! {
    "served": net::served, served(), "what somebody sends who connects to a server";
    "answered": net::answered, answered(), "what a server answers";
    "rdma": net::rdma, vec![rdma()], "a message of a connection over RDMA";
    "messages": messages::read, messages::seeds(), "an encoded message, of any type";
    "kernel": requests::read, requests::seeds(), "what the kernel asks of a mount";
    "superblock": engine::superblock, vec![engine::seeds()[0].clone()], "who a drive is";
    "header": engine::header, vec![engine::seeds()[1].clone()], "what stands before a chunk";
    "journal": engine::journal, vec![engine::seeds()[2].clone()], "a record of the journal";
    "index": engine::index, vec![engine::seeds()[3].clone()], "what the index knows of a chunk";
    "hot-record": hot::record, vec![hot::seeds()[0].clone()], "a piece in the hot tier";
    "hot-list": hot::list, vec![hot::seeds()[1].clone()], "what is in a region of the hot tier";
    "raft": metadata::raft, vec![metadata::seeds()[0].clone()], "what servers of a group send";
    "log": metadata::log, vec![metadata::seeds()[1].clone()], "an entry of Raft's log";
    "acl": metadata::acl, vec![metadata::seeds()[2].clone()], "an access control list";
    "metadata-config": settings::metadata, settings::metadata_seeds(), "a server's configuration";
    "storage-config": settings::storage, settings::storage_seeds(), "a daemon's configuration";
    "manifest": settings::manifest, settings::manifest_seeds(), "what says what a backup has";
    "location": settings::location, settings::location_seeds(), "where a target is";
    "layout": client::layout, vec![client::LAYOUT.into()], "the attribute that sets a layout";
    "quota": client::quota, vec![client::QUOTA.into()], "the attribute that sets a quota";
    "state": state::read, state::seeds(), "what clients ask of the namespace";
}

/// A hello, a read, and a write of a few bytes.
fn served() -> Vec<Vec<u8>> {
    let get = net::request(2, &v1::GetRequest::default(), b"");
    let put = net::request(3, &v1::PutRequest::default(), &[7; 500]);
    vec![[net::hello(Kind::Request), get, put].concat()]
}

/// The answer to a hello, and what is read.
fn answered() -> Vec<Vec<u8>> {
    let read = |id| net::answer(op::GET, id, &v1::GetReply::default(), &[7; 100]);
    vec![[net::hello(Kind::Answer), read(2)].concat()]
}

/// Frames, with a payload in two pieces.
fn rdma() -> Vec<u8> {
    let mut message = vec![1, 0, 3, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0];
    for address in [4096u64, 1 << 40] {
        message.extend(address.to_le_bytes());
        message.extend(100u32.to_le_bytes());
        message.extend(7u32.to_le_bytes());
    }
    message
}
