//! What this process trusts and shows, kept as the files say, and who is connected by it.

use super::secured::{Ahead, Secured, not_ahead};
use super::standing::Standing;
use super::subject::Subject;
use super::trust::{Shown, Stamps, TlsFiles, Trust, subject_of};
use crate::stream::BoxStream;
use crate::sync::{Mutex, RwLock};
use rustls::pki_types::ServerName;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use weft_proto::{Error, ErrorKind, Result};

/// How often it is looked whether a file has changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// After so many looks all who are connected are verified again: certificates expire.
const VERIFY_AFTER: u32 = 15;
/// Bytes that a connection encrypts ahead of what the network takes.
const SEND_BUFFER: usize = 256 << 10;

/// What is trusted and what is shown; clones of the [`Arc`] share it.
pub struct Credentials {
    files: TlsFiles,
    /// What the files were like when they were read.
    seen: Mutex<Stamps>,
    trust: RwLock<Arc<Trust>>,
    connected: Mutex<Vec<Weak<Standing>>>,
    watched: AtomicBool,
}

impl Credentials {
    /// Reads the files. Errors: `Invalid`, with the file and what is wrong with it;
    /// `NotPermitted`, the certificate is for nobody of Weft's.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>> {
        // Before they are read: what comes later is noticed.
        let seen = Mutex::new(files.stamps());
        let trust = RwLock::new(Arc::new(Trust::read(&files)?));
        let (connected, watched) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(Self { files, seen, trust, connected, watched }))
    }

    /// Whom this process shows itself as.
    pub fn subject(&self) -> Subject {
        self.trust().subject.clone()
    }

    fn trust(&self) -> Arc<Trust> {
        self.trust.read().clone()
    }

    /// Proves a server, which is reached at `host`, and shows it who this is.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        host: &str,
        stream: BoxStream,
    ) -> io::Result<BoxStream> {
        self.watch();
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let what = format!("{host:?} is no host that a certificate can be for");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let connector = TlsConnector::from(self.trust().to_connect.clone());
        let prepare = |c: &mut rustls::ClientConnection| c.set_buffer_limit(Some(SEND_BUFFER));
        let stream = connector.connect_with(name.clone(), not_ahead(stream), prepare).await?;
        self.secured(stream.into(), Some(name))
    }

    /// Proves who has connected.
    pub(crate) async fn accept(self: &Arc<Self>, stream: BoxStream) -> io::Result<BoxStream> {
        self.watch();
        let acceptor = TlsAcceptor::from(self.trust().to_serve.clone());
        let prepare = |c: &mut rustls::ServerConnection| c.set_buffer_limit(Some(SEND_BUFFER));
        let stream = acceptor.accept_with(not_ahead(stream), prepare).await?;
        self.secured(stream.into(), None)
    }

    fn secured(
        self: &Arc<Self>,
        stream: TlsStream<Ahead>,
        server: Option<ServerName<'static>>,
    ) -> io::Result<BoxStream> {
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|cert| cert.clone().into_owned()).collect();
        let refuse = |e| io::Error::new(io::ErrorKind::PermissionDenied, e);
        let subject = Arc::new(subject_of(&chain).map_err(refuse)?);
        let shown = Shown { chain, server };
        let standing = Arc::new(Standing::new(subject, shown));
        self.connected.lock().push(Arc::downgrade(&standing));
        // The files may have changed while it was verified by what they said before.
        self.verify_one(&self.trust(), &standing);
        standing.check()?;
        Ok(Box::new(Secured::new(stream, standing)))
    }

    fn verify_one(&self, trust: &Trust, standing: &Standing) {
        if let Err(why) = trust.verify(&standing.shown) {
            tracing::warn!(peer = %standing.subject, %why, "not trusted any more: disconnecting");
            standing.end();
        }
    }

    /// Verifies all who are connected by what is trusted now.
    fn verify_all(&self) {
        let connected: Vec<_> = {
            let mut connected = self.connected.lock();
            connected.retain(|standing| standing.strong_count() > 0);
            connected.iter().filter_map(Weak::upgrade).collect()
        };
        let trust = self.trust();
        let good = connected.iter().filter(|standing| standing.check().is_ok());
        good.for_each(|standing| self.verify_one(&trust, standing));
    }

    /// Keeps looking at the files, in a task of the runtime that is used now, unless another does.
    fn watch(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let watch = Watch(Arc::downgrade(self));
        tokio::spawn(async move { watch.run().await });
    }

    /// Takes over what the files say, if they have changed; half of a change is read again at the
    /// next look. Answers whether it has.
    fn look(&self) -> bool {
        let now = self.files.stamps();
        if *self.seen.lock() == now {
            return false;
        }
        // A list that is gone is on its way back, and lets nobody in meanwhile.
        let read = Trust::read(&self.files).and_then(|trust| {
            match trust.has_list || !self.trust().has_list {
                true => Ok(trust),
                false => {
                    Err(Error::new(ErrorKind::Invalid, "the list of what was revoked is gone"))
                }
            }
        });
        match read {
            Ok(trust) => {
                tracing::info!(shown = %trust.subject, "certificates have changed: taking them");
                *self.trust.write() = Arc::new(trust);
                *self.seen.lock() = now;
                true
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "certificates have changed, and do not read: going on with those from before"
                );
                false
            }
        }
    }
}

/// Somebody who looks at the files; another may begin when this is dropped.
struct Watch(Weak<Credentials>);

impl Watch {
    async fn run(self) {
        let mut looks = 0;
        loop {
            sleep(LOOK_INTERVAL).await;
            let Some(credentials) = self.0.upgrade() else { return };
            let looking = credentials.clone();
            let news = tokio::task::spawn_blocking(move || looking.look()).await;
            looks += 1;
            if matches!(news, Ok(true)) || looks >= VERIFY_AFTER {
                looks = 0;
                let verifying = credentials.clone();
                let _ = tokio::task::spawn_blocking(move || verifying.verify_all()).await;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(credentials) = self.0.upgrade() {
            credentials.watched.store(false, Ordering::Release);
        }
    }
}
