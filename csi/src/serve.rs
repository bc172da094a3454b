//! Serves the driver's services on its socket.

use crate::wire::controller_server::ControllerServer;
use crate::wire::identity_server::IdentityServer;
use crate::wire::node_server::NodeServer;
use crate::{controller, identity, node};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;

/// What is being done at the end gets so long.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// When no more descriptors can be had, it is tried again after so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served.
#[derive(Clone)]
pub struct Services {
    pub identity: IdentityServer<identity::Identity>,
    pub controller: Option<ControllerServer<controller::Controller>>,
    pub node: Option<NodeServer<node::Node>>,
}

impl Services {
    async fn answer(mut self, request: Request<Incoming>) -> Response<Body> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
        let request = request.map(Body::new);
        let answer = match (service.as_str(), self.controller, self.node) {
            ("csi.v1.Identity", ..) => self.identity.call(request).await,
            ("csi.v1.Controller", Some(mut controller), _) => controller.call(request).await,
            ("csi.v1.Node", _, Some(mut node)) => node.call(request).await,
            _ => {
                let what = format!("this driver does not serve {service:?} here");
                return Status::unimplemented(what).into_http();
            }
        };
        match answer {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}

/// Until it is told to stop; what is being done then is finished.
pub async fn serve(
    listener: UnixListener,
    services: Services,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut open = JoinSet::new();
    let told = shutdown.clone();
    loop {
        tokio::select! {
            biased;
            _ = shutdown.wait_for(|stop| *stop) => break,
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    open.spawn(connection(stream, services.clone(), told.clone()));
                }
                Err(error) => {
                    tracing::error!("nobody can be served: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    let _ = timeout(END_TIMEOUT, async { while open.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn connection(stream: UnixStream, services: Services, mut shutdown: watch::Receiver<bool>) {
    let service = hyper::service::service_fn(move |request| {
        let services = services.clone();
        async move { Ok::<_, Infallible>(services.answer(request).await) }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let told = async move { drop(shutdown.wait_for(|stop| *stop).await) };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
