//! The first exchange on a connection: who speaks, which versions, which cluster.

use crate::tls::{Confinement, Subject};
use crate::way::Way;
use std::sync::Arc;
use weft_proto::qos::OWN;
use weft_proto::{
    Error, ErrorKind, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, Result, Role, Uuid, v1,
};

/// How this process presents itself.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// For people and logs, such as `storaged 3`.
    pub name: String,
    /// The cluster it belongs to, if it knows yet. Two sides that know must agree.
    pub cluster: Option<Uuid>,
}

/// What a process can do besides what its protocol version says: a set, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Features(u64);

impl Features {
    /// A request may begin with its place in a trace.
    pub const TRACES: Self = Self(1);
    /// Many parts of chunks are read with one request.
    pub const GET_MANY: Self = Self(2);
    /// All that this build has. The bits are wire format.
    const KNOWN: Self = Self(Self::TRACES.0 | Self::GET_MANY.0);

    /// Of a hello; what this build does not know is left out.
    fn of(bits: u64) -> Self {
        Self(bits & Self::KNOWN.0)
    }

    /// Whether all of `these` are there.
    pub fn has(self, these: Self) -> bool {
        self.0 & these.0 == these.0
    }
}

/// Who is on the other end of a served connection, in its own words.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// For people and logs; cut if it is long.
    pub name: String,
    /// Where the connection comes from.
    pub address: String,
    /// The cluster it belongs to, if it knows yet.
    pub cluster: Option<Uuid>,
    /// What both sides can do.
    pub features: Features,
    /// Who it is, if that was proved.
    pub subject: Option<Arc<Subject>>,
}

impl PeerInfo {
    /// Who the connection belongs to, for fair sharing: the name in a client's certificate; without
    /// one what stands before the first colon of the name that it gave, which is the host of a
    /// mount's. What daemons do on their own is `weft:` and what it is: nobody else is believed to
    /// be that, as far as anybody here has to prove what he is.
    pub fn tenant(&self) -> &str {
        if let Some(subject) = self.subject.as_deref()
            && matches!(subject.role, Role::Client | Role::Admin)
        {
            return &subject.name;
        }
        match self.name.strip_prefix(OWN).filter(|_| self.may_be(Role::Storage)) {
            Some(rest) => {
                let what = rest.split(':').next().unwrap_or_default();
                &self.name[..OWN.len() + what.len()]
            }
            None => self.claimed_tenant(),
        }
    }

    /// As [`Self::tenant`], where no daemon has anything to do on its own.
    pub fn client_tenant(&self) -> &str {
        match self.tenant() {
            own if own.starts_with(OWN) => self.claimed_tenant(),
            tenant => tenant,
        }
    }

    /// What stands before the first colon of the name that it gave.
    fn claimed_tenant(&self) -> &str {
        match self.name.split(':').next() {
            Some(name) if !name.is_empty() => name,
            _ => "(unnamed)",
        }
    }

    /// Whether it plays this part, as far as anybody here has to prove what he is.
    pub fn may_be(&self, role: Role) -> bool {
        self.subject.as_ref().is_none_or(|subject| subject.role == role)
    }

    /// What it is confined to.
    pub fn confinement(&self) -> &Confinement {
        static NONE: Confinement = Confinement::NONE;
        self.subject.as_ref().map_or(&NONE, |subject| &subject.confinement)
    }
}

/// Longest name that is kept of a peer's hello, in characters: it goes to logs.
const MAX_NAME: usize = 128;

impl Identity {
    pub(crate) fn hello(&self) -> v1::Hello {
        v1::Hello {
            version: PROTOCOL_VERSION,
            min_version: MIN_PROTOCOL_VERSION,
            cluster: self.cluster.map(|c| c.0.to_vec().into()).unwrap_or_default(),
            software: concat!("weft ", env!("CARGO_PKG_VERSION")).into(),
            name: self.name.clone(),
            way: Way::Common.code(),
            features: Features::KNOWN.0,
        }
    }

