//! The suite over TLS, and who is let in.

#[path = "support/authority.rs"]
mod authority;
#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/memory.rs"]
mod memory;
mod support;

use authority::{Authority, Issued, credentials, transport_of};
use bytes::Bytes;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, LazyLock};
use support::*;
use time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use weft_net::{
    Credentials, Outgoing, Peer, Peers, Service, Transport, serve, tcp, tcp_on_loopback, tls,
};
use weft_proto::{ErrorKind, Result, op, v1};

/// Whether the other side writes into memory that was given to a call.
const WRITES_LATE: bool = false;

thread_local! {
    /// Far enough that only a hang reaches it.
    static END: Instant = Instant::now() + 3 * PATIENCE;
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over: operations that are not known are for everybody.
fn transport() -> Arc<dyn Transport> {
    static SERVER: LazyLock<Issued> = LazyLock::new(|| AUTHORITY.issue("weft://storage/suite"));
    static SHARED: LazyLock<Arc<Credentials>> = LazyLock::new(|| credentials(&SERVER));
    tls(SHARED.clone())
}

/// A server that answers whatever it is asked, and says who asked.
struct Listening {
    address: String,
    _stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(as_: &Issued) -> Listening {
    let service = Handle::new(|request| async move {
        let subject = request.peer.subject.as_ref().map(|subject| subject.to_string());
        Ok(Outgoing::message(&Bytes::from(subject.unwrap_or_default())))
    });
    serve_as(as_, service).await
}

async fn serve_as(as_: &Issued, service: Arc<dyn Service>) -> Listening {
    let listener = transport_of(as_).bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_address().unwrap().to_string();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(serve(listener, service, options(), stopped));
    Listening { address, _stop: stop, task }
}

fn peer_over(transport: Arc<dyn Transport>, address: &str) -> Arc<Peer> {
    Peers::new(transport, identity("x", None)).peer(address)
}

async fn who_am_i(peer: &Peer) -> Result<Bytes> {
    ask(peer, ECHO, b"").await
}

#[tokio::test]
async fn both_sides_know_who_the_other_is() {
    let authority = Authority::new();
    let server = listen(&authority.issue("weft://storage/a")).await;
    let client = authority.issue("weft://client/team-a?subtree=/a");
    let peer = peer_over(transport_of(&client), &server.address);
    assert_eq!(who_am_i(&peer).await.unwrap(), "client team-a");
}

#[tokio::test]
async fn strangers_are_not_let_in() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = listen(&authority.issue("weft://storage/a")).await;
    let expired = authority.issue_for("weft://client/x", Duration::seconds(-10));
    let foreign = other.issue("weft://client/x");
    // Trusts the server, and shows what another authority has made.
    let mut forged = other.issue("weft://client/x");
    forged.files.ca = authority.path("ca.pem");
    let nobody = authority.issue("spiffe://elsewhere/x");
    let unknown = authority.issue("weft://client/x?until=tomorrow");
    for (what, credentials) in [
        ("expired", Credentials::load(expired.files)),
        ("of another authority", Credentials::load(foreign.files)),
        ("forged", Credentials::load(forged.files)),
    ] {
        let peer = peer_over(tls(credentials.unwrap()), &server.address);
        let refused = who_am_i(&peer).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unavailable, "{what}: {refused}");
    }
    for unnamed in [nobody, unknown] {
        assert!(Credentials::load(unnamed.files).is_err());
    }
    let plain = peer_over(tcp(), &server.address);
    assert_eq!(who_am_i(&plain).await.unwrap_err().kind, ErrorKind::Unavailable);
    // Those who may are served all the while.
    let client = authority.issue("weft://client/y");
    assert!(who_am_i(&peer_over(transport_of(&client), &server.address)).await.is_ok());
}

#[tokio::test]
async fn a_server_is_one_of_its_host_and_of_the_part_that_is_asked() {
    let authority = Authority::new();
    let (daemon, client) =
        (authority.issue("weft://storage/a"), authority.issue("weft://client/x"));
    let server = listen(&daemon).await;
    // Reached under a name that its certificate is not for.
    let elsewhere = server.address.replace("127.0.0.1", "localhost");
    let peer = peer_over(transport_of(&client), &elsewhere);
    assert_eq!(who_am_i(&peer).await.unwrap_err().kind, ErrorKind::Unavailable);
    // A storage daemon in the place of a metadata server.
    let peer = peer_over(transport_of(&client), &server.address);
    let asked = peer.call(&v1::MetaRequest::default(), soon()).await;
    assert_eq!(asked.unwrap_err().kind, ErrorKind::NotPermitted);
}

