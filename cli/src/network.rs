//! How this process reaches others: with certificates, or without where that is safe or was asked
//! for by name.

use crate::output::describe;
use anyhow::{Context, Result, ensure};
use clap::builder::BoolishValueParser;
use parking_lot::RwLock;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_net::{
    Credentials, RdmaOptions, TlsFiles, Transport, rdma, rdma_if_there, tcp, tcp_on_loopback, tls,
};
use weft_proto::Role;

/// Who this process is to others, and who they are to it.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Security")]
pub struct NetworkArgs {
    /// Certificates of the authorities that are trusted; with --tls-cert and --tls-key, every
    /// connection is encrypted, and both of its ends prove who they are
    #[arg(long, global = true, env = "WEFT_TLS_CA", value_name = "FILE")]
    #[arg(requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// Certificate of this process
    #[arg(long, global = true, env = "WEFT_TLS_CERT", value_name = "FILE")]
    #[arg(requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate, which nobody else may read
    #[arg(long, global = true, env = "WEFT_TLS_KEY", value_name = "FILE")]
    #[arg(requires_all = ["tls_ca", "tls_cert"])]
    tls_key: Option<PathBuf>,
    /// What the authorities have revoked [default: crl.pem beside --tls-ca, if there is one]
    #[arg(long, global = true, env = "WEFT_TLS_CRL", value_name = "FILE")]
    tls_crl: Option<PathBuf>,
    /// Go without certificates to and from other machines, too: only where the network keeps
    /// strangers out
    #[arg(long, global = true, env = "WEFT_INSECURE", value_parser = BoolishValueParser::new())]
    insecure: bool,
}

/// What connections go over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// TCP, encrypted where there are certificates
    #[default]
    Tcp,
    /// RDMA wherever both sides have it, and TCP elsewhere
    Rdma,
}

/// What the connections of a process that moves data go over.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "RDMA")]
pub struct TransportArgs {
    /// What data and requests cross. RDMA is not encrypted: it is not to be had with certificates
    #[arg(long, env = "WEFT_TRANSPORT", value_enum, default_value_t)]
    transport: Kind,
    /// Traffic class of RoCE's packets, by which switches know them [default: the system's]
    #[arg(long, env = "WEFT_RDMA_TRAFFIC_CLASS", value_name = "0-255")]
    rdma_traffic_class: Option<u8>,
    /// Busy-poll the completion queues so long before waiting for an event: less latency, for the
    /// time of a core or two
    #[arg(
        long,
        env = "WEFT_RDMA_BUSY_POLL",
        value_name = "MICROSECONDS",
        default_value_t,
        value_parser = clap::value_parser!(u32).range(..=i64::from(RdmaOptions::MAX_BUSY_POLL_US))
    )]
    rdma_busy_poll: u32,
}

/// The same for a daemon, which goes over TCP where there is no RDMA.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "RDMA")]
pub struct DaemonTransportArgs {
    #[command(flatten)]
    transport: TransportArgs,
    /// Where it is reached with --transport rdma, an address for each card [default: where it
    /// listens]
    #[arg(long, env = "WEFT_RDMA_ADDRESSES", value_name = "IP,...", value_delimiter = ',')]
    rdma_addresses: Vec<IpAddr>,
}

/// How others are reached.
#[derive(Clone)]
struct Network {
    transport: Arc<dyn Transport>,
    files: Option<TlsFiles>,
    insecure: bool,
    rdma: Option<RdmaOptions>,
}

static NETWORK: RwLock<Option<Network>> = RwLock::new(None);

