//! Asks the leader for its overview, on the port and with the certificate of all else.

use crate::network::transport;
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use weft_control::{Overview, problems, statuses};
use weft_net::Address;
use weft_proto::Role;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the longest answer.
const LONGEST: u64 = 8 << 20;

/// What was answered, and who by.
pub struct Seen {
    pub overview: Overview,
    pub from: String,
}

/// Asks the server that led last, or those that are known, until one leads. Without a leader the
/// answer says what is wrong. Errors: none of them answers as it should.
pub async fn ask(cluster: &[String], leader: &mut Option<String>) -> Result<Seen> {
    let mut to_ask: Vec<String> =
        leader.take().into_iter().chain(cluster.iter().cloned()).collect();
    let (mut asked, mut led, mut failed) = (Vec::new(), None, None);
    to_ask.reverse();
    while let Some(address) = to_ask.pop() {
        if asked.contains(&address) {
            continue;
        }
        match ask_one(&address).await {
            Ok(overview) if overview.leads => {
                *leader = Some(address.clone());
                return Ok(Seen { overview, from: address });
            }
            Ok(overview) => {
                let next = Some(overview.leader.clone()).filter(|next| !next.is_empty());
                to_ask.extend(next);
                led = Some((overview, address.clone()));
            }
            Err(error) => failed = Some(error),
        }
        asked.push(address);
    }
    // Some answer, and none leads; or none answers at all.
    let answers = statuses(&transport(), cluster).await;
    let told = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let leads = told().find(|reply| reply.id != 0 && reply.leader == reply.id);
    match (led, failed) {
        // It leads, and does not show itself.
        (_, Some(error)) if leads.is_some() => Err(error),
        (None, Some(error)) if told().next().is_some() => Err(error),
        (led, _) => {
            let (mut overview, from) = led.unwrap_or_default();
            overview.health = "unknown".into();
            overview.problems = problems(leads, Some(&answers));
            Ok(Seen { overview, from })
        }
    }
}

async fn ask_one(address: &str) -> Result<Overview> {
    let asked = timeout(TIMEOUT, get(address, "/console/data.json")).await;
    let body = asked.with_context(|| format!("{address} does not answer"))??;
    serde_json::from_slice(&body).with_context(|| format!("{address} answers what is not read"))
}

/// The body of a page of a metadata server.
async fn get(address: &str, path: &str) -> Result<Vec<u8>> {
    let to: Address = address.parse().with_context(|| format!("{address:?} is no address"))?;
    let stream = transport().stream(&to).await;
    let mut stream = stream.with_context(|| format!("metadata server {address}"))?;
    if let Some(subject) = stream.subject() {
        ensure!(
            subject.role == Role::Metadata,
            "{address}: its certificate is that of {subject}, and no metadata server's"
        );
    }
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let read = stream.take(LONGEST).read_to_end(&mut answer).await;
    if answer.is_empty() {
        read.ok();
        bail!(
            "{address} closes the connection without an answer: it may want a certificate \
             (--tls-ca, --tls-cert, --tls-key), and one that is not confined to a part of the \
             filesystem"
        );
    }
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.with_context(|| format!("{address} answers what is no HTTP"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default().to_owned();
    match &status[..] {
        "200" => Ok(answer.split_off(end + 4)),
        "404" => bail!("{address} is of a version without a console, or no metadata server"),
        _ => bail!("{address} answers HTTP {status}"),
    }
}
