//! Servers that lost their disks: who elects whom, and when.

use super::*;

/// What the client has done and what happens next, in turns: odd while the world is about to
/// change.
#[derive(Clone, Default)]
struct Stage(Arc<AtomicUsize>);

impl Stage {
    /// The client's part is done; returns when the world has changed.
    async fn next(&self) {
        let turn = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        while self.0.load(Ordering::Relaxed) == turn {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

type Change<'a> = Box<dyn FnMut(&mut turmoil::Sim<'_>) -> bool + 'a>;

/// Runs the simulation to its end. Each change is tried at every step of its turn until it says
/// that it is done.
fn play(sim: &mut turmoil::Sim<'_>, stage: &Stage, changes: &mut [Change<'_>]) {
    while !sim.step().unwrap() {
        let turn = stage.0.load(Ordering::Relaxed);
        if turn % 2 == 1 && changes[turn / 2](sim) {
            stage.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    assert_eq!(stage.0.load(Ordering::Relaxed), 2 * changes.len(), "the client has done its part");
}

/// A client with a session, and the files that it was told exist.
struct Witness {
    client: Client,
    session: u64,
    files: Vec<u64>,
}

impl Witness {
    async fn new() -> Self {
        let identity = weft_net::Identity { name: "client".into(), cluster: None };
        let peers = Peers::new(weft_net::sim::transport(), identity);
        let mut client =
            Client { peers, servers: servers(), leader: members()[0].address.clone(), next: 0 };
        let open = v1::OpenSessionOp {
            client: "sim".into(),
            nonce: vec![7; 16].into(),
            ..Default::default()
        };
        let request = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
        let Reply::OpenSession(opened) = client.retry(&request).await.unwrap() else {
            panic!("no session")
        };
        Self { client, session: opened.session, files: Vec::new() }
    }

    async fn create(&mut self) {
        let number = self.files.len() as u64 + 1;
        let create = v1::CreateOp {
            parent: 1,
            name: format!("f{number}").into(),
            exclusive: true,
            open_seq: number,
            ..Default::default()
        };
        let (session, op) = (self.session, Some(Op::Create(create)));
        let request = v1::MetaRequest { session, number, acked_below: number, op };
        let Reply::Open(created) = self.client.retry(&request).await.unwrap() else {
            panic!("not created")
        };
        self.files.push(created.attr.unwrap().ino);
    }

    fn lookup(&self, number: usize) -> v1::MetaRequest {
        let lookup = Op::Lookup(v1::LookupOp { parent: 1, name: format!("f{number}").into() });
        v1::MetaRequest { session: self.session, op: Some(lookup), ..Default::default() }
    }

    /// All files are there.
    async fn finds_all(&mut self) {
        for number in 1..=self.files.len() {
            let request = self.lookup(number);
            let found = self.client.retry(&request).await.unwrap();
            let Reply::Open(found) = found else { panic!("f{number}: {found:?}") };
            assert_eq!(found.attr.unwrap().ino, self.files[number - 1]);
        }
    }

    /// For a minute, nobody answers at all.
    async fn nobody_answers(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            for member in members() {
                let deadline = Instant::now() + Duration::from_secs(1);
                let peer = self.client.peers.peer(&member.address);
                let request = self.lookup(self.files.len());
                let answer = peer.call(&request, deadline).await;
                let kind = answer.expect_err("nobody may answer").kind;
                use ErrorKind::*;
                assert!(matches!(kind, NotLeader | Unavailable | TimedOut), "{kind:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The client ends the play with what the rest of the group then still does.
async fn epilogue(mut witness: Witness, stage: Stage) {
    witness.finds_all().await;
    witness.create().await;
    stage.next().await;
    // With the server that came back in the majority.
    witness.finds_all().await;
    witness.create().await;
}

/// Server 1 and 2 acknowledge what 3 does not hear of. Then 2 loses its disk and 1 ends: 3 must not
/// lead by the vote of 2.
#[test]
fn who_lost_its_disk_elects_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sim, stage) = (group(1, dir.path()), Stage::default());
    let turns = stage.clone();
    sim.client("client", async move {
        let mut witness = Witness::new().await;
        witness.create().await;
        turns.next().await;
        witness.create().await;
        turns.next().await;
        witness.nobody_answers().await;
        turns.next().await;
        epilogue(witness, turns).await;
        Ok(())
    });
    let dir = dir.path();
    play(
        &mut sim,
        &stage,
        &mut [
            Box::new(|sim| {
                ["mds1", "mds2"].iter().for_each(|&other| sim.partition("mds3", other));
                true
            }),
            Box::new(|sim| {
                sim.crash("mds1");
                wipe(sim, 2, dir);
                sim.bounce("mds2");
                ["mds1", "mds2"].iter().for_each(|&other| sim.repair("mds3", other));
                true
            }),
            Box::new(|sim| {
                sim.bounce("mds1");
                true
            }),
            Box::new(|sim| {
                let back = whole(2, dir);
                if back {
                    sim.crash("mds1");
                }
                back
            }),
        ],
    );
}

/// While one server leads on, another comes back although its disk was lost.
#[test]
fn who_lost_its_disk_comes_back_by_itself() {
    // A short log, from its beginning; and one of which the beginning is forgotten: a snapshot.
    for (seed, files) in [(2, 3), (3, 200)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut sim, stage) = (group(seed, dir.path()), Stage::default());
        let turns = stage.clone();
        sim.client("client", async move {
            let mut witness = Witness::new().await;
            for _ in 0..files {
                witness.create().await;
            }
            turns.next().await;
            epilogue(witness, turns).await;
            Ok(())
        });
        let dir = dir.path();
        play(
            &mut sim,
            &stage,
            &mut [
                Box::new(|sim| {
                    wipe(sim, 2, dir);
                    sim.bounce("mds2");
                    true
                }),
                Box::new(|sim| {
                    let back = whole(2, dir);
                    if back {
                        sim.crash("mds1");
                    }
                    back
                }),
            ],
        );
    }
}

/// One is lost for good, its disk too, the moment that another is admitted whose disk was lost
/// before: the third has all, and goes on with the vote of the second.
#[test]
fn who_is_admitted_helps_to_elect_before_it_has_caught_up() {
    // One of them led.
    for (seed, other) in [(5, 1), (5, 3), (6, 1), (6, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut sim, stage) = (group(seed, dir.path()), Stage::default());
        let turns = stage.clone();
        sim.client("client", async move {
            let mut witness = Witness::new().await;
            for _ in 0..200 {
                witness.create().await;
            }
            turns.next().await;
            epilogue(witness, turns).await;
            Ok(())
        });
        let dir = dir.path();
        let mut lost = false;
        play(
            &mut sim,
            &stage,
            &mut [
                Box::new(|sim| {
                    if !std::mem::replace(&mut lost, true) {
                        wipe(sim, 2, dir);
                        sim.bounce("mds2");
                    }
                    let now = admitted(2, dir);
                    if now {
                        assert!(!whole(2, dir), "it has caught up");
                        wipe(sim, other, dir);
                        sim.bounce(name(other));
                    }
                    now
                }),
                Box::new(|sim| {
                    let back = whole(2, dir) && whole(other, dir);
                    if back {
                        sim.crash(name(4 - other));
                    }
                    back
                }),
            ],
        );
    }
}

/// With the disks of a majority, what was acknowledged may be gone: nobody leads, until one of the
/// disks is back.
#[test]
fn with_the_disks_of_a_majority_lost_nobody_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sim, stage) = (group(4, dir.path()), Stage::default());
    let turns = stage.clone();
    sim.client("client", async move {
        let mut witness = Witness::new().await;
        witness.create().await;
        turns.next().await;
        witness.nobody_answers().await;
        turns.next().await;
        epilogue(witness, turns).await;
        Ok(())
    });
    let dir = dir.path();
    let (one, kept) = (dir.join("1"), dir.join("kept"));
    play(
        &mut sim,
        &stage,
        &mut [
            Box::new(|sim| {
                sim.crash("mds1");
                std::fs::rename(&one, &kept).unwrap();
                wipe(sim, 2, dir);
                sim.bounce("mds1");
                sim.bounce("mds2");
                true
            }),
            Box::new(|sim| {
                wipe(sim, 1, dir);
                std::fs::rename(&kept, &one).unwrap();
                sim.bounce("mds1");
                true
            }),
            Box::new(|sim| {
                let back = whole(2, dir);
                if back {
                    sim.crash("mds3");
                }
                back
            }),
        ],
    );
}
