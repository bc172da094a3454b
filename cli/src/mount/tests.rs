//! Tests of `mount`.

use super::*;
use crate::{Cli, Command};
use clap::Parser;

/// What the user chose reaches the process in the background, the filter of the log too.
#[test]
fn the_background_process_understands_its_command_line() {
    let given = ["weft", "mount", "--log", "debug", "--cluster", "a:1,b:2", "mnt"];
    let parse = |args: Vec<OsString>| {
        let cli = Cli::try_parse_from(args).unwrap_or_else(|e| panic!("{e}"));
        match cli.command {
            Command::Mount(args) => (args, cli.log),
            other => panic!("{other:?}"),
        }
    };
    let (args, log) = parse(given.iter().map(OsString::from).collect());
    let again = background_arguments(&args, &log, Path::new("-m"));
    let (background, background_log) = parse(std::iter::once("weft".into()).chain(again).collect());
    assert_eq!(background_log.log.as_deref(), Some("debug"));
    assert_eq!(background.mount_point, Path::new("-m"));
    assert_eq!(background.cluster.cluster, args.cluster.cluster);
    assert!(background.foreground);
}

#[test]
fn options_are_read_as_they_are_shown() {
    let read = |text: &str| mount_options(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(read("ro").soft, None, "a mount waits unless told otherwise");
    let options = read("ro,soft=90,noatime");
    assert!(options.flags.read_only && options.soft == Some(90));
    assert_eq!(read(&options.to_string()), options);
    assert_eq!(read("soft=90,hard").soft, None);
    for bad in ["", "soft", "soft=", "soft=0", "soft=-1", "soft=1m", "ro,sfot=1"] {
        assert!(mount_options(bad).is_err(), "{bad}");
    }
}
