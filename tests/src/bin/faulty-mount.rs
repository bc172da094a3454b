//! Serves a mount with a fault, for `tests/model.rs`: `faulty-mount CLUSTER FOLDER FAULT`.

use anyhow::{Result, bail};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [cluster, at, fault] => weft_tests::model::faulty::serve(cluster, Path::new(at), fault),
        _ => bail!("faulty-mount CLUSTER FOLDER FAULT"),
    }
}
