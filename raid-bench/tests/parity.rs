//! `raid-bench parity` as its users call it: what comes out has the promised form and sane values.
//! Speed is never asserted: tests run beside other work.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::process::{Command, Output};

use serde_json::Value;

const OPERATIONS: [&str; 9] = [
    "gen_p",
    "gen_pq",
    "update_p",
    "update_pq",
    "recover_data",
    "recover_data_p",
    "recover_two_data",
    "check_p",
    "check_pq",
];

fn parity(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raid-bench"));
    command.arg("parity").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = parity(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {value}"))
}

#[test]
fn quick_json_has_all_operations_with_sane_figures() {
    let report = json(&["--quick", "--repeats", "3", "--json", "-"]);
    for field in [
        "dram_read_gb_s",
        "dram_read_one_stream_gb_s",
        "dram_read_eight_streams_gb_s",
        "dram_memcpy_gb_s",
        "dram_fill_gb_s",
        "l1_read_gb_s",
        "l2_read_gb_s",
        "memcpy_64k_gb_s",
    ] {
        let gb_s = number(&report["limits"], field);
        assert!(gb_s > 0.0 && gb_s < 1e5, "{field}: {gb_s}");
    }
    assert!(number(&report["settings"], "rotation_bytes") >= (512 << 20) as f64);
    let rows = report["rows"].as_array().unwrap();
    for operation in OPERATIONS {
        for cache in ["hot", "cold"] {
            let is_wanted = |row: &&Value| row["op"] == operation && row["cache"] == cache;
            let rows: Vec<&Value> = rows.iter().filter(is_wanted).collect();
            assert!(rows.iter().any(|row| row["kernel"] == "portable"), "{operation} {cache}");
            for row in rows {
                assert!(row["sources"].is_u64() && row["strip_bytes"].is_u64(), "{row}");
                assert_eq!(row["samples"], 3);
                for field in ["gb_s", "read_gb_s", "read_ratio", "limit_gb_s", "limit_ratio"] {
                    assert!(number(row, field) > 0.0, "{field} of {row}");
                }
                assert!(number(row, "spread") >= 0.0, "{row}");
                assert_eq!(row.get("dram_read_ratio").is_some(), cache == "cold", "{row}");
            }
        }
    }
}

#[test]
fn a_filter_and_a_kernel_pick_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("a.json"), folder.path().join("a.html"));
    let output = parity(&[
        "--quick",
        "--repeats=1",
        "--filter=^gen_p/8x4K/hot$",
        "--kernel=naive",
        "--kernel=portable",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The table comes as well when JSON goes elsewhere.
    assert!(String::from_utf8(output.stdout).unwrap().contains("8 x 4K hot"));
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let kernels: Vec<&Value> = rows.iter().map(|row| &row["kernel"]).collect();
    assert_eq!(kernels, ["naive", "portable"]);
    assert_eq!(rows[0]["strip_bytes"], 4096);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    assert!(!page.contains("http"), "the page needs nothing from elsewhere");
}

/// Either the peer is measured, or one line says what to install.
#[test]
fn the_peer_is_measured_or_asked_for() {
    let output =
        parity(&["--quick", "--repeats=1", "--filter=4x4K/hot", "--peer=isal", "--json=-"]);
    if output.status.success() {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let of_peer = rows.iter().filter(|row| row["kernel"] == "isal");
        let operations: Vec<&Value> = of_peer.map(|row| &row["op"]).collect();
        assert_eq!(operations, ["gen_p", "gen_pq"]);
    } else {
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("libisal2") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn nonsense_is_refused() {
    let output = parity(&["--kernel=mmx"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no kernel mmx") && error.contains("portable"), "{error}");
    assert_eq!(parity(&["--filter=nothing", "--quick"]).status.code(), Some(1));
    assert_eq!(parity(&["--filter=("]).status.code(), Some(2));
    assert_eq!(parity(&["--repeats=0"]).status.code(), Some(2));
}
