//! `weft top` and what else goes on and on, where nobody answers or nobody reads.

use serde_json::Value;
use std::process::Command;

/// `weft` without what the environment says.
fn weft(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(args).env_remove("WEFT_CLUSTER").env_remove("WEFT_LOG");
    command
}

/// `weft ... | head`, of which head has had enough: no panic, and no more looks for nobody.
#[test]
fn who_reads_no_more_ends_it() {
    let top = ["top", "--output", "json", "--interval", "0.5", "--cluster", "127.0.0.1:1"];
    for args in [&["bench", "--list"][..], &top] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = weft(args).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
}

/// Whatever is known of a cluster that does not answer, a script must not take it for good.
#[test]
fn a_look_at_a_cluster_without_a_leader_fails() {
    let top = ["top", "--once", "--cluster", "127.0.0.1:1", "--output", "json"];
    let output = weft(&top).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no metadata server says that it leads")
    );
    let looked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(looked["health"], "unknown");
    assert!(!looked["problems"].as_array().unwrap().is_empty(), "{looked}");
}
