//! Who this host says it is: a name and an id that stay the same, since targets allow hosts by name
//! and the kernel takes two connections of one name for the same host.

use super::Roots;
use std::path::Path;

/// Identity of this host. What is `None` the kernel makes up, anew at every boot.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Host {
    pub nqn: Option<String>,
    pub id: Option<String>,
}

impl Host {
    /// As configured; else as `/etc/nvme` says, which other tools of this machine use; else from
    /// the machine's own id, in the form that the specification gives to it.
    pub fn of(nqn: Option<&String>, id: Option<&String>, roots: &Roots) -> Self {
        if let Some(nqn) = nqn {
            return Self::named(nqn.clone(), id.cloned());
        }
        let nqn =
            read(&roots.etc.join("nvme/hostnqn")).filter(|n| super::remote::check_nqn(n).is_ok());
        let id = read(&roots.etc.join("nvme/hostid")).and_then(|id| uuid(&id));
        if let Some(nqn) = nqn {
            return Self::named(nqn, id);
        }
        let machine = read(&roots.sys.join("class/dmi/id/product_uuid"))
            .and_then(|id| uuid(&id))
            .or_else(|| read(&roots.etc.join("machine-id")).and_then(|id| uuid(&id)));
        Self {
            nqn: machine.as_ref().map(|id| format!("nqn.2014-08.org.nvmexpress:uuid:{id}")),
            id: id.or(machine),
        }
    }
}

impl Host {
    /// The kernel refuses a name together with the id of another name, its own default included: a
    /// name without an id gets one that follows from it.
    fn named(nqn: String, id: Option<String>) -> Self {
        let own = nqn.rsplit_once("uuid:").and_then(|(_, id)| uuid(id));
        let id = id.or(own).or_else(|| uuid(&format!("{:032x}", fnv1a(nqn.as_bytes()))));
        Self { nqn: Some(nqn), id }
    }
}

/// FNV-1a of 128 bits.
fn fnv1a(bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(start, |hash: u128, &b| (hash ^ u128::from(b)).wrapping_mul(PRIME))
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// A UUID in its usual form; `None` for what is none, or says nothing (many boards have all zeros
/// or ones).
fn uuid(text: &str) -> Option<String> {
    let hex = super::remote::hex_digits(text).filter(|h| h.len() == 32)?;
    let first = hex.chars().next()?;
    if hex.chars().all(|c| c == first) {
        return None;
    }
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Some(format!("{a}-{b}-{c}-{d}-{e}"))
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;
    use std::fs;

    #[test]
    fn the_most_deliberate_identity_wins() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        let of = |options: &Options| {
            Host::of(options.host_nqn.as_ref(), options.host_id.as_ref(), &roots)
        };
        assert_eq!(of(&Options::default()), Host::default());

        fs::create_dir_all(dir.path().join("etc/nvme")).unwrap();
        fs::create_dir_all(dir.path().join("sys/class/dmi/id")).unwrap();
        let put = |path: &str, text: &str| fs::write(dir.path().join(path), text).unwrap();
        put("etc/machine-id", "00112233445566778899aabbccddeeff\n");
        put("sys/class/dmi/id/product_uuid", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n");
        let machine = of(&Options::default());
        assert_eq!(machine.id.as_deref(), Some("00112233-4455-6677-8899-aabbccddeeff"));
        assert_eq!(
            machine.nqn.as_deref(),
            Some("nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff")
        );
        put("etc/nvme/hostnqn", "nqn.2014-08.org.nvmexpress:uuid:x\n");
        put("etc/nvme/hostid", "garbage");
        let file = of(&Options::default());
        assert_eq!(file.nqn.as_deref(), Some("nqn.2014-08.org.nvmexpress:uuid:x"));
        assert_eq!(file, of(&Options::default()), "an id that follows from the name");
        assert_ne!(file.id, machine.id, "the kernel takes one id for one name");
        put(
            "etc/nvme/hostnqn",
            "nqn.2014-08.org.nvmexpress:uuid:10112233-4455-6677-8899-aabbccddeeff",
        );
        let id = of(&Options::default()).id;
        assert_eq!(id.as_deref(), Some("10112233-4455-6677-8899-aabbccddeeff"));
        let options = Options { host_nqn: Some("nqn.mine".into()), ..Options::default() };
        let mine = of(&options);
        assert_eq!(mine.nqn.as_deref(), Some("nqn.mine"));
        assert!(mine.id.is_some() && mine.id != file.id);
    }
}
