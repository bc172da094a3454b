//! Files that are made here: in which order they are published, and before which recall.

use super::make::MIN_NUMBERS;
use super::pending::{Of, Wanted};
use super::publisher::Publisher;
use crate::Options;
use crate::meta::Group;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use v1::make_files_op::File;
use weft_net::{Identity, Peers, tcp};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, SessionId, v1};
use weft_segments::{MapWatch, Rng};

/// A mount that may make files in the root, and has numbers for them.
fn alone() -> Arc<Publisher> {
    let options = Options::new(Vec::new(), tcp());
    let peers = Peers::new(tcp(), Identity { name: String::new(), cluster: None });
    let rng = Arc::new(Rng::new(Some(1)));
    let group = Group::new(&options, peers, MapWatch::new(), rng);
    let publisher = Arc::new(Publisher::new(Arc::new(group)));
    let leases = &publisher.group.leases;
    leases.renewed(Instant::now(), Duration::from_secs(600));
    publisher.table.lock().numbers.push_back(100..100 + 2 * MIN_NUMBERS);
    let root = InodeId::ROOT.0;
    let attr = v1::Attr {
        ino: root,
        kind: v1::FileKind::Directory.into(),
        nlink: 2,
        ..Default::default()
    };
    let layout = Some(v1::LayoutInfo::default());
    let grant = v1::Grant { ino: root, seq: 1, write: true, layout, ..Default::default() };
    let learn = |op, result| {
        let reply =
            v1::MetaReply { result: Some(result), grants: vec![grant], ..Default::default() };
        publisher.group.leases.learn(publisher.group.leases.start(), &op, &reply);
    };
    learn(Op::GetAttr(v1::GetAttrOp { ino: root }), Reply::Attr(attr));
    let missing = v1::LookupOp { parent: root, name: "f".into() };
    learn(Op::Lookup(missing), Reply::Missing(v1::Empty {}));
    publisher.clone()
}

/// Two mounts that tell of files of earlier sessions, each in a directory that the other has by
/// now, would wait for each other: either gives its directory back only when it has told what it
/// made there.
#[tokio::test]
async fn files_of_an_earlier_session_hold_up_no_others() {
    let publisher = alone();
    let this = publisher.group.sessions.current().id;
    let before = SessionId(this.0 + 7);
    let make = |name: &'static str| {
        let free = Op::Lookup(v1::LookupOp { parent: InodeId::ROOT.0, name: name.into() });
        let result = Some(Reply::Missing(v1::Empty {}));
        let reply = v1::MetaReply { result, ..Default::default() };
        publisher.group.leases.learn(publisher.group.leases.start(), &free, &reply);
        let file = File { parent: InodeId::ROOT.0, name: name.into(), ..Default::default() };
        publisher.make(file, |_| ()).expect("the right to make files");
        publisher.table.lock().next().map(|next| InodeId(next.0 - 1)).unwrap()
    };
    let (earlier, later) = (["a", "b", "c"].map(make), ["d", "e"].map(make));
    let table = &mut *publisher.table.lock();
    for ino in earlier {
        table.files.get_mut(&ino).unwrap().session = before;
    }
    for ino in [earlier[0], later[0], earlier[1], later[1], earlier[2]] {
        assert!(table.want(ino, None).is_some());
    }
    assert!(table.turn_for(&[earlier[0], later[1]], this) == Of::This);
    let told = |(wanted, files): (Vec<Wanted>, Vec<File>)| {
        let sessions: Vec<_> = files.iter().map(|file| file.session).collect();
        (wanted.iter().map(|wanted| wanted.ino).collect::<Vec<_>>(), sessions)
    };
    assert_eq!(told(table.batch(this, Of::This)), (later.to_vec(), vec![0; 2]));
    assert!(table.turn_for(&earlier, this) == Of::Earlier);
    // The next session begins while they are on their way.
    assert!(table.turn_for(&later, before) == Of::This);
    assert_eq!(told(table.batch(this, Of::Earlier)), (earlier.to_vec(), vec![before.0; 3]));
    assert!(table.queue.is_empty());
}

/// The lease was good when it was looked at, and the recall does not see the file in the table yet.
#[tokio::test]
async fn a_recall_waits_for_a_file_that_is_being_made() {
    let publisher = alone();
    let file = File { parent: InodeId::ROOT.0, name: "f".into(), ..Default::default() };
    let made = publisher.make(file.clone(), |_| {
        assert!(publisher.group.leases.stop_buffering(InodeId::ROOT, true).unwrap());
        assert!(!publisher.is_empty(), "there is nothing to tell");
    });
    assert!(made.is_some() && publisher.is_unpublished(InodeId::ROOT));
    // After the recall nothing is made, nor counted.
    let publisher = alone();
    assert!(publisher.group.leases.stop_buffering(InodeId::ROOT, true).unwrap());
    assert!(publisher.make(file, |_| ()).is_none() && publisher.is_empty());
}
