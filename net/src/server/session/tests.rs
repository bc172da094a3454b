//! Tests of `session`.

use super::*;
use crate::buffer::Buffer;
use crate::hello::{Features, Identity};
use tokio::time::Instant;

const LEN: usize = 1 << 20;
const GOOD: u16 = 100;
const BAD: u16 = 101;
const DEFECT: u16 = 102;

type Fetched = std::result::Result<AlignedBuf, Broken>;

/// To a caller that has gone.
struct Gone;

impl Sender for Gone {
    unsafe fn ask(&self, _frame: Frame<'_>, _into: &[Buffer]) -> bool {
        false
    }

    fn send(&self, _frame: Frame<'_>, _cost: Option<usize>) -> bool {
        false
    }

    fn give_up(&self, _id: u64) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn close(&self) {}

    fn sever(&self) {}
}

struct Serves;

#[async_trait::async_trait]
impl Service for Serves {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        match request.op {
            GOOD => Ok(Outgoing { head: Bytes::new(), payload: vec![request.payload] }),
            BAD => Err(Error::new(ErrorKind::Invalid, "it is bad")),
            op => panic!("{op} is a defect"),
        }
    }
}

/// With room for one request.
fn session() -> Arc<Session> {
    let context = Context {
        service: Arc::new(Serves),
        options: ServerOptions::new(Identity::default()),
        common: Budget::new(LEN),
        kept_back: Budget::new(LEN),
        shutdown: watch::channel(false).1,
    };
    Arc::new(Session {
        context: Arc::new(context),
        sender: Arc::new(Gone),
        window: Arc::new(Window::new(LEN)),
        heard: Progress::default(),
        sent: Progress::default(),
        receiving: AtomicBool::new(false),
    })
}

/// Else a server that is to stop waits for what has ended.
#[tokio::test(start_paused = true)]
async fn a_request_leaves_no_room_behind_however_it_ends() {
    let session = session();
    let peer = Arc::new(PeerInfo {
        name: "peer".into(),
        address: "a:1".into(),
        cluster: None,
        features: Features::default(),
        subject: None,
    });
    let fetches: [Option<fn() -> Fetched>; 4] = [
        None,
        Some(|| Ok(AlignedBuf::take(LEN))),
        Some(|| Err(Broken::Closed)),
        Some(|| panic!("its fetch is a defect")),
    ];
    // 0: it is told, and wants no answer.
    for (id, op) in [0, 1].into_iter().flat_map(|id| [GOOD, BAD, DEFECT].map(|op| (id, op))) {
        for (number, fetch) in fetches.iter().enumerate() {
            let header = Header::new(Kind::Request, op, id);
            let (head, payload, peer) = (Bytes::new(), Bytes::new(), peer.clone());
            let request = Incoming { op, head, payload, peer, deadline: None };
            let entered = session.window.try_enter(LEN).expect("there is room");
            let serving = session.clone();
            match *fetch {
                None => serving.serve(header, None, request, entered).await,
                Some(fetch) => {
                    let fetch = Box::pin(async move { fetch() });
                    serving.serve_fetched(header, None, request, fetch, entered).await;
                }
            }
            let left = session.window.requests();
            assert_eq!(left, 0, "request {id}, operation {op}, fetch {number}");
        }
    }
    let begun = Instant::now();
    session.drain(&"a:1".parse().unwrap()).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
