//! What the connections of this process go over, for people.

use crate::address::Address;
use crate::metrics::{NETWORKS, carried};
use crate::transport::{Fallback, Transport};
use weft_proto::v1;

/// Most fallbacks that are told of, and bytes of why: a leader keeps those of each session.
const FALLBACKS: usize = 2;
const WHY: usize = 200;

/// What the connections of this process go over, those from others (`served`) or to them; and what
/// goes by another way than it was meant to.
pub fn network_stat(served: bool, transport: &dyn Transport) -> v1::NetworkStat {
    let [tcp, tls, rdma] = NETWORKS.map(|network| carried(served, network).get() as u64);
    let fallbacks = transport.fallbacks();
    let told = |fallback: &Fallback| v1::Fallback {
        server: fallback.server.as_ref().map(Address::to_string).unwrap_or_default(),
        why: cut(fallback.why.clone(), WHY),
    };
    let fallback_count = fallbacks.len() as u64;
    let fallbacks = fallbacks.iter().take(FALLBACKS).map(told).collect();
    v1::NetworkStat { tcp, tls, rdma, fallbacks, fallback_count }
}

/// What another process says of its network, no longer than [`network_stat`] makes it.
pub fn bounded_network_stat(mut stat: v1::NetworkStat) -> v1::NetworkStat {
    stat.fallbacks.truncate(FALLBACKS);
    for fallback in &mut stat.fallbacks {
        fallback.server = cut(std::mem::take(&mut fallback.server), WHY);
        fallback.why = cut(std::mem::take(&mut fallback.why), WHY);
    }
    stat
}

fn cut(mut text: String, len: usize) -> String {
    text.truncate(text.floor_char_boundary(len));
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_cut() {
        let long = format!("x{}", "\u{e9}".repeat(1 << 20));
        let fallback = v1::Fallback { server: long.clone(), why: long };
        let stat =
            v1::NetworkStat { fallbacks: vec![fallback; 100], rdma: 3, ..Default::default() };
        let stat = bounded_network_stat(stat);
        assert_eq!((stat.rdma, stat.fallbacks.len()), (3, FALLBACKS));
        assert!(stat.fallbacks.iter().all(|f| f.server.len() == WHY - 1 && f.why.len() == WHY - 1));
    }
}
