//! Tests of `mount`.

use super::options::mount_options;
use super::serve::is_own;
use super::*;
use crate::{Cli, Command};
use clap::Parser;
use std::ffi::OsString;
use std::path::Path;
use weft_fuse::{Connection, MountEntry};

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
    let settings = background::settings(&args, &log, args.log_file.as_deref());
    let again = background::arguments(&settings, Path::new("-m"));
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
    let options = read("ro,soft=90,noatime,closesync");
    assert!(options.flags.read_only && options.soft == Some(90) && options.closesync);
    assert_eq!(read(&options.to_string()), options);
    assert_eq!(read("soft=90,hard").soft, None);
    for bad in ["", "soft", "soft=", "soft=0", "soft=-1", "soft=1m", "ro,sfot=1"] {
        assert!(mount_options(bad).is_err(), "{bad}");
    }
}

/// With what it was mounted with, by a version that knows all of these settings.
#[test]
fn a_process_that_takes_over_understands_the_settings_of_the_other() {
    let given = ["weft", "mount", "--cluster", "a:1", "-o", "ro,soft=9", "--name", "n", "mnt"];
    let parse = |args: Vec<OsString>| match Cli::try_parse_from(args) {
        Ok(Cli { command: Command::Mount(args), log, .. }) => (args, log),
        other => panic!("{other:?}"),
    };
    let (args, log) = parse(given.iter().map(OsString::from).collect());
    let mut settings = background::settings(&args, &log, Some(Path::new("/log")));
    settings.push("--takeover".into());
    let again = background::arguments(&settings, Path::new("/mnt"));
    let (next, log) = parse(std::iter::once("weft".into()).chain(again).collect());
    assert!(next.takeover && next.foreground && next.notify);
    settings.pop();
    assert_eq!(background::settings(&next, &log, next.log_file.as_deref()), settings);
    let alone = Cli::try_parse_from(["weft", "mount", "--takeover", "/mnt"]);
    assert!(alone.is_ok(), "it needs no address: {alone:?}");
    assert!(
        Cli::try_parse_from(["weft", "mount", "/mnt"]).is_err()
            || std::env::var_os("WEFT_CLUSTER").is_some()
    );
}

/// A mount that was detached is told to stop: its process leaves alone what is there by now.
#[test]
fn what_another_has_mounted_since_is_not_of_this_process() {
    let mount = |device: &str, fs_type: &str| MountEntry {
        mount_point: "/mnt".into(),
        device: device.into(),
        fs_type: fs_type.into(),
        source: "weft:a:1".into(),
        user: None,
        read_only: false,
    };
    let own = Connection { mount_point: "/mnt".into(), device: "0:57".into(), life: None };
    assert!(is_own(&mount("0:57", "fuse.weft"), Some(&own)));
    assert!(!is_own(&mount("0:58", "fuse.weft"), Some(&own)));
    assert!(!is_own(&mount("8:1", "ext4"), Some(&own)));
    // Where it is not known what this one has.
    assert!(is_own(&mount("0:58", "fuse.weft"), None) && !is_own(&mount("8:1", "ext4"), None));
}
