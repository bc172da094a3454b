//! What the kernel shows of NVMe: controllers (one for each path) and namespaces (one block device
//! each; the multipath head where there is one).
//!
//! Files here come and go with connections, so what cannot be read is skipped, not an error.

use super::remote::{Address, NamespaceId, Transport, hex_digits};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Longest attribute that is read.
const MAX_ATTRIBUTE: u64 = 4096;

/// Where the kernel shows devices and the host keeps its identity; tests have trees of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    pub sys: PathBuf,
    pub dev: PathBuf,
    pub etc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Roots {
    /// `sys`, `dev` and `etc` in one folder.
    pub fn under(root: &Path) -> Self {
        Self { sys: root.join("sys"), dev: root.join("dev"), etc: root.join("etc") }
    }
}

/// A connection to a subsystem, or a local drive's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Controller {
    /// `nvme0`.
    pub name: String,
    /// NQN of the subsystem.
    pub nqn: String,
    /// `tcp`, `rdma`, `pcie`, `loop`, `fc`.
    pub transport: String,
    /// The kernel's words: `traddr=10.0.0.5,trsvcid=4420,src_addr=10.0.0.9`.
    pub address: String,
    /// `live`, `connecting`, `resetting`, `deleting` and others.
    pub state: String,
}

impl Controller {
    pub fn is_live(&self) -> bool {
        self.state == "live"
    }

    /// Where it leads, as `host:port`; the kernel's words where they are others.
    pub fn endpoint(&self) -> String {
        match (self.field("traddr"), self.field("trsvcid")) {
            (Some(host), Some(port)) if host.contains(':') => format!("[{host}]:{port}"),
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => self.address.clone(),
        }
    }

    fn field(&self, key: &str) -> Option<&str> {
        self.address.split(',').find_map(|f| f.strip_prefix(key)?.strip_prefix('='))
    }

    /// Whether this is the connection to `address`, which resolves to `ip`.
    pub(super) fn is_to(&self, address: &Address, ip: IpAddr, nqn: &str) -> bool {
        let theirs = self.field("traddr").and_then(|a| a.split('%').next()?.parse::<IpAddr>().ok());
        self.nqn == nqn
            && self.transport == address.transport.name()
            && theirs == Some(ip)
            && self.field("trsvcid").and_then(|p| p.parse().ok()) == Some(address.port)
    }

    /// Whether the kernel is taking it away, so that it is no path any more.
    pub(super) fn is_going(&self) -> bool {
        self.state.starts_with("deleting") || self.state == "dead"
    }
}

/// A namespace that has a block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Of this moment: `/dev/nvme0n1`.
    pub device: PathBuf,
    /// NQN of the subsystem.
    pub nqn: String,
    /// Number within the subsystem.
    pub nsid: u32,
    pub bytes: u64,
    uuid: Option<String>,
    nguid: Option<String>,
    eui: Option<String>,
}

impl Namespace {
    /// Its identity, the strongest first.
    pub fn id(&self) -> Option<NamespaceId> {
        (self.uuid.clone().map(NamespaceId::Uuid))
            .or_else(|| self.nguid.clone().map(NamespaceId::Nguid))
            .or_else(|| self.eui.clone().map(NamespaceId::Eui64))
    }

    /// Whether it has this identity.
    pub fn is(&self, id: &NamespaceId) -> bool {
        match id {
            NamespaceId::Uuid(hex) => self.uuid.as_ref() == Some(hex),
            NamespaceId::Nguid(hex) => self.nguid.as_ref() == Some(hex),
            NamespaceId::Eui64(hex) => self.eui.as_ref() == Some(hex),
        }
    }
}

/// All connections of this host, by name.
pub fn controllers(roots: &Roots) -> Vec<Controller> {
    let class = roots.sys.join("class/nvme");
    let mut all: Vec<_> = names(&class)
        .into_iter()
        .filter_map(|name| {
            let at = class.join(&name);
            let attribute = |file: &str| attribute(&at.join(file));
            Some(Controller {
                nqn: attribute("subsysnqn")?,
                transport: attribute("transport")?,
                address: attribute("address").unwrap_or_default(),
                state: attribute("state")?,
                name,
            })
        })
        .collect();
    all.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    all
}

/// All namespaces of this host that have a block device, by NQN and number.
pub fn namespaces(roots: &Roots) -> Vec<Namespace> {
    let class = roots.sys.join("block");
    let mut all: Vec<_> = names(&class)
        .into_iter()
        .filter(|name| name.starts_with("nvme"))
        .filter_map(|name| namespace(roots, &class.join(&name), &name))
        .collect();
    all.sort_by(|a, b| (&a.nqn, a.nsid, &a.device).cmp(&(&b.nqn, b.nsid, &b.device)));
    all
}

