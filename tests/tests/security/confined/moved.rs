//! What is moved out of a confined client's directory, and what it takes the names from.

use super::*;

/// Whatever the client did with it before, and whatever it asks again.
#[test]
fn what_is_moved_out_is_gone() -> Result<()> {
    let tree = plant()?;
    let Tree { inside, outside, own, secret, shared, .. } = tree;
    let name = |name: &str| Bytes::copy_from_slice(name.as_bytes());
    let rename = |from, to, new: &str| {
        let (parent, new_parent, new_name) = (from, to, name(new));
        Op::Rename(v1::RenameOp { parent, name: name("own"), new_parent, new_name, flags: 0 })
    };
    let link = |ino, new: &str| Op::Link(v1::LinkOp { ino, parent: inside, name: name(new) });
    let unlink = |old: &str| Op::Unlink(v1::UnlinkOp { parent: inside, name: name(old) });
    let lookup = |of: &str| Op::Lookup(v1::LookupOp { parent: inside, name: name(of) });
    let look = |ino| Op::GetAttr(v1::GetAttrOp { ino });
    let make = |new: &str| {
        let (parent, name) = (inside, name(new));
        Op::MkDir(v1::MkDirOp { parent, name, mode: 0o755, ..Default::default() })
    };
    Runtime::new()?.block_on(async {
        let mut insider = Client::begin(&tree, "insider", &[]).await?;
        let mut eve = Client::begin(&tree, "eve", &["--subtree", "/team/inside"]).await?;
        // It has had all names of it in its hands.
        for op in [rename(inside, inside, "own"), link(own, "second"), unlink("second")] {
            eve.ask_only(op).await?;
        }
        let chmod =
            Op::SetAttr(v1::SetAttrOp { ino: own, mode: Some(0o640), ..Default::default() });
        let done = eve.ask_only(chmod.clone()).await?;
        // The leases were given back under the number behind it.
        let number = eve.number - 1;
        eve.ask_only(look(own)).await?;
        insider.ask_only(rename(inside, outside, "taken")).await?;
        let again = |eve: &Client| {
            let (peer, session) = (eve.peer.clone(), eve.opened.session);
            let chmod = chmod.clone();
            async move { meta(&peer, session, number, chmod).await }
        };
        for asks_again in [false, true] {
            if asks_again {
                ensure!(again(&eve).await?.result == done.result);
            }
            eve.refused(look(own), ErrorKind::Stale).await?;
            let read = v1::GetExtentsOp { ino: own, off: 0, len: 9 };
            eve.refused(Op::GetExtents(read), ErrorKind::Stale).await?;
        }
        // By the name that it was shown by, and for as long as that leads there.
        insider.ask_only(link(secret, "visible")).await?;
        eve.refused(look(secret), ErrorKind::Stale).await?;
        eve.ask_only(lookup("visible")).await?;
        eve.ask_only(look(secret)).await?;
        insider.ask_only(unlink("visible")).await?;
        eve.refused(look(secret), ErrorKind::Stale).await?;
        // What it takes the name from itself, it may have open.
        eve.ask_only(lookup("shared")).await?;
        eve.ask_only(unlink("shared")).await?;
        eve.ask_only(look(shared)).await?;
        // So it may when the directory follows.
        let made = eve.ask_only(make("box")).await?.result;
        let Some(Reply::Attr(v1::Attr { ino: dir, .. })) = made else { anyhow::bail!("{made:?}") };
        let link = v1::LinkOp { ino: shared, parent: dir, name: name("last") };
        eve.ask_only(Op::Link(link)).await?;
        let open = Op::Open(v1::OpenOp { ino: shared, open_seq: 1, write: false });
        eve.ask_only(open).await?;
        eve.ask_only(Op::Unlink(v1::UnlinkOp { parent: dir, name: name("last") })).await?;
        eve.ask_only(Op::RmDir(v1::RmDirOp { parent: inside, name: name("box") })).await?;
        while insider.ask_only(look(dir)).await.is_ok() {
            tokio::task::yield_now().await;
        }
        eve.ask_only(look(shared)).await?;
        Ok(())
    })
}
