//! A client that is confined to a directory, and what it tries.

mod moved;

use crate::{issue, meta, metadata, open_session, secured, soon, storage};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use tokio::runtime::Runtime;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::{Body, Peer, Transport};
use weft_proto::locks::LAST;
use weft_proto::{Error, ErrorKind, v1};
use weft_tests::{Cluster, data};

/// `/team/inside` and `/outside`, a file in each, and one file with a name in both.
struct Tree {
    cluster: Cluster,
    inside: u64,
    outside: u64,
    secret: u64,
    own: u64,
    shared: u64,
}

const SIZE: usize = 1 << 20;

fn plant() -> Result<Tree> {
    let cluster = secured()?;
    let at = |path: &str| cluster.mnt().join(path);
    fs::create_dir_all(at("team/inside"))?;
    fs::create_dir(at("outside"))?;
    for (path, seed) in [("outside/secret", 1), ("team/inside/own", 2), ("outside/shared", 3)] {
        fs::write(at(path), data::bytes(seed, SIZE))?;
    }
    fs::hard_link(at("outside/shared"), at("team/inside/shared"))?;
    fs::File::open(at("outside/secret"))?.sync_all()?;
    let ino = |path: &str| Ok::<_, std::io::Error>(fs::metadata(at(path))?.ino());
    let (inside, outside) = (ino("team/inside")?, ino("outside")?);
    let (secret, own, shared) =
        (ino("outside/secret")?, ino("team/inside/own")?, ino("outside/shared")?);
    Ok(Tree { cluster, inside, outside, secret, own, shared })
}

/// A session of a client, and its numbers.
struct Client {
    peer: Arc<Peer>,
    way: Arc<dyn Transport>,
    opened: v1::OpenSessionReply,
    number: u64,
}

impl Client {
    async fn begin(tree: &Tree, name: &str, more: &[&str]) -> Result<Self> {
        let way = issue(&tree.cluster, "client", name, more)?;
        let peer = metadata(&tree.cluster, way.clone())?;
        let opened = open_session(&peer).await?;
        Ok(Self { peer, way, opened, number: 0 })
    }

    async fn ask(&mut self, op: Op) -> weft_proto::Result<v1::MetaReply> {
        self.number += 1;
        // On a busy machine the test may take longer than a session lives.
        let renew = Op::Renew(v1::RenewOp::default());
        meta(&self.peer, self.opened.session, 0, renew).await?;
        meta(&self.peer, self.opened.session, self.number, op).await
    }

    /// As [`Self::ask`], and keeps no lease: others are not to wait for it.
    async fn ask_only(&mut self, op: Op) -> weft_proto::Result<v1::MetaReply> {
        let reply = self.ask(op).await?;
        let item = |grant: &v1::Grant| v1::return_leases_op::Item {
            ino: grant.ino,
            seq: grant.seq,
            ..Default::default()
        };
        let items = reply.grants.iter().map(item).collect();
        self.ask(Op::ReturnLeases(v1::ReturnLeasesOp { items })).await?;
        Ok(reply)
    }

    /// Has a step carried out by itself. The error is why it was refused.
    async fn step(&mut self, op: v1::batch_op::step::Op) -> weft_proto::Result<()> {
        match self.steps(vec![op]).await? {
            (_, None) => Ok(()),
            (_, Some(error)) => Err(error),
        }
    }

    /// How many steps were carried out, and why the next was refused.
    async fn steps(
        &mut self,
        ops: Vec<v1::batch_op::step::Op>,
    ) -> weft_proto::Result<(usize, Option<Error>)> {
        let step = |op| v1::batch_op::Step { op: Some(op), ..Default::default() };
        let steps = ops.into_iter().map(step).collect();
        let op = Op::Batch(v1::BatchOp { steps, ..Default::default() });
        let Some(Reply::Batch(told)) = self.ask(op).await?.result else {
            return Err(Error::new(ErrorKind::Protocol, "the reply to a batch is another's"));
        };
        let error = Error::new(ErrorKind::from_code(told.error), told.message);
        Ok((told.done.len(), (told.error != 0).then_some(error)))
    }

    async fn refused(&mut self, op: Op, kind: ErrorKind) -> Result<()> {
        let shown = format!("{op:?}");
        let error = self.ask(op).await.err().with_context(|| format!("{shown} was done"))?;
        ensure!(error.kind == kind, "{shown}: {error:?}");
        Ok(())
    }