impl NetworkArgs {
    fn files(self) -> Result<Option<TlsFiles>> {
        match (self.tls_ca, self.tls_cert, self.tls_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                let absolute = |path: PathBuf| {
                    std::path::absolute(&path).with_context(|| format!("{}", path.display()))
                };
                let crl = self.tls_crl.map(absolute).transpose()?;
                let (ca, cert, key) = (absolute(ca)?, absolute(cert)?, absolute(key)?);
                Ok(Some(TlsFiles { ca, cert, key, crl }))
            }
            _ => anyhow::bail!("--tls-ca, --tls-cert and --tls-key go together: give all three"),
        }
    }

    /// Has this process speak so from now on. Files that do not read are told of when somebody is
    /// to be reached.
    pub fn set(self) -> Result<()> {
        let insecure = self.insecure;
        let files = self.files()?;
        *NETWORK.write() = Some(Network::new(files, insecure, None, Missing::Refuse)?);
        Ok(())
    }
}

impl TransportArgs {
    /// The options that have another process of this program do the same.
    pub fn options(&self) -> Vec<String> {
        let class = self.rdma_traffic_class.map(|class| format!("--rdma-traffic-class={class}"));
        let rdma = (self.transport == Kind::Rdma).then(|| "--transport=rdma".to_owned());
        let poll = self.rdma_busy_poll;
        let poll = (poll > 0).then(|| format!("--rdma-busy-poll={poll}"));
        rdma.into_iter().chain(class).chain(poll).collect()
    }

    /// Has this process go over RDMA from now on, if that was asked for. Error: what it lacks.
    pub fn set(self) -> Result<()> {
        self.set_for(Vec::new(), Missing::Refuse)
    }

    fn set_for(self, addresses: Vec<IpAddr>, missing: Missing) -> Result<()> {
        if self.transport == Kind::Tcp {
            return Ok(());
        }
        let mut network = NETWORK.write();
        let (files, insecure) = match network.as_ref() {
            Some(network) => (network.files.clone(), network.insecure),
            None => (None, false),
        };
        let (traffic_class, busy_poll_us) = (self.rdma_traffic_class, self.rdma_busy_poll);
        let options =
            RdmaOptions { addresses, traffic_class, busy_poll_us, ..RdmaOptions::default() };
        *network = Some(Network::new(files, insecure, Some(options), missing)?);
        Ok(())
    }
}

impl DaemonTransportArgs {
    /// Has this process go over RDMA from now on, if that was asked for and is there.
    pub fn set(self) {
        if let Err(error) = self.transport.set_for(self.rdma_addresses, Missing::FallBack) {
            tracing::error!("goes over TCP until it is started anew: {}", describe(&error));
        }
    }
}

/// What to do on a machine without RDMA.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    FallBack,
}

impl Network {
    fn new(
        files: Option<TlsFiles>,
        insecure: bool,
        options: Option<RdmaOptions>,
        missing: Missing,
    ) -> Result<Self> {
        let streams = match &files {
            Some(files) => tls(Credentials::load(files.clone())?),
            None if insecure => tcp(),
            None => tcp_on_loopback(),
        };
        let transport = match &options {
            None => streams,
            Some(_) if files.is_some() => anyhow::bail!(
                "RDMA is not encrypted, so that it is not to be had with certificates: leave \
                 --transport and [rdma] out"
            ),
            Some(options) if missing == Missing::FallBack => {
                rdma_if_there(streams, options.clone())
            }
            Some(options) => rdma(streams, options.clone())
                .context("no RDMA here: see weft doctor, or go over TCP")?,
        };
        Ok(Self { transport, files, insecure, rdma: options })
    }
}

/// For who has nothing to prove to those who come: this machine alone, unless it was said that
/// strangers are kept out.
pub fn without_certificates() -> Arc<dyn Transport> {
    match NETWORK.read().as_ref().is_some_and(|network| network.insecure) {
        true => tcp(),
        false => tcp_on_loopback(),
    }
}

/// The way to others.
pub fn transport() -> Arc<dyn Transport> {
    let network = NETWORK.read();
    network.as_ref().map_or_else(tcp_on_loopback, |network| network.transport.clone())
}

/// Whether certificates were named, on the command line or in the environment.
pub fn has_certificates() -> bool {
    NETWORK.read().as_ref().is_some_and(|network| network.files.is_some())
}

