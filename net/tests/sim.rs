//! On a simulated network, where time is free: silence, partitions, crashes.
#![cfg(feature = "sim")]

mod support;

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use support::{ECHO, Handle, OTHER, echo, identity, options};
use tokio::sync::watch;
use tokio::time::Instant;
use weft_net::{Body, Outgoing, Peer, Peers, ServerOptions, Service, Transport, Way, serve, sim};
use weft_proto::ErrorKind;

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the support runs over.
fn transport() -> Arc<dyn Transport> {
    sim::transport()
}

async fn run_server(service: Arc<dyn Service>, options: ServerOptions) -> turmoil::Result {
    let listener = sim::transport().bind(&"0.0.0.0:7000".parse()?).await?;
    let (_stop, stopped) = watch::channel(false);
    serve(listener, service, options, stopped).await;
    Ok(())
}

fn peer() -> Arc<Peer> {
    Peers::new(sim::transport(), identity("client", None)).peer("server:7000")
}

fn after(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

fn simulation() -> turmoil::Sim<'static> {
    turmoil::Builder::new().simulation_duration(Duration::from_secs(3000)).rng_seed(7).build()
}

#[test]
fn payloads_cross_a_simulated_network() {
    let mut sim = simulation();
    sim.host("server", || run_server(echo(), options()));
    sim.client("client", async {
        let peer = peer();
        let sent = Bytes::from(vec![5; 300_000]);
        let body = Body { send: vec![sent.clone(), sent.clone()], into: vec![] };
        let answer =
            peer.exchange_op::<_, Bytes>(ECHO, &Bytes::from("hi"), body, after(10)).await?;
        assert_eq!(answer.head, "hi");
        assert_eq!(answer.payload[0], [sent.clone(), sent].concat());
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_silent_peer_is_declared_dead_and_found_again() {
    let mut sim = simulation();
    let slow = || {
        Handle::new(|request| async move {
            if request.op == OTHER {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            Ok(Outgoing { head: request.head, payload: vec![] })
        })
    };
    sim.host("server", move || run_server(slow(), options()));
    sim.client("client", async {
        let peer = peer();
        // Slow is not dead: pings are answered.
        peer.call_op::<u64, u64>(OTHER, &1, after(60)).await?;

        let started = Instant::now();
        let call = peer.call_op::<u64, u64>(OTHER, &1, after(60));
        let cut = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            turmoil::hold("client", "server");
        };
        let (answer, ()) = tokio::join!(call, cut);
        assert_eq!(answer.unwrap_err().kind, ErrorKind::Unavailable);
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        // A network that swallows everything: one attempt, then the truth.
        let started = Instant::now();
        let error = peer.call_op::<u64, u64>(ECHO, &1, after(60)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());

        turmoil::release("client", "server");
        let healed = Instant::now();
        while peer.call_op::<u64, u64>(ECHO, &1, after(60)).await.is_err() {}
        assert!(healed.elapsed() < Duration::from_secs(5), "{:?}", healed.elapsed());
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_full_window_is_not_silence() {
    let mut sim = simulation();
    sim.host("server", || {
        let service = Handle::new(|_| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(Outgoing::default())
        });
        run_server(service, ServerOptions { max_in_flight: 1000, ..options() })
    });
    sim.client("client", async {
        let peer = peer();
        let put = || {
            let body = Body { send: vec![Bytes::from(vec![0; 1000])], into: vec![] };
            peer.exchange_op::<u64, u64>(ECHO, &1, body, after(100))
        };
        let started = Instant::now();
        let (a, b, c) = tokio::join!(put(), put(), put());
        for put in [a, b, c] {
            put?;
        }
        assert!(started.elapsed() >= Duration::from_secs(60), "one after the other");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_crashed_host_fails_calls_and_comes_back() {
    let mut sim = simulation();
    sim.host("server", || {
        let service = Handle::new(|request| async move {
            if request.op == OTHER {
                std::future::pending::<()>().await;
            }
            Ok(Outgoing::default())
        });
        run_server(service, options())
    });
    sim.client("client", async {
        let peer = peer();
        peer.call_op::<u64, u64>(ECHO, &1, after(5)).await?;
        let error = peer.call_op::<u64, u64>(OTHER, &1, after(100)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        let until = after(60);
        while let Err(error) = peer.call_op::<u64, u64>(ECHO, &1, until).await {
            assert_eq!(error.kind, ErrorKind::Unavailable);
        }
        Ok(())
    });
    let mut crashed = false;
    let mut bounced = false;
    while !sim.step().unwrap() {
        if !crashed && sim.elapsed() > Duration::from_secs(3) {
            sim.crash("server");
            crashed = true;
        }
        if crashed && !bounced && sim.elapsed() > Duration::from_secs(12) {
            sim.bounce("server");
            bounced = true;
        }
    }
    assert!(bounced);
}

#[test]
fn an_idle_connection_is_let_go_by_the_caller_and_made_again() {
    let mut sim = simulation();
    sim.host("server", || {
        let whoami =
            Handle::new(|request| async move { Ok(Outgoing::message(&request.peer.address)) });
        run_server(whoami, options())
    });
    sim.client("client", async {
        let peers = Peers::new(sim::transport(), identity("client", None));
        let (idle, used) = (peers.peer("server:7000"), peers.peer_on("server:7000", Way::Prompt));
        let who = async |peer: &Peer| peer.call_op::<_, String>(ECHO, &0u64, after(10)).await;
        let first = [who(&idle).await?, who(&used).await?];
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert_eq!(who(&used).await?, first[1], "a connection that is used stays");
        }
        assert_ne!(who(&idle).await?, first[0]);
        Ok(())
    });
    sim.run().unwrap();
}
