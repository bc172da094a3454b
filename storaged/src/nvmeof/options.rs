//! How to connect to a subsystem, and the option string that the kernel takes.

use super::host::Host;
use super::remote::{Address, check_nqn, check_value};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, Result};

/// Settings of all connections of a daemon: the section `[nvmeof]` of its configuration. Times are
/// in seconds, as the kernel's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Name of this host, which targets may demand to know. Default: `/etc/nvme/hostnqn`, else one
    /// made from the machine's own id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_nqn: Option<String>,
    /// UUID of this host; goes with `host_nqn`. Default: `/etc/nvme/hostid`, else one that follows
    /// from the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// I/O queues of a connection. Default: one for each core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_queues: Option<u32>,
    /// Commands that one queue holds. Default: the kernel's (128).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_size: Option<u32>,
    /// How long the kernel goes on to reconnect, -1 for ever. It counts attempts (this over
    /// `reconnect_delay`), and then removes the device, which only a new connection brings back; so
    /// there is nothing to gain from giving up.
    pub ctrl_loss_tmo: i32,
    /// Between two attempts to reconnect.
    pub reconnect_delay: u32,
    /// After this long without a path I/O fails instead of waiting, and the cluster goes round the
    /// target; -1 waits for ever, so that everything that needs the drive hangs with it.
    pub fast_io_fail_tmo: i32,
    /// A path that does not answer for this long is lost.
    pub keep_alive_tmo: u32,
    /// CRC-32C over headers (TCP).
    pub hdr_digest: bool,
    /// CRC-32C over data (TCP). Weft verifies its own checksums end to end in any case.
    pub data_digest: bool,
    /// Type of service of the connection's packets; what the switches' lossless class expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// File with the DH-HMAC-CHAP secret of this host (`DHHC-1:...`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhchap_secret_file: Option<PathBuf>,
    /// File with the secret that the target must prove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_secret_file: Option<PathBuf>,
    /// TLS 1.3 with a pre-shared key (TCP); the key lies in the kernel's keyring.
    pub tls: bool,
    /// Serial number of that key. Default: the kernel looks in its `.nvme` keyring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<u32>,
    /// Serial number of another keyring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyring: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host_nqn: None,
            host_id: None,
            io_queues: None,
            queue_size: None,
            ctrl_loss_tmo: -1,
            reconnect_delay: 2,
            fast_io_fail_tmo: 5,
            keep_alive_tmo: 5,
            hdr_digest: false,
            data_digest: false,
            tos: None,
            dhchap_secret_file: None,
            dhchap_ctrl_secret_file: None,
            tls: false,
            tls_key: None,
            keyring: None,
        }
    }
}

/// What one connection goes to.
pub(super) struct Goal<'a> {
    pub address: &'a Address,
    pub nqn: &'a str,
    pub host_traddr: Option<&'a str>,
    pub host_iface: Option<&'a str>,
    /// A discovery controller has no I/O queues and is not kept alive.
    pub discovery: bool,
}

impl Options {
    /// Refuses what the kernel would refuse, or what cannot be meant.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, format!("[nvmeof] {what}")));
        if let Some(nqn) = &self.host_nqn {
            check_nqn(nqn)?;
        }
        if let Some(id) = &self.host_id {
            check_value("host_id", id)?;
        }
        if self.host_id.is_some() && self.host_nqn.is_none() {
            return bad("host_id goes with host_nqn: the kernel knows a host by both".into());
        }
        if self.io_queues == Some(0) || self.reconnect_delay == 0 || self.keep_alive_tmo == 0 {
            return bad("io_queues, reconnect_delay and keep_alive_tmo are at least 1".into());
        }
        if self.queue_size.is_some_and(|n| !(16..=1024).contains(&n)) {
            return bad("queue_size is from 16 to 1024".into());
        }
        if self.ctrl_loss_tmo >= 0 && self.fast_io_fail_tmo > self.ctrl_loss_tmo {
            return bad(format!(
                "fast_io_fail_tmo {} is later than ctrl_loss_tmo {}",
                self.fast_io_fail_tmo, self.ctrl_loss_tmo
            ));
        }
        if self.dhchap_ctrl_secret_file.is_some() && self.dhchap_secret_file.is_none() {
            return bad("dhchap_ctrl_secret_file goes with dhchap_secret_file".into());
        }
        Ok(())
    }

    /// The string for `/dev/nvme-fabrics`. It may hold secrets: never log it. Reads secret files.
    pub(super) fn connect_string(&self, goal: &Goal<'_>, host: &Host) -> Result<String> {
        let mut out = format!("nqn={},transport={}", goal.nqn, goal.address.transport.name());
        let mut add = |key: &str, value: &dyn std::fmt::Display| {
            let _ = write!(out, ",{key}={value}"); // writing into a string cannot fail
        };
        add("traddr", &goal.address.resolve()?);
        add("trsvcid", &goal.address.port);
        if let Some(nqn) = &host.nqn {
            add("hostnqn", nqn);
        }
        if let Some(id) = &host.id {
            add("hostid", id);
        }
        for (key, value) in [("host_traddr", goal.host_traddr), ("host_iface", goal.host_iface)] {
            if let Some(value) = value {
                add(key, &value);
            }
        }
        if !goal.discovery {
            for (key, value) in [("nr_io_queues", self.io_queues), ("queue_size", self.queue_size)]
            {
                if let Some(value) = value {
                    add(key, &value);
                }
            }
            add("keep_alive_tmo", &self.keep_alive_tmo);
            add("reconnect_delay", &self.reconnect_delay);
            add("ctrl_loss_tmo", &self.ctrl_loss_tmo);
            if self.fast_io_fail_tmo >= 0 {
                add("fast_io_fail_tmo", &self.fast_io_fail_tmo);
            }
        }
        if let Some(tos) = self.tos {
            add("tos", &tos);
        }
        let secrets = [
            ("dhchap_secret", &self.dhchap_secret_file),
            ("dhchap_ctrl_secret", &self.dhchap_ctrl_secret_file),
        ];
        for (key, file) in secrets {
            if let Some(file) = file {
                add(key, &secret(file)?);
            }
        }
        for (key, value) in [("tls_key", self.tls_key), ("keyring", self.keyring)] {
            if let Some(value) = value {
                add(key, &value);
            }
        }
        for (key, on) in
            [("tls", self.tls), ("hdr_digest", self.hdr_digest), ("data_digest", self.data_digest)]
        {
            if on {
                out.push(',');
                out.push_str(key);
            }
        }
        Ok(out)
    }
}

