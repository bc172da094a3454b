//! Leases that come without somebody waiting for each.

use crate::support::*;
use tokio::task::JoinSet;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

async fn made(client: &mut Client, name: &str) -> u64 {
    client.create(name).await.unwrap().ino
}

fn soft(client: &Client, op: Op) -> v1::MetaRequest {
    v1::MetaRequest { session: client.session, op: Some(op), ..Default::default() }
}

fn many(inos: impl Into<Vec<u64>>) -> Op {
    Op::LeaseMany(v1::LeaseManyOp { inos: inos.into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_inodes_are_granted_but_those_that_others_use() {
    let group = Group::start(1, |_| {}).await;
    let (mut asks, mut reads) = (group.client(), group.client());
    for client in [&mut asks, &mut reads] {
        client.open_session().await;
    }
    let (free, read) = (made(&mut asks, "a").await, made(&mut asks, "b").await);
    let mkdir = v1::MkDirOp { parent: 1, name: "d".into(), ..Default::default() };
    let Ok(Reply::Attr(dir)) = asks.write(Op::MkDir(mkdir)).await else { panic!("no directory") };
    let look = soft(&reads, Op::GetAttr(v1::GetAttrOp { ino: read }));
    assert_eq!(reads.keep(&look).await.unwrap().grants.len(), 1);

    let ask = soft(&asks, many([free, read, 77_777, dir.ino]));
    let told = asks.keep(&ask).await.unwrap();
    let granted: Vec<_> = told.grants.iter().map(|grant| (grant.ino, grant.write)).collect();
    assert_eq!(granted, [(free, true), (dir.ino, true)]);
    assert!(told.grants[0].locks && told.grants[1].layout.is_some(), "{:?}", told.grants);
    let Some(Reply::LeaseMany(found)) = told.result else { panic!("{told:?}") };
    assert_eq!(found.attrs.iter().map(|attr| attr.ino).collect::<Vec<_>>(), [free, dir.ino]);

    let flood = soft(&asks, many(vec![free; 5000]));
    assert_eq!(asks.keep(&flood).await.unwrap_err().kind, ErrorKind::Invalid);
}

/// If nobody else uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_a_name_away_may_write_its_directory() {
    let group = Group::start(1, |_| {}).await;
    let (mut removes, mut reads) = (group.client(), group.client());
    for client in [&mut removes, &mut reads] {
        client.open_session().await;
    }
    for name in ["a", "b"] {
        made(&mut removes, name).await;
    }
    let unlink = |name: &'static str| v1::UnlinkOp { parent: 1, name: name.into() };
    let first = removes.change(Op::Unlink(unlink("a")));
    let told = removes.keep(&first).await.unwrap();
    assert!(told.grants.iter().any(|grant| grant.ino == 1 && grant.write), "{told:?}");
    give_back(&mut removes, 1, told.grants[0].seq).await;

    let look = soft(&reads, Op::GetAttr(v1::GetAttrOp { ino: 1 }));
    assert_eq!(reads.keep(&look).await.unwrap().grants.len(), 1);
    let second = removes.change(Op::Unlink(unlink("b")));
    let removing = tokio::spawn(async move { removes.keep(&second).await });
    let seq = recalled(&mut reads, 1).await;
    give_back(&mut reads, 1, seq).await;
    let told = removing.await.unwrap().unwrap();
    assert_eq!(told.grants, [], "it was used a moment ago");
}

/// With what an open of each answers; what others use, what is missing and what is too much is left
/// out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_are_looked_up_but_those_that_others_use() {
    let group = Group::start(1, |_| {}).await;
    let (mut asks, mut writes) = (group.client(), group.client());
    for client in [&mut asks, &mut writes] {
        client.open_session().await;
    }
    let mut inos = Vec::new();
    for name in ["a", "b", "c"] {
        inos.push(made(&mut writes, name).await);
    }
    let mkdir = v1::MkDirOp { parent: 1, name: "d".into(), ..Default::default() };
    let Ok(Reply::Attr(dir)) = asks.write(Op::MkDir(mkdir)).await else { panic!("no directory") };
    // Who made them holds them to write, and two no more.
    let mut kept = None;
    for ino in [inos[0], inos[1]] {
        let ask = soft(&writes, many([ino]));
        let told = writes.keep(&ask).await.unwrap();
        kept = told.grants.first().map(|grant| (ino, grant.seq));
    }
    let (ino, seq) = kept.unwrap();
    give_back(&mut writes, ino, seq).await;
    give_back(&mut writes, inos[2], u64::MAX).await;

    let item = |parent, name: &'static str| v1::lookup_many_op::Item { parent, name: name.into() };
    let names = [(1, "a"), (1, "b"), (dir.ino, "b"), (1, "missing"), (77_777, "x"), (1, "c")];
    let items = names.map(|(parent, name)| item(parent, name)).into();
    let ask = soft(&asks, Op::LookupMany(v1::LookupManyOp { items }));
    let told = asks.keep(&ask).await.unwrap();
    let Some(Reply::LookupMany(found)) = told.result else { panic!("{told:?}") };
    let at: Vec<_> = found.items.iter().map(|item| item.at).collect();
    assert_eq!(at, [1, 5], "{:?}", found.items);
    let found = found.items[0].found.as_ref().unwrap();
    assert_eq!(found.attr.unwrap().ino, inos[1]);
    assert!(found.extents.is_some() && found.layout.is_some(), "{found:?}");
    let granted: Vec<_> = told.grants.iter().map(|grant| (grant.ino, grant.write)).collect();
    assert!(granted.contains(&(inos[1], false)) && !granted.contains(&(inos[0], false)));

    // Too many, and so long that nobody would see how long the answer may be.
    const LONG: &str = "a name that is as long as names of files in data sets often are, or longer";
    for flood in [vec![item(1, "a"); 300], vec![item(1, LONG); 100]] {
        let flood = soft(&asks, Op::LookupMany(v1::LookupManyOp { items: flood }));
        assert_eq!(asks.keep(&flood).await.unwrap_err().kind, ErrorKind::Invalid);
    }
}

/// Who holds the lease to write may have changed them unasked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extended_attributes_are_not_told_before_who_may_have_changed_them_has() {
    let group = Group::start(1, |_| {}).await;
    let (mut holds, mut asks) = (group.client(), group.client());
    for client in [&mut holds, &mut asks] {
        client.open_session().await;
    }
    for of_names in [false, true] {
        let ino = made(&mut holds, if of_names { "a" } else { "b" }).await;
        let name = bytes::Bytes::from("user.a");
        let set = v1::SetXattrOp { ino, name: name.clone(), ..Default::default() };
        holds.write(Op::SetXattr(set)).await.unwrap();
        let told = holds.keep(&soft(&holds, many([ino]))).await.unwrap();
        assert_eq!(told.grants.iter().map(|grant| grant.write).collect::<Vec<_>>(), [true]);
        let ask = soft(
            &asks,
            match of_names {
                false => Op::GetXattr(v1::GetXattrOp { ino, name }),
                true => Op::ListXattr(v1::ListXattrOp { ino }),
            },
        );
        let asking = async {
            let told = asks.keep(&ask).await.unwrap();
            assert_eq!(told.grants, [], "who asks for one that is not there hears of no lease");
        };
        let returning = async {
            let seq = recalled(&mut holds, ino).await;
            give_back(&mut holds, ino, seq).await;
        };
        tokio::join!(asking, returning);
    }
}

