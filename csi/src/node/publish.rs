//! Shows a volume where one workload finds it, and takes it away from there.

use super::checks::{id_of, place_of};
use super::context::Context;
use super::mounts::{self, Shown};
use super::state::{Published, Staged};
use super::volumes::{Condition, here};
use crate::capability;
use crate::wire::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use tonic::Status;

/// Errors: `INVALID_ARGUMENT`; `FAILED_PRECONDITION` if it is not staged, or is to be at one place
/// only and is at another; `ALREADY_EXISTS` if it is there and not so.
pub async fn publish(node: Context, request: NodePublishVolumeRequest) -> Result<(), Status> {
    let id = id_of(&request.volume_id)?;
    let target = place_of(&request.target_path, "the target path")?;
    let usage = capability::read(request.volume_capability.as_ref())?;
    if request.staging_target_path.is_empty() {
        return Err(Status::failed_precondition("the request lacks the staging path"));
    }
    let staging = place_of(&request.staging_target_path, "the staging path")?;
    let _taken = node.busy.wait(id).await?;
    let volumes = &node.volumes;
    let fail = |e| here(&format!("what is known of volume {id:?}"), e);
    let known = volumes.state.find(id).map_err(fail)?;
    let is_here = |known: &Staged| known.staging == staging && !known.leaving;
    let Some(mut staged) = known.filter(is_here) else {
        let what = format!("volume {id:?} is not staged at {}", staging.display());
        return Err(Status::failed_precondition(what));
    };
    let read_only = request.readonly || usage.read_only;
    let at = Published { target, read_only, single: usage.single };
    let is_there = admit(&staged, &at)?;
    if volumes.restore(&mut staged).await? == Condition::Silent {
        let what = format!("the mount of volume {id:?} does not answer");
        return Err(Status::unavailable(what));
    }
    // What was there and is gone was put back, unless its folder is gone, too.
    if is_there && staged.published.contains(&at) {
        return Ok(());
    }
    if let Some(Shown::Foreign(fs)) = mounts::on_top(&at.target).await.map_err(fail)? {
        let what = format!("{} is a mount of {fs}", at.target.display());
        return Err(Status::failed_precondition(what));
    }
    // A try before may have been cut off. What it has shown there may be in use.
    let is_shown = volumes.is_shown(&staged, &at).await.map_err(fail)?;
    if !is_shown {
        mounts::detach(&at.target).await.map_err(fail)?;
    }
    staged.published.push(at.clone());
    volumes.state.save(&staged).map_err(fail)?;
    if is_shown {
        return Ok(());
    }
    if let Err(refused) = volumes.bind(&staged, &at).await {
        staged.published.pop();
        volumes.state.save(&staged).map_err(fail)?;
        return Err(refused);
    }
    Ok(())
}

/// Whether it is shown at this place already. Errors: it may not be.
fn admit(staged: &Staged, at: &Published) -> Result<bool, Status> {
    let id = &staged.volume;
    let (here, others): (Vec<_>, Vec<_>) =
        staged.published.iter().partition(|known| known.target == at.target);
    if let Some(known) = here.first() {
        if known.read_only != at.read_only {
            let what = format!("volume {id:?} is there already, and may be written or not");
            return Err(Status::already_exists(what));
        }
        return Ok(true);
    }
    if let Some(other) = others.iter().find(|other| other.single || at.single) {
        let what = format!(
            "volume {id:?} is for one workload alone, which has it at {}",
            other.target.display()
        );
        return Err(Status::failed_precondition(what));
    }
    Ok(false)
}

/// What is not there was taken away. Errors: `INVALID_ARGUMENT`; `INTERNAL` if the folder cannot be
/// removed.
pub async fn unpublish(node: Context, request: NodeUnpublishVolumeRequest) -> Result<(), Status> {
    let id = id_of(&request.volume_id)?;
    let target = place_of(&request.target_path, "the target path")?;
    let _taken = node.busy.wait(id).await?;
    let fail = |e| here(&format!("{}", target.display()), e);
    mounts::detach(&target).await.map_err(fail)?;
    remove(&target)?;
    let state = &node.volumes.state;
    if let Some(mut staged) = state.find(id).map_err(fail)? {
        staged.published.retain(|at| at.target != target);
        state.save(&staged).map_err(fail)?;
    }
    Ok(())
}

/// Removes the empty folder; what else is there is not this driver's.
fn remove(target: &Path) -> Result<(), Status> {
    match fs::remove_dir(target) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        removed => removed.map_err(|e| here(&format!("{}", target.display()), e)),
    }
}
