//! Programs that are not ours tell a wrong time.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

const NANOS: i64 = 1_000_000_000;

/// Nanoseconds since 1970.
fn now() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64
}

fn told(offset: Option<&PathBuf>) -> i64 {
    let mut date = Command::new("date");
    date.arg("+%s%N").env("LD_PRELOAD", weft_tests::binary("libweft_jepsen_clock.so"));
    if let Some(offset) = offset {
        date.env("WEFT_CLOCK_OFFSET", offset);
    }
    let output = date.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn a_program_is_told_a_time_that_is_wrong_by_what_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("offset");
    for offset in [0, 7200 * NANOS, -7200 * NANOS, NANOS - 1, 1 - NANOS] {
        fs::write(&file, offset.to_ne_bytes()).unwrap();
        let before = now();
        let told = told(Some(&file));
        assert!((before..=now()).contains(&(told - offset)), "{offset}: {told}, {before}");
    }
}

#[test]
fn without_a_file_the_time_is_right() {
    for offset in [None, Some(&PathBuf::from("/nowhere/offset"))] {
        let before = now();
        let told = told(offset);
        assert!((before..=now()).contains(&told), "{told}, {before}");
    }
}
