//! Servers that take connections and whose answers a test makes up.

use super::*;
use crate::wire::to_status;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use weft_net::{Address, BoxStream, Link, Listener};

/// TCP, and the servers that were connected to over it.
struct Noting {
    tcp: Arc<dyn Transport>,
    asked: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl Transport for Noting {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        self.tcp.connect(address).await
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        self.asked.lock().unwrap().push(address.to_string());
        self.tcp.stream(address).await
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        self.tcp.bind(address).await
    }
}

#[derive(Clone)]
enum Says {
    Yes,
    /// Nothing.
    Silent,
    /// That this one leads.
    Leads(String),
}

/// What the servers say, one after the other.
#[derive(Clone)]
struct Scripted(Arc<Mutex<VecDeque<Says>>>);

impl Scripted {
    fn new(says: impl IntoIterator<Item = Says>) -> Self {
        Self(Arc::new(Mutex::new(says.into_iter().collect())))
    }
}

impl Question for Scripted {
    type Answer = ();

    const PATIENCE: Duration = Duration::from_millis(20);

    async fn ask(self, _: &mut Client) -> Result<Response<()>, Status> {
        let says = self.0.lock().unwrap().pop_front();
        match says.expect("asked once more") {
            Says::Yes => Ok(Response::new(())),
            Says::Silent => std::future::pending().await,
            Says::Leads(hint) => {
                Err(to_status(Error { hint, ..Error::new(ErrorKind::NotLeader, "not me") }))
            }
        }
    }
}

/// Of three servers the second led, and its host is gone without a word. The first and the third
/// have not noticed.
#[tokio::test]
async fn who_was_silent_is_not_asked_again_until_all_others_were() {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        open.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
        all.extend(open.last().map(|server| server.local_addr().unwrap().to_string()));
    }
    let [a, b, c] = &all[..] else { unreachable!("three") };
    let noting = Arc::new(Noting { tcp: weft_net::tcp(), asked: Mutex::default() });
    let asked = || std::mem::take(&mut *noting.asked.lock().unwrap());
    let mut group = Group::new(noting.clone(), all.clone());
    group.call(Scripted::new([Says::Leads(b.clone()), Says::Yes])).await.unwrap();
    assert_eq!(asked(), [a.as_str(), b]);
    let says = [Says::Silent, Says::Leads(b.clone()), Says::Leads(b.clone()), Says::Silent];
    let failed = group.call(Scripted::new(says)).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::TimedOut);
    assert_eq!(asked(), [c.as_str(), a, b], "the first was asked over what was there");
    group.call(Scripted::new([Says::Leads(a.clone()), Says::Yes])).await.unwrap();
    assert_eq!(asked(), [c.as_str(), a]);
    // Others are followed.
    group.call(Scripted::new([Says::Silent, Says::Leads(c.clone()), Says::Yes])).await.unwrap();
    assert_eq!(asked(), [b.as_str(), c]);
}
