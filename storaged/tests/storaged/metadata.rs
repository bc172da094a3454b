//! A metadata server's control service that notes what it hears.

use crate::daemon::CLUSTER;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use v1::control_server::{Control, ControlServer};
use weft_proto::{ErrorKind, Result, v1};

/// What a leader would remember.
#[derive(Default)]
pub struct Heard {
    pub beats: watch::Sender<Vec<v1::HeartbeatRequest>>,
    /// Where the leader is, when this is another server.
    pub leader: Mutex<Option<String>>,
    pub served: watch::Sender<Served>,
    /// What tenants may have.
    pub qos: Mutex<v1::QosPolicy>,
    /// Identities of targets that an admin has forgotten. Nobody is registered from then on.
    pub forgotten: Mutex<Vec<Bytes>>,
}

/// Who serves all targets, and what came of registrations.
#[derive(Default)]
pub struct Served {
    pub by: Option<String>,
    pub accepted: u64,
    pub refused: u64,
}

fn refusal(kind: ErrorKind) -> Status {
    let mut status = Status::unavailable("it is not this daemon's");
    status.metadata_mut().insert("weft-error", kind.code().into());
    status
}

#[derive(Clone, Default)]
pub struct Metadata(pub Arc<Mutex<Vec<v1::TargetInfo>>>, pub Arc<Heard>);

impl Metadata {
    fn lead(&self) -> Result<(), Status> {
        let Some(leader) = self.1.leader.lock().clone() else { return Ok(()) };
        let mut status = Status::unavailable("not the leader");
        status.metadata_mut().insert("weft-error", ErrorKind::NotLeader.code().into());
        status.metadata_mut().insert("weft-leader", leader.parse().unwrap());
        Err(status)
    }

    /// Whether another daemon serves what this one speaks of.
    fn is_anothers(&self, daemon: &str) -> bool {
        self.1.served.borrow().by.as_ref().is_some_and(|serves| serves != daemon)
    }

    /// Of the targets that a daemon tells of, those that were forgotten.
    fn unregistered(&self, beat: &v1::HeartbeatRequest) -> Vec<u32> {
        let (targets, forgotten) = (self.0.lock(), self.1.forgotten.lock());
        let gone = targets.iter().filter(|t| forgotten.contains(&t.uuid)).map(|t| t.id);
        gone.filter(|id| beat.targets.iter().any(|stat| stat.target == *id)).collect()
    }

    pub async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tonic::transport::Server::builder()
            .add_service(ControlServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        address
    }

    pub async fn wait_for_beat(
        &self,
        what: impl Fn(&v1::HeartbeatRequest) -> bool,
    ) -> v1::HeartbeatRequest {
        let mut beats = self.1.beats.subscribe();
        let found = beats.wait_for(|all| all.iter().any(&what));
        let all = tokio::time::timeout(Duration::from_secs(60), found).await.unwrap().unwrap();
        all.iter().find(|b| what(b)).unwrap().clone()
    }
}

#[tonic::async_trait]
impl Control for Metadata {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply::default()))
    }

    type WatchMapStream = tokio_stream::Empty<Result<v1::ClusterMap, Status>>;
    async fn watch_map(
        &self,
        _: Request<v1::WatchMapRequest>,
    ) -> Result<Response<Self::WatchMapStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    async fn register_target(
        &self,
        request: Request<v1::RegisterTargetRequest>,
    ) -> Result<Response<v1::RegisterTargetReply>, Status> {
        self.lead()?;
        let request = request.into_inner();
        assert!(request.cluster.is_empty() || request.cluster[..] == CLUSTER.0);
        let given = request.target.unwrap();
        if self.is_anothers(&given.daemon) || !self.1.forgotten.lock().is_empty() {
            self.1.served.send_modify(|served| served.refused += 1);
            return Err(refusal(ErrorKind::NotPermitted));
        }
        self.1.served.send_modify(|served| served.accepted += 1);
        let mut targets = self.0.lock();
        let known = targets.iter().position(|t| t.uuid == given.uuid);
        let id = known.unwrap_or(targets.len()) as u32 + 1;
        let info = v1::TargetInfo { id, ..given };
        match known {
            Some(at) => targets[at] = info,
            None => targets.push(info),
        }
        Ok(Response::new(v1::RegisterTargetReply { id, cluster: CLUSTER.0.to_vec().into() }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        self.lead()?;
        let request = request.into_inner();
        if self.is_anothers(&request.daemon) && !request.stopping {
            return Err(refusal(ErrorKind::NotFound));
        }
        let unregistered = self.unregistered(&request);
        if !unregistered.is_empty() && !request.registers_some {
            return Err(refusal(ErrorKind::NotFound));
        }
        let qos = self.1.qos.lock().clone();
        let qos = (qos.version != request.qos_version).then_some(qos);
        self.1.beats.send_modify(|all| all.push(request));
        Ok(Response::new(v1::HeartbeatReply {
            epoch: 1,
            qos,
            targets_up: 2,
            unregistered,
            ..Default::default()
        }))
    }

    async fn check_chunks(
        &self,
        _: Request<v1::CheckChunksRequest>,
    ) -> Result<Response<v1::CheckChunksReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn set_target(
        &self,
        _: Request<v1::SetTargetRequest>,
    ) -> Result<Response<v1::SetTargetReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn list_events(
        &self,
        _: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn check_domains(
        &self,
        _: Request<v1::CheckDomainsRequest>,
    ) -> Result<Response<v1::CheckDomainsReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn set_qos(
        &self,
        _: Request<v1::SetQosRequest>,
    ) -> Result<Response<v1::SetQosReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn list_qos(
        &self,
        _: Request<v1::ListQosRequest>,
    ) -> Result<Response<v1::ListQosReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    async fn set_member(
        &self,
        _: Request<v1::SetMemberRequest>,
    ) -> Result<Response<v1::SetMemberReply>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }

    type BackupStream = tokio_stream::Empty<Result<v1::BackupPiece, Status>>;
    async fn backup(
        &self,
        _: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        Err(Status::unimplemented("not in the fixture"))
    }
}
