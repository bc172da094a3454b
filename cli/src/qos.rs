//! `weft qos`: what tenants may have of the cluster, and what they are given.

use crate::control::ClusterArgs;
use crate::output::{OutputArgs, Table, say};
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use weft_control::Group;
use weft_proto::ErrorKind;
use weft_proto::v1::{
    ListQosReply, ListQosRequest, QosLimits, QosPolicy, QosRule, SetQosRequest, TenantStat,
};

/// Share the cluster among tenants: weights, and rates that each may not exceed
///
/// A tenant is a client host, or whatever stands before the first colon of a client's name (`weft
/// mount --name`). Without any rule all tenants get the same when they want more than there is.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft qos set --client node-7 --bandwidth 1GiB/s --iops 20000
  weft qos set --default --metadata 5000/s
  weft qos set --client weft:rebuild --weight 20
  weft qos set --client node-7 --bandwidth none
  weft qos show --output json
  weft qos clear --client node-7")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Change what a tenant may have; what is not said stays as it is
    Set(SetArgs),
    /// Show the rules, and what tenants were given in the last seconds
    Show(ShowArgs),
    /// Take the rule of a tenant away
    Clear(ClearArgs),
}

/// Whose rule is meant.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct Whose {
    /// A tenant: a client host, a name given to mounts, or `weft:rebuild`
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// All tenants without a rule of their own, each for itself
    #[arg(long)]
    default: bool,
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    #[command(flatten)]
    whose: Whose,
    /// Bytes that it reads and writes a second, of all storage daemons together, or `none`
    #[arg(long, value_name = "SIZE/s", value_parser = bandwidth)]
    bandwidth: Option<Limit>,
    /// Reads and writes a second, of all storage daemons together, or `none`
    #[arg(long, value_name = "N", value_parser = rate)]
    iops: Option<Limit>,
    /// Operations a second at the metadata servers, or `none`
    #[arg(long, value_name = "N/s", value_parser = rate)]
    metadata: Option<Limit>,
    /// Its part beside others, where 100 is usual (1 to 10000), or `none`
    #[arg(long, value_name = "W", value_parser = rate)]
    weight: Option<Limit>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Debug)]
struct ClearArgs {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What an option says: so much, or that there is to be no rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    None,
    Of(u64),
}

pub async fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Set(args) => set(args).await,
        Command::Show(args) => show(args).await,
        Command::Clear(args) => clear(args).await,
    }
}

async fn set(args: SetArgs) -> Result<()> {
    let SetArgs { whose, bandwidth, iops, metadata, weight, cluster } = args;
    let said = [bandwidth, iops, metadata, weight].iter().any(Option::is_some);
    ensure!(said, "say what it may have: --bandwidth, --iops, --metadata or --weight");
    let tenant = whose.tenant();
    let mut group = Group::new(crate::network::transport(), cluster.cluster);
    let limits = |had: QosLimits| -> Result<QosLimits> {
        Ok(QosLimits {
            bandwidth: over(bandwidth, had.bandwidth),
            iops: over(iops, had.iops),
            metadata: over(metadata, had.metadata),
            weight: match over(weight, had.weight.map(u64::from)) {
                Some(weight) => Some(u32::try_from(weight).context("that is no weight")?),
                None => None,
            },
        })
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let policy = group.call(ListQosRequest {}).await.context(REFUSED)?.policy;
        let QosPolicy { version, rules } = policy.unwrap_or_default();
        let had = rules.into_iter().find(|rule| rule.tenant == tenant);
        let limits = limits(had.and_then(|rule| rule.limits).unwrap_or_default())?;
        let nothing = limits == QosLimits::default();
        let rule = QosRule { tenant: tenant.clone(), limits: (!nothing).then_some(limits) };
        match group.call(SetQosRequest { rule: Some(rule), version: Some(version) }).await {
            // Another command has changed rules meanwhile, perhaps this one.
            Err(error) if error.kind == ErrorKind::Busy && tries < TRIES => {}
            set => {
                set.context(REFUSED)?;
                return say(&format!("{}: {}", shown(&tenant), words(nothing, &limits)));
            }
        }
    }
}

async fn clear(args: ClearArgs) -> Result<()> {
    let tenant = args.whose.tenant();
    let mut group = Group::new(crate::network::transport(), args.cluster.cluster);
    let rule = QosRule { tenant: tenant.clone(), limits: None };
    group.call(SetQosRequest { rule: Some(rule), version: None }).await.context(REFUSED)?;
    say(&format!("{}: no rule any more", shown(&tenant)))
}

async fn show(args: ShowArgs) -> Result<()> {
    let mut group = Group::new(crate::network::transport(), args.cluster.cluster);
    let listed = group.call(ListQosRequest {}).await.context(REFUSED)?;
    args.output.print(&Shown::from(listed), text)
}

const REFUSED: &str = "the metadata servers refused";
/// How often a rule is made anew of what others have made of the rules.
const TRIES: u32 = 100;

impl Whose {
    /// The name in a rule; empty: the default.
    fn tenant(&self) -> String {
        self.client.clone().unwrap_or_default()
    }
}

/// What is said now, over what was said before.
fn over(now: Option<Limit>, before: Option<u64>) -> Option<u64> {
    match now {
        Some(Limit::Of(limit)) => Some(limit),
        Some(Limit::None) => None,
        None => before,
    }
}

