//! What `weft mount` is asked for.

use super::options::{
    MountOptions, TRACE_RATIO, hot_dir, hot_size, io_uring, mount_options, ratio, yes_or_no,
};
use super::spec::subdir;
use crate::collector::CollectorArgs;
use crate::control::ClusterArgs;
use crate::network::TransportArgs;
use crate::size::Size;
use std::net::SocketAddr;
use std::path::PathBuf;
use weft_fuse::IoUring;

/// Mount a cluster; returns when the mount is usable
///
/// The mount is served by a background process, which ends when it is unmounted.
#[derive(clap::Args, Clone, Debug)]
#[command(mut_arg("cluster", |arg| arg.required(false).required_unless_present("takeover")))]
#[command(after_help = "Examples:
  weft mount --cluster 10.0.0.1:7100,10.0.0.2:7100,10.0.0.3:7100 /datasets
  weft umount /datasets
  weft mount --supervise --cluster 10.0.0.1:7100 /datasets  # comes back when its process dies
  weft mount --cluster 10.0.0.1:7100 --subdir /team-a /team-a  # a folder of it
  weft mount -o suid,dev --cluster 10.0.0.1:7100 /srv/root  # set-user-id programs, device nodes
  weft mount --hot /nvme/weft --hot-size 2TiB --cluster 10.0.0.1:7100 /datasets  # kept here, too
  weft mount --foreground --cluster 127.0.0.1:7100 /mnt     # for a service manager
  weft mount --takeover /datasets  # this version goes on with the mount; programs notice nothing")]
pub struct Args {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Where to mount: an empty folder
    #[arg(value_name = "MNT")]
    pub mount_point: PathBuf,
    /// Mount this folder of the filesystem, which has to be there, and not all of it
    #[arg(long, value_name = "PATH", value_parser = subdir)]
    pub subdir: Option<String>,
    /// What the table of mounts shows as its source
    #[arg(long, hide = true)]
    pub source: Option<String>,
    /// Serve the mount in this process instead of a background one; ends on SIGTERM or unmount
    #[arg(long)]
    pub foreground: bool,
    /// Go on with a mount in place of the process that serves it, with the settings it was mounted
    /// with: for a new version of this program. Open files, locks and mappings stay as they are
    #[arg(long)]
    pub takeover: bool,
    /// Mount over a folder that is not empty; what it holds is hidden meanwhile
    #[arg(long)]
    pub allow_nonempty: bool,
    /// Let other users use the mount [default: yes when root mounts, else no]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    pub allow_other: Option<bool>,
    /// Options that all mounts have: suid, dev, noexec, ro, noatime, dirsync, and their opposites;
    /// closesync, hard or soft=SECONDS. By default set-user-id bits and device nodes have no
    /// effect, only root may give them one; access times are kept as by relatime; what was closed,
    /// made, moved or taken away is seen by all mounts at once, and durable when it is synced, or
    /// within a second (with closesync when the close is answered, with dirsync when the name is);
    /// and what needs a cluster that does not answer waits for it (hard), unless its process is
    /// killed. With soft it fails after so long
    #[arg(short, long, value_name = "OPTION,..", value_parser = mount_options)]
    pub options: Option<MountOptions>,
    /// Name of this client in the cluster's list of sessions [default: host:MNT]
    #[arg(long)]
    pub name: Option<String>,
    /// Most memory for data that was read ahead
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub cache: Size,
    /// Most memory for data that was written and is not durable yet
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub write_buffer: Size,
    /// Keep content that was read in this folder, on a drive of this machine (the hot tier), and
    /// read it from there again: as many bytes as --hot-size says. A mount each
    #[arg(long, value_name = "DIR", requires = "hot_size", value_parser = hot_dir)]
    pub hot: Option<PathBuf>,
    /// Size of the hot tier, all of which is taken on its drive at once; 256MiB at least
    #[arg(long, value_name = "SIZE", requires = "hot", value_parser = hot_size)]
    pub hot_size: Option<Size>,
    /// How far the kernel reads ahead of a sequential reader (raising it needs root)
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub read_ahead: Size,
    /// Threads that take requests from the kernel [default: the cores, from 2 to 4]
    #[arg(long, value_name = "N")]
    pub fuse_threads: Option<usize>,
    /// Take requests over io_uring: where the kernel has it switched on, always, or never. `on`
    /// switches it on for the whole machine, which needs root
    #[arg(long, value_name = "auto|on|off", default_value = "auto", value_parser = io_uring)]
    pub io_uring: IoUring,
    /// Threads that work on them [default: the cores, from 2 to 4]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub workers: usize,
    /// Where the background process logs [default for root: /var/log/weft/mount-MNT.log]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Answer Prometheus at this address of this machine, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub transport: TransportArgs,
    #[command(flatten)]
    pub collector: CollectorArgs,
    /// Share of this mount's operations that are traced, 0 to 1, if --otlp says where to
    #[arg(long, env = "WEFT_TRACE_RATIO", value_name = "RATIO", default_value = TRACE_RATIO)]
    #[arg(value_parser = ratio, help_heading = "Traces")]
    pub trace_ratio: f64,
    /// Seconds to wait for the cluster
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub timeout: u64,
    /// Seconds that SIGTERM leaves it to make durable what was written; what is not then is lost
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub stop_timeout: u64,
    /// Have it mounted anew, with the same settings, when the process that serves it has died: by a
    /// small one beside it, which ends with the mount. What programs have open there is lost
    /// (ENOTCONN), as is what was not synced. Not with --foreground: a service manager does that
    #[arg(long)]
    pub supervise: bool,
    /// This process is the one that starts the one that serves, and mounts anew when that has died
    #[arg(long, hide = true)]
    pub supervisor: bool,
    /// The process that mounts it anew when this one has died, which has started it
    #[arg(long, hide = true, value_name = "PID")]
    pub supervised: Option<i32>,
    /// This process lets go of who waits for the mount when the one that serves it has died, and
    /// does no more
    #[arg(long, hide = true)]
    pub guard: bool,
    /// In place of a mount whose process has died
    #[arg(long, hide = true)]
    pub again: bool,
    /// Report the outcome on standard output, for the process that started this one
    #[arg(long, hide = true)]
    pub notify: bool,
}
