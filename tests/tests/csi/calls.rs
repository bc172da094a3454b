//! Every call of the identity and the controller, with good and bad input.

use crate::plugin::{MIB, Plugin, mounted, refused, shared, small, wanted};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use weft_csi::wire::volume_capability::access_mode::Mode;
use weft_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use weft_csi::wire::*;

fn block() -> VolumeCapability {
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
    VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), access_mode }
}

#[test]
fn csi_identity_and_capabilities_are_told() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let mut identity = plugin.identity().0;
    let info = plugin.wait(identity.get_plugin_info(GetPluginInfoRequest {}))?;
    ensure!(info.name == "csi.weft" && !info.vendor_version.is_empty(), "{info:?}");
    let all = plugin.wait(identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}))?;
    ensure!(all.capabilities.len() == 2, "{all:?}");
    let (mut controller, mut node) = (plugin.controller(), plugin.node());
    let request = ControllerGetCapabilitiesRequest {};
    let all = plugin.wait(controller.controller_get_capabilities(request))?;
    ensure!(all.capabilities.len() == 7, "{all:?}");
    let all = plugin.wait(node.node_get_capabilities(NodeGetCapabilitiesRequest {}))?;
    ensure!(all.capabilities.len() == 4, "{all:?}");
    let info = plugin.wait(node.node_get_info(NodeGetInfoRequest {}))?;
    ensure!(info.node_id == "node-1", "{info:?}");
    // What it does not do it says so of.
    let request = ControllerPublishVolumeRequest::default();
    let answer = plugin.wait(controller.controller_publish_volume(request));
    refused(answer, Code::Unimplemented, "ControllerPublishVolume")?;
    let request = ControllerUnpublishVolumeRequest::default();
    let answer = plugin.wait(controller.controller_unpublish_volume(request));
    refused(answer, Code::Unimplemented, "ControllerUnpublishVolume")?;
    let answer = plugin.wait(node.node_expand_volume(NodeExpandVolumeRequest::default()));
    refused(answer, Code::Unimplemented, "NodeExpandVolume")?;
    for unknown in ["/csi.v1.Controller/CreateSnapshot", "/csi.v1.GroupController/X", "/"] {
        let mut raw = tonic::client::Grpc::new(plugin.channel());
        let answer = plugin.wait(async {
            raw.ready().await.map_err(|e| tonic::Status::unknown(e.to_string()))?;
            let codec = tonic_prost::ProstCodec::<ProbeRequest, ProbeResponse>::default();
            let request = tonic::Request::new(ProbeRequest {});
            raw.unary(request, PathAndQuery::from_static(unknown), codec).await
        });
        let code = answer.map(drop).map_err(|status| status.code());
        ensure!(code == Err(Code::Unimplemented), "{unknown}: {code:?}");
    }
    plugin.stop()
}

#[test]
fn csi_half_a_driver_serves_its_half() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start_with(&cluster, &["--mode", "node"])?;
    refused(plugin.create("a", MIB), Code::Unimplemented, "a node makes no volumes")?;
    plugin.stop()?;
    let plugin = Plugin::start_with(&cluster, &["--mode", "controller", "--root", "/k8s/a"])?;
    let info = plugin.wait(plugin.node().node_get_info(NodeGetInfoRequest {}));
    refused(info, Code::Unimplemented, "a controller mounts nothing")?;
    plugin.create("a", MIB)?;
    ensure!(cluster.mnt().join("k8s/a/a").is_dir(), "it lies below the root");
    plugin.stop()
}