fn secret(file: &Path) -> Result<String> {
    let fail =
        |what: String| Error::new(ErrorKind::Invalid, format!("secret {}: {what}", file.display()));
    let mode = std::fs::metadata(file).map_err(|e| fail(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(fail(format!("others may read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = std::fs::read_to_string(file).map_err(|e| fail(e.to_string()))?;
    let text = text.trim();
    let sound = text.starts_with("DHHC-1:")
        && text.len() <= 256
        && text.chars().all(|c| c.is_ascii_graphic() && c != ',');
    if sound {
        Ok(text.to_owned())
    } else {
        Err(fail("it holds no key of the form DHHC-1:NN:...:".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvmeof::Transport;

    fn goal(address: &Address, discovery: bool) -> Goal<'_> {
        Goal { address, nqn: "nqn.a:b", host_traddr: None, host_iface: Some("eth0"), discovery }
    }

    fn address() -> Address {
        Address { transport: Transport::Tcp, host: "10.0.0.5".into(), port: 4420 }
    }

    #[test]
    fn the_defaults_fail_fast_and_never_give_up() {
        let host = Host { nqn: Some("nqn.h".into()), id: Some("id".into()) };
        let text = Options::default().connect_string(&goal(&address(), false), &host).unwrap();
        assert_eq!(
            text,
            "nqn=nqn.a:b,transport=tcp,traddr=10.0.0.5,trsvcid=4420,hostnqn=nqn.h,hostid=id,\
             host_iface=eth0,keep_alive_tmo=5,reconnect_delay=2,ctrl_loss_tmo=-1,fast_io_fail_tmo=5"
        );
        let text = Options::default().connect_string(&goal(&address(), true), &Host::default());
        assert_eq!(
            text.unwrap(),
            "nqn=nqn.a:b,transport=tcp,traddr=10.0.0.5,trsvcid=4420,host_iface=eth0"
        );
    }

    #[test]
    fn everything_that_is_set_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "DHHC-1:00:c2VjcmV0:\n").unwrap();
        let mode =
            |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        let options = Options {
            io_queues: Some(4),
            queue_size: Some(64),
            ctrl_loss_tmo: 60,
            fast_io_fail_tmo: -1,
            tos: Some(104),
            dhchap_secret_file: Some(key.clone()),
            dhchap_ctrl_secret_file: Some(key.clone()),
            tls: true,
            tls_key: Some(77),
            keyring: Some(78),
            hdr_digest: true,
            data_digest: true,
            ..Options::default()
        };
        options.validate().unwrap();
        let text = options.connect_string(&goal(&address(), false), &Host::default()).unwrap();
        assert!(
            text.ends_with(
                ",nr_io_queues=4,queue_size=64,keep_alive_tmo=5,reconnect_delay=2,\
             ctrl_loss_tmo=60,tos=104,\
             dhchap_secret=DHHC-1:00:c2VjcmV0:,dhchap_ctrl_secret=DHHC-1:00:c2VjcmV0:,tls_key=77,\
             keyring=78,tls,hdr_digest,data_digest"
            ),
            "{text}"
        );
        for wrong in ["", "DHHC-1:00:x,nqn=other", "password", "DHHC-1:\u{e4}"] {
            std::fs::write(&key, wrong).unwrap();
            let e = options.connect_string(&goal(&address(), false), &Host::default()).unwrap_err();
            assert!(e.message.contains("key") && !e.message.contains("other"), "{e}");
        }
        mode(0o640);
        let e = options.connect_string(&goal(&address(), false), &Host::default()).unwrap_err();
        assert!(e.message.contains("chmod"), "{e}");
    }

    #[test]
    fn contradictions_are_refused() {
        let set = |text: &str| toml::from_str::<Options>(text).unwrap().validate();
        set("").unwrap();
        for text in [
            "fast_io_fail_tmo = 20\nctrl_loss_tmo = 10",
            "reconnect_delay = 0",
            "queue_size = 4",
            "host_nqn = 'disk'",
            "host_nqn = 'nqn.a,nqn=nqn.b'",
            "host_id = '00'",
            "dhchap_ctrl_secret_file = '/x'",
        ] {
            assert!(set(text).is_err(), "{text}");
        }
        assert!(toml::from_str::<Options>("kato = 3").is_err());
    }
}
