//! Mounts a volume once for all its uses on this machine, and takes it away again.

use super::checks::{id_of, place_of};
use super::context::Context;
use super::secrets;
use super::volumes::{Condition, here};
use crate::capability;
use crate::volume_id::{self, PATH};
use crate::wire::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};
use tonic::Status;

/// Errors: `INVALID_ARGUMENT`; `ALREADY_EXISTS` if it is mounted elsewhere or otherwise;
/// `NOT_FOUND`, `UNAVAILABLE`.
pub async fn stage(node: Context, request: NodeStageVolumeRequest) -> Result<(), Status> {
    let id = id_of(&request.volume_id)?;
    let staging = place_of(&request.staging_target_path, "the staging path")?;
    let usage = capability::read(request.volume_capability.as_ref())?;
    let path = volume_id::path_of(&node.volumes.root, id, request.volume_context.get(PATH))?;
    let secrets = secrets::read(request.secrets)?;
    let _taken = node.busy.wait(id).await?;
    let volumes = &node.volumes;
    let fail = |e| here(&format!("what is known of volume {id:?}"), e);
    let known = volumes.state.find(id).map_err(fail)?;
    let wanted = volumes.state.staged(id, staging, path, usage, secrets.is_some());
    let mut staged = match known.clone() {
        Some(mut known) => {
            let same = (&known.staging, &known.path, &known.usage, known.tls)
                == (&wanted.staging, &wanted.path, &wanted.usage, wanted.tls);
            if !same {
                let what = format!(
                    "volume {id:?} is mounted at {} already, or with other options",
                    known.staging.display()
                );
                return Err(Status::already_exists(what));
            }
            if known.leaving {
                volumes.settle(&known).await?;
                (known.leaving, known.synced) = (false, false);
            }
            known
        }
        None => wanted,
    };
    if let Some(secrets) = secrets {
        secrets.save(&volumes.state, id).map_err(fail)?;
    }
    volumes.state.save(&staged).map_err(fail)?;
    let restored = volumes.restore(&mut staged).await;
    if restored.is_err() && known.is_none() {
        // Nobody will take away what was not mounted.
        volumes.state.remove(id).map_err(fail)?;
    }
    match restored? {
        Condition::Alive => Ok(()),
        Condition::Silent => Err(Status::unavailable(format!(
            "the mount of volume {id:?} does not answer: is the cluster running?"
        ))),
    }
}

/// One that is not mounted is unmounted. Errors: `INVALID_ARGUMENT`; `FAILED_PRECONDITION` if
/// workloads have it still; `INTERNAL` if not all that was written is durable.
pub async fn unstage(node: Context, request: NodeUnstageVolumeRequest) -> Result<(), Status> {
    let id = id_of(&request.volume_id)?;
    let staging = place_of(&request.staging_target_path, "the staging path")?;
    let _taken = node.busy.wait(id).await?;
    let volumes = &node.volumes;
    let fail = |e| here(&format!("what is known of volume {id:?}"), e);
    let mut known = volumes.state.find(id).map_err(fail)?;
    if let Some(known) = &mut known {
        if known.staging != staging {
            // There is nothing of it at this place.
            return Ok(());
        }
        if let Some(at) = known.published.first() {
            let what = format!("volume {id:?} is still used at {}", at.target.display());
            return Err(Status::failed_precondition(what));
        }
        // If it takes longer than this call, nobody is to mount it again meanwhile.
        known.leaving = true;
        volumes.state.save(known).map_err(fail)?;
    }
    volumes.unmount(&staging, known.as_mut()).await?;
    if known.is_some() {
        volumes.state.remove(id).map_err(fail)?;
    }
    Ok(())
}