fn namespace(roots: &Roots, at: &Path, name: &str) -> Option<Namespace> {
    let attribute = |file: &str| attribute(&at.join(file));
    // The paths below a multipath head are block devices too, which nobody may open.
    if attribute("hidden").as_deref() == Some("1") {
        return None;
    }
    // All zeros mean that the drive has no such id.
    let id = |file: &str| {
        attribute(file).and_then(|t| hex_digits(&t)).filter(|h| h.chars().any(|c| c != '0'))
    };
    let nguid = id("nguid").filter(|h| h.len() == 32);
    // Where there is no UUID, the kernel shows the NGUID in its place.
    let uuid = id("uuid").filter(|h| h.len() == 32 && Some(h) != nguid.as_ref());
    let sectors: u64 = attribute("size")?.parse().ok()?;
    Some(Namespace {
        device: roots.dev.join(name),
        nqn: attribute("device/subsysnqn")?,
        nsid: attribute("nsid").and_then(|n| n.parse().ok()).unwrap_or(0),
        bytes: sectors.checked_mul(512)?,
        uuid,
        nguid,
        eui: id("eui").filter(|h| h.len() == 16),
    })
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// The trimmed text of a file, if it has any.
fn attribute(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_ATTRIBUTE).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

impl Transport {
    /// The modules that `/dev/nvme-fabrics` and this transport need.
    pub fn modules(self) -> &'static str {
        match self {
            Self::Tcp => "nvme-tcp",
            Self::Rdma => "nvme-rdma",
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;

    /// Writes attributes, made as the kernel shows them.
    pub fn tree(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn heads_are_found_and_their_paths_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        assert!(namespaces(&roots).is_empty() && controllers(&roots).is_empty());
        tree(
            dir.path(),
            &[
                ("sys/block/nvme0n1/size", "2048"),
                ("sys/block/nvme0n1/nsid", "2"),
                ("sys/block/nvme0n1/hidden", "0"),
                ("sys/block/nvme0n1/uuid", "12345678-9abc-def0-1234-56789abcdef0"),
                ("sys/block/nvme0n1/nguid", "00000000-0000-0000-0000-000000000000"),
                ("sys/block/nvme0n1/device/subsysnqn", "nqn.a"),
                ("sys/block/nvme0c0n1/size", "2048"),
                ("sys/block/nvme0c0n1/hidden", "1"),
                ("sys/block/nvme0c0n1/device/subsysnqn", "nqn.a"),
                ("sys/block/nvme1n1/size", "8"),
                ("sys/block/nvme1n1/uuid", "aabbccdd-eeff-0011-2233-445566778899"),
                ("sys/block/nvme1n1/nguid", "aabbccddeeff00112233445566778899"),
                ("sys/block/nvme1n1/eui", "00 11 22 33 44 55 66 77"),
                ("sys/block/nvme1n1/device/subsysnqn", "nqn.a"),
                ("sys/block/nvme2n1/size", "garbage"),
                ("sys/block/sda/size", "8"),
                ("sys/class/nvme/nvme10/subsysnqn", "nqn.a"),
                ("sys/class/nvme/nvme10/transport", "tcp"),
                ("sys/class/nvme/nvme10/address", "traddr=10.0.0.5,trsvcid=4420,src_addr=10.0.0.9"),
                ("sys/class/nvme/nvme10/state", "live"),
                ("sys/class/nvme/nvme2/subsysnqn", "nqn.b"),
                ("sys/class/nvme/nvme2/transport", "pcie"),
                ("sys/class/nvme/nvme2/state", "deleting (no IO)"),
                ("sys/class/nvme/nvme3/state", "live"),
            ],
        );
        let found = namespaces(&roots);
        let devices: Vec<_> = found.iter().map(|n| n.device.file_name().unwrap()).collect();
        assert_eq!(devices, ["nvme1n1", "nvme0n1"], "nsid 0 (not known) sorts first");
        assert_eq!((found[1].nsid, found[1].bytes), (2, 1 << 20));
        assert_eq!(found[1].id().unwrap().to_string(), "uuid=12345678-9abc-def0-1234-56789abcdef0");
        assert_eq!(found[0].id().unwrap().to_string(), "nguid=aabbccddeeff00112233445566778899");
        assert!(found[0].is(&NamespaceId::Eui64("0011223344556677".into())));

        let all = controllers(&roots);
        assert_eq!(all.iter().map(|c| &c.name[..]).collect::<Vec<_>>(), ["nvme2", "nvme10"]);
        assert!(all[1].is_live() && all[0].is_going());
        let address = Address { transport: Transport::Tcp, host: "box".into(), port: 4420 };
        let to = |ip: &str, nqn: &str| all[1].is_to(&address, ip.parse().unwrap(), nqn);
        assert!(to("10.0.0.5", "nqn.a"));
        assert!(!to("10.0.0.9", "nqn.a") && !to("10.0.0.5", "nqn.b"));
    }
}