/// Nobody says that a client waits no more whose connection is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_requests_of_a_session_wait_for_recalls() {
    let group = Group::start(1, |_| {}).await;
    let (mut holds, mut changes) = (group.client(), group.client());
    for client in [&mut holds, &mut changes] {
        client.open_session().await;
    }
    let ino = made(&mut changes, "a").await;
    give_back(&mut changes, ino, u64::MAX).await;
    let kept = holds.keep(&soft(&holds, Op::GetAttr(v1::GetAttrOp { ino }))).await.unwrap();
    assert_eq!(kept.grants.len(), 1);
    let mut waiting = JoinSet::new();
    for _ in 0..5 {
        let peer = holds.peers.peer(&holds.leader);
        let ask = soft(&holds, Op::Recalls(v1::RecallsOp { seen: 0 }));
        waiting.spawn(async move {
            let reply = peer.call(&ask, Instant::now() + PATIENCE).await.unwrap();
            let Some(Reply::Recalls(told)) = reply.result else { panic!("{reply:?}") };
            told.recalls.len()
        });
    }
    assert_eq!(waiting.join_next().await.unwrap().unwrap(), 0, "there is one too many");
    let set = v1::SetAttrOp { ino, mode: Some(0o600), ..Default::default() };
    let changing = tokio::spawn(async move { changes.write(Op::SetAttr(set)).await });
    while let Some(told) = waiting.join_next().await {
        assert_eq!(told.unwrap(), 1, "the others wait on");
    }
    let seq = recalled(&mut holds, ino).await;
    give_back(&mut holds, ino, seq).await;
    changing.await.unwrap().unwrap();
}
