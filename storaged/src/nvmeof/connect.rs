//! Makes and ends one connection.

use super::options::Goal;
use super::remote::Address;
use super::{Host, Options, Remote, Roots, controllers};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use weft_proto::{Error, ErrorKind, Result};

/// Connects to the subsystem of `remote` at one of its addresses, and answers the controller's
/// name; `None` when that connection is there already. Blocks until the target answered or the
/// kernel gave up (a minute or more for an address where nobody is). Errors: `NotSupported` without
/// the kernel's initiator, `NotPermitted`, `Unavailable` when the target cannot be reached,
/// `Invalid` when kernel or target refuses.
pub fn connect(
    roots: &Roots,
    remote: &Remote,
    address: &Address,
    options: &Options,
) -> Result<Option<String>> {
    let ip = address.resolve()?;
    if controllers(roots).iter().any(|c| !c.is_going() && c.is_to(address, ip, &remote.nqn)) {
        return Ok(None);
    }
    let goal = Goal {
        address,
        nqn: &remote.nqn,
        host_traddr: remote.host_traddr.as_deref(),
        host_iface: remote.host_iface.as_deref(),
        discovery: false,
    };
    let host = Host::of(options.host_nqn.as_ref(), options.host_id.as_ref(), roots);
    match open(roots, &options.connect_string(&goal, &host)?, &goal) {
        Ok(name) => {
            tracing::info!(controller = name, nqn = remote.nqn, %address, "connected");
            Ok(Some(name))
        }
        Err(e) if e.kind == ErrorKind::Exists => Ok(None), // somebody else was quicker
        Err(e) => Err(e),
    }
}

/// Ends all connections to a subsystem and answers how many there were. Devices that are open
/// answer every request with an error from then on.
pub fn disconnect(roots: &Roots, nqn: &str) -> Result<usize> {
    let mut ended = 0;
    for controller in controllers(roots).iter().filter(|c| c.nqn == nqn && c.transport != "pcie") {
        delete(roots, &controller.name).map_err(|e| {
            Error::new(ErrorKind::Io, format!("disconnecting {} ({nqn}): {e}", controller.name))
        })?;
        ended += 1;
    }
    Ok(ended)
}

/// A connection that ends when this is dropped.
pub(super) struct Kept<'a> {
    roots: &'a Roots,
    name: String,
}

impl<'a> Kept<'a> {
    pub fn new(roots: &'a Roots, name: String) -> Self {
        Self { roots, name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Err(e) = delete(self.roots, &self.name) {
            tracing::warn!("disconnecting {}: {e}", self.name);
        }
    }
}

fn delete(roots: &Roots, name: &str) -> io::Result<()> {
    std::fs::write(roots.sys.join("class/nvme").join(name).join("delete_controller"), "1")
}

/// Hands the kernel a connect string and answers the new controller's name.
pub(super) fn open(roots: &Roots, string: &str, goal: &Goal<'_>) -> Result<String> {
    let path = roots.dev.join("nvme-fabrics");
    let what = format!("connecting to {} at {}", goal.nqn, goal.address);
    let device = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|e| no_initiator(&path, goal, &e))?;
    let said = exchange(device, string).map_err(|e| explain(&what, goal, &e))?;
    instance(&said).map(|n| format!("nvme{n}")).ok_or_else(|| {
        Error::new(ErrorKind::Protocol, format!("{what}: the kernel answered {said:?}"))
    })
}

fn exchange(mut device: impl Read + Write, string: &str) -> io::Result<String> {
    // One write: the kernel takes the string as a whole and connects before it returns.
    let written = device.write(string.as_bytes())?;
    if written != string.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut answer = [0; 256];
    let len = device.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..len]).trim().to_owned())
}

/// The number in `instance=N,cntlid=M`.
fn instance(said: &str) -> Option<u32> {
    said.split(',').find_map(|f| f.strip_prefix("instance=")?.parse().ok())
}

fn no_initiator(path: &Path, goal: &Goal<'_>, e: &io::Error) -> Error {
    let module = goal.address.transport.modules();
    let (kind, advice) = match e.kind() {
        io::ErrorKind::NotFound => {
            (ErrorKind::NotSupported, format!("load the kernel's initiator: modprobe {module}"))
        }
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::NotPermitted, "connecting needs root (CAP_SYS_ADMIN)".into())
        }
        _ => (ErrorKind::Io, "the kernel's initiator does not work".into()),
    };
    Error::new(kind, format!("{}: {e}; {advice}", path.display()))
}

