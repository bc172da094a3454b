//! The manifests: they are YAML, they are whole, and the driver understands what they tell it.

use anyhow::{Context, Result, ensure};
use saphyr::{LoadableYamlNode, Yaml};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use weft_tests::weft_ok;

const DRIVER: &str = "csi.weft";

fn manifests() -> Result<Vec<(String, String)>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|ending| ending == "yaml") {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&file)?));
        }
    }
    ensure!(found.len() >= 8, "there are {} manifests", found.len());
    Ok(found)
}

fn text<'a>(at: &'a Yaml<'_>, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(at, |at, name| at.as_mapping_get(name))?.as_str()
}

fn list<'a, 'b>(at: &'a Yaml<'b>, path: &[&str]) -> Vec<&'a Yaml<'b>> {
    let found = path.iter().try_fold(at, |at, name| at.as_mapping_get(name));
    found.and_then(|found| found.as_sequence()).into_iter().flatten().collect()
}

/// Flags that `weft csi` has.
fn flags() -> Result<BTreeSet<String>> {
    let help = weft_ok(&["csi", "--help"])?;
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    Ok(words.filter(|word| word.starts_with("--")).map(str::to_owned).collect())
}

#[test]
fn csi_manifests_are_whole_and_the_driver_understands_them() -> Result<()> {
    let flags = flags()?;
    ensure!(flags.contains("--state-dir") && flags.contains("--tls-key"), "{flags:?}");
    let (mut kinds, mut drivers, mut images) = (BTreeSet::new(), 0, BTreeSet::new());
    for (name, content) in manifests()? {
        let documents = Yaml::load_from_str(&content).with_context(|| name.clone())?;
        for document in &documents {
            let kind = text(document, &["kind"]).with_context(|| format!("{name}: no kind"))?;
            ensure!(text(document, &["apiVersion"]).is_some(), "{name}: no version");
            ensure!(text(document, &["metadata", "name"]).is_some(), "{name}: no name");
            // What is applied again would replace the one that is used.
            ensure!(kind != "Secret", "{name} has a secret, which is made by itself");
            kinds.insert(kind.to_owned());
            let named = match kind {
                "CSIDriver" => text(document, &["metadata", "name"]),
                "StorageClass" => text(document, &["provisioner"]),
                "PersistentVolume" => text(document, &["spec", "csi", "driver"]),
                _ => Some(DRIVER),
            };
            ensure!(named == Some(DRIVER), "{name}: {named:?} is another driver");
            for container in list(document, &["spec", "template", "spec", "containers"]) {
                let image = text(container, &["image"]).context("no image")?;
                images.insert(image.split(':').next().unwrap_or_default().to_owned());
                if text(container, &["name"]) != Some("weft") {
                    continue;
                }
                drivers += 1;
                check_driver(&name, container, &flags)?;
            }
        }
    }
    ensure!(drivers == 2, "{drivers} containers of the driver");
    let wanted = [
        "CSIDriver",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
        "Deployment",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "ServiceAccount",
        "StorageClass",
    ];
    for kind in wanted {
        ensure!(kinds.contains(kind), "there is no {kind}");
    }
    let sidecars = ["csi-provisioner", "csi-resizer", "csi-node-driver-registrar"];
    for sidecar in sidecars.into_iter().chain(["livenessprobe"]) {
        let is_there = images.iter().any(|image| image.ends_with(&format!("/{sidecar}")));
        ensure!(is_there, "no {sidecar} in {images:?}");
    }
    Ok(())
}

/// Every flag exists, and what is needed is told.
fn check_driver(name: &str, container: &Yaml<'_>, flags: &BTreeSet<String>) -> Result<()> {
    let arguments = list(container, &["args"]);
    let arguments: Vec<_> = arguments.iter().filter_map(|argument| argument.as_str()).collect();
    ensure!(arguments.first() == Some(&"csi"), "{name}: {arguments:?}");
    for argument in &arguments[1..] {
        let flag = argument.split('=').next().unwrap_or_default();
        ensure!(flags.contains(flag), "{name}: weft csi has no {flag}");
    }
    let environment = list(container, &["env"]);
    let environment: Vec<_> = environment.iter().filter_map(|e| text(e, &["name"])).collect();
    for variable in &environment {
        let known = weft_ok(&["csi", "--help"])?.contains(&format!("{variable}="));
        ensure!(known, "{name}: weft csi does not read {variable}");
    }
    ensure!(environment.contains(&"WEFT_CLUSTER"), "{name}: where is the cluster?");
    let is_node = arguments.contains(&"--mode=node");
    ensure!(!is_node || environment.contains(&"WEFT_CSI_NODE_ID"), "{name}: which node?");
    // It is not ready before the cluster answers, and must not be ended for that.
    let waits = container.as_mapping_get("startupProbe").is_some();
    ensure!(is_node || waits, "{name}: the controller does not wait for the cluster");
    // All of it is understood together; it fails only when it looks for the socket's folder.
    let socket = arguments.iter().find(|a| a.starts_with("--endpoint="));
    ensure!(socket == Some(&"--endpoint=unix:///csi/csi.sock"), "{name}: {socket:?}");
    Ok(())
}
