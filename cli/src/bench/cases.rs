//! The list of everything that is measured, and which floors a figure stands on.

use super::context::{Context, Sample};
use super::{batches, floor, gpu, library, workload};
use anyhow::{Result, bail};

/// What a figure counts per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Bytes,
    Operations,
}

/// One figure.
pub struct Row {
    pub name: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    /// What it is compared with; of the same unit.
    pub floors: &'static [&'static str],
}

/// Figures that are measured together.
pub struct Case {
    pub name: &'static str,
    pub needs: Needs,
    pub rows: &'static [Row],
    pub run: fn(&Context) -> Result<Vec<Sample>>,
}

/// What must be there to run a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    /// Intel's library, a yardstick.
    Isal,
    Mount,
    Cluster,
    /// A GPU; for workloads the cluster, too.
    Gpu,
}

impl Needs {
    /// The flag that brings it.
    fn flag(self) -> &'static str {
        match self {
            Self::Nothing | Self::Isal => "no flag",
            Self::Mount => "--mount MNT",
            Self::Cluster => "--cluster ADDR,.. or --dir DIR",
            Self::Gpu => "--gpu and --cluster ADDR,.. or --dir DIR",
        }
    }
}

use Unit::{Bytes, Operations};

const fn row(
    name: &'static str,
    unit: Unit,
    floors: &'static [&'static str],
    about: &'static str,
) -> Row {
    Row { name, about, unit, floors }
}

/// What the machine can do.
pub static FLOORS: &[Case] = &[
    Case {
        name: "memory",
        needs: Needs::Nothing,
        rows: &[row("memcpy", Bytes, &[], "one thread copies memory")],
        run: floor::memory::copy,
    },
    Case {
        name: "isal",
        needs: Needs::Isal,
        rows: &[row("encode_isal", Bytes, &[], "one thread encodes 4+2 with ISA-L")],
        run: floor::memory::encode_isal,
    },
    Case {
        name: "disk",
        needs: Needs::Nothing,
        rows: &[
            row("disk_write", Bytes, &[], "O_DIRECT, 8 writes of 4 MiB in flight, then a flush"),
            row("disk_read", Bytes, &[], "O_DIRECT, 8 reads of 4 MiB in flight"),
        ],
        run: floor::disk::run,
    },
    Case {
        name: "log",
        needs: Needs::Nothing,
        rows: &[
            row("fsync", Operations, &[], "one writer, 4 KiB and fdatasync"),
            row("group_fsync", Operations, &[], "four writers that share fdatasync"),
        ],
        run: floor::log::run,
    },
    Case {
        name: "network",
        needs: Needs::Nothing,
        rows: &[
            row(
                "net_write",
                Bytes,
                &[],
                "framed protocol on loopback, 1 MiB requests, 8 in flight",
            ),
            row("net_read", Bytes, &[], "the same, 1 MiB answers"),
            row("net_call", Operations, &[], "empty calls, one after the other"),
        ],
        run: floor::network::run,
    },
    Case {
        name: "fuse",
        needs: Needs::Nothing,
        rows: &[
            row("fuse_write", Bytes, &[], "empty FUSE server, 1 MiB writes"),
            row("fuse_read", Bytes, &[], "empty FUSE server, 1 MiB reads"),
            row("fuse_read_4k", Operations, &[], "empty FUSE server, random 4 KiB reads"),
            row("fuse_create", Operations, &[], "empty FUSE server, create and close"),
            row("fuse_stat", Operations, &[], "empty FUSE server, stat"),
            row("fuse_unlink", Operations, &[], "empty FUSE server, unlink"),
        ],
        run: floor::fuse::run,
    },
    Case {
        name: "small_local",
        needs: Needs::Nothing,
        rows: &[
            row("local_small_write_4", Operations, &[], "small_write_4 on the scratch filesystem"),
            row("local_small_read_4", Operations, &[], "small_read_4 on the scratch filesystem"),
        ],
        run: workload::small_local,
    },
    Case {
        name: "gpu_copy",
        needs: Needs::Gpu,
        rows: &[row("gpu_copy", Bytes, &[], "pinned memory copied to a GPU, 8 x 4 MiB in flight")],
        run: gpu::copy,
    },
];

