//! Power cuts, and what they take from the disks of metadata servers.

use super::disks::Left;
use super::faults::{PAUSE, Step, World};
use super::names::{DAEMONS, SERVERS};
use anyhow::{Context, Result};
use rand::Rng;

/// Syncs before which the power goes, at most: of a server that runs, or that starts, which is then
/// sent all that it lacks, perhaps.
const RUNNING: u64 = 20;
const STARTING: u64 = 60;

impl World {
    /// All daemons lose power at once, and some drives err for a while when they are back. A target
    /// that took its drive for gone meanwhile is restarted: until then nobody could delete what
    /// lies there (I7).
    pub fn power_cut(&mut self) -> (String, Vec<Step>) {
        let lost = self.random.random_bool(0.3);
        let every = [0, 2, 5, 20][self.random.random_range(0..4)];
        let all = 0..DAEMONS.len();
        let mut steps: Vec<_> = DAEMONS.into_iter().map(Step::Crash).collect();
        steps.extend(all.clone().map(|daemon| Step::CutPower(daemon, lost)));
        steps.extend(all.clone().map(|daemon| Step::FailReads(daemon, every)));
        steps.push(Step::Pause(PAUSE));
        steps.extend(DAEMONS.into_iter().map(Step::Start));
        steps.push(Step::Pause(1000..6000));
        steps.extend(all.clone().map(|daemon| Step::FailReads(daemon, 0)));
        // What has failed is known by then.
        steps.push(Step::Pause(100..200));
        steps.extend(all.map(Step::RestartFailed));
        let what = if lost { " and indexes" } else { "" };
        (format!("cut the power{what} of all daemons; one read in {every} fails"), steps)
    }

    /// Metadata servers lose power, in the midst of a sync perhaps, all with the daemons perhaps,
    /// and are back one after another, some for a moment only.
    pub fn server_power_cut(&mut self) -> (String, Vec<Step>) {
        let mut servers = vec![0, 1, 2];
        servers.rotate_left(self.random.random_range(0..SERVERS.len()));
        let count = [1, 2, 3, 3][self.random.random_range(0..4)];
        servers.truncate(count);
        let (mut what, mut steps, mut cuts) = (String::new(), Vec::new(), Vec::new());
        for &server in &servers {
            what += &format!(" {}", self.servers[server]);
            let left = self.left();
            if self.random.random_bool(0.5) {
                what += " as it syncs";
                let syncs = self.random.random_range(0..RUNNING);
                steps.push(Step::CutServerPowerAt(server, syncs, left));
            }
            cuts.push(Step::CutServerPower(server, left));
        }
        if !steps.is_empty() {
            steps.push(Step::Pause(50..2000));
        }
        steps.extend(cuts);
        if count == SERVERS.len() && self.random.random_bool(0.5) {
            let (daemons, more) = self.power_cut();
            what += &format!("; {daemons}");
            steps.extend(more);
        }
        for server in servers {
            steps.push(Step::Pause(PAUSE));
            if self.random.random_bool(0.3) {
                what += &format!("; and of {} as it starts", self.servers[server]);
                steps.extend(self.starts_for_a_moment(server));
            }
            steps.push(Step::Start(self.servers[server]));
        }
        (format!("cut the power of{what}"), steps)
    }

    /// Of a server that is down: its power goes while it starts, or soon after.
    pub fn starts_for_a_moment(&mut self, server: usize) -> [Step; 5] {
        let (syncs, left) = (self.random.random_range(0..STARTING), self.left());
        [
            Step::CutServerPowerAt(server, syncs, left),
            Step::Start(self.servers[server]),
            Step::Pause(PAUSE),
            Step::CutServerPower(server, left),
            Step::Pause(PAUSE),
        ]
    }

    fn left(&mut self) -> Left {
        let (some, left) = (self.random.random_bool(0.5), self.random.random());
        some.then_some(left)
    }

    pub fn cut_server_power(
        &self,
        sim: &mut turmoil::Sim<'_>,
        server: usize,
        left: Left,
    ) -> Result<()> {
        let folder = &self.folder(server);
        let what = || format!("what is left of {}", folder.display());
        self.disks.cut(folder, left).with_context(what)?;
        // What it writes when it is dropped was never written.
        sim.crash(self.servers[server]);
        self.disks.turn_on(folder).with_context(what)
    }
}
