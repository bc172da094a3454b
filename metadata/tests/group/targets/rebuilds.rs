//! What is lost is made anew, where it was or elsewhere.

use super::*;

/// A chunk that its target does not have any more, whyever, is made anew: nobody else would notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_is_missing_is_made_anew() {
    let group = Group::start(1, |c| c.sample_interval_ms = 10).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, chunks, _stop) = Daemon::start().await;
    let (_, beats) = register(&address, &daemon, 6).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    write_file(&mut client, &chunks, &map, "f", 1).await;
    let all = chunks.lock().unwrap().clone();
    let lost = *all.iter().nth(2).unwrap();
    chunks.lock().unwrap().remove(&lost);
    let until = Instant::now() + PATIENCE;
    while *chunks.lock().unwrap() != all {
        assert!(Instant::now() < until, "{lost:?} is not made anew");
        sleep(Duration::from_millis(20)).await;
    }
    beats.abort();
}

/// A daemon that is slow, since it makes room for others, goes on: nothing is wrong with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_is_given_up_whose_chunks_are_made_slowly() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, Daemon { chunks, slow, .. }, _stop) = Daemon::start_whole().await;
    slow.store(true, Ordering::Relaxed);
    let (_, beats) = register(&address, &daemon, 8).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    for seq in 1..=40 {
        write_file(&mut client, &chunks, &map, &format!("f{seq}"), seq).await;
    }
    let request = v1::SetTargetRequest {
        target: active(&map)[0].targets[0],
        action: v1::set_target_request::Action::GiveUp.into(),
        weight: 0,
    };
    control(&address).await.set_target(request).await.unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(&address).await;
        let repair = status.repair.unwrap_or_default();
        assert_eq!(repair.problems, Vec::<String>::new());
        let map = status.map.unwrap();
        let mut groups = map.pools.iter().flat_map(|pool| &pool.pgs);
        let moves = groups.any(|pg| !pg.moves.is_empty());
        if repair.made_chunks >= 40 && repair.missing_chunks == 0 && !moves {
            break;
        }
        assert!(Instant::now() < until, "{repair:?}");
        sleep(Duration::from_millis(20)).await;
    }
    beats.abort();
}

/// A target could not read some of its drive when it was opened, and does not know what lay there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_target_lacks_that_was_opened_anew_is_made_anew() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, Daemon { chunks, lists, .. }, _stop) = Daemon::start_whole().await;
    let opened = Arc::new(AtomicU64::new(1));
    let (ids, beats) = register_opened(&address, &daemon, 6, opened.clone()).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    for seq in 1..=8 {
        write_file(&mut client, &chunks, &map, &format!("f{seq}"), seq).await;
    }
    all_listed(&lists, ids.len()).await;
    let all = chunks.lock().unwrap().clone();
    // One has nothing left, and one lacks some in the middle and the last.
    let stays = |chunk: &ChunkId| match chunk.shard {
        1 => false,
        4 => ![3, 4, 8].contains(&chunk.segment.seq),
        _ => true,
    };
    chunks.lock().unwrap().retain(|(_, chunk)| stays(chunk));
    opened.store(2, Ordering::SeqCst);
    let until = Instant::now() + PATIENCE;
    while *chunks.lock().unwrap() != all {
        let left: Vec<_> = all.difference(&chunks.lock().unwrap()).copied().collect();
        assert!(Instant::now() < until, "not made anew: {left:?}");
        sleep(Duration::from_millis(20)).await;
    }
    beats.abort();
}

/// Has so many files, and the target given up that holds the first chunk of each. Answers that
/// target.
async fn lose_a_target(
    client: &mut Client,
    daemon: &str,
    chunks: &Chunks,
    files: u64,
) -> (u32, Beats) {
    let address = client.leader.clone();
    let (_, beats) = register(&address, daemon, 8).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    for seq in 1..=files {
        write_file(client, chunks, &map, &format!("f{seq}"), seq).await;
    }
    let target = active(&map)[0].targets[0];
    let action = v1::set_target_request::Action::GiveUp.into();
    let request = v1::SetTargetRequest { target, action, weight: 0 };
    control(&address).await.set_target(request).await.unwrap();
    (target, beats)
}

type Beats = tokio::task::JoinHandle<()>;

