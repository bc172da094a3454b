//! This program as `mount.weft`, as far as that needs no cluster.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

fn helper(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg0("/sbin/mount.weft").args(args).env_remove("WEFT_CLUSTER");
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Checks that what follows `-o` is understood, or not.
fn checked(spec: &str, options: &str) -> Output {
    let at = tempfile::tempdir().unwrap();
    helper(&[spec, at.path().to_str().unwrap(), "-fvo", options])
}

#[test]
fn what_is_asked_for_is_checked_and_nothing_is_mounted() {
    let output = checked("10.0.0.1:7100,[::1]:7100:/a b", "rw,_netdev,cache=1GiB,soft=60");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let said = said(&output);
    for word in
        ["--cluster=10.0.0.1:7100,[::1]:7100", "--subdir=/a b", "--cache=1GiB", "rw,soft=60"]
    {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn errors_have_the_exit_codes_of_mount_and_say_what_is_wrong() {
    let spec = "10.0.0.1:7100:/";
    for (output, code, word) in [
        (helper(&[]), 1, "usage"),
        (helper(&[spec]), 1, "usage"),
        (checked("nowhere", "rw"), 1, "host:port"),
        (checked("10.0.0.1:7100:/a/../b", "rw"), 1, ".."),
        (checked(spec, "rw,sfot=60"), 1, "sfot=60"),
        (checked(spec, "cache=much"), 1, "much"),
        (checked(spec, "io_uring=maybe"), 1, "maybe"),
        (checked(spec, "soft=never"), 1, "soft"),
        (checked(spec, "tls_ca=/x"), 1, "tls-key"),
        (checked(spec, "remount,ro"), 32, "umount"),
        (helper(&[spec, "/nonexistent/weft", "-f"]), 32, "/nonexistent/weft"),
        (helper(&[spec, "/", "-N", "/nonexistent"]), 2, "namespace"),
    ] {
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{word}: {said}");
        assert!(said.contains(word), "{word}: {said}");
    }
    let sloppy = tempfile::tempdir().unwrap();
    let sloppy = sloppy.path().to_str().unwrap();
    let output = helper(&[spec, sloppy, "-sf", "-o", "sfot=60"]);
    assert!(output.status.success(), "{}", said(&output));
    // What is known, and wrong, is not passed over.
    let output = helper(&[spec, sloppy, "-sf", "-o", "sfot=60,cache"]);
    assert!(!output.status.success() && said(&output).contains("cache"), "{}", said(&output));
}

/// Each line of the sample is one that is understood.
#[test]
fn the_sample_of_fstab_is_understood() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/config/fstab");
    let text = fs::read_to_string(sample).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut files = 0;
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let [spec, at, "weft", options, "0", "0"] = words[..] else { panic!("{line}") };
        assert!(at.starts_with('/') && options.contains("_netdev"), "{line}");
        let options: Vec<_> = options.split(',').collect();
        // Certificates are looked for at once, and there are none here.
        let (tls, rest): (Vec<&str>, Vec<_>) = options.iter().partition(|o| o.starts_with("tls_"));
        assert!(tls.is_empty() || tls.len() == 3, "{line}");
        files += 1;
        let output = checked(spec, &rest.join(","));
        assert!(output.status.success(), "{line}: {}", said(&output));
    }
    assert_eq!(files, 3);
}

/// The manual page names what there is, and nothing else.
#[test]
fn each_option_of_the_manual_page_is_one() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("man/mount.weft.8");
    let page = fs::read_to_string(page).unwrap();
    let (_, options) = page.split_once(".SH MOUNT OPTIONS").unwrap();
    let (options, _) = options.split_once(".SH EXIT STATUS").unwrap();
    let mut known = BTreeSet::new();
    let heads = options.split(".TP\n").skip(1).filter_map(|part| part.lines().next());
    for word in heads.flat_map(|head| head.split_whitespace()) {
        let word = word.replace("\\-", "-");
        let name: String =
            word.chars().take_while(|c| c.is_alphanumeric() || "_-=".contains(*c)).collect();
        if word.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && !word.contains('\\') {
            known.insert(name);
        }
    }
    assert!(known.len() > 50, "{known:?}");
    for name in &known {
        let value = match name.as_str() {
            "soft=" | "timeout=" | "stop_timeout=" | "workers=" | "fuse_threads=" => "1",
            "cache=" | "write_buffer=" | "read_ahead=" => "1MiB",
            "hot=" => "/x,hot_size=256MiB",
            "hot_size=" => "256MiB,hot=/x",
            "io_uring=" => "auto",
            "metrics=" => "127.0.0.1:9464",
            "otlp=" => "http://127.0.0.1:4317",
            "trace_ratio=" => "0.5",
            name if name.starts_with("tls_") => continue,
            name if name.ends_with('=') => "x",
            _ => "",
        };
        let output = checked("10.0.0.1:7100:/", &format!("{name}{value}"));
        assert!(output.status.success(), "{name}{value}: {}", said(&output));
    }
}