    /// Where a file's content lies, and the tickets that came along.
    async fn extents(&mut self, ino: u64) -> Result<(v1::ExtentsReply, Vec<Bytes>)> {
        let reply =
            self.ask(Op::GetExtents(v1::GetExtentsOp { ino, off: 0, len: 1 << 30 })).await?;
        let Some(Reply::Extents(extents)) = reply.result else { anyhow::bail!("no extents") };
        Ok((extents, reply.tickets))
    }
}

/// Reads the first block of a segment's first shard, wherever that is.
async fn read(
    tree: &Tree,
    way: &Arc<dyn Transport>,
    segment: &v1::SegmentInfo,
    ticket: &Bytes,
) -> weft_proto::Result<()> {
    let mut last = None;
    for target in 1..=3 {
        let get = v1::GetRequest {
            target: target as u32,
            chunk: Some(v1::ChunkKey { segment: segment.id, shard: 0 }),
            len: 4096,
            ticket: ticket.clone(),
            ..Default::default()
        };
        let peer = storage(&tree.cluster, target, way.clone()).expect("the target is there");
        match peer.exchange(&get, Body::default(), soon()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => last = last.or(Some(error)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("some target was asked"))
}

/// Together with what may be read, the secret is as safe, whatever is shown for it.
async fn read_together(
    tree: &Tree,
    eve: &Client,
    own: &v1::SegmentInfo,
    secret: &v1::SegmentInfo,
    ticket: &Bytes,
) -> Result<()> {
    let part = |segment: &v1::SegmentInfo, ticket| v1::get_many_request::Part {
        chunk: Some(v1::ChunkKey { segment: segment.id, shard: 0 }),
        len: 4096,
        ticket,
        ..Default::default()
    };
    let mut read_own = 0;
    for target in 1..=3 {
        let peer = storage(&tree.cluster, target, eve.way.clone())?;
        for (parts, mine) in [
            (vec![part(own, 0), part(own, 0)], true),
            (vec![part(own, 0), part(secret, 0)], false),
            (vec![part(secret, 0), part(own, 1)], false),
            (vec![part(own, 0), part(secret, 1)], false),
        ] {
            let tickets = vec![ticket.clone(), eve.opened.ticket.clone()];
            let many = v1::GetManyRequest { target: target as u32, parts, tickets };
            let answer = peer.exchange(&many, Body::default(), soon()).await.map(drop);
            match answer.map_err(|e| e.kind) {
                Ok(()) if mine => read_own += 1,
                Err(ErrorKind::NotFound) if mine => {}
                Err(ErrorKind::NoTicket) if !mine => {}
                other => anyhow::bail!("target {target}, own {mine}: {other:?}"),
            }
        }
    }
    ensure!(read_own > 0, "no target has what may be read");
    Ok(())
}

/// A lock of a whole file.
fn set_lock(ino: u64, kind: v1::lock::Kind) -> Op {
    let lock = v1::Lock { ino, kind: kind.into(), end: LAST, ..Default::default() };
    Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() })
}

