//! What all subcommands are told.

use std::path::PathBuf;

/// Which authority.
#[derive(clap::Args, Debug)]
pub struct DirArgs {
    /// Folder of the authority
    #[arg(long, value_name = "DIR", env = "WEFT_CA_DIR")]
    pub dir: PathBuf,
}
