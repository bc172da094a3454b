//! All servers of the group are replaced, one after the other, while they crash and are cut off.

use super::*;
use std::collections::VecDeque;
use v1::set_member_request::Action;
use v1::set_server_entry::{Add, Change};

/// What the admin is to bring about next: a server, and the one that it replaces.
type Orders = Arc<Mutex<VecDeque<(u64, u64)>>>;

/// Servers with a vote, as the admin saw last.
type Voters = Arc<Mutex<Vec<u64>>>;

/// Servers that are replaced in one run.
const REPLACED: u64 = 4;

fn address(id: u64) -> String {
    format!("{}:7000", name(id))
}

/// A server that may have left the group when it starts again.
async fn member(id: u64, seed: u64, config: Config) -> turmoil::Result {
    match server(id, seed, config).await {
        Err(e) if e.to_string().contains("left its group") => Ok(()),
        ended => ended,
    }
}

/// Settings of a server that comes later, and knows where to ask.
fn joining(id: u64, dir: &Path, voters: &[u64]) -> Config {
    let peers = voters.iter().chain([&id]);
    let peers = peers.map(|&id| Member { id: NodeId(id), address: address(id) }).collect();
    Config { peers, id: NodeId(id), data_dir: dir.join(id.to_string()), ..config(1, dir) }
}

/// Has each order carried out, and waits until it is.
async fn admin(servers: Servers, orders: Orders, voters: Voters) -> turmoil::Result {
    let mut done = 0;
    while done < REPLACED {
        let order = orders.lock().unwrap().pop_front();
        let Some((id, replaces)) = order else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let add = Change::Add(Add { id, address: address(id), replaces });
        let entry = v1::SetServerEntry { change: Some(add) };
        let request = v1::SetMemberRequest { action: Some(Action::Set(entry)) };
        loop {
            let known = servers.lock().unwrap().clone();
            let mut group = weft_control::Group::new(weft_net::sim::transport(), known);
            match group.call(request.clone()).await {
                Ok(_) => break,
                Err(e) => assert!(e.kind != ErrorKind::Exists, "{e}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        loop {
            let known = servers.lock().unwrap().clone();
            let transport = weft_net::sim::transport();
            if let Ok(status) = weft_control::leader_status(&transport, &known).await {
                let members = status.map.unwrap_or_default().members;
                let all_vote = members.iter().all(|m| m.role() == v1::MemberRole::Voter);
                let ids: Vec<u64> = members.iter().map(|m| m.id).collect();
                if all_vote && ids.contains(&id) && !ids.contains(&replaces) {
                    *voters.lock().unwrap() = ids;
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        done += 1;
    }
    Ok(())
}

fn run(seed: u64, writes: u64) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut sim = world(seed);
    for id in 1..=3 {
        let config = config(id, dir.path());
        weft_metadata::bootstrap(&config).unwrap();
        sim.host(name(id), move || member(id, seed, config.clone()));
    }
    let (trace, done) = (Trace::default(), Arc::new(Mutex::new(false)));
    let (servers, orders) = (servers(), Orders::default());
    let voters: Voters = Arc::new(Mutex::new(vec![1, 2, 3]));
    sim.client("client", workload(writes, servers.clone(), trace.clone(), done.clone()));
    sim.client("admin", admin(servers.clone(), orders.clone(), voters.clone()));
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut newest, mut ordered) = (3, Vec::new());
    let mut next = Duration::from_secs(2);
    let mut heal: Option<(Duration, u64, bool)> = None;
    while !sim.step().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{:?}", faults(&trace))) {
        let now = sim.elapsed();
        let vote = voters.lock().unwrap().clone();
        if ordered.len() < REPLACED as usize && vote.contains(&newest) {
            // The next one, at random: the leader, sooner or later.
            let old = vote[rng.random_range(0..vote.len())];
            newest += 1;
            let (id, config) = (newest, joining(newest, dir.path(), &vote));
            sim.host(name(id), move || member(id, seed, config.clone()));
            servers.lock().unwrap().push(address(id));
            orders.lock().unwrap().push_back((id, old));
            ordered.push(old);
            trace.lock().unwrap().push(format!("{now:?} replace {old} by {id}"));
        }
        let over = *done.lock().unwrap();
        let others = |id: u64| {
            let all = (1..=newest).filter(move |other| *other != id).map(name);
            all.chain(["client".to_string(), "admin".to_string()])
        };
        if let Some((_, id, crashed)) = heal.filter(|(at, ..)| now >= *at || over) {
            match crashed {
                true => sim.bounce(name(id)),
                false => others(id).for_each(|other| sim.repair(name(id), other)),
            }
            heal = None;
            next = now + Duration::from_millis(rng.random_range(300..2500));
        }
        if heal.is_none() && now >= next && !over {
            // Of those that vote, those that come and those that go.
            let id = rng.random_range(newest.saturating_sub(3)..=newest);
            let crash = rng.random_bool(0.6);
            match crash {
                true => sim.crash(name(id)),
                false => others(id).for_each(|other| sim.partition(name(id), other)),
            }
            let what = if crash { "crash" } else { "cut off" };
            trace.lock().unwrap().push(format!("{now:?} {what} {id}"));
            let until = now + Duration::from_millis(rng.random_range(200..4000));
            heal = Some((until, id, crash));
        }
    }
    let trace = trace.lock().unwrap().clone();
    assert!(trace.len() as u64 >= writes, "seed {seed}: the client did not finish");
    trace
}

fn faults(trace: &Trace) -> Vec<String> {
    trace.lock().unwrap().iter().filter(|t| !t.contains(" is ")).cloned().collect()
}

/// I2, whoever has to go and whatever happens meanwhile.
#[test]
fn what_was_acknowledged_survives_that_all_servers_are_replaced() {
    let seeds = match std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..5,
    };
    for seed in seeds {
        let trace = run(seed, 500);
        let replaced = trace.iter().filter(|t| t.contains("replace")).count() as u64;
        assert_eq!(replaced, REPLACED, "seed {seed}");
    }
}
