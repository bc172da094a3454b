//! What sets machines up (deploy/ansible, deploy/cloud-init, deploy/slurm): it is YAML, keeps keys
//! to itself, and calls `weft` by commands and options that there are.

use anyhow::{Context, Result, ensure};
use saphyr::{LoadableYamlNode, Yaml};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use weft_tests::{not_tested, path, run, weft};

fn deploy(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder)
}

/// Files below a folder, with their text.
fn files(below: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(below).with_context(|| format!("read {}", below.display()))? {
        let file = entry?.path();
        match file.is_dir() {
            true => found.extend(files(&file)?),
            false => drop(found.insert(file.clone(), fs::read_to_string(&file)?)),
        }
    }
    Ok(found)
}

fn is_a(file: &Path, ending: &str) -> bool {
    file.extension().is_some_and(|found| found == ending)
}

/// Calls `see` for each key and its value, at every depth, and with no key for what is in lists.
fn walk(at: &Yaml<'_>, see: &mut impl FnMut(Option<&str>, &Yaml<'_>)) {
    for (key, value) in at.as_mapping().into_iter().flatten() {
        see(key.as_str(), value);
        walk(value, see);
    }
    for value in at.as_sequence().into_iter().flatten() {
        see(None, value);
        walk(value, see);
    }
}

/// Every text in a file of YAML.
fn texts(text: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for document in &Yaml::load_from_str(text)? {
        walk(document, &mut |_, value| all.extend(value.as_str().map(str::to_owned)));
    }
    Ok(all)
}

/// The commands of `weft` in a script, each with the words behind it.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut text = script.replace("\\\n", " ");
    for program in ["\"$WEFT\"", "\"$weft\""] {
        text = text.replace(program, "weft");
    }
    // What Ansible puts in, pipes and all.
    while let Some((before, rest)) = text.split_once("{{") {
        let after = rest.split_once("}}").map_or("", |(_, after)| after);
        text = format!("{before}X{after}");
    }
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        for (n, _) in words.iter().enumerate().filter(|(_, word)| **word == "weft") {
            let ends = |word: &&str| matches!(*word, "|" | "||" | "&&" | "&" | "then" | "do");
            let behind: Vec<_> = (words[n + 1..].iter().take_while(|word| !ends(word)))
                .map(|word| word.trim_matches([';', '"', '\'', ')']).to_owned())
                .collect();
            let is_command = |word: &String| {
                !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            };
            if behind.first().is_some_and(is_command) {
                all.push(behind);
            }
        }
    }
    all
}

/// The help of a command, if there is one by this name.
fn help(of: &[&str]) -> Result<Option<String>> {
    let out = weft(&[of, &["--help"]].concat())?;
    let said = String::from_utf8(out.stdout)?;
    let usage = format!("Usage: weft {}", of.join(" "));
    let is_its_own = said.lines().any(|line| {
        line.strip_prefix(&usage).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    Ok((out.status.success() && is_its_own).then_some(said))
}

fn exists(command: &[String]) -> Result<()> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut told = help(&words[..1])?.with_context(|| format!("no weft {}", words[0]))?;
    if words.len() > 1 && words[1].chars().all(|c| c.is_ascii_lowercase() || c == '-') {
        told = help(&words[..2])?.unwrap_or(told);
    }
    for option in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
        let name = option.split('=').next().unwrap_or_default();
        let known = told.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        ensure!(known.into_iter().any(|word| word == name), "weft {words:?} has no {name}");
        ensure!(!["--force", "--yes"].contains(&name), "{words:?} destroys what is there");
    }
    Ok(())
}

#[test]
fn what_is_called_is_there() -> Result<()> {
    let mut all = Vec::new();
    for (file, text) in files(&deploy("slurm"))? {
        if is_a(&file, "sh") {
            run("sh", &["-n", path(&file)], Path::new("/"))?;
        }
        all.extend(commands(&text));
    }
    for folder in ["ansible", "cloud-init"] {
        for (file, text) in files(&deploy(folder))? {
            if is_a(&file, "yml") || is_a(&file, "yaml") {
                all.extend(texts(&text)?.iter().flat_map(|text| commands(text)));
            } else if is_a(&file, "sh") {
                run("sh", &["-n", path(&file)], Path::new("/"))?;
                all.extend(commands(&text));
            } else if is_a(&file, "md") {
                let fenced = text.split("```").skip(1).step_by(2);
                all.extend(fenced.flat_map(commands));
            }
        }
    }
    all.sort();
    all.dedup();
    ensure!(all.len() >= 15, "only {} commands were found: {all:?}", all.len());
    for wanted in ["sync", "quota", "target", "ca", "mount", "status", "metadata"] {
        ensure!(all.iter().any(|command| command[0] == wanted), "no {wanted} in {all:?}");
    }
    all.iter().try_for_each(|command| exists(command))
}

#[test]
fn ansible_uses_its_own_modules_and_hides_keys() -> Result<()> {
    let (mut modules, mut keys, mut serial) = (0, 0, 0);
    for (file, text) in files(&deploy("ansible"))? {
        if !is_a(&file, "yml") {
            continue;
        }
        let name = file.display();
        for document in &Yaml::load_from_str(&text).with_context(|| name.to_string())? {
            let mut wrong = Vec::new();
            let mut see = |key: Option<&str>, value: &Yaml<'_>| {
                let key = key.unwrap_or_default();
                modules += usize::from(key.starts_with("ansible.builtin."));
                serial += usize::from(key == "serial" && value.as_integer() == Some(1));
                if key.contains('.') && !key.starts_with("ansible.builtin.") {
                    wrong.push(format!("{key} is not of ansible.builtin"));
                }
                let copied = value.as_mapping_get("ansible.builtin.copy");
                let from = copied.and_then(|copy| copy.as_mapping_get("src")?.as_str());
                if from.is_some_and(|from| from.ends_with(".key")) {
                    keys += 1;
                    let mode = copied.and_then(|copy| copy.as_mapping_get("mode")?.as_str());
                    let told = |what| value.as_mapping_get(what).and_then(|said| said.as_bool());
                    if told("no_log") != Some(true) || told("diff") != Some(false) {
                        wrong.push("a key is shown".to_owned());
                    }
                    if mode != Some("0600") {
                        wrong.push(format!("a key has mode {mode:?}"));
                    }
                }
            };
            walk(document, &mut see);
            ensure!(wrong.is_empty(), "{name}: {wrong:?}");
        }
    }
    ensure!(modules > 30 && keys == 1, "{modules} modules, {keys} keys");
    ensure!(serial == 2, "daemons of {serial} kinds are restarted one after the other");
    Ok(())
}

