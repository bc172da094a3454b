//! What was served of late, a second.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::v1;

/// What was served is told as of so long.
const SPAN: Duration = Duration::from_secs(5);
/// Most tenants that are told of, and that are counted.
pub(super) const TOLD: usize = 64;
const COUNTED: usize = 4096;

/// What was served in the last whole span of time, and in the one that has begun.
#[derive(Default)]
pub(super) struct Lately {
    begun: Option<Instant>,
    now: BTreeMap<String, v1::TenantStat>,
    last: Option<(Duration, BTreeMap<String, v1::TenantStat>)>,
}

impl Lately {
    /// These were served until now.
    pub fn note(&mut self, now: Instant, served: Vec<v1::TenantStat>) {
        self.turn(now);
        for new in served.into_iter().take(TOLD) {
            if self.now.len() >= COUNTED && !self.now.contains_key(&new.tenant) {
                continue;
            }
            let sum = self.now.entry(new.tenant.clone()).or_default();
            *sum = v1::TenantStat {
                tenant: new.tenant,
                requests: sum.requests.saturating_add(new.requests),
                read_bytes: sum.read_bytes.saturating_add(new.read_bytes),
                written_bytes: sum.written_bytes.saturating_add(new.written_bytes),
                shared_us: sum.shared_us.saturating_add(new.shared_us),
                paced_us: sum.paced_us.saturating_add(new.paced_us),
            };
        }
    }

    fn turn(&mut self, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        let took = now.saturating_duration_since(begun);
        if took >= SPAN {
            let ended = std::mem::take(&mut self.now);
            self.last = (took < 2 * SPAN).then_some((took, ended));
            self.begun = Some(now);
        }
    }

    /// A second, of those that had most.
    pub fn rates(&mut self, now: Instant) -> Vec<v1::TenantStat> {
        self.turn(now);
        let since = self.begun.map_or(Duration::ZERO, |begun| now - begun);
        let (took, served) = match &self.last {
            Some((took, served)) => (*took, served),
            None => (since.max(Duration::from_secs(1)), &self.now),
        };
        let part = |n: u64| (n as f64 / took.as_secs_f64()).round() as u64;
        let mut all: Vec<_> = served
            .values()
            .map(|s| v1::TenantStat {
                tenant: s.tenant.clone(),
                requests: part(s.requests),
                read_bytes: part(s.read_bytes),
                written_bytes: part(s.written_bytes),
                shared_us: part(s.shared_us),
                paced_us: part(s.paced_us),
            })
            .collect();
        let much = |s: &v1::TenantStat| (s.read_bytes.saturating_add(s.written_bytes), s.requests);
        all.sort_by(|a, b| much(b).cmp(&much(a)).then_with(|| a.tenant.cmp(&b.tenant)));
        all.truncate(TOLD);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn what_was_served_is_told_as_of_late() {
        let mut lately = Lately::default();
        let stat = |tenant: &str, read_bytes| {
            let tenant = tenant.into();
            v1::TenantStat { tenant, requests: 1, read_bytes, ..Default::default() }
        };
        for _ in 0..20 {
            lately.note(Instant::now(), vec![stat("a", 500), stat("b", 5000)]);
            sleep(500 * MS).await;
        }
        let rates = lately.rates(Instant::now());
        let told: Vec<_> =
            rates.iter().map(|s| (&s.tenant[..], s.read_bytes, s.requests)).collect();
        assert_eq!(told, [("b", 10_000, 2), ("a", 1000, 2)]);
        sleep(SPAN * 2).await;
        assert_eq!(lately.rates(Instant::now()), []);
        for n in 0..2 * COUNTED {
            lately.note(Instant::now(), vec![stat(&n.to_string(), 1)]);
        }
        assert_eq!((lately.now.len(), lately.rates(Instant::now()).len()), (COUNTED, TOLD));
    }
}