    /// Checks the other side's hello. The error is for both sides: it names both.
    pub(crate) fn check(&self, hello: &v1::Hello, address: &str) -> Result<PeerInfo> {
        let name: String = hello.name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
        if hello.version < MIN_PROTOCOL_VERSION || hello.min_version > PROTOCOL_VERSION {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "{name:?} at {address} speaks protocol versions {}-{}, {:?} speaks \
                     {MIN_PROTOCOL_VERSION}-{PROTOCOL_VERSION}: upgrade the older one",
                    hello.min_version, hello.version, self.name
                ),
            ));
        }
        let cluster = if hello.cluster.is_empty() {
            None
        } else {
            Some(Uuid::from_slice(&hello.cluster).ok_or_else(|| {
                Error::new(
                    ErrorKind::Protocol,
                    format!("{name:?} at {address}: a cluster id of {} bytes", hello.cluster.len()),
                )
            })?)
        };
        match (self.cluster, cluster) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(Error::new(
                ErrorKind::WrongCluster,
                format!(
                    "{name:?} at {address} belongs to cluster {theirs}, {:?} to cluster {ours}: \
                     check the addresses in the configuration",
                    self.name
                ),
            )),
            _ => {
                let features = Features::of(hello.features);
                Ok(PeerInfo { name, address: address.into(), cluster, features, subject: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(cluster: Option<u8>) -> Identity {
        Identity { name: "me".into(), cluster: cluster.map(|c| Uuid([c; 16])) }
    }

    #[test]
    fn clusters_must_agree_only_when_both_know() {
        for (a, b, same) in [
            (None, None, true),
            (Some(1), None, true),
            (None, Some(1), true),
            (Some(1), Some(1), true),
            (Some(1), Some(2), false),
        ] {
            let checked = identity(a).check(&identity(b).hello(), "x");
            assert_eq!(checked.is_ok(), same);
            if let Err(e) = checked {
                assert_eq!(e.kind, ErrorKind::WrongCluster);
            }
        }
    }

    #[test]
    fn versions_must_overlap() {
        for (min, max, ok) in [
            (PROTOCOL_VERSION, PROTOCOL_VERSION + 9, true),
            (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 9, false),
            (0, 0, false),
        ] {
            let hello = v1::Hello { min_version: min, version: max, ..identity(None).hello() };
            let checked = identity(None).check(&hello, "x");
            assert_eq!(checked.is_ok(), ok, "{min}-{max}");
            if let Err(e) = checked {
                assert_eq!(e.kind, ErrorKind::Protocol);
            }
        }
    }

    #[test]
    fn unknown_features_mean_nothing_and_hellos_without_any_are_as_they_were() {
        use prost::Message;
        let ours = identity(Some(1)).hello();
        let newer = v1::Hello { features: u64::MAX, ..ours.clone() };
        let newer = v1::Hello::decode(&*newer.encode_to_vec()).unwrap();
        let checked = identity(Some(1)).check(&newer, "x").unwrap();
        assert_eq!(checked.features, Features::KNOWN);
        assert!(checked.features.has(Features::default()));
        // What a build says that knows of no features.
        let mut older = vec![8, PROTOCOL_VERSION as u8, 16, MIN_PROTOCOL_VERSION as u8, 26, 16];
        older.extend([1; 16]);
        older.extend(b"\"\x01s*\x02me");
        let older = v1::Hello::decode(&*older).unwrap();
        assert_eq!(older, v1::Hello { software: "s".into(), features: 0, ..ours.clone() });
        assert_eq!(identity(None).check(&older, "x").unwrap().features, Features::default());
    }

    fn peer(name: &str, subject: Option<(Role, &str)>) -> PeerInfo {
        let hello = v1::Hello { name: name.into(), ..identity(None).hello() };
        let subject = subject.map(|(role, name)| {
            Arc::new(Subject { role, name: name.into(), confinement: Confinement::NONE })
        });
        PeerInfo { subject, ..identity(None).check(&hello, "x").unwrap() }
    }

    #[test]
    fn a_tenant_is_a_host_or_what_a_daemon_does() {
        for (name, tenant, of_client) in [
            ("node-1:/mnt/weft", "node-1", "node-1"),
            ("team a", "team a", "team a"),
            ("weft:rebuild:storage-1", "weft:rebuild", "weft"),
            ("weft", "weft", "weft"),
            ("weft:", "weft:", "weft"),
            (":/mnt", "(unnamed)", "(unnamed)"),
            ("", "(unnamed)", "(unnamed)"),
        ] {
            let peer = peer(name, None);
            assert_eq!((peer.tenant(), peer.client_tenant()), (tenant, of_client), "{name}");
        }
    }

    #[test]
    fn a_proved_name_counts_and_only_a_storage_daemon_is_at_work_on_its_own() {
        for role in [Role::Client, Role::Admin] {
            for claimed in ["other:/mnt", "weft:rebuild:storage-1", ""] {
                let peer = peer(claimed, Some((role, "team-a")));
                assert_eq!((peer.tenant(), peer.client_tenant()), ("team-a", "team-a"));
            }
        }
        let daemon = peer("weft:rebuild:storage-1", Some((Role::Storage, "storage-1")));
        assert_eq!(daemon.tenant(), "weft:rebuild");
        let metadata = peer("weft:rebuild:x", Some((Role::Metadata, "1")));
        assert_eq!(metadata.tenant(), "weft");
    }

    #[test]
    fn a_malformed_cluster_is_refused_and_names_are_cut() {
        let hello = v1::Hello { cluster: vec![1; 15].into(), ..identity(None).hello() };
        assert_eq!(identity(None).check(&hello, "x").unwrap_err().kind, ErrorKind::Protocol);
        let hello = v1::Hello { name: "\u{1b}x".repeat(4000), ..identity(None).hello() };
        assert_eq!(identity(None).check(&hello, "x").unwrap().name, "x".repeat(MAX_NAME));
    }
}
