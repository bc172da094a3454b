//! `include/weft.h` is what cbindgen makes of the sources.

use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// Set, it writes the header anew.
const BLESS: &str = "WEFT_BLESS";

#[test]
fn the_header_is_that_of_the_sources() -> Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = dir.join("include/weft.h");
    let config = cbindgen::Config::from_root_or_default(dir);
    let bindings = cbindgen::Builder::new().with_crate(dir).with_config(config).generate()?;
    if std::env::var_os(BLESS).is_some() {
        bindings.write_to_file(&path);
    }
    let made = tempfile::NamedTempFile::new()?;
    bindings.write_to_file(made.path());
    let diff = Command::new("diff").arg("-u").arg(&path).arg(made.path()).output()?;
    ensure!(
        diff.status.success(),
        "{} is not what the sources say: run `{BLESS}=1 cargo test -p weft-c --test header`\n{}",
        path.display(),
        String::from_utf8_lossy(&diff.stdout)
    );
    Ok(())
}
