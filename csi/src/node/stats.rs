//! How much of a volume is used, and whether its mount lives.

use super::checks::{id_of, place_of};
use super::context::Context;
use super::mounts::Found;
use super::volumes::here;
use crate::wire::volume_usage::Unit;
use crate::wire::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage,
};
use nix::sys::statvfs::Statvfs;
use tonic::Status;

/// Errors: `INVALID_ARGUMENT`; `NOT_FOUND` of what is not mounted here.
pub async fn stats(
    node: Context,
    request: NodeGetVolumeStatsRequest,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    let id = id_of(&request.volume_id)?;
    let place = place_of(&request.volume_path, "the volume's path")?;
    let volumes = &node.volumes;
    let known = volumes.state.find(id).map_err(|e| here("what is known of the volume", e))?;
    let is_there = known.is_some_and(|known| {
        known.staging == place || known.published.iter().any(|at| at.target == place)
    });
    let gone = || Status::not_found(format!("volume {id:?} is not at {}", place.display()));
    if !is_there {
        return Err(gone());
    }
    let found = volumes.looks.room(&place).await.map_err(|e| here("what is mounted", e))?;
    let (usage, abnormal, message) = match found {
        Found::Alive(room) => (usage(&room), false, "the mount answers"),
        Found::Dead => (unknown(), true, "the process of the mount has died"),
        Found::Silent => (unknown(), true, "the mount does not answer"),
        Found::Nothing | Found::Foreign(_) => return Err(gone()),
    };
    let volume_condition = Some(VolumeCondition { abnormal, message: message.into() });
    Ok(NodeGetVolumeStatsResponse { usage, volume_condition })
}

fn usage(room: &Statvfs) -> Vec<VolumeUsage> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let bytes = |blocks: u64| number(blocks.saturating_mul(room.fragment_size()));
    let used = |total: u64, free: u64| total.saturating_sub(free);
    vec![
        VolumeUsage {
            available: bytes(room.blocks_available()),
            total: bytes(room.blocks()),
            used: bytes(used(room.blocks(), room.blocks_free())),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: number(room.files_available()),
            total: number(room.files()),
            used: number(used(room.files(), room.files_free())),
            unit: Unit::Inodes.into(),
        },
    ]
}

/// Kubernetes hears of the condition only if there is some usage.
fn unknown() -> Vec<VolumeUsage> {
    vec![VolumeUsage { unit: Unit::Bytes.into(), ..Default::default() }]
}