/// Has this process show these from now on.
pub fn show(files: TlsFiles) -> Result<()> {
    let mut network = NETWORK.write();
    let now = network.as_ref().map(|network| (network.insecure, network.rdma.clone()));
    let (insecure, rdma) = now.unwrap_or_default();
    *network = Some(Network::new(Some(files), insecure, rdma, Missing::Refuse)?);
    Ok(())
}

/// The options that have another process of this program speak as this one does.
pub fn options() -> Vec<String> {
    let network = NETWORK.read();
    let Some(network) = network.as_ref() else { return Vec::new() };
    let mut options = network.files.as_ref().map(options_of).unwrap_or_default();
    options.extend(network.insecure.then(|| "--insecure".into()));
    options
}

/// The environment that has another process of this program speak as this one does.
pub fn environment() -> Vec<(OsString, OsString)> {
    let network = NETWORK.read();
    let Some(network) = network.as_ref() else { return Vec::new() };
    let mut environment: Vec<(OsString, OsString)> = Vec::new();
    if let Some(files) = &network.files {
        let mut name = |name: &str, path: &Path| environment.push((name.into(), path.into()));
        name("WEFT_TLS_CA", &files.ca);
        name("WEFT_TLS_CERT", &files.cert);
        name("WEFT_TLS_KEY", &files.key);
        files.crl.iter().for_each(|crl| name("WEFT_TLS_CRL", crl));
    }
    environment.extend(network.insecure.then(|| ("WEFT_INSECURE".into(), "1".into())));
    environment.extend(network.rdma.iter().flat_map(environment_of));
    environment
}

/// The environment that has a process go over RDMA so.
fn environment_of(rdma: &RdmaOptions) -> Vec<(OsString, OsString)> {
    let mut environment = vec![("WEFT_TRANSPORT".into(), "rdma".into())];
    let class = rdma.traffic_class.map(|class| class.to_string().into());
    environment.extend(class.map(|class| ("WEFT_RDMA_TRAFFIC_CLASS".into(), class)));
    let poll = (rdma.busy_poll_us > 0).then(|| rdma.busy_poll_us.to_string().into());
    environment.extend(poll.map(|poll| ("WEFT_RDMA_BUSY_POLL".into(), poll)));
    environment
}

/// The options that have a process show these.
pub fn options_of(files: &TlsFiles) -> Vec<String> {
    let option = |name: &str, path: &PathBuf| format!("--tls-{name}={}", path.display());
    let mut options =
        vec![option("ca", &files.ca), option("cert", &files.cert), option("key", &files.key)];
    options.extend(files.crl.as_ref().map(|crl| option("crl", crl)));
    options
}

/// The way of a daemon: by what its configuration names, else as for any process. Refuses the
/// certificate of somebody else.
pub fn serving(
    files: Option<&TlsFiles>,
    insecure: bool,
    rdma: Option<&RdmaOptions>,
    role: Role,
    name: &str,
) -> Result<Arc<dyn Transport>> {
    let shared = NETWORK.read().clone();
    let files = files.cloned().or_else(|| shared.as_ref()?.files.clone());
    let insecure = insecure || shared.as_ref().is_some_and(|network| network.insecure);
    let rdma = match (rdma.cloned(), shared.and_then(|network| network.rdma)) {
        (Some(own), Some(shared)) => Some(own.or(&shared)),
        (own, shared) => own.or(shared),
    };
    // A card that is not there must not keep a daemon from serving.
    let missing = Missing::FallBack;
    let Some(files) = files else {
        return Ok(Network::new(None, insecure, rdma, missing)?.transport);
    };
    let credentials = Credentials::load(files.clone())?;
    let subject = credentials.subject();
    ensure!(
        subject.role == role && subject.name == name,
        "{} is the certificate of {subject}, and this is {role} {name}: issue one with \
         weft ca issue --role {role} --name {name}",
        files.cert.display()
    );
    Ok(Network::new(Some(files), insecure, rdma, missing)?.transport)
}
