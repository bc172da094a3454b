//! Each rule is broken on purpose, in a workspace of its own.

use crate::rules;
use crate::workspace::Workspace;
use std::fs;
use std::path::Path;

/// A workspace that keeps all rules: two packages, of which one uses the other.
struct House(tempfile::TempDir);

impl House {
    fn new() -> Self {
        let house = Self(tempfile::tempdir().unwrap());
        house.write("Cargo.toml", "[workspace]\nmembers = [\"proto\", \"net\"]\n");
        house.write("proto/Cargo.toml", "[package]\nname = \"weft-proto\"\n");
        house.write(
            "proto/src/lib.rs",
            "//! Messages.\n#![warn(missing_docs)]\n/// One.\npub struct Message;\n",
        );
        house.write(
            "net/Cargo.toml",
            "[package]\nname = \"weft-net\"\n[dependencies]\nweft-proto = \"0\"\n",
        );
        house.write(
            "net/src/lib.rs",
            "//! Connections.\n#![warn(missing_docs)]\nmod peer;\nmod queue;\npub use \
             peer::Peer;\n",
        );
        house.write(
            "net/src/peer.rs",
            "//! A peer.\nuse crate::queue::Queue;\npub struct Peer(Queue, weft_proto::Message);\n",
        );
        house.write("net/src/queue.rs", "//! A queue.\npub struct Queue;\n");
        house.write(
            "ARCHITECTURE.md",
            "## One call\n1. `net/src/peer.rs`: sends\n2. `net/src/queue.rs`: queues\n\
             3. ⇢ `proto/src/lib.rs`: there\n",
        );
        house
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn append(&self, path: &str, text: &str) {
        let old = fs::read_to_string(self.0.path().join(path)).unwrap();
        self.write(path, &(old + text));
    }

    /// What breaks a rule: the rule, and where.
    fn findings(&self) -> Vec<(String, String)> {
        let found = rules::all(&Workspace::read(self.0.path()).unwrap());
        found.iter().map(|f| (f.rule.to_string(), f.path.display().to_string())).collect()
    }

    #[track_caller]
    fn breaks(&self, rule: &str, path: &str) {
        assert_eq!(self.findings(), [(rule.to_string(), path.to_string())]);
    }
}

#[test]
fn a_tidy_house_has_no_findings() {
    assert_eq!(House::new().findings(), []);
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let house = House::new();
    house.append("proto/Cargo.toml", "[dependencies]\nweft-net = \"0\"\n");
    house.append("proto/src/lib.rs", "extern crate weft_net as _;\n");
    house.breaks("arrows", "proto/Cargo.toml");
}

#[test]
fn a_package_without_a_place_is_found() {
    let house = House::new();
    house.write("Cargo.toml", "[workspace]\nmembers = [\"proto\", \"net\", \"new\"]\n");
    house.write("new/Cargo.toml", "[package]\nname = \"weft-new\"\n");
    house.write("new/src/lib.rs", "//! New.\n");
    house.breaks("arrows", "new/Cargo.toml");
}

#[test]
fn circles_are_found_however_a_file_is_named() {
    for back in [
        "use crate::Peer;\nfn f(_: Peer) {}\n",
        "use super::peer;\nfn f(_: peer::Peer) {}\n",
        "fn f(_: super::Peer) {}\n",
        "use super::*;\nfn f(_: Peer) {}\n",
        "fn f() { use crate::peer::Peer as P; let _: P; }\n",
        "fn f() { println!(\"{:?}\", size_of::<crate::peer::Peer>()); }\n",
        "mod inner { use super::super::Peer; fn f(_: Peer) {} }\n",
    ] {
        let house = House::new();
        house.append("net/src/queue.rs", back);
        let circle = house.findings();
        let found = circle.iter().any(|(rule, _)| rule == "circles");
        assert!(found, "{back}: {circle:?}");
    }
    let house = House::new();
    house.append(
        "net/src/queue.rs",
        "#[cfg(test)]\nmod tests { use crate::Peer; fn f(_: Peer) {} }\n",
    );
    assert_eq!(house.findings(), []);
}

#[test]
fn a_file_that_does_not_say_what_it_holds_is_found() {
    let house = House::new();
    house.write("net/src/queue.rs", "pub struct Queue;\n");
    house.breaks("docs", "net/src/queue.rs");
}

#[test]
fn a_library_that_need_not_be_documented_is_found() {
    let house = House::new();
    house.write("proto/src/lib.rs", "//! Messages.\npub struct Message;\n");
    house.breaks("docs", "proto/src/lib.rs");
}

#[test]
fn a_journey_that_the_code_does_not_make_is_found() {
    let house = House::new();
    house.write(
        "ARCHITECTURE.md",
        "## One call\n1. `net/src/queue.rs`\n2. `net/src/peer.rs`\n## Else\n1. `none.rs`\n",
    );
    house.breaks("journeys", "ARCHITECTURE.md");
    house.write("ARCHITECTURE.md", "## One call\n1. `net/src/gone.rs`: is not there\n");
    house.breaks("journeys", "ARCHITECTURE.md");
    // A method leads to where it is defined.
    house.write(
        "ARCHITECTURE.md",
        "## One call\n1. `net/src/peer.rs`\n2. `net/src/queue/push.rs`\n",
    );
    house.append("net/src/peer.rs", "fn f(peer: Peer) { peer.0.push() }\n");
    house.append("net/src/queue.rs", "mod push;\n");
    house.write(
        "net/src/queue/push.rs",
        "//! Pushes.\nuse super::Queue;\nimpl Queue { pub fn push(self) {} }\n",
    );
    assert_eq!(house.findings(), []);
}

#[test]
fn long_files_and_functions_are_found() {
    let house = House::new();
    house.append("net/src/queue.rs", &"// One more line.\n".repeat(600));
    let both = house.findings();
    let found = |path: &str| both.contains(&("lengths".to_string(), path.to_string()));
    assert!(found("net/src/queue.rs") && both.len() <= 2, "{both:?}");
    let house = House::new();
    house.append("net/src/queue.rs", &format!("fn f() {{\n{}}}\n", "    f();\n".repeat(70)));
    house.breaks("lengths", "net/src/queue.rs");
}

#[test]
fn what_is_not_used_is_found() {
    let house = House::new();
    house.append("net/Cargo.toml", "serde-json = \"1\"\n");
    house.breaks("unused", "net/Cargo.toml");
    house.append("net/Cargo.toml", "[package.metadata.tidy]\nunnamed = [\"serde-json\"]\n");
    assert_eq!(house.findings(), []);
    house.append("net/Cargo.toml", "[dev-dependencies]\nrand = \"1\"\n");
    house.breaks("unused", "net/Cargo.toml");
    house.write("net/tests/calls.rs", "//! Calls.\nuse rand::random;\n");
    assert_eq!(house.findings(), []);
}

#[test]
fn a_line_that_is_too_long_is_found() {
    let house = House::new();
    house.append("net/src/queue.rs", &format!("// {}\n", "ü".repeat(98)));
    house.breaks("width", "net/src/queue.rs");
    let house = House::new();
    house.append("net/src/queue.rs", &format!("// {}\n", "ü".repeat(97)));
    assert_eq!(house.findings(), []);
}

/// The rules themselves are met by the workspace that this is part of.
#[test]
fn this_house_is_tidy() {
    // Where this runs, not where it was compiled: clones may share what cargo has made.
    let tidy = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let workspace = Path::new(&tidy).parent().unwrap();
    let findings = rules::all(&Workspace::read(workspace).unwrap());
    let all: Vec<_> = findings.iter().map(|finding| finding.to_string()).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
