//! The console: a page for browsers on the port of the metadata leader, and the answer that it asks
//! for every few seconds. Read-only. Others send a browser on to the leader.
//!
//! Who reads it is decided where all pages are ([`weft_control::serve_pages`]): nobody whose
//! certificate is confined to a part. Of the others only who may ask for it elsewhere sees names:
//! admins those of tenants, and admins and clients those of directories and what has happened.

mod paths;
mod web;

use crate::control::ControlService;
use crate::counted::lacking;
use paths::Paths;
use std::sync::LazyLock;
use tokio::time::Instant;
use weft_control::{Answer, Directory, Overview, Page, Reader};
use weft_proto::{InodeId, Result, Role, v1};

/// Directories that are shown, and events.
const DIRECTORIES: usize = 12;
const EVENTS: usize = 50;

/// Where a browser finds the page.
const PAGE: &str = "/console";

/// What somebody wants of the console.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    Page,
    Data,
}

/// Whether a path is the console's.
pub(crate) fn asked(path: &str) -> Option<Asked> {
    match path {
        "/" | PAGE | "/console/" => Some(Asked::Page),
        "/console/data.json" => Some(Asked::Data),
        _ => None,
    }
}

/// The page, or what it shows. Runs beside the log's own thread.
pub(crate) async fn answer(
    control: &ControlService,
    asked: Asked,
    reader: Reader,
) -> Option<Answer> {
    let node = control.node();
    if asked == Asked::Page {
        let elsewhere = node.view().leader.filter(|leader| *leader != node.config.id);
        let address = elsewhere.and_then(|leader| node.address_of(leader));
        return Some(match address {
            Some(address) => Answer::Elsewhere { address, path: PAGE },
            None => Answer::Page(web::page()),
        });
    }
    let this = control.clone();
    let made = node.env.blocking(move || overview(&this, reader)).await;
    let made =
        made.inspect_err(|error| tracing::error!("the console has no data: {error}")).ok()?;
    let body = serde_json::to_vec(&made).ok()?.into();
    Some(Answer::Page(Page { content_type: "application/json", body, policy: None }))
}

fn overview(control: &ControlService, reader: Reader) -> Result<Overview> {
    /// Where directories were found the last time.
    static KNOWN: LazyLock<parking_lot::Mutex<Paths>> = LazyLock::new(Default::default);
    let (node, now) = (control.node(), Instant::now());
    let (served, metadata) = node.sharing.served(now);
    let served = v1::ListQosReply { policy: None, served, metadata };
    let (lost_groups, bare_groups) = if node.view().ready { lacking(node) } else { (0, 0) };
    let status = v1::StatusReply { lost_groups, bare_groups, ..control.status_uncounted() };
    let mut all = Overview::of(&status, &served);
    if !all.leads {
        return Ok(all);
    }
    if reader.may_be(&[Role::Admin]) {
        all.show_tenants(&served);
    }
    if reader.may_be(&[Role::Admin, Role::Client]) {
        let (events, _) = node.state.events(0, EVENTS, EVENTS as u64)?;
        all.show_events(&events);
        let mut known = KNOWN.lock();
        let rows = node.hot.rates(now, DIRECTORIES).into_iter().map(|(dir, requests_per_s)| {
            let path = known.of(&node.state, InodeId(dir));
            Directory { path, requests_per_s }
        });
        all.directories = Some(rows.collect());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_beside_the_console_is_the_consoles() {
        assert_eq!(asked("/"), Some(Asked::Page));
        assert_eq!(asked("/console/data.json"), Some(Asked::Data));
        for other in ["/metrics", "/console/../etc", "//", "/console/x", "", "/Console"] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