/// It is up, as far as the group hears; it would try for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_target_cannot_make_that_is_cut_off_is_made_at_another() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let (daemon, Daemon { chunks, asked, cut_off, .. }, _stop) = Daemon::start_whole().await;
    cut_off.store(1, Ordering::Relaxed);
    let (lost, beats) = lose_a_target(&mut client, &daemon, &chunks, 5).await;
    let until = Instant::now() + PATIENCE;
    let made = |seq| {
        let is = |(target, chunk): &(u32, ChunkId)| {
            *target != lost && (chunk.segment.seq, chunk.shard) == (seq, 0)
        };
        chunks.lock().unwrap().iter().any(is)
    };
    while !(1..=5).all(made) {
        assert!(Instant::now() < until, "asked: {:?}", asked.lock().unwrap());
        sleep(Duration::from_millis(20)).await;
    }
    let asked = asked.lock().unwrap().clone();
    assert_ne!(asked.first(), asked.last());
    beats.abort();
}

/// Where too little is left of a segment, or does not answer anybody, no target is better than
/// another, and what each has made of other segments would go with the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_can_make_does_not_go_from_target_to_target() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let (daemon, Daemon { chunks, asked, cut_off, .. }, _stop) = Daemon::start_whole().await;
    cut_off.store(usize::MAX, Ordering::Relaxed);
    // Three of six are left, of four that are needed.
    let gone = |chunk: &ChunkId| [1, 2].contains(&chunk.shard);
    let (_, beats) = lose_a_target(&mut client, &daemon, &chunks, 5).await;
    chunks.lock().unwrap().retain(|(_, chunk)| !gone(chunk));
    // After the third try one would be refused that could store nothing.
    let until = Instant::now() + 3 * PATIENCE;
    while asked.lock().unwrap().len() < 4 {
        assert!(Instant::now() < until, "asked: {:?}", asked.lock().unwrap());
        sleep(Duration::from_millis(20)).await;
    }
    let asked: BTreeSet<u32> = asked.lock().unwrap().iter().copied().collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    beats.abort();
}

/// A daemon that reads the others of all segments but one.
struct Unread(Daemon, u64);

impl Unread {
    async fn start(seq: u64) -> (String, Daemon, watch::Sender<bool>) {
        let listener = weft_net::tcp().bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let (stop, stopped) = watch::channel(false);
        let identity = weft_net::Identity { name: "daemon".into(), cluster: None };
        let options = ServerOptions { max_payload: 4096, ..ServerOptions::new(identity) };
        let daemon = Daemon::default();
        let service = Arc::new(Self(daemon.clone(), seq));
        tokio::spawn(weft_net::serve(listener, service, options, stopped));
        (address, daemon, stop)
    }
}

#[async_trait::async_trait]
impl Service for Unread {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        use prost::Message;
        let Self(daemon, unread) = self;
        if request.op != op::REBUILD {
            return daemon.call(request).await;
        }
        let order = v1::RebuildRequest::decode(request.head).unwrap();
        assert!(order.knows_busy, "or the leader could not be told");
        let mut reply = v1::RebuildReply::default();
        let mut chunks = daemon.chunks.lock().unwrap();
        for item in order.items {
            let (segment, shard) = (item.segment.unwrap().id, item.shard);
            let chunk = ChunkId::try_from(v1::ChunkKey { segment, shard }).unwrap();
            let is_unread = chunk.segment.seq == *unread;
            let error = if is_unread { ErrorKind::Busy.code() } else { 0 };
            reply.made += u64::from(!is_unread && chunks.insert((order.target, chunk)));
            let message = String::new();
            reply.outcomes.push(v1::rebuild_reply::Outcome { error, message });
        }
        if !order.heal {
            daemon.asked.lock().unwrap().push(order.target);
        }
        Ok(Outgoing::message(&reply))
    }
}

/// Another could make it, and would have to make all others again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_not_read_leaves_the_others_made_where_they_are() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let (daemon, Daemon { chunks, asked, .. }, _stop) = Unread::start(3).await;
    // More than go in one order.
    let (_, beats) = lose_a_target(&mut client, &daemon, &chunks, 40).await;
    // Two orders each time; after the third time another target would be asked.
    let until = Instant::now() + 3 * PATIENCE;
    while asked.lock().unwrap().len() < 7 {
        assert!(Instant::now() < until, "asked: {:?}", asked.lock().unwrap());
        sleep(Duration::from_millis(20)).await;
    }
    let asked: BTreeSet<u32> = asked.lock().unwrap().iter().copied().collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let chunks = chunks.lock().unwrap().clone();
    let made = chunks.iter().filter(|(target, chunk)| asked.contains(target) && chunk.shard == 0);
    let made: BTreeSet<u64> = made.map(|(_, chunk)| chunk.segment.seq).collect();
    let all_read: BTreeSet<u64> = (1..=40).filter(|seq| *seq != 3).collect();
    assert_eq!(made, all_read);
    beats.abort();
}
