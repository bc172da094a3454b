//! Doors to what reads bytes of other servers and of the disk, for `tests/fuzz`. Each says whether
//! it took what it was given for good; what it took it must write as it read it.

use crate::node::apply;
use crate::raftlog::db;
use crate::{replication, snapshot, tables};
use prost::Message;
use raft::prelude::{Entry, EntryType, Message as RaftMessage, MessageType};
use raft_prost::Message as _;
use weft_proto::{NodeId, v1};

/// The server that is written to.
const ME: NodeId = NodeId(1);

/// Messages of another server of the group, with the entries and the snapshot that they bring.
pub fn raft(bytes: &[u8]) -> bool {
    let Ok(batch) = v1::RaftBatch::decode(bytes) else { return false };
    let Ok(messages) = replication::decode(&batch, ME) else { return false };
    for message in &messages {
        let good = replication::in_one_piece(message);
        for entry in &message.entries {
            let change = apply::decode(entry.entry_type, entry.data.clone());
            if good && let Ok(change) = change {
                assert_eq!(v1::LogEntry::decode(&change.encode_to_vec()[..]), Ok(change));
            }
        }
        if let Some(snapshot) = &message.snapshot
            && let Ok(manifest) = v1::SnapshotManifest::decode(&snapshot.data[..])
            && snapshot::check(&manifest).is_ok()
        {
            let inside = |name: &str| !name.contains('/') && !name.starts_with('.');
            assert!(manifest.files.iter().all(|f| inside(&f.name)) && inside(&manifest.snapshot));
        }
    }
    !messages.is_empty()
}

/// An entry of the log on disk.
pub fn log(bytes: &[u8]) -> bool {
    let Ok(entry) = db::decode(bytes) else { return false };
    assert_eq!(db::decode(&entry.encode_to_vec()).ok().as_ref(), Some(&entry));
    apply::decode(entry.entry_type, entry.data).is_ok()
}

/// An access control list.
pub fn acl(bytes: &[u8]) -> bool {
    tables::acl::is_read(bytes)
}

/// A batch of messages with an append and a snapshot, an entry of the log, a list.
pub fn seeds() -> [Vec<u8>; 3] {
    let op = v1::meta_request::Op::MkDir(v1::MkDirOp {
        parent: 1,
        name: b"d"[..].into(),
        ..Default::default()
    });
    let client = v1::MetaRequest { session: 1, number: 1, acked_below: 1, op: Some(op) };
    let change = v1::LogEntry {
        time_ns: 5,
        body: Some(v1::log_entry::Body::Client(client)),
        ..Default::default()
    };
    let entry = Entry {
        entry_type: EntryType::EntryNormal as i32,
        term: 1,
        index: 4,
        data: change.encode_to_vec(),
        ..Default::default()
    };
    let append = RaftMessage {
        msg_type: MessageType::MsgAppend as i32,
        from: 2,
        to: ME.0,
        term: 1,
        log_term: 1,
        index: 3,
        entries: vec![entry.clone()],
        ..Default::default()
    };
    let file = v1::snapshot_manifest::File { name: "000007.sst".into(), len: 9, crc32: 1 };
    let manifest = v1::SnapshotManifest {
        snapshot: "snapshot-3".into(),
        address: "127.0.0.1:1".into(),
        files: vec![file],
    };
    let mut snapshot = append.clone();
    snapshot.msg_type = MessageType::MsgSnapshot as i32;
    snapshot.entries.clear();
    snapshot.snapshot =
        Some(raft::prelude::Snapshot { data: manifest.encode_to_vec(), ..Default::default() });
    let batch = v1::RaftBatch {
        from: 2,
        messages: vec![append.encode_to_vec().into(), snapshot.encode_to_vec().into()],
        ..Default::default()
    };
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, 0), (2, 4, 1000), (4, 4, 0), (16, 4, 0), (32, 0, 0)];
    let entries = entries.map(|(tag, permissions, id)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    let acl = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    [batch.encode_to_vec(), entry.encode_to_vec(), acl]
}