#[test]
fn nothing_outside_is_looked_at_or_changed() -> Result<()> {
    let tree = plant()?;
    Runtime::new()?.block_on(async {
        let mut eve = Client::begin(&tree, "eve", &["--subtree", "/team/inside"]).await?;
        ensure!(eve.opened.root == tree.inside, "{:?}", eve.opened);
        let (root, outside, secret) = (1, tree.outside, tree.secret);
        let named = |parent, name: &str| v1::LookupOp { parent, name: name.to_owned().into() };
        for op in [
            Op::Lookup(named(root, "outside")),
            Op::Lookup(named(outside, "secret")),
            Op::GetAttr(v1::GetAttrOp { ino: root }),
            Op::GetAttr(v1::GetAttrOp { ino: secret }),
            Op::ReadDir(v1::ReadDirOp { ino: outside, limit: 9, ..Default::default() }),
            Op::GetExtents(v1::GetExtentsOp { ino: secret, off: 0, len: 9 }),
            Op::GetXattr(v1::GetXattrOp { ino: secret, name: "user.a".into() }),
            Op::Open(v1::OpenOp { ino: secret, open_seq: 1, write: false }),
            Op::Lease(v1::LeaseOp { ino: secret, write: true, alone: true, records: None }),
            Op::LeaseMany(v1::LeaseManyOp { inos: vec![tree.own, secret] }),
            Op::LookupMany(v1::LookupManyOp {
                items: vec![v1::lookup_many_op::Item { parent: outside, name: "secret".into() }],
            }),
            Op::SetAttr(v1::SetAttrOp { ino: secret, mode: Some(0o777), ..Default::default() }),
            Op::Unlink(v1::UnlinkOp { parent: outside, name: "secret".into() }),
            Op::Link(v1::LinkOp { ino: secret, parent: tree.inside, name: "mine".into() }),
            Op::Rename(v1::RenameOp {
                parent: outside,
                name: "secret".into(),
                new_parent: tree.inside,
                new_name: "mine".into(),
                flags: 0,
            }),
            Op::Rename(v1::RenameOp {
                parent: tree.inside,
                name: "own".into(),
                new_parent: root,
                new_name: "out".into(),
                flags: 0,
            }),
            Op::CopyRange(v1::CopyRangeOp {
                from: secret,
                to: tree.own,
                len: 9,
                ..Default::default()
            }),
            Op::GetUsage(v1::GetUsageOp { ino: root }),
            set_lock(secret, v1::lock::Kind::Read),
            // What is not there at all is not told apart.
            Op::GetAttr(v1::GetAttrOp { ino: 1 << 30 }),
        ] {
            eve.refused(op, ErrorKind::Stale).await?;
        }
        // Made after it was changed: a batch is looked at in its order.
        use v1::batch_op::step::Op as Do;
        let attr = v1::SetAttrOp { ino: secret, mode: Some(0o777), ..Default::default() };
        let make = v1::MakeOp {
            ino: secret,
            parent: tree.inside,
            name: "x".into(),
            kind: v1::FileKind::Regular.into(),
            mode: 0o644,
            ..Default::default()
        };
        for ops in [
            vec![Do::SetAttr(attr), Do::Make(make.clone())],
            vec![Do::Make(make), Do::SetAttr(attr)],
        ] {
            let (done, error) = eve.steps(ops).await?;
            ensure!(done == 0 && error.is_some_and(|e| e.kind == ErrorKind::Stale));
        }
        let (ino, name) = (secret, Bytes::from_static(b"user.x"));
        let set = v1::SetXattrOp { ino, name: name.clone(), ..Default::default() };
        for op in [Do::SetXattr(set), Do::RemoveXattr(v1::RemoveXattrOp { ino, name })] {
            let refused = eve.step(op).await.err().context("it was done")?;
            ensure!(refused.kind == ErrorKind::Stale, "{refused:?}");
        }
        let key = |kind: v1::quota_key::Kind, id| Some(v1::QuotaKey { kind: kind.into(), id });
        for op in [
            Op::SetQuota(v1::SetQuotaOp {
                key: key(v1::quota_key::Kind::User, 1000),
                bytes: Some(1),
                ..Default::default()
            }),
            Op::SetQuota(v1::SetQuotaOp {
                key: key(v1::quota_key::Kind::Tree, tree.inside),
                clear: true,
                ..Default::default()
            }),
            Op::ListQuotas(v1::ListQuotasOp::default()),
            Op::GetQuota(v1::GetQuotaOp {
                key: key(v1::quota_key::Kind::User, 0),
                ..Default::default()
            }),
            Op::GetQuota(v1::GetQuotaOp {
                key: key(v1::quota_key::Kind::User, 0),
                ino: tree.inside,
                ..Default::default()
            }),
        ] {
            eve.refused(op, ErrorKind::NotPermitted).await?;
        }
        let many = v1::RenewOp { write_leases: vec![9; 1 << 15], ..Default::default() };
        eve.refused(Op::Renew(many), ErrorKind::Invalid).await?;
        for name in ["..", ".", "", "a/b", "../../outside"] {
            eve.refused(Op::Lookup(named(tree.inside, name)), ErrorKind::Invalid).await?;
        }
        for op in [
            Op::Check(v1::CheckOp::default()),
            Op::ListSegments(v1::ListSegmentsOp::default()),
            Op::Mend(v1::MendOp::default()),
        ] {
            eve.refused(op, ErrorKind::NotPermitted).await?;
        }
        // Of a file that was moved away a lock is given up, and that tells nothing of it.
        eve.ask(set_lock(secret, v1::lock::Kind::None)).await?;
        eve.ask(set_lock(1 << 30, v1::lock::Kind::None)).await?;
        // Inside all goes on, and what is above is not told.
        eve.ask(Op::GetAttr(v1::GetAttrOp { ino: tree.own })).await?;
        let list = v1::ReadDirOp { ino: tree.inside, limit: 9, ..Default::default() };
        let Some(Reply::ReadDir(page)) = eve.ask(Op::ReadDir(list)).await?.result else {
            anyhow::bail!("no listing")
        };
        ensure!(page.parent == tree.inside && page.entries.len() == 2, "{page:?}");
        // A name inside makes a file of both places its own to use.
        let mut other = Client::begin(&tree, "other", &["--subtree", "/team/inside"]).await?;
        other.refused(Op::GetAttr(v1::GetAttrOp { ino: tree.shared }), ErrorKind::Stale).await?;
        other.ask(Op::Lookup(named(tree.inside, "shared"))).await?;
        other.ask(Op::GetAttr(v1::GetAttrOp { ino: tree.shared })).await?;
        anyhow::Ok(())
    })?;
    let at = |path: &str| tree.cluster.mnt().join(path);
    ensure!(fs::read(at("outside/secret"))? == data::bytes(1, SIZE));
    ensure!(fs::read(at("team/inside/own"))? == data::bytes(2, SIZE));
    ensure!(fs::read_dir(at("team/inside"))?.count() == 2);
    Ok(())
}