#[tokio::test]
async fn operations_are_for_those_whose_part_they_are() {
    let authority = Authority::new();
    let metadata = listen(&authority.issue("weft://metadata/1")).await;
    let storage = listen(&authority.issue("weft://storage/a")).await;
    for (role, server, code, served) in [
        ("client", &metadata, op::META, true),
        ("client", &metadata, op::RAFT, false),
        ("client", &metadata, op::SNAPSHOT_PIECE, false),
        ("client", &metadata, op::JOIN, false),
        ("storage", &metadata, op::RAFT, false),
        ("admin", &metadata, op::RAFT, false),
        ("metadata", &metadata, op::RAFT, true),
        ("client", &storage, op::GET, true),
        ("client", &storage, op::FENCE, false),
        ("client", &storage, op::REBUILD, false),
        ("storage", &storage, op::DISOWN, false),
        ("metadata", &storage, op::FENCE, true),
    ] {
        let issued = authority.issue(&format!("weft://{role}/7"));
        let peer = peer_over(transport_of(&issued), &server.address);
        let answer = ask(&peer, code, b"").await;
        match served {
            true => assert_eq!(answer.unwrap(), format!("{role} 7"), "{code}"),
            false => {
                assert_eq!(answer.unwrap_err().kind, ErrorKind::NotPermitted, "{role} {code}");
                // The refusal costs nobody the connection.
                assert!(ask(&peer, op::PING, b"").await.is_ok());
            }
        }
    }
}

/// Waits until a call ends so.
async fn until(peer: &Peer, ok: bool) {
    while who_am_i(peer).await.is_ok() != ok {
        assert!(Instant::now() < END.with(|end| *end), "calls go on as before");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_is_revoked_is_cut_off_and_nobody_else() {
    let authority = Authority::new();
    authority.revoke(&[]);
    let server = listen(&authority.issue("weft://storage/a")).await;
    let (one, two) = (authority.issue("weft://client/one"), authority.issue("weft://client/two"));
    let stays = peer_over(transport_of(&one), &server.address);
    let goes = peer_over(transport_of(&two), &server.address);
    until(&stays, true).await;
    until(&goes, true).await;
    authority.revoke(&[two.serial]);
    until(&goes, false).await;
    assert!(who_am_i(&stays).await.is_ok());
    let again = peer_over(transport_of(&two), &server.address);
    assert_eq!(who_am_i(&again).await.unwrap_err().kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn new_certificates_are_taken_without_a_restart() {
    let authority = Authority::new();
    let daemon = authority.issue_as("daemon", "weft://storage/a", Duration::days(1));
    let server = listen(&daemon).await;
    let client = authority.issue_as("client", "weft://client/one", Duration::days(1));
    let credentials = credentials(&client);
    let peer = peer_over(tls(credentials.clone()), &server.address);
    until(&peer, true).await;
    // A file that is half written changes nothing.
    std::fs::write(&client.files.cert, "-----BEGIN").unwrap();
    assert!(who_am_i(&peer).await.is_ok());
    authority.issue_as("client", "weft://client/two", Duration::days(1));
    while credentials.subject().name != "two" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let later = peer_over(tls(credentials), &server.address);
    assert_eq!(who_am_i(&later).await.unwrap(), "client two");
    assert_eq!(who_am_i(&peer).await.unwrap(), "client one", "what is connected stays so");
}

#[tokio::test]
async fn a_certificate_that_expires_ends_its_connections() {
    let authority = Authority::new();
    let server = listen(&authority.issue("weft://storage/a")).await;
    // Of a slow machine the first is over before it is shown.
    let mut peer = None;
    for seconds in [3, 20, 60] {
        let brief = authority.issue_for("weft://client/brief", Duration::seconds(seconds));
        let brief = peer_over(transport_of(&brief), &server.address);
        if who_am_i(&brief).await.is_ok() {
            peer = Some(brief);
            break;
        }
    }
    let peer = peer.expect("one is connected in time");
    // The list of what was revoked is new: all are looked at.
    until_cut(&peer, &authority).await;
}

async fn until_cut(peer: &Peer, authority: &Authority) {
    while who_am_i(peer).await.is_ok() {
        assert!(Instant::now() < END.with(|end| *end), "calls go on as before");
        authority.revoke(&[]);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn keys_that_everybody_may_read_are_refused_and_files_are_named() {
    let authority = Authority::new();
    let issued = authority.issue("weft://client/x");
    let key = &issued.files.key;
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Credentials::load(issued.files.clone()).err().unwrap();
    assert!(refused.message.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Credentials::load(issued.files.clone()).is_ok());
    for (what, text) in [("cert", "garbage"), ("key", "garbage"), ("ca", "")] {
        let mut files = issued.files.clone();
        let path = authority.path("odd");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        match what {
            "cert" => files.cert = path.clone(),
            "key" => files.key = path.clone(),
            _ => files.ca = path.clone(),
        }
        let refused = Credentials::load(files).err().expect(what);
        assert_eq!(refused.kind, ErrorKind::Invalid);
        assert!(refused.message.contains("odd"), "{refused}");
    }
}

#[tokio::test]
async fn without_certificates_there_is_only_this_machine() {
    let transport = tcp_on_loopback();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = transport.bind(&address.parse().unwrap()).await.err().unwrap();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("--tls-ca"), "{refused}");
    }
    let bound = transport.bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    assert!(transport.connect(&bound.local_address().unwrap()).await.is_ok());
}
