//! Tests of `remote`.

use super::*;
use proptest::prelude::*;

const UUID: &str = "12345678-9abc-def0-1234-56789abcdef0";

#[test]
fn what_an_admin_writes_is_read() {
    let text = format!(
        "nvme-tcp://10.0.0.5,[fd00::5]:4421/nqn.2025-01.com.x:box?uuid={UUID}&host_iface=eth2"
    );
    let it: Remote = text.parse().unwrap();
    assert_eq!(it.addresses[0].to_string(), "10.0.0.5:4420");
    assert_eq!((it.addresses[1].host.as_str(), it.addresses[1].port), ("fd00::5", 4421));
    assert_eq!(it.nqn, "nqn.2025-01.com.x:box");
    assert_eq!(it.id, Some(NamespaceId::Uuid("123456789abcdef0123456789abcdef0".into())));
    assert_eq!(it.host_iface.as_deref(), Some("eth2"));
    assert_eq!(it.to_string(), text.replace("10.0.0.5,", "10.0.0.5:4420,"));
    let it: Remote = "nvme-rdma://box/nqn.a?eui=00-11-22-33-44-55-66-7F".parse().unwrap();
    assert_eq!(it.transport(), Transport::Rdma);
    assert_eq!(it.id, Some(NamespaceId::Eui64("001122334455667f".into())));
}

#[test]
fn mistakes_are_refused_and_name_themselves() {
    for (text, says) in [
        ("nvme-fc://h/nqn.a", "nvme-tcp://"),
        ("nvme-tcp://h", "NQN"),
        ("nvme-tcp://h/disk", "nqn."),
        ("nvme-tcp://h:0/nqn.a", "host:port"),
        ("nvme-tcp://h:99999/nqn.a", "host:port"),
        ("nvme-tcp:///nqn.a", "host:port"),
        ("nvme-tcp://[fd00::5/nqn.a", "host:port"),
        ("nvme-tcp://h/nqn.a,hostnqn=nqn.b", "character"),
        ("nvme-tcp://h/nqn.a\n", "character"),
        ("nvme-tcp://h/nqn.a?uuid=12", "32"),
        ("nvme-tcp://h/nqn.a?nsid=1", "nsid"),
        ("nvme-tcp://h/nqn.a?host_iface=e,x=1", "character"),
        ("nvme-tcp://h/nqn.a?eui=0011223344556677&eui=0011223344556677", "twice"),
    ] {
        let e = text.parse::<Remote>().unwrap_err();
        assert!(e.message.contains(says), "{text}: {e}");
    }
    let long = format!("nvme-tcp://h/nqn.{}", "a".repeat(300));
    assert!(long.parse::<Remote>().is_err());
}

proptest! {
    #[test]
    fn garbage_is_refused_or_survives_its_own_text(text in "(nvme-(tcp|rdma)://)?[ -~\\n]{0,80}") {
        if let Ok(it) = text.parse::<Remote>() {
            prop_assert!(!it.to_string().contains(['\n', ' ']));
            prop_assert_eq!(it.to_string().parse::<Remote>().unwrap(), it);
        }
    }
}