#[test]
fn chunks_are_read_by_ticket() -> Result<()> {
    let tree = plant()?;
    Runtime::new()?.block_on(async {
        // Who may see everything tells where the secret lies.
        let mut insider = Client::begin(&tree, "insider", &[]).await?;
        let (secret, none) = insider.extents(tree.secret).await?;
        ensure!(none.is_empty() && !secret.segments.is_empty());
        let inside = &["--subtree", "/team/inside"];
        let mut eve = Client::begin(&tree, "eve", inside).await?;
        let (own, tickets) = eve.extents(tree.own).await?;
        ensure!(!tickets.is_empty() && !own.segments.is_empty());
        read(&tree, &eve.way, &own.segments[0], &tickets[0]).await?;
        let mut mallory = Client::begin(&tree, "mallory", inside).await?;
        let (_, replayed) = mallory.extents(tree.own).await?;
        for (what, segment, ticket) in [
            ("no ticket", &own.segments[0], Bytes::new()),
            ("another's ticket", &own.segments[0], replayed[0].clone()),
            ("the secret", &secret.segments[0], tickets[0].clone()),
            ("the secret by a session", &secret.segments[0], eve.opened.ticket.clone()),
            ("an insider's session", &secret.segments[0], insider.opened.ticket.clone()),
        ] {
            let refused = read(&tree, &eve.way, segment, &ticket).await.err().context(what)?;
            ensure!(refused.kind == ErrorKind::NoTicket, "{what}: {refused:?}");
        }
        read_together(&tree, &eve, &own.segments[0], &secret.segments[0], &tickets[0]).await?;
        let report = v1::ReportCorruptRequest {
            target: 1,
            chunk: Some(v1::ChunkKey { segment: secret.segments[0].id, shard: 0 }),
            ..Default::default()
        };
        let reported = storage(&tree.cluster, 1, eve.way.clone())?.call(&report, soon()).await;
        ensure!(reported.is_err_and(|e| e.kind == ErrorKind::NotPermitted));
        // By showing it in a file of one's own.
        let extent = v1::Extent {
            file_off: 0,
            len: 4096,
            source: Some(v1::extent::Source::Segment(v1::SegmentPart {
                id: secret.segments[0].id,
                off: 0,
            })),
        };
        let commit =
            v1::CommitExtentsOp { ino: tree.own, extents: vec![extent], ..Default::default() };
        eve.refused(Op::CommitExtents(commit), ErrorKind::NotPermitted).await?;
        // Nor is there a list of what there is.
        let list = v1::ListRequest { target: 1, limit: 9, ..Default::default() };
        let listed = storage(&tree.cluster, 1, eve.way.clone())?.call(&list, soon()).await;
        ensure!(listed.is_err_and(|e| e.kind == ErrorKind::NotPermitted));
        Ok(())
    })
}

