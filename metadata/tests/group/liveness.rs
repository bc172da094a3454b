//! Sessions, opens and orphans.

use crate::support::*;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, Result, v1};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_session_dies_and_a_renewed_one_lives() {
    const TTL: Duration = Duration::from_secs(10);
    let group = Group::start(3, |c| c.session_ttl_ms = TTL.as_millis() as u64).await;
    let (mut silent, mut lively) = (group.client(), group.client());
    let opened = Instant::now();
    silent.open_session().await;
    lively.open_session().await;
    silent.create("mine").await.unwrap();
    silent.unlink("mine").await.unwrap();
    let inodes = lively.inodes().await;
    let begun = Instant::now();
    loop {
        lively.renew(None).await.unwrap();
        if lively.inodes().await < inodes {
            break; // The orphan went with the session that had it open.
        }
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(opened.elapsed() >= TTL, "it died too early");
    assert_eq!(silent.renew(None).await.unwrap_err().kind, ErrorKind::SessionExpired);
    assert_eq!(silent.create("again").await.unwrap_err().kind, ErrorKind::SessionExpired);
    lively.create("alive").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_inode_outlives_its_name_and_its_leader() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let attr = client.create("x").await.unwrap();
    let open_seq = client.number;
    client.unlink("x").await.unwrap();
    let get = Op::GetAttr(v1::GetAttrOp { ino: attr.ino });
    lose_another(&mut client).await;
    client.read(get.clone()).await.unwrap();

    let leader = group.leader().await;
    group.kill(leader).await;
    // The new leader has not heard what is open, so it removes nothing.
    assert!(client.renew(None).await.unwrap().need_declare);
    // It removes nothing at all, so that there is nothing to wait for but time: more than the
    // second that it would leave to any, and some of its looks.
    sleep(Duration::from_secs(3)).await;
    client.read(get.clone()).await.unwrap();
    let open = v1::OpenOp { ino: attr.ino, open_seq, write: false };
    assert!(!client.renew(Some(vec![open])).await.unwrap().need_declare);
    lose_another(&mut client).await;
    client.read(get.clone()).await.unwrap();

    client.read(Op::Close(close(attr.ino, open_seq))).await.unwrap();
    await_removal(&mut client, attr.ino).await;
    let open = Op::Open(v1::OpenOp { ino: attr.ino, open_seq: open_seq + 1, write: false });
    assert!(client.read(open).await.is_err());
}

/// Nothing is kept of that: a retry looks again, and the file is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_of_what_is_there_opens_it_and_is_not_kept() {
    let group = Group::start(1, |_| {}).await;
    let (mut makes, mut opens) = (group.client(), group.client());
    for client in [&mut makes, &mut opens] {
        client.open_session().await;
    }
    let made = makes.create("x").await.unwrap();
    makes.read(Op::Close(close(made.ino, makes.number))).await.unwrap();
    let op = v1::CreateOp { parent: 1, name: "x".into(), open_seq: 7, ..Default::default() };
    let create = opens.change(Op::Create(op));
    let ino = async |opens: &mut Client| match opens.retry(&create).await.unwrap() {
        Reply::Open(open) => open.attr.unwrap().ino,
        other => panic!("{other:?}"),
    };
    assert_eq!((ino(&mut opens).await, ino(&mut opens).await), (made.ino, made.ino));
    makes.unlink("x").await.unwrap();
    lose_another(&mut makes).await;
    opens.read(Op::GetAttr(v1::GetAttrOp { ino: made.ino })).await.unwrap();
    let another = ino(&mut opens).await;
    assert_ne!(another, made.ino);
    assert_eq!(ino(&mut opens).await, another, "what was made is");
    opens.read(Op::Close(close(made.ino, 7))).await.unwrap();
    await_removal(&mut makes, made.ino).await;
}

/// Another inode loses its name, is closed, and removed: by then all that was to be removed is.
async fn lose_another(client: &mut Client) {
    let ino = client.create("another").await.unwrap().ino;
    let open_seq = client.number;
    client.unlink("another").await.unwrap();
    client.read(Op::Close(close(ino, open_seq))).await.unwrap();
    await_removal(client, ino).await;
}

