//! The result as a table for people.

use std::fmt::Write;

use super::report::{Report, Row};

/// Lines of a table: the rows of one case each.
pub(super) fn cases(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| {
        (a.op, a.sources, a.strip_bytes, a.cache) == (b.op, b.sources, b.strip_bytes, b.cache)
    })
}

/// Tables: the rows of one operation each.
pub(super) fn operations(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.op == b.op)
}

/// `8 x 64K hot`.
pub(super) fn shape(row: &Row) -> String {
    format!("{} x {}K {}", row.sources, row.strip_bytes >> 10, row.cache.name())
}

/// One line each about the machine and the method.
pub(super) fn head(report: &Report) -> Vec<String> {
    let (machine, settings) = (&report.machine, &report.settings);
    vec![
        format!("{}, {}: {}", report.tool, report.date, report.command),
        format!(
            "{}, {} CPUs, {}, {}; load {:.1} before, {:.1} after",
            machine.cpu,
            machine.cpu_count,
            machine.architecture,
            machine.system,
            machine.load_before,
            machine.load_after,
        ),
        format!(
            "one pinned thread; medians of {} samples of {} ms in turns; cold rotates through {} \
             MiB; {} preempted samples taken again; {:.0} s",
            settings.repeats,
            settings.sample_ms,
            settings.rotation_bytes >> 20,
            settings.retaken_count,
            settings.seconds,
        ),
    ]
}

/// The machine's limits: a name and GB/s.
pub(super) fn limits(report: &Report) -> [(&'static str, f64); 8] {
    let limits = &report.limits;
    [
        ("memory read", limits.dram_read_gb_s),
        ("memory read, one stream", limits.dram_read_one_stream_gb_s),
        ("memory read, eight strips", limits.dram_read_eight_streams_gb_s),
        ("memory to memory, memcpy", limits.dram_memcpy_gb_s),
        ("memory fill", limits.dram_fill_gb_s),
        ("L1 read, 16 KiB", limits.l1_read_gb_s),
        ("L2 read, 512 KiB", limits.l2_read_gb_s),
        ("memcpy, 64 KiB hot", limits.memcpy_64k_gb_s),
    ]
}

/// How to read the tables.
pub(super) const LEGEND: [&str; 3] = [
    "GB/s (10^9) of source data, lost ones included; an update has two sources, old and new data.",
    "read: only loading what the operation loads; move: also storing what it stores, nothing else \
     done.",
    "Behind each figure its ratio to move, the limit; +- is the spread (middle half) of the first.",
];

/// The whole report as text.
pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    for line in head(report) {
        text += &line;
        text.push('\n');
    }
    text += "\nlimits, GB/s\n";
    for (name, gb_s) in limits(report) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:27}{gb_s:7.1}");
    }
    text.push('\n');
    for line in LEGEND {
        text += line;
        text.push('\n');
    }
    for rows in operations(&report.rows) {
        operation(&mut text, rows);
    }
    text
}

fn operation(text: &mut String, rows: &[Row]) {
    let _ = write!(text, "\n{:18}{:>7}{:>7}", rows[0].op, "read", "move");
    let first = cases(rows).next().unwrap_or_default();
    for row in first {
        let _ = write!(text, "{:>13}", row.kernel);
    }
    let has_peer = first.iter().any(|row| row.isal_ratio.is_some());
    let _ = writeln!(text, "{}", if has_peer { "   +-  to isal" } else { "   +-" });
    for rows in cases(rows) {
        let best = &rows[0];
        let _ = write!(text, "{:18}{:7.1}{:7.1}", shape(best), best.read_gb_s, best.limit_gb_s);
        for row in rows {
            let _ = write!(text, "{:8.1} {:4.2}", row.gb_s, row.limit_ratio);
        }
        let _ = write!(text, "{:4.0}%", best.spread * 100.0);
        if let Some(ratio) = best.isal_ratio {
            let _ = write!(text, "{ratio:9.2}");
        }
        text.push('\n');
    }
}