#[test]
fn who_may_only_read_changes_nothing_and_root_owns_nothing() -> Result<()> {
    let tree = plant()?;
    Runtime::new()?.block_on(async {
        let mut reader = Client::begin(&tree, "reader", &["--read-only"]).await?;
        ensure!(reader.opened.read_only && reader.opened.ticket.is_empty());
        let make = |uid, gid| v1::MkDirOp {
            parent: tree.inside,
            name: "d".into(),
            mode: 0o755,
            uid,
            gid,
            umask: 0,
        };
        for op in [
            Op::MkDir(make(1000, 1000)),
            Op::Unlink(v1::UnlinkOp { parent: tree.inside, name: "own".into() }),
            Op::SetAttr(v1::SetAttrOp { ino: tree.own, size: Some(0), ..Default::default() }),
            Op::Open(v1::OpenOp { ino: tree.own, open_seq: 1, write: true }),
            Op::ReserveInodes(v1::ReserveInodesOp { count: 9, ..Default::default() }),
        ] {
            reader.refused(op, ErrorKind::ReadOnly).await?;
        }
        reader.ask(Op::GetAttr(v1::GetAttrOp { ino: tree.own })).await?;
        // With its lease: it answers no recall, and who changes the file would wait for its end.
        reader.ask(Op::CloseSession(v1::CloseSessionOp {})).await?;
        let mut squashed = Client::begin(&tree, "squashed", &["--root-squash"]).await?;
        squashed.refused(Op::MkDir(make(0, 1000)), ErrorKind::NotPermitted).await?;
        squashed.refused(Op::MkDir(make(1000, 0)), ErrorKind::NotPermitted).await?;
        let chown = v1::SetAttrOp { ino: tree.own, uid: Some(0), ..Default::default() };
        squashed.refused(Op::SetAttr(chown), ErrorKind::NotPermitted).await?;
        let suid = v1::SetAttrOp { ino: tree.own, mode: Some(0o4755), ..Default::default() };
        squashed.refused(Op::SetAttr(suid), ErrorKind::NotPermitted).await?;
        let device = v1::MkNodOp {
            parent: tree.inside,
            name: "disk".into(),
            kind: v1::FileKind::BlockDevice.into(),
            mode: 0o666,
            uid: 1000,
            gid: 1000,
            rdev: 2048,
            umask: 0,
        };
        squashed.refused(Op::MkNod(device), ErrorKind::NotPermitted).await?;
        let label = v1::SetXattrOp {
            ino: tree.own,
            name: "security.capability".into(),
            ..Default::default()
        };
        squashed.refused(Op::SetXattr(label.clone()), ErrorKind::NotPermitted).await?;
        // What comes before it is of somebody else, and is done.
        let set = |name: &'static [u8]| {
            let name = Bytes::from_static(name);
            let op = v1::SetXattrOp { ino: tree.own, name, ..Default::default() };
            v1::batch_op::step::Op::SetXattr(op)
        };
        let label = v1::batch_op::step::Op::SetXattr(label);
        let steps = vec![set(b"user.a"), set(b"user.b"), label, set(b"user.c")];
        let (done, error) = squashed.steps(steps).await?;
        ensure!(done == 2 && error.is_some_and(|e| e.kind == ErrorKind::NotPermitted));
        let list = Op::ListXattr(v1::ListXattrOp { ino: tree.own });
        let Some(Reply::ListXattr(set)) = squashed.ask(list).await?.result else {
            anyhow::bail!("no names")
        };
        ensure!(set.names == [&b"user.a"[..], b"user.b"], "{set:?}");
        squashed.ask(Op::MkDir(make(1000, 1000))).await?;
        Ok(())
    })
}