/// What an error number of the kernel means here.
fn explain(what: &str, goal: &Goal<'_>, e: &io::Error) -> Error {
    let (kind, advice) = match e.raw_os_error() {
        Some(libc::EALREADY) => (ErrorKind::Exists, "it is connected already".into()),
        Some(libc::ECONNREFUSED) => {
            (ErrorKind::Unavailable, "nobody listens there: check the port and the target".into())
        }
        Some(
            libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ECONNRESET
            | libc::EIO
            | libc::EPIPE
            | libc::ENOTCONN
            | libc::EAGAIN,
        ) => {
            (ErrorKind::Unavailable, "it does not answer: check address, link and firewall".into())
        }
        Some(libc::EINVAL) => (
            ErrorKind::Invalid,
            format!(
                "the kernel or the target refused: check the NQN, whether this host may connect, \
                 and \
                 that {} is loaded (dmesg says more)",
                goal.address.transport.modules()
            ),
        ),
        Some(libc::EACCES | libc::EKEYREJECTED | libc::ENOKEY | libc::EPERM) => (
            ErrorKind::AccessDenied,
            "authentication failed: check the secrets or the TLS key".into(),
        ),
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => (
            ErrorKind::Unavailable,
            "no device of this host leads there: check routes and host_iface".into(),
        ),
        // A positive NVMe status of the Connect command comes out as a strange number.
        _ => (ErrorKind::Unavailable, "dmesg says more".into()),
    };
    Error::new(kind, format!("{what}: {e}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvmeof::Transport;
    use crate::nvmeof::sysfs::tests::tree;

    /// Takes one string and answers with another, as the kernel's device does.
    struct Kernel {
        heard: Vec<u8>,
        answer: &'static [u8],
    }

    impl Write for &mut Kernel {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.heard.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for &mut Kernel {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            (&self.answer[..]).read(into)
        }
    }

    #[test]
    fn the_kernel_is_asked_in_one_piece_and_its_answer_is_read() {
        let mut kernel = Kernel { heard: Vec::new(), answer: b"instance=12,cntlid=3\n" };
        let said = exchange(&mut kernel, "nqn=a,transport=tcp").unwrap();
        assert_eq!(kernel.heard, b"nqn=a,transport=tcp");
        assert_eq!(instance(&said), Some(12));
        for garbage in ["", "instance=", "instance=-1", "cntlid=3", "\u{fffd}"] {
            assert_eq!(instance(garbage), None);
        }
    }

    #[test]
    fn without_an_initiator_it_says_which_module_to_load() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        let remote: Remote = "nvme-rdma://127.0.0.1/nqn.a".parse().unwrap();
        let e = connect(&roots, &remote, &remote.addresses[0], &Options::default()).unwrap_err();
        assert_eq!(e.kind, ErrorKind::NotSupported);
        assert!(e.message.contains("modprobe nvme-rdma"), "{e}");
        assert_eq!(remote.transport(), Transport::Rdma);
    }

    #[test]
    fn a_connection_that_is_there_is_not_made_again_and_can_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        tree(
            dir.path(),
            &[
                ("sys/class/nvme/nvme0/subsysnqn", "nqn.a"),
                ("sys/class/nvme/nvme0/transport", "tcp"),
                ("sys/class/nvme/nvme0/address", "traddr=127.0.0.1,trsvcid=4420"),
                ("sys/class/nvme/nvme0/state", "connecting"),
                ("sys/class/nvme/nvme1/subsysnqn", "nqn.a"),
                ("sys/class/nvme/nvme1/transport", "pcie"),
                ("sys/class/nvme/nvme1/state", "live"),
            ],
        );
        let remote: Remote = "nvme-tcp://127.0.0.1,127.0.0.2/nqn.a".parse().unwrap();
        let connect =
            |i: usize| connect(&roots, &remote, &remote.addresses[i], &Options::default());
        assert_eq!(connect(0).unwrap(), None);
        assert_eq!(
            connect(1).unwrap_err().kind,
            ErrorKind::NotSupported,
            "the other path is tried"
        );
        assert_eq!(disconnect(&roots, "nqn.a").unwrap(), 1, "a local drive is left alone");
        let deleted =
            |c: &str| dir.path().join(format!("sys/class/nvme/{c}/delete_controller")).exists();
        assert!(deleted("nvme0") && !deleted("nvme1"));
    }
}