#[test]
fn user_data_is_whole_and_has_no_keys() -> Result<()> {
    let mut count = 0;
    for (file, text) in files(&deploy("cloud-init"))? {
        if !is_a(&file, "yaml") {
            continue;
        }
        let name = file.display();
        count += 1;
        ensure!(text.starts_with("#cloud-config\n"), "{name}");
        ensure!(!text.contains("PRIVATE KEY"), "{name} has a key");
        let documents = Yaml::load_from_str(&text).with_context(|| name.to_string())?;
        let [document] = &documents[..] else { anyhow::bail!("{name}: several documents") };
        let written = document.as_mapping_get("write_files").and_then(|found| found.as_sequence());
        let mut scripts = 0;
        for one in written.context("nothing is written")? {
            let text = |what: &str| one.as_mapping_get(what).and_then(|found| found.as_str());
            let (at, content) = (text("path").context("no path")?, text("content"));
            let content = content.with_context(|| format!("{name}: {at} has no content"))?;
            ensure!(text("permissions").is_some(), "{name}: {at} has no permissions");
            if content.starts_with("#!/bin/sh\n") {
                scripts += 1;
                run("sh", &["-nc", content], Path::new("/"))?;
                let calls = document.as_mapping_get("runcmd").and_then(|all| all.as_sequence());
                let called = calls.into_iter().flatten().filter_map(|one| one.as_sequence());
                let called = called.flatten().filter_map(|one| one.as_str());
                ensure!(called.into_iter().any(|one| one == at), "{name}: {at} is not run");
            }
        }
        ensure!(scripts == 1, "{name}: {scripts} scripts");
    }
    ensure!(count == 3, "{count} files");
    Ok(())
}

/// What the playbook writes of drives in the place of a configuration that is there.
fn written(present: &str, drives: &[&str]) -> Result<String> {
    let work = tempfile::tempdir()?;
    let role = deploy("ansible/roles/weft");
    let (play, out) = (work.path().join("play.yml"), work.path().join("storaged.toml"));
    let task = serde_json::json!({
        "ansible.builtin.template": {
            "src": role.join("templates/storaged.toml.j2"), "dest": out, "mode": "0644",
        },
        "vars": { "weft_drives": drives, "weft_present": { "stdout": present } },
    });
    let said = serde_json::json!([{
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": false,
        "vars": { "ansible_python_interpreter": "{{ ansible_playbook_python }}" },
        "vars_files": [role.join("defaults/main.yml"), role.join("vars/main.yml")],
        "tasks": [task],
    }]);
    fs::write(&play, said.to_string())?;
    let inventory = work.path().join("hosts");
    fs::write(&inventory, "localhost\n[weft_metadata]\nmeta-1\n")?;
    run("ansible-playbook", &["-i", path(&inventory), path(&play)], work.path())?;
    let text = fs::read_to_string(&out)?;
    Ok(text.split_once("[[targets]]").context("no targets")?.1.replace("\n\n", "\n"))
}

/// `make setup` brings it where there is apt.
fn no_ansible() -> bool {
    let version = std::process::Command::new("ansible-playbook").arg("--version").output();
    let absent = !version.is_ok_and(|out| out.status.success());
    if absent {
        not_tested("the playbook: ansible-playbook is not here");
    }
    absent
}

#[test]
fn ansible_takes_the_playbook() -> Result<()> {
    if no_ansible() {
        return Ok(());
    }
    let args = ["--syntax-check", "-i", "inventory.example.yml", "site.yml"];
    run("ansible-playbook", &args, &deploy("ansible"))?;
    Ok(())
}

#[test]
fn ansible_leaves_what_is_said_of_a_drive() -> Result<()> {
    if no_ansible() {
        return Ok(());
    }
    // None shares its index with another.
    let new = written("", &["/dev/disk/by-id/a", "/mnt/1/target", "/mnt/2/target"])?;
    for name in ["dev-disk-by-id-a", "mnt-1-target", "mnt-2-target"] {
        let line = format!("index = \"/var/lib/weft/storaged/{name}.index\"\n");
        ensure!(new.contains(&line), "{new}");
    }
    let present = r#"name = "by hand"
        [[ targets ]]
        index = "/var/lib/weft/drive-1.index"  # the first
        path = "/dev/a"
        flush = false
        [[targets]]
        path = '/srv/target'
        size = "64GiB"
        [tls]
        ca = "x"
    "#;
    let again = written(present, &["/dev/b", "/dev/a", "/srv/target"])?;
    let wanted = r#"
path = "/dev/b"
index = "/var/lib/weft/storaged/dev-b.index"
[[targets]]
path = "/dev/a"
index = "/var/lib/weft/drive-1.index"  # the first
flush = false
[[targets]]
path = "/srv/target"
size = "64GiB"
"#;
    ensure!(again == wanted, "{again}");
    Ok(())
}