/// A number that was used before opens no door: what it is used for this time is looked at, and a
/// change is only answered as it was then.
#[test]
fn a_request_under_a_number_that_was_used_is_checked_as_any_other() -> Result<()> {
    let tree = plant()?;
    let at = |path: &str| tree.cluster.mnt().join(path);
    let before = fs::metadata(at("outside/secret"))?.mode();
    Runtime::new()?.block_on(async {
        let mut eve = Client::begin(&tree, "eve", &["--subtree", "/team/inside"]).await?;
        let (outside, secret) = (tree.outside, tree.secret);
        let chmod =
            |ino, mode| Op::SetAttr(v1::SetAttrOp { ino, mode: Some(mode), ..Default::default() });
        let done = eve.ask(chmod(tree.own, 0o640)).await?;
        let (session, number) = (eve.opened.session, eve.number);
        for op in [
            Op::GetAttr(v1::GetAttrOp { ino: secret }),
            Op::ReadDir(v1::ReadDirOp { ino: outside, limit: 9, ..Default::default() }),
            Op::GetExtents(v1::GetExtentsOp { ino: secret, off: 0, len: 9 }),
            Op::Lease(v1::LeaseOp { ino: secret, write: true, alone: true, records: None }),
            Op::Check(v1::CheckOp::default()),
            Op::ListSegments(v1::ListSegmentsOp::default()),
            Op::Mend(v1::MendOp::default()),
        ] {
            let shown = format!("{op:?}");
            let answer = meta(&eve.peer, session, number, op).await;
            let refused = answer.err().with_context(|| format!("{shown} was answered"))?;
            let kinds = [ErrorKind::Stale, ErrorKind::NotPermitted];
            ensure!(kinds.contains(&refused.kind), "{shown}: {refused:?}");
        }
        for ino in [tree.own, secret] {
            let again = meta(&eve.peer, session, number, chmod(ino, 0o777)).await?;
            ensure!(again.result == done.result, "{again:?}");
            let told = (again.dirs.len(), again.grants.len(), again.touched.len());
            ensure!(told == (0, 0, 0), "{again:?}");
        }
        anyhow::Ok(())
    })?;
    ensure!(fs::metadata(at("outside/secret"))?.mode() == before);
    ensure!(fs::metadata(at("team/inside/own"))?.mode() & 0o7777 == 0o640);
    Ok(())
}

/// Nor is a program made that runs as another, or a file that belongs to root's group.
#[test]
fn who_is_squashed_makes_nothing_that_runs_as_another() -> Result<()> {
    let tree = plant()?;
    let shared = tree.cluster.mnt().join("shared");
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2777))?;
    // So that the group has heard of it.
    fs::File::open(&shared)?.sync_all()?;
    let shared = fs::metadata(&shared)?.ino();
    Runtime::new()?.block_on(async {
        let mut squashed = Client::begin(&tree, "squashed", &["--root-squash"]).await?;
        let (uid, gid) = (1000, 1000);
        let create = |parent, name: &str, mode| {
            let name = Bytes::copy_from_slice(name.as_bytes());
            Op::Create(v1::CreateOp { parent, name, mode, uid, gid, ..Default::default() })
        };
        let node = |mode| {
            let (parent, kind) = (tree.inside, v1::FileKind::Regular.into());
            let name = "node".into();
            Op::MkNod(v1::MkNodOp { parent, name, kind, mode, uid, gid, ..Default::default() })
        };
        let step = |parent, mode| {
            let (name, kind) = ("step".into(), v1::FileKind::Regular.into());
            let make = v1::MakeOp { parent, name, kind, mode, uid, gid, ..Default::default() };
            v1::batch_op::step::Op::Make(make)
        };
        let dir = |parent, mode| {
            let name = "dir".into();
            Op::MkDir(v1::MkDirOp { parent, name, mode, uid, gid, umask: 0 })
        };
        let whiteout = v1::RenameOp {
            parent: tree.inside,
            name: "own".into(),
            new_parent: tree.inside,
            new_name: "moved".into(),
            flags: weft_proto::rename::WHITEOUT,
        };
        for op in [
            Op::Rename(whiteout),
            create(tree.inside, "f", 0o4755),
            create(tree.inside, "f", 0o2755),
            node(0o4755),
            create(shared, "f", 0o644),
            dir(shared, 0o755),
            dir(tree.inside, 0o4755),
        ] {
            squashed.refused(op, ErrorKind::NotPermitted).await?;
        }
        for op in [step(tree.inside, 0o2755), step(shared, 0o644)] {
            let refused = squashed.step(op).await.err().context("it was done")?;
            ensure!(refused.kind == ErrorKind::NotPermitted, "{refused:?}");
        }
        squashed.ask(create(tree.inside, "f", 0o755)).await?;
        squashed.ask(dir(tree.inside, 0o2755)).await?;
        Ok(())
    })
}
