//! What the environment of a process says about how others are reached.

use crate::rdma::{RdmaOptions, rdma};
use crate::stream::tcp::{tcp, tcp_on_loopback, tls};
use crate::tls::{Credentials, TlsFiles};
use crate::transport::Transport;
use std::str::FromStr;
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, Result};

/// What the environment asks for: TLS with the files that [`TlsFiles::from_env`] finds; without
/// any, this machine alone, unless `WEFT_INSECURE` is `1` or `true`; then RDMA, too, if
/// `WEFT_TRANSPORT` is `rdma`, with `WEFT_RDMA_TRAFFIC_CLASS` and `WEFT_RDMA_BUSY_POLL`
/// ([`RdmaOptions`]). Errors: `Invalid`, also where there is no RDMA.
pub fn from_env() -> Result<Arc<dyn Transport>> {
    let says =
        |name: &str, what: &[&str]| std::env::var(name).is_ok_and(|value| what.contains(&&*value));
    let over_rdma = says("WEFT_TRANSPORT", &["rdma"]);
    if let Some(files) = TlsFiles::from_env()? {
        if over_rdma {
            let what =
                "WEFT_TRANSPORT=rdma: RDMA is not encrypted, and not to be had with certificates";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        return Ok(tls(Credentials::load(files)?));
    }
    let insecure = says("WEFT_INSECURE", &["1", "true"]);
    let streams = if insecure { tcp() } else { tcp_on_loopback() };
    if !over_rdma {
        return Ok(streams);
    }
    let options = RdmaOptions {
        traffic_class: number("WEFT_RDMA_TRAFFIC_CLASS")?,
        busy_poll_us: number("WEFT_RDMA_BUSY_POLL")?.unwrap_or_default(),
        ..RdmaOptions::default()
    };
    rdma(streams, options)
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("WEFT_TRANSPORT=rdma: {e}")))
}

fn number<N: FromStr>(name: &str) -> Result<Option<N>> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    let number = value.to_str().and_then(|value| value.parse().ok());
    let wrong = || Error::new(ErrorKind::Invalid, format!("{name}={value:?} is not such a number"));
    number.map(Some).ok_or_else(wrong)
}