/// What is compared with the floors.
pub static WORKLOADS: &[Case] = &[
    Case {
        name: "encode",
        needs: Needs::Nothing,
        rows: &[row("encode", Bytes, &["encode_isal", "memcpy"], "one thread encodes 4+2")],
        run: floor::memory::encode,
    },
    Case {
        name: "sequential",
        needs: Needs::Mount,
        rows: &[
            row(
                "seq_write",
                Bytes,
                &["disk_write", "net_write", "fuse_write"],
                "one file, 1 MiB writes, fsync",
            ),
            row("seq_read", Bytes, &["disk_read", "net_read", "fuse_read"], "the file, cold"),
        ],
        run: workload::sequential,
    },
    Case {
        name: "random",
        needs: Needs::Mount,
        rows: &[
            row("random_read_4k", Operations, &["fuse_read_4k", "net_call"], "cold, one at a time"),
            row(
                "random_read_4k_x16",
                Operations,
                &["fuse_read_4k", "net_call"],
                "cold, 16 threads",
            ),
            row("random_read_128k", Bytes, &["disk_read", "net_read"], "cold, one at a time"),
        ],
        run: workload::random,
    },
    Case {
        name: "sync_write",
        needs: Needs::Mount,
        rows: &[row("sync_write_4k", Operations, &["fsync", "group_fsync"], "append and fsync")],
        run: workload::sync_write,
    },
    Case {
        name: "metadata_1",
        needs: Needs::Mount,
        rows: &[
            row("create_1", Operations, &["fuse_create", "fsync"], "one process"),
            row("stat_1", Operations, &["fuse_stat", "net_call"], "one process"),
            row("unlink_1", Operations, &["fuse_unlink", "fsync"], "one process"),
        ],
        run: workload::metadata_1,
    },
    Case {
        name: "metadata_4",
        needs: Needs::Mount,
        rows: &[
            row(
                "create_4",
                Operations,
                &["fuse_create", "group_fsync"],
                "four processes, a folder each",
            ),
            row("stat_4", Operations, &["fuse_stat", "net_call"], "four processes, a folder each"),
            row(
                "unlink_4",
                Operations,
                &["fuse_unlink", "group_fsync"],
                "four processes, a folder each",
            ),
        ],
        run: workload::metadata_4,
    },
    Case {
        name: "small",
        needs: Needs::Mount,
        rows: &[
            row(
                "small_write_4",
                Operations,
                &["local_small_write_4"],
                "100 KiB files with fsync, four processes",
            ),
            row(
                "small_read_4",
                Operations,
                &["local_small_read_4"],
                "the files in random order, cold, four processes",
            ),
        ],
        run: workload::small,
    },
    Case {
        name: "checkpoint",
        needs: Needs::Mount,
        rows: &[row(
            "checkpoint_4",
            Bytes,
            &["disk_write", "net_write"],
            "four processes, a large file each, fsync",
        )],
        run: workload::checkpoint,
    },
    Case {
        name: "library",
        needs: Needs::Cluster,
        rows: &[
            row("library_write", Bytes, &["disk_write", "net_write"], "as seq_write, without FUSE"),
            row("library_read", Bytes, &["disk_read", "net_read"], "as seq_read, without FUSE"),
        ],
        run: library::run,
    },
    Case {
        name: "native_random",
        needs: Needs::Cluster,
        rows: &[row(
            "native_random_read_4k_x4",
            Operations,
            &["fuse_read_4k", "net_call"],
            "cold, four threads, 256 in one call of the library",
        )],
        run: batches::random,
    },
    Case {
        name: "native_samples",
        needs: Needs::Cluster,
        rows: &[row(
            "native_samples_4",
            Operations,
            &["local_small_read_4"],
            "as small_read_4, four threads, 256 in one call of the library",
        )],
        run: batches::samples,
    },
    Case {
        name: "gpu",
        needs: Needs::Gpu,
        rows: &[
            row("gpu_read", Bytes, &["gpu_copy", "net_read"], "a large file into a GPU's memory"),
            row("gpu_write", Bytes, &["disk_write", "net_write"], "and back into another, fsync"),
        ],
        run: gpu::files,
    },
];

/// The floors and workloads to run. `only` names cases or figures; empty means whatever `has`
/// allows. Floors come along with the workloads that are compared with them.
pub fn select(
    only: &[String],
    has: impl Fn(Needs) -> bool,
) -> Result<(Vec<&'static Case>, Vec<&'static Case>)> {
    for name in only {
        if !FLOORS.iter().chain(WORKLOADS).any(|case| named(case, name)) {
            bail!("there is no case {name:?}; see weft bench --list");
        }
    }
    let chosen = |case: &Case| only.iter().any(|name| named(case, name));
    if let Some(case) = WORKLOADS.iter().find(|case| chosen(case) && !has(case.needs)) {
        let (name, flag) = (case.name, case.needs.flag());
        bail!("the case {name} is measured with {flag}; name it");
    }
    let wanted = |case: &&Case| {
        if only.is_empty() { has(case.needs) } else { chosen(case) }
    };
    let workloads: Vec<&Case> = WORKLOADS.iter().filter(wanted).collect();
    let stood_on = |case: &Case| {
        let floors = workloads.iter().flat_map(|w| w.rows).flat_map(|row| row.floors);
        floors.into_iter().any(|floor| case.rows.iter().any(|row| row.name == *floor))
    };
    // One that nothing measures here is no reason to measure nothing, unless it is asked for.
    let floors = FLOORS.iter().filter(|case| wanted(case) || stood_on(case) && has(case.needs));
    let floors = floors.collect();
    Ok((floors, workloads))
}

fn named(case: &Case, name: &str) -> bool {
    case.name == name || case.rows.iter().any(|row| row.name == name)
}

#[cfg(test)]
mod tests;
