//! Goal: the raw checker that judges the engine is itself right. Method: give it arrays made by the
//! kernel's md, of which the logical content is known by its SHA-256, whole and with every
//! tolerated member left out.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::rawcheck::{RawSet, RawSuper};
use sha2::{Digest, Sha256};

struct Golden {
    name: String,
    images: Vec<Vec<u8>>,
    sha256: String,
}

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../raid-core/tests/golden")
}

/// Arrays that were stopped while all redundancy was in place.
fn is_plain(name: &str) -> bool {
    let special = ["dirty-", "mid", "-failed", "-removed", "-missing", "journal", "-sets1"];
    !special.iter().any(|word| name.contains(word))
}

fn load(folder: &Path) -> Golden {
    let manifest = fs::read(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let mut images = Vec::new();
    for member in manifest["members"].as_array().unwrap() {
        let file = folder.join(member["file"].as_str().unwrap());
        images.push(zstd::decode_all(fs::File::open(file).unwrap()).unwrap());
    }
    Golden {
        name: manifest["name"].as_str().unwrap().to_owned(),
        images,
        sha256: manifest["logical_sha256"].as_str().unwrap().to_owned(),
    }
}

fn plain_arrays() -> Vec<Golden> {
    let Ok(entries) = fs::read_dir(golden_folder()) else { return Vec::new() };
    let folders = entries.map(|entry| entry.unwrap().path());
    let plain = |path: &PathBuf| {
        path.join("manifest.json").exists() && is_plain(path.file_name().unwrap().to_str().unwrap())
    };
    folders.filter(plain).map(|path| load(&path)).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn content_and_redundancy_of_md_arrays_are_read_right() {
    let mut seen = 0;
    for golden in plain_arrays() {
        let set = RawSet::of_images(golden.images);
        assert_eq!(sha256(&set.content()), golden.sha256, "{}: content", golden.name);
        assert_eq!(set.mismatches(), [], "{}", golden.name);
        seen += 1;
    }
    assert!(seen >= 60, "only {seen} golden arrays in {}", golden_folder().display());
}

/// How many members each array can lose, whichever they are.
fn tolerated(name: &str) -> usize {
    match name {
        _ if name.starts_with("raid6") => 2,
        _ if name.starts_with("raid0") || name.starts_with("linear") => 0,
        _ => 1,
    }
}

#[test]
fn content_of_md_arrays_is_regenerated_for_every_lost_pair() {
    for golden in plain_arrays() {
        let count = golden.images.len();
        let tolerated = tolerated(&golden.name);
        let whole = RawSet::of_images(golden.images.clone()).content();
        for a in 0..count {
            for b in a..count {
                let lost = if a == b { 1 } else { 2 };
                if lost > tolerated {
                    continue;
                }
                let images = golden.images.iter().enumerate();
                let kept = images.filter(|(index, _)| *index != a && *index != b);
                let kept = kept.map(|(_, image)| image.clone()).collect();
                let same = RawSet::of_images(kept).content() == whole;
                assert!(same, "{} without {a}, {b}", golden.name);
            }
        }
    }
}

/// The checker must see damage: a flipped byte in data, P, Q or a copy is a mismatch.
#[test]
fn a_flipped_byte_is_seen() {
    for golden in plain_arrays().into_iter().filter(|golden| tolerated(&golden.name) > 0) {
        let superblock = RawSuper::of(&golden.images[0]).unwrap();
        for row in 0..3 {
            let mut images = golden.images.clone();
            let within = row * superblock.chunk_bytes.max(4096) + 1000;
            assert!(within < superblock.size_bytes, "{}", golden.name);
            images[0][superblock.data_offset + within] ^= 1;
            let found = RawSet::of_images(images).mismatches();
            assert_ne!(found, [], "{}, row {row}", golden.name);
        }
    }
}