async fn await_removal(client: &mut Client, ino: u64) {
    let begin = Instant::now();
    while client.read(Op::GetAttr(v1::GetAttrOp { ino })).await.is_ok() {
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}

/// Takes a lease to read and keeps it. Answers its number.
async fn hold(client: &Client, ino: u64) -> u64 {
    let op = Some(Op::GetAttr(v1::GetAttrOp { ino }));
    let request = v1::MetaRequest { session: client.session, op, ..Default::default() };
    let peer = client.peers.peer(&client.leader);
    let begin = Instant::now();
    loop {
        let reply: v1::MetaReply = peer.call(&request, Instant::now() + PATIENCE).await.unwrap();
        if let [grant] = &reply.grants[..] {
            return grant.seq;
        }
        // A leader that has just begun grants none yet.
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_another_changes_is_opened_at_once() {
    let group = Group::start(3, |_| {}).await;
    let (mut holder, mut changer, mut opener) = (group.client(), group.client(), group.client());
    for client in [&mut holder, &mut changer, &mut opener] {
        client.open_session().await;
    }
    let mkdir = |parent| Op::MkDir(v1::MkDirOp { parent, name: "d".into(), ..Default::default() });
    let Reply::Attr(dir) = holder.write(mkdir(1)).await.unwrap() else { panic!("no attributes") };
    hold(&holder, dir.ino).await;
    let changing = tokio::spawn(async move { changer.write(mkdir(dir.ino)).await });
    let seq = recalled(&mut holder, dir.ino).await;
    let op = Some(Op::Open(v1::OpenOp { ino: dir.ino, open_seq: 1, write: false }));
    let open = v1::MetaRequest { session: opener.session, op, ..Default::default() };
    opener.ask(&opener.leader, &open, PATIENCE).await.unwrap();
    assert!(!changing.is_finished());
    give_back(&mut holder, dir.ino, seq).await;
    changing.await.unwrap().unwrap();
}

/// Under a lease it could be opened without asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_granted_on_what_is_about_to_be_removed() {
    let group = Group::start(3, |_| {}).await;
    let (mut maker, mut holder, mut late) = (group.client(), group.client(), group.client());
    for client in [&mut maker, &mut holder, &mut late] {
        client.open_session().await;
    }
    let ino = maker.create("x").await.unwrap().ino;
    let open_seq = maker.number;
    maker.unlink("x").await.unwrap();
    hold(&holder, ino).await;
    maker.read(Op::Close(close(ino, open_seq))).await.unwrap();
    let seq = recalled(&mut holder, ino).await;
    let op = Op::Lease(v1::LeaseOp { ino, ..Default::default() });
    let request =
        v1::MetaRequest { session: late.session, op: Some(op.clone()), ..Default::default() };
    let waits = late.ask(&late.leader, &request, Duration::from_secs(1)).await;
    assert_eq!(waits.unwrap_err().kind, ErrorKind::TimedOut);
    give_back(&mut holder, ino, seq).await;
    assert_eq!(late.read(op).await.unwrap_err().kind, ErrorKind::Stale);
}

/// Asks for a lease behind the caller, to keep.
fn ask_to_keep(client: &Client, lease: v1::LeaseOp) -> JoinHandle<Result<Vec<v1::Grant>>> {
    let op = Some(Op::Lease(lease));
    let request = v1::MetaRequest { session: client.session, op, ..Default::default() };
    let peer = client.peers.peer(&client.leader);
    tokio::spawn(async move {
        let deadline = Instant::now() + PATIENCE;
        peer.call(&request, deadline).await.map(|r| r.grants)
    })
}

/// A file, who made it, and two that hold leases to read it.
async fn a_file_and_two_readers(group: &Group) -> (u64, Client, Client, Client) {
    let mut clients = [group.client(), group.client(), group.client()];
    for client in &mut clients {
        client.open_session().await;
    }
    let [mut maker, first, second] = clients;
    let ino = maker.create("x").await.unwrap().ino;
    hold(&first, ino).await;
    hold(&second, ino).await;
    (ino, maker, first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_to_write_alone_is_served_before_readers_who_come_back() {
    let group = Group::start(3, |_| {}).await;
    let (ino, mut writer, mut first, mut second) = a_file_and_two_readers(&group).await;
    let writing =
        ask_to_keep(&writer, v1::LeaseOp { ino, write: true, alone: true, records: None });
    let seqs = [recalled(&mut first, ino).await, recalled(&mut second, ino).await];
    give_back(&mut first, ino, seqs[0]).await;
    // Were it granted, one of them would always hold a lease.
    let reading = ask_to_keep(&first, v1::LeaseOp { ino, ..Default::default() });
    // What needs no lease waits for nobody.
    first.read(Op::GetAttr(v1::GetAttrOp { ino })).await.unwrap();
    assert!(!reading.is_finished());
    give_back(&mut second, ino, seqs[1]).await;
    assert!(writing.await.unwrap().unwrap()[0].write);
    let seq = recalled(&mut writer, ino).await;
    assert!(!reading.is_finished());
    give_back(&mut writer, ino, seq).await;
    assert_eq!(reading.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_to_write_alone_and_goes_keeps_nobody_waiting() {
    let group = Group::start(3, |_| {}).await;
    let (ino, mut writer, mut first, _second) = a_file_and_two_readers(&group).await;
    let alone = v1::LeaseOp { ino, write: true, alone: true, records: None };
    let op = Some(Op::Lease(alone));
    let request = v1::MetaRequest { session: writer.session, op, ..Default::default() };
    let waits = writer.ask(&writer.leader, &request, Duration::from_millis(500)).await;
    assert_eq!(waits.unwrap_err().kind, ErrorKind::TimedOut);
    let seq = recalled(&mut first, ino).await;
    give_back(&mut first, ino, seq).await;
    let again = ask_to_keep(&first, v1::LeaseOp { ino, ..Default::default() });
    assert_eq!(again.await.unwrap().unwrap().len(), 1);

    let _writing = ask_to_keep(&writer, alone);
    let seq = recalled(&mut first, ino).await;
    give_back(&mut first, ino, seq).await;
    let reading = ask_to_keep(&first, v1::LeaseOp { ino, ..Default::default() });
    first.read(Op::GetAttr(v1::GetAttrOp { ino })).await.unwrap();
    assert!(!reading.is_finished());
    writer.write(Op::CloseSession(v1::CloseSessionOp {})).await.unwrap();
    assert_eq!(reading.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_to_write_alone_is_served_before_locks() {
    let group = Group::start(3, |_| {}).await;
    let (ino, mut writer, mut first, mut second) = a_file_and_two_readers(&group).await;
    let writing =
        ask_to_keep(&writer, v1::LeaseOp { ino, write: true, alone: true, records: None });
    let seqs = [recalled(&mut first, ino).await, recalled(&mut second, ino).await];
    let lock = |start| {
        let (kind, end) = (v1::lock::Kind::Write as i32, start);
        let lock = v1::Lock { ino, owner: 7, kind, start, end, ..Default::default() };
        Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() })
    };
    // Who has to give back is not kept from it.
    second.write(lock(1)).await.unwrap();
    give_back(&mut second, ino, seqs[1]).await;
    let locking = second.change(lock(2));
    let waits = second.ask(&second.leader, &locking, Duration::from_millis(500)).await;
    assert_eq!(waits.unwrap_err().kind, ErrorKind::TimedOut);
    give_back(&mut first, ino, seqs[0]).await;
    assert!(writing.await.unwrap().unwrap()[0].write);
    let locking = tokio::spawn(async move { second.retry(&locking).await });
    let seq = recalled(&mut writer, ino).await;
    give_back(&mut writer, ino, seq).await;
    locking.await.unwrap().unwrap();
}

/// Who holds the lease to make files in a directory makes one while the directory is recalled for a
/// change of just that name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_with_a_directory_is_recalled_too() {
    let group = Group::start(3, |_| {}).await;
    let (mut holder, mut remover) = (group.client(), group.client());
    for client in [&mut holder, &mut remover] {
        client.open_session().await;
    }
    let mkdir = v1::MkDirOp { parent: 1, name: "d".into(), ..Default::default() };
    let made = holder.change(Op::MkDir(mkdir));
    let made = holder.keep(&made).await.unwrap();
    let Some(Reply::Attr(dir)) = made.result else { panic!("{made:?}") };
    assert!(made.grants.iter().any(|grant| grant.ino == dir.ino && grant.write));
    let reserved = holder
        .write(Op::ReserveInodes(v1::ReserveInodesOp { count: 1, ..Default::default() }))
        .await;
    let Ok(Reply::ReserveInodes(numbers)) = reserved else { panic!("{reserved:?}") };

    let unlink = Op::Unlink(v1::UnlinkOp { parent: dir.ino, name: "f".into() });
    let mut removing = tokio::spawn(async move { remover.write(unlink).await });
    let seq = recalled(&mut holder, dir.ino).await;
    let (ino, name) = (numbers.first, "f".into());
    let file = v1::make_files_op::File { ino, parent: dir.ino, name, ..Default::default() };
    let make = holder.change(Op::MakeFiles(v1::MakeFilesOp { files: vec![file] }));
    let made = holder.keep(&make).await.unwrap();
    assert!(made.grants.iter().any(|grant| grant.ino == ino && grant.write));
    give_back(&mut holder, dir.ino, seq).await;
    let seq = tokio::select! {
        removed = &mut removing => panic!("removed under another's lease: {removed:?}"),
        seq = recalled(&mut holder, ino) => seq,
    };
    give_back(&mut holder, ino, seq).await;
    removing.await.unwrap().unwrap();
}

/// It could hear nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_declares_nobody_dead_for_that() {
    const TTL: Duration = Duration::from_secs(10);
    let group = Group::start(1, |c| c.session_ttl_ms = TTL.as_millis() as u64).await;
    let mut client = group.client();
    client.open_session().await;
    group.stall(1, TTL + Duration::from_secs(2)).await;
    // It has looked at its sessions since; of the time to live by far the most is left.
    sleep(Duration::from_secs(1)).await;
    client.renew(None).await.unwrap();
    client.create("alive").await.unwrap();
}

/// Sent again to the next leader, it would leave out what was granted since it was gathered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_gathered_for_another_leader_declares_nothing() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let before = client.renew(None).await.unwrap();
    assert!(!before.need_declare);
    group.kill(group.leader().await).await;
    let after = client.renew(None).await.unwrap();
    assert!(after.need_declare && after.term > before.term);
    for (term, needs) in [(before.term, true), (after.term, false), (before.term, true), (0, false)]
    {
        let renew = v1::RenewOp { declares: true, term, ..Default::default() };
        let Reply::Renew(reply) = client.read(Op::Renew(renew)).await.unwrap() else { panic!() };
        assert_eq!(reply.need_declare, needs, "term {term}");
    }
}

/// More than fit into one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_opens_are_declared_to_a_new_leader() {
    const OPENS: u64 = 500_000;
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let (ino, open_seq) = (client.create("x").await.unwrap().ino, client.number);
    client.unlink("x").await.unwrap();
    group.kill(group.leader().await).await;
    assert!(client.renew(None).await.unwrap().need_declare);
    // What is open comes last; the others have long been removed.
    let mut opens: Vec<_> = (1..OPENS)
        .map(|n| v1::OpenOp { ino: (1 << 40) + n, open_seq: 1 << 50, write: false })
        .collect();
    opens.push(v1::OpenOp { ino, open_seq, write: false });
    let whole =
        Op::Renew(v1::RenewOp { declares: true, opens: opens.clone(), ..Default::default() });
    assert!(client.read(whole).await.is_err());
    let pieces = opens.chunks(1 << 15);
    let last = pieces.len() as u32 - 1;
    for (piece, opens) in (0..).zip(pieces) {
        let (declares, more, opens) = (true, piece < last, opens.to_vec());
        let op = v1::RenewOp { declares, opens, declaration: 7, piece, more, ..Default::default() };
        let Reply::Renew(reply) = client.read(Op::Renew(op)).await.unwrap() else { panic!() };
        assert_eq!(reply.need_declare, more);
    }
    let get = Op::GetAttr(v1::GetAttrOp { ino });
    client.read(get.clone()).await.unwrap();
    let begin = Instant::now();
    client.read(Op::Close(close(ino, open_seq))).await.unwrap();
    while client.read(get.clone()).await.is_ok() {
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}
