//! Finds the source of the crate `lance` and makes its in-memory graph available as modules.
//!
//! The graph is private in the crate; its files stand by themselves (Lance's own bench includes them by path too), so the
//! whole of Lance need not be compiled. Nothing of it is kept in this repository.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let source = lance_source().join("src/dataset/mem_wal/hnsw");
    for file in ["graph.rs", "storage.rs"] {
        let text = std::fs::read_to_string(source.join(file)).expect("the graph's file is in the crate");
        // An included file is no module root: comments about the module cannot stand in it, and neither can its tests,
        // which are its last item.
        let text = text.split("#[cfg(test)]\nmod tests").next().expect("split gives at least one");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//!"));
        let kept: Vec<&str> = lines.collect();
        std::fs::write(out.join(file), kept.join("\n")).expect("OUT_DIR is writable");
    }
}

/// Where cargo has unpacked `lance`.
fn lance_source() -> PathBuf {
    let cargo = std::env::var("CARGO").expect("cargo sets it");
    let manifest = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("Cargo.toml");
    let done = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features", "--manifest-path"])
        .arg(&manifest)
        .output()
        .expect("cargo runs");
    assert!(done.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&done.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&done.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let lance = packages.iter().find(|p| p["name"] == "lance").expect("lance is a dependency");
    let manifest = lance["manifest_path"].as_str().expect("a package has a manifest");
    Path::new(manifest).parent().expect("a file has a folder").to_owned()
}
