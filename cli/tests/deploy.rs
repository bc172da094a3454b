//! The files in `deploy/` are what the code understands.

#[path = "../../tests/src/not_tested.rs"]
mod not_tested;

use not_tested::not_tested;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(deploy(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The text with every setting that is commented out (`# key = value`) switched on.
fn with_defaults_written_out(text: &str) -> String {
    let setting = |line: &&str| {
        line.strip_prefix("# ")
            .and_then(|rest| rest.split_once(" = "))
            .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    let lines = text.lines().map(|line| if setting(&line) { &line[2..] } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_metadata_sample_parses_and_names_every_default_truly() {
    let text = read("config/metadata.toml");
    let config = weft_metadata::Config::parse(&text).unwrap();
    let full = with_defaults_written_out(&text);
    assert_eq!(weft_metadata::Config::parse(&full).unwrap(), config);
    let documented: toml::Table = toml::from_str(&full).unwrap();
    let known = toml::Table::try_from(&config).unwrap();
    assert_eq!(documented.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>());
}

#[test]
fn the_storage_sample_parses_and_names_every_setting() {
    let text = read("config/storaged.toml");
    let config: weft_storaged::Config = toml::from_str(&text).unwrap();
    config.validate().unwrap();
    let full = with_defaults_written_out(&text);
    let mut all: weft_storaged::Config = toml::from_str(&full).unwrap();
    all.validate().unwrap();
    assert_eq!(all.max_in_flight, config.max_in_flight, "the default is said truly");
    // Written out with every optional field set, the file knows no field that the sample lacks.
    let documented: toml::Table = toml::from_str(&full).unwrap();
    all.targets.truncate(1);
    let known = toml::Table::try_from(&all).unwrap();
    for key in known.keys() {
        assert!(documented.contains_key(key), "{key} is not documented");
    }
    let keys = |table: &toml::Table| {
        table["nvmeof"].as_table().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(&documented), keys(&known), "every setting of connections is documented");
    let said: weft_storaged::nvmeof::Options = documented["nvmeof"].clone().try_into().unwrap();
    let default = weft_storaged::nvmeof::Options::default();
    let times = |o: &weft_storaged::nvmeof::Options| {
        (o.ctrl_loss_tmo, o.reconnect_delay, o.fast_io_fail_tmo, o.keep_alive_tmo, o.tls)
    };
    assert_eq!(times(&said), times(&default), "the defaults are said truly");
}

#[test]
fn the_environment_file_is_assignments() {
    let text = read("config/mount.env");
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let keys: Vec<_> = lines.map(|l| l.split_once('=').expect("KEY=value").0).collect();
    assert_eq!(keys, ["WEFT_CLUSTER", "WEFT_TLS_CA", "WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_LOG"]);
}

/// Sections of a unit, each with its `key=value` lines.
fn unit(text: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut sections = BTreeMap::<_, Vec<_>>::new();
    let mut section = None;
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = Some(name.to_owned());
            sections.entry(name.to_owned()).or_default();
        } else {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?}"));
            let section = section.as_ref().unwrap_or_else(|| panic!("{line:?} is in no section"));
            let entries = sections.get_mut(section).unwrap();
            entries.push((key.to_owned(), value.to_owned()));
        }
    }
    sections
}

fn units() -> Vec<(String, String)> {
    let dir = fs::read_dir(deploy("systemd")).unwrap();
    let mut units: Vec<_> = dir
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| (name.clone(), read(&format!("systemd/{name}"))))
        .collect();
    units.sort();
    units
}

#[test]
fn units_start_commands_that_exist() {
    let units = units();
    assert_eq!(units.len(), 3, "metadata, storaged, mount");
    for (name, text) in units {
        let sections = unit(&text);
        for section in ["Unit", "Service", "Install"] {
            assert!(sections.contains_key(section), "{name} has no [{section}]");
        }
        let service = &sections["Service"];
        let get = |key: &str| {
            service
                .iter()
                .find(|(k, _)| k == key)
                .map(|(_, v)| v.as_str())
                .unwrap_or_else(|| panic!("{name} has no {key}"))
        };
        assert_eq!(get("Restart"), "on-failure", "{name}");
        let command = get("ExecStart").replace("%i", "1").replace("%I", "datasets");
        let words: Vec<_> = command.split_whitespace().collect();
        assert_eq!(words[0], "/usr/bin/weft", "{name}");
        // The binary takes these arguments: it gets as far as the file or the mount point.
        let output = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(&words[1..])
            .env("WEFT_CLUSTER", "127.0.0.1:1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(words.last().unwrap()), "{name}: {said}");
    }
}

/// Whoever is ordered after a mount finds it, its process is the last that the kernel kills for
/// memory, and what is done after its end touches nothing but a dead mount of ours.
#[test]
fn the_mount_unit_holds_what_it_says() {
    let sections = unit(&read("systemd/weft-mount@.service"));
    let get = |key: &str| {
        let mut of = sections["Service"].iter().filter(|(k, _)| k == key);
        of.next().map(|(_, v)| v.as_str()).unwrap_or_else(|| panic!("no {key}"))
    };
    assert_eq!(get("Type"), "notify");
    // What is skipped for a condition has succeeded, for what is ordered after it.
    let conditions = sections["Unit"].iter().filter(|(key, _)| key.starts_with("Condition"));
    assert_eq!(conditions.count(), 0, "it may be skipped");
    assert!(get("OOMScoreAdjust").parse::<i32>().unwrap() <= -800);
    let after = get("ExecStopPost").strip_prefix('-').unwrap();
    let words: Vec<_> = after.split_whitespace().collect();
    assert_eq!(words[0], "/usr/bin/weft");
    // At the mount point of another filesystem it does nothing, and succeeds.
    let command: Vec<_> = words[1..].iter().map(|w| w.replace("/%I", "/proc")).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_weft")).args(&command).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Path::new("/proc/self").exists());
}

#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        not_tested("whether systemd takes the units: systemd-analyze is not here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in units() {
        let path = dir.path().join(name.replace('@', "@x"));
        // Only the program's path differs: it must be there for systemd to agree.
        fs::write(&path, text.replace("/usr/bin/weft", env!("CARGO_BIN_EXE_weft"))).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // Other units of the machine are none of our business.
        let about_us: Vec<_> = said.lines().filter(|l| l.contains("weft")).collect();
        assert!(about_us.is_empty(), "{name}: {about_us:?}");
    }
}
