//! `weft target add --encrypt`: what it makes, and what it writes into the configuration.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use weft_storaged::Config;
use weft_storaged::engine::Engine;

fn weft(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).current_dir(dir).output().unwrap()
}

fn done(dir: &Path, args: &[&str]) -> String {
    let output = weft(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let output = weft(dir, args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

const CONFIG: &str = r#"# by hand
name = "s1"
listen = "127.0.0.1:0"
metadata = ["127.0.0.1:1"]
"#;

#[test]
fn a_target_is_made_encrypted_and_its_daemon_finds_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(dir.join("c.toml"), CONFIG).unwrap();
    let key: Vec<u8> = (0..64).map(|n: u8| n ^ 0x5a).collect();
    fs::write(dir.join("key"), key).unwrap();
    let add = |target: &'static str| {
        ["target", "add", target, "--config", "c.toml", "--size", "16MiB", "--sparse"]
    };
    let with = |target, more: &[&'static str]| [&add(target)[..], more].concat();
    let encrypt = ["--encrypt", "--key-file", "key"];

    // Neither without the other, nor with a key that others may read: nothing is made.
    refused(dir, &with("a", &["--encrypt"]));
    refused(dir, &with("a", &["--key-file", "key"]));
    fs::set_permissions(dir.join("key"), Permissions::from_mode(0o644)).unwrap();
    assert!(refused(dir, &with("a", &encrypt)).contains("chmod 600"));
    assert!(!dir.join("a").exists());
    assert_eq!(fs::read_to_string(dir.join("c.toml")).unwrap(), CONFIG);

    fs::set_permissions(dir.join("key"), Permissions::from_mode(0o600)).unwrap();
    done(dir, &add("plain"));
    assert!(done(dir, &with("a", &encrypt)).contains(", encrypted"));
    let text = fs::read_to_string(dir.join("c.toml")).unwrap();
    assert!(text.starts_with(CONFIG.trim_end()) && text.contains("[targets.encryption]"), "{text}");
    let config: Config = toml::from_str(&text).unwrap();
    assert!(config.targets[0].encryption.is_none());
    drop(Engine::open(&config.targets[1].options()).unwrap());
    let shown = done(dir, &["target", "show", "a"]);
    assert_eq!(shown.matches("encrypted").count(), 2, "both copies say so: {shown}");
    assert!(!done(dir, &["target", "show", "plain"]).contains("encrypted"));

    // One that the configuration lists is made as it says there, with a command, too.
    let section = format!(
        "\n[[targets]]\npath = {:?}\nsize = \"16MiB\"\nsparse = true\n\
         [targets.encryption]\nkey_command = [\"/bin/cat\", \"key\"]\n",
        dir.join("b")
    );
    fs::write(dir.join("c.toml"), text + &section).unwrap();
    let add = ["target", "add", "b", "--config", "c.toml"];
    let more = [&add[..], &encrypt].concat();
    assert!(refused(dir, &more).contains("says there how to make it"));
    assert!(done(dir, &add).contains(", encrypted"));
}
