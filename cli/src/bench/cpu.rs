//! CPU time of the bench itself and of the cluster's processes.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Who the CPU time belongs to: bench, mount, storage, metadata.
pub type Group = &'static str;

/// The processes of a cluster, by what they are.
#[derive(Default, Debug)]
pub struct Processes(Vec<(Group, i32)>);

/// CPU seconds by group.
#[derive(Clone, Default, Serialize, Debug)]
#[serde(transparent)]
pub struct Cpu(pub BTreeMap<Group, f64>);

/// A development cluster as `weft dev status` describes it.
#[derive(Default, Debug)]
pub struct Cluster {
    pub processes: Processes,
    /// Addresses of the metadata servers.
    pub addresses: Vec<String>,
}

impl Cluster {
    /// Asks `weft dev status` (this binary) about the cluster in `dir`.
    pub fn of_dir(dir: &Path) -> Result<Self> {
        let output = Command::new(std::env::current_exe().context("cannot find this program")?)
            .args(["dev", "status", "--output", "json", "--dir"])
            .arg(dir)
            .output()
            .context("cannot run weft dev status")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::parse(&output.stdout)
    }

    fn parse(json: &[u8]) -> Result<Self> {
        let status: serde_json::Value =
            serde_json::from_slice(json).context("weft dev status did not answer in JSON")?;
        let mut processes = Vec::new();
        for (group, list) in [("mount", "mounts"), ("storage", "storage"), ("metadata", "metadata")]
        {
            for row in status[list].as_array().into_iter().flatten() {
                let pid = row["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
                processes.extend(pid.map(|pid| (group, pid)));
            }
        }
        let addresses = status["cluster"].as_str().unwrap_or_default();
        let addresses = addresses.split(',').filter(|a| !a.is_empty()).map(Into::into).collect();
        Ok(Self { processes: Processes(processes), addresses })
    }
}

impl Processes {
    /// CPU time used so far. A process that has ended counts as zero.
    pub fn cpu(&self) -> Cpu {
        let mut sums = BTreeMap::from([("bench", own_seconds())]);
        for &(group, pid) in &self.0 {
            *sums.entry(group).or_default() += seconds_of(pid).unwrap_or(0.0);
        }
        Cpu(sums)
    }
}

impl Cpu {
    /// What was used between two readings.
    pub fn since(&self, before: &Self) -> Self {
        let used = |(&group, &now): (&Group, &f64)| {
            (group, (now - before.0.get(group).copied().unwrap_or(0.0)).max(0.0))
        };
        Self(self.0.iter().map(used).collect())
    }

    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (&group, seconds) in &other.0 {
            *sum.0.entry(group).or_default() += seconds;
        }
        sum
    }

    pub fn scaled(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|(&group, &seconds)| (group, seconds * factor)).collect())
    }

    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

/// User and system time in `/proc/PID/stat`, of all threads.
fn seconds_of(pid: i32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold anything; after its last parenthesis the fields are regular.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    // SAFETY: sysconf takes an integer and touches nothing.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(ticks / per_second.max(1) as f64)
}

/// Of this process and of the workers that have ended.
fn own_seconds() -> f64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].iter().map(|&who| usage(who)).sum()
}

fn usage(who: i32) -> f64 {
    // SAFETY: rusage is plain integers, for which zero is valid; the kernel fills it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_grows_with_work() {
        let own = || Processes(vec![("mount", std::process::id() as i32)]).cpu();
        let before = own();
        let mut used = own().since(&before);
        // As long as it takes on a busy machine, but not for ever.
        for _ in 0..1_000_000 {
            std::hint::black_box(super::super::task::noise(4096, 1));
            used = own().since(&before);
            if used.0["bench"] > 0.02 && used.0["mount"] > 0.01 {
                break;
            }
        }
        assert!(used.0["bench"] > 0.02 && used.0["mount"] > 0.01, "{used:?}");
        assert!((used.total() - used.0.values().sum::<f64>()).abs() < 1e-9);
    }

    #[test]
    fn processes_are_taken_from_the_status_and_missing_ones_left_out() {
        let json = br#"{"cluster":"a:1,b:2","metadata":[{"pid":1},{"pid":null}],
                        "storage":[{"pid":2}],"mounts":[{"pid":3,"path":"/m"}]}"#;
        let cluster = Cluster::parse(json).unwrap();
        assert_eq!(cluster.addresses, ["a:1", "b:2"]);
        assert_eq!(cluster.processes.0, [("mount", 3), ("storage", 2), ("metadata", 1)]);
        assert!(Cluster::parse(b"no").is_err());
        assert!(Cluster::parse(b"{}").unwrap().addresses.is_empty());
    }
}