#[test]
fn csi_volumes_are_created_once_or_refused() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let create = |request: CreateVolumeRequest| {
        plugin.wait(plugin.controller().create_volume(request)).map(|answer| answer.volume)
    };
    let good = || wanted("bad", 16 * MIB);
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    let ext4 = MountVolume { fs_type: "ext4".into(), ..Default::default() };
    let ext4 = VolumeCapability { access_type: Some(AccessType::Mount(ext4)), ..shared() };
    let parameter = |name: &str, value: &str| CreateVolumeRequest {
        parameters: [(name.to_owned(), value.to_owned())].into(),
        ..good()
    };
    let with = |volume_capabilities| CreateVolumeRequest { volume_capabilities, ..good() };
    let source = Some(VolumeContentSource::default());
    let bad = [
        ("no name", CreateVolumeRequest { name: String::new(), ..good() }),
        ("a long name", CreateVolumeRequest { name: "x".repeat(1025), ..good() }),
        ("no capabilities", with(vec![])),
        ("a block volume", with(vec![shared(), block()])),
        ("no access type", with(vec![VolumeCapability { access_type: None, ..shared() }])),
        ("no access mode", with(vec![VolumeCapability { access_mode: None, ..shared() }])),
        ("an unknown mode", with(vec![mounted(Mode::Unknown, &[])])),
        ("another filesystem", with(vec![ext4])),
        ("an unknown option", with(vec![mounted(Mode::SingleNodeWriter, &["log_file=/x"])])),
        ("less than nothing", CreateVolumeRequest { capacity_range: range(-1, 0), ..good() }),
        ("more than the limit", CreateVolumeRequest { capacity_range: range(2, 1), ..good() }),
        ("an unknown parameter", parameter("size", "1")),
        ("a bad mode", parameter("mode", "rwx")),
        ("a bad layout", parameter("layout", "999+999")),
        ("a source", CreateVolumeRequest { volume_content_source: source, ..good() }),
    ];
    for (what, request) in bad {
        refused(create(request), Code::InvalidArgument, what)?;
    }
    // What was refused late is not there, and its name is free.
    ensure!(!cluster.mnt().join("volumes/bad").exists(), "it was left behind");
    ensure!(plugin.create("bad", MIB)?.capacity_bytes == MIB);
    let made = plugin.create("pvc-1", 16 * MIB)?;
    ensure!(made.volume_id == "pvc-1" && made.capacity_bytes == 16 * MIB, "{made:?}");
    ensure!(plugin.create("pvc-1", 16 * MIB)? == made, "twice is once");
    refused(plugin.create("pvc-1", 32 * MIB), Code::AlreadyExists, "another size")?;
    let other = CreateVolumeRequest { name: "pvc-1".into(), ..parameter("mode", "0700") };
    refused(create(other), Code::AlreadyExists, "other parameters")?;
    let limited = CreateVolumeRequest { capacity_range: range(0, 8 * MIB), ..wanted("l", 0) };
    ensure!(create(limited)?.map(|volume| volume.capacity_bytes) == Some(8 * MIB));
    let free = CreateVolumeRequest { capacity_range: None, ..wanted("free", 0) };
    ensure!(create(free)?.map(|volume| volume.capacity_bytes) == Some(0), "without a limit");
    names_that_nobody_should_have(&plugin, &cluster.mnt().join("volumes"))?;
    plugin.stop()?;
    cluster.await_clean()
}

fn names_that_nobody_should_have(plugin: &Plugin, folder: &Path) -> Result<()> {
    let mut ids = BTreeSet::new();
    let long = "y".repeat(1024);
    for name in ["..", ".", "../../etc", "a/b", "a\0b", "ä ö", ".deleted", "-", &long] {
        let made = plugin.create(name, MIB)?;
        ensure!(folder.join(&made.volume_id).is_dir(), "{name:?}: {made:?}");
        ensure!(plugin.create(name, MIB)? == made, "{name:?} twice is once");
        ensure!(ids.insert(made.volume_id.clone()), "{name:?}: {made:?} is another's");
    }
    let parameters = [("mode", "2750"), ("uid", "7"), ("gid", "8"), ("inodes", "5")];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let request = CreateVolumeRequest { parameters: parameters.into(), ..wanted("owned", MIB) };
    plugin.wait(plugin.controller().create_volume(request))?;
    let owned = fs::metadata(folder.join("owned"))?;
    ensure!((owned.uid(), owned.gid(), owned.mode() & 0o7777) == (7, 8, 0o2750), "{owned:?}");
    Ok(())
}

#[test]
fn csi_one_name_at_the_same_time_is_one_volume() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    for round in 0..5 {
        let name = format!("pvc-{round}");
        let answers = plugin.run(async {
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let (mut controller, request) = (plugin.controller(), wanted(&name, 4 * MIB));
                calls.spawn(async move { controller.create_volume(request).await });
            }
            calls.join_all().await
        });
        let mut made = 0;
        for answer in answers {
            match answer {
                Ok(answer) => {
                    let volume = answer.into_inner().volume.unwrap_or_default();
                    ensure!(volume.volume_id == name, "{volume:?}");
                    made += 1;
                }
                Err(status) => ensure!(status.code() == Code::Aborted, "{status:?}"),
            }
        }
        ensure!(made > 0, "nobody has made it");
    }
    let listed = plugin.wait(plugin.controller().list_volumes(ListVolumesRequest::default()))?;
    ensure!(listed.entries.len() == 5, "{listed:?}");
    plugin.stop()
}

