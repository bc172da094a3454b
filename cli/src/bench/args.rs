//! The arguments of `weft bench`.

use crate::network::TransportArgs;
use crate::output::OutputArgs;
use crate::size::Size;
use std::path::PathBuf;

/// Measure a mount and the client library beside the floors of this machine
///
/// Writes and reads real files in a folder of its own, and measures in the same run what the
/// disk, the network, memory and an empty FUSE server do, so that the ratio means something.
/// Without --mount and --cluster only the floors are measured, and how fast data is encoded.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft bench --dir /tmp/weft --mount /tmp/mnt
  weft bench --mount /mnt/weft --cluster 10.0.0.1:7000 --size 8GiB --output json
  weft bench --mount /some/other/filesystem --only sequential,small")]
pub struct Args {
    /// The filesystem to measure: a mount, or any folder
    #[arg(long, value_name = "MNT")]
    pub mount: Option<PathBuf>,
    /// Metadata servers, host:port separated by commas; enables the library cases
    #[arg(long, env = "WEFT_CLUSTER", value_delimiter = ',', value_name = "ADDR,..")]
    pub cluster: Vec<String>,
    /// Folder of a weft dev cluster: its processes' CPU time is counted, and its disk is the floor
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Folder on the disk that the floors measure [default: --dir, or the temporary folder]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    #[command(flatten)]
    pub transport: TransportArgs,
    /// Size of large files
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub size: Size,
    /// Operations in each case that counts operations
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub ops: u64,
    /// Small files of each of four processes
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub files: u64,
    /// Rounds; the medians are shown
    #[arg(long, default_value_t = 3, value_name = "N", value_parser =
        clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Longest that one measurement may take, in seconds; it then counts what was done
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser =
        clap::value_parser!(u64).range(..=86_400))]
    pub limit: u64,
    /// Only these cases or figures, separated by commas, with the floors that they stand on
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    pub only: Vec<String>,
    /// Measure the client library without a mount: the cases `library` and `native_*`
    #[arg(long, conflicts_with = "only")]
    pub native: bool,
    /// Measure reads into the memory of the first GPU, and writes from there: the case `gpu`
    #[arg(long, conflicts_with_all = ["only", "native"])]
    pub gpu: bool,
    /// Do not drop the kernel's caches before cold reads
    #[arg(long)]
    pub keep_caches: bool,
    /// Show what can be measured, and measure nothing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Run one task read from standard input; what the bench starts its processes with
    #[arg(long, hide = true)]
    pub worker: bool,
}