/// Bytes a second.
fn bandwidth(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let size: Size = text.strip_suffix("/s").unwrap_or(text).trim_end().parse()?;
    Ok(Limit::Of(size.0))
}

/// Things a second.
fn rate(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let number = text.strip_suffix("/s").unwrap_or(text).trim_end().parse();
    number.map(Limit::Of).map_err(|_| format!("{text:?} is no number such as 5000, nor `none`"))
}

fn shown(tenant: &str) -> &str {
    if tenant.is_empty() { "(default)" } else { tenant }
}

fn words(nothing: bool, limits: &QosLimits) -> String {
    if nothing {
        return "no rule any more".into();
    }
    let [bandwidth, iops, metadata, weight] = cells(limits);
    let all = [("", bandwidth), ("IOPS ", iops), ("metadata ", metadata), ("weight ", weight)];
    let said = all.iter().filter(|(_, cell)| *cell != "-");
    said.map(|(what, cell)| format!("{what}{cell}")).collect::<Vec<_>>().join(", ")
}

fn cells(limits: &QosLimits) -> [String; 4] {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    [
        limits.bandwidth.map_or("-".to_owned(), |bytes| format!("{}/s", Size(bytes).exact())),
        number(limits.iops),
        limits.metadata.map_or("-".to_owned(), |n| format!("{n}/s")),
        number(limits.weight.map(u64::from)),
    ]
}

/// As scripts see it.
#[derive(Serialize)]
struct Shown {
    version: u64,
    rules: Vec<Rule>,
    /// A second, of late: at storage daemons, and at the metadata leader.
    storage: Vec<Given>,
    metadata: Vec<Given>,
}

#[derive(Serialize)]
struct Rule {
    /// Absent: the default.
    tenant: Option<String>,
    bandwidth: Option<u64>,
    iops: Option<u64>,
    metadata: Option<u64>,
    weight: Option<u32>,
}

/// What a tenant was given, each second.
#[derive(Serialize)]
struct Given {
    tenant: String,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// Microseconds that all of its requests waited in a second: for others, and for its own rate.
    shared_us: u64,
    paced_us: u64,
}

impl From<ListQosReply> for Shown {
    fn from(listed: ListQosReply) -> Self {
        let QosPolicy { version, rules } = listed.policy.unwrap_or_default();
        let all = |of: Vec<TenantStat>| of.into_iter().map(Given::from).collect();
        Self {
            version,
            rules: rules.into_iter().map(Rule::from).collect(),
            storage: all(listed.served),
            metadata: all(listed.metadata),
        }
    }
}

impl From<QosRule> for Rule {
    fn from(rule: QosRule) -> Self {
        let QosLimits { bandwidth, iops, metadata, weight } = rule.limits.unwrap_or_default();
        let tenant = Some(rule.tenant).filter(|name| !name.is_empty());
        Self { tenant, bandwidth, iops, metadata, weight }
    }
}

impl From<TenantStat> for Given {
    fn from(stat: TenantStat) -> Self {
        let TenantStat { tenant, requests, read_bytes, written_bytes, shared_us, paced_us } = stat;
        Self { tenant, requests, read_bytes, written_bytes, shared_us, paced_us }
    }
}

fn text(shown: &Shown) -> String {
    let mut rules = Table::new(&["TENANT", "BANDWIDTH", "IOPS", "METADATA", "WEIGHT"]);
    for rule in &shown.rules {
        let Rule { bandwidth, iops, metadata, weight, .. } = *rule;
        let name = self::shown(rule.tenant.as_deref().unwrap_or_default()).to_owned();
        let cells = cells(&QosLimits { bandwidth, iops, metadata, weight });
        rules.row([name].into_iter().chain(cells));
    }
    let mut given =
        Table::new(&["TENANT", "READ/S", "WRITTEN/S", "IOPS", "WAITED", "PACED", "METADATA/S"]);
    // Of a mean request.
    let wait = |us: u64, requests: u64| format!("{} us", us / requests.max(1));
    let none = Given::from(TenantStat::default());
    for of in &shown.storage {
        let metadata = shown.metadata.iter().find(|m| m.tenant == of.tenant).unwrap_or(&none);
        given.row([
            of.tenant.clone(),
            Size(of.read_bytes).to_string(),
            Size(of.written_bytes).to_string(),
            of.requests.to_string(),
            wait(of.shared_us, of.requests),
            wait(of.paced_us, of.requests),
            metadata.requests.to_string(),
        ]);
    }
    let only = |m: &&Given| shown.storage.iter().all(|of| of.tenant != m.tenant);
    for of in shown.metadata.iter().filter(only) {
        let dash = || "-".to_owned();
        let name = of.tenant.clone();
        let waits = [wait(of.shared_us, of.requests), wait(of.paced_us, of.requests)];
        let [waited, paced] = waits;
        given.row([name, dash(), dash(), dash(), waited, paced, of.requests.to_string()]);
    }
    let rules = match shown.rules.is_empty() {
        true => "No rules: tenants share what there is in equal parts.\n".to_owned(),
        false => rules.render(""),
    };
    format!("{rules}\nIn the last seconds:\n{}", given.render("  "))
}

#[cfg(test)]
mod tests;