#[test]
fn csi_volumes_are_listed_validated_and_extended() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let list = |max_entries, token: &str| {
        let request = ListVolumesRequest { max_entries, starting_token: token.into() };
        plugin.wait(plugin.controller().list_volumes(request))
    };
    ensure!(list(0, "")?.entries.is_empty());
    let names: BTreeSet<_> = (0..7).map(|n| format!("pvc-{n}")).collect();
    for name in &names {
        plugin.create(name, 4 * MIB)?;
    }
    // What others have made there is none.
    fs::create_dir(cluster.mnt().join("volumes/foreign"))?;
    fs::write(cluster.mnt().join("volumes/file"), "")?;
    let (mut token, mut found, mut pages) = (String::new(), BTreeSet::new(), 0);
    loop {
        let page = list(3, &token)?;
        ensure!(page.entries.len() <= 3, "{page:?}");
        for entry in page.entries {
            let volume = entry.volume.unwrap_or_default();
            ensure!(volume.capacity_bytes == 4 * MIB, "{volume:?}");
            ensure!(found.insert(volume.volume_id.clone()), "{} twice", volume.volume_id);
        }
        (token, pages) = (page.next_token, pages + 1);
        ensure!(pages < 10, "it does not end");
        if token.is_empty() {
            break;
        }
    }
    ensure!(found == names && pages >= 3, "{found:?} in {pages} pages");
    refused(list(0, "nonsense"), Code::Aborted, "a token of nobody")?;
    refused(list(-1, ""), Code::InvalidArgument, "fewer than none")?;
    validate(&plugin)?;
    expand(&plugin)?;
    let get = |id: &str| {
        let request = ControllerGetVolumeRequest { volume_id: id.into() };
        plugin.wait(plugin.controller().controller_get_volume(request))
    };
    let got = get("pvc-0")?;
    ensure!(got.volume.is_some_and(|volume| volume.capacity_bytes == 32 * MIB));
    refused(get("pvc-9"), Code::NotFound, "no such volume")?;
    refused(get(""), Code::InvalidArgument, "no id")?;
    let capacity = |request| plugin.wait(plugin.controller().get_capacity(request));
    let room = capacity(GetCapacityRequest::default())?.available_capacity;
    ensure!(room > 100 * MIB, "{room}");
    let of_block = GetCapacityRequest { volume_capabilities: vec![block()], ..Default::default() };
    ensure!(capacity(of_block)?.available_capacity == 0, "there is no room for blocks");
    plugin.stop()
}

fn validate(plugin: &Plugin) -> Result<()> {
    let validate = |id: &str, volume_capabilities: Vec<_>, path: Option<&str>| {
        let context = path.map(|path| ("path".to_owned(), path.to_owned()));
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities,
            volume_context: context.into_iter().collect(),
            ..Default::default()
        };
        plugin.wait(plugin.controller().validate_volume_capabilities(request))
    };
    refused(validate("", vec![shared()], None), Code::InvalidArgument, "no id")?;
    refused(validate("pvc-0", vec![], None), Code::InvalidArgument, "no capabilities")?;
    refused(validate("pvc-9", vec![shared()], None), Code::NotFound, "no such volume")?;
    refused(validate("../pvc-0", vec![shared()], None), Code::NotFound, "a trick")?;
    refused(validate("/../x", vec![shared()], None), Code::InvalidArgument, "a trick")?;
    refused(validate("x", vec![shared()], Some("/nowhere")), Code::NotFound, "no folder")?;
    for (id, path) in [("pvc-0", None), ("/volumes/pvc-0", None), ("x", Some("/volumes"))] {
        let answer = validate(id, vec![shared()], path)?;
        let confirmed = answer.confirmed.unwrap_or_default();
        ensure!(confirmed.volume_capabilities == [shared()], "{id}: {confirmed:?}");
    }
    let answer = validate("pvc-0", vec![shared(), block()], None)?;
    ensure!(answer.confirmed.is_none() && answer.message.contains("block"), "{answer:?}");
    Ok(())
}

fn expand(plugin: &Plugin) -> Result<()> {
    let expand = |id: &str, range: Option<(i64, i64)>| {
        let capacity_range = range
            .map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes });
        let volume_id = id.into();
        let request =
            ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
        plugin.wait(plugin.controller().controller_expand_volume(request))
    };
    refused(expand("", Some((MIB, 0))), Code::InvalidArgument, "no id")?;
    refused(expand("pvc-0", None), Code::InvalidArgument, "no size")?;
    refused(expand("pvc-9", Some((MIB, 0))), Code::NotFound, "no such volume")?;
    refused(expand("/volumes/pvc-0", Some((MIB, 0))), Code::NotFound, "a path")?;
    refused(expand("pvc-0", Some((-1, 0))), Code::InvalidArgument, "less than nothing")?;
    refused(expand("pvc-0", Some((0, MIB))), Code::OutOfRange, "smaller")?;
    for bytes in [32 * MIB, 32 * MIB, 8 * MIB] {
        let answer = expand("pvc-0", Some((bytes, 0)))?;
        ensure!(answer.capacity_bytes == 32 * MIB && !answer.node_expansion_required);
    }
    Ok(())
}
