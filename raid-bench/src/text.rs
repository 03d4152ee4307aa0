//! The result as tables for people.

use std::fmt::Write;

use crate::cards::Card;
use crate::report::{Report, Row, Unit};
use crate::stats::{MB, MIB, figure, short_size};

/// Everything, for a terminal.
pub(crate) fn table(report: &Report) -> String {
    let mut text = String::new();
    for line in head(report) {
        push(&mut text, &line);
    }
    rows(&mut text, report);
    atto(&mut text, report);
    hdtune(&mut text, report);
    spool(&mut text, report);
    parity(&mut text, report);
    published(&mut text, report);
    for note in &report.notes {
        push(&mut text, &format!("note: {note}"));
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// What the figures depend on.
pub(crate) fn head(report: &Report) -> Vec<String> {
    let (machine, settings) = (&report.machine, &report.settings);
    let direct = if settings.direct { "past the page cache" } else { "not direct" };
    vec![
        format!("{} {}, {}, `{}`", report.tool, report.profile, report.date, report.command),
        format!(
            "{}, {} CPUs, {}, {}; parity kernel {} ({}); memory {}, load {:.1} before, {:.1} after",
            machine.cpu,
            machine.cpu_count,
            machine.architecture,
            machine.system,
            machine.parity_kernel,
            machine.cpu_flags.join(" "),
            short_size(machine.memory_bytes),
            machine.load_before,
            machine.load_after,
        ),
        format!(
            "{}, {} members of kind {} ({direct}, {}), {} of each and as much raw, chunk {}; \
             queues {}, depth {}; medians of {}, samples of {} s; {:.0} s in all",
            settings.level,
            settings.members,
            kind_name(report),
            settings.backend,
            short_size(settings.member_bytes),
            short_size(settings.chunk_bytes),
            settings.queues,
            settings.depth,
            settings.repeats,
            settings.sample_seconds,
            settings.seconds,
        ),
        "MB is 10^6 bytes, MiB 2^20. Spread: the middle half of the samples, as a part of the \
         median. CPU: of the whole process, the load generator included."
            .to_owned(),
    ]
}

fn kind_name(report: &Report) -> String {
    format!("{:?}", report.settings.member_kind).to_lowercase()
}

/// A rate in both units, or operations.
pub(crate) fn amount(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => format!("{} MB/s", figure(value / MB)),
        Unit::Operations => format!("{} IOPS", figure(value)),
    }
}

fn rows(text: &mut String, report: &Report) {
    if report.rows.is_empty() {
        return;
    }
    push(text, "");
    push(
        text,
        &format!(
            "{:<22} {:>14} {:>13} {:>14} {:>6} {:>5} {:>6} {:>8} {:>8} {:>9} {:>7}",
            "pattern",
            "achieved",
            "2^20",
            "limit",
            "ratio",
            "goal",
            "spread",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "CPU s/GB"
        ),
    );
    for row in &report.rows {
        row_line(text, row);
    }
}

fn row_line(text: &mut String, row: &Row) {
    let binary = match row.unit {
        Unit::Bytes => format!("{} MiB/s", figure(row.achieved / MIB)),
        Unit::Operations => {
            let bytes = row.achieved * row.request_bytes as f64;
            format!("{} MiB/s", figure(bytes / MIB))
        }
    };
    let has_latency = row.p50_us > 0.0;
    let latency = |micros: f64| if has_latency { figure(micros) } else { "-".to_owned() };
    push(
        text,
        &format!(
            "{:<22} {:>14} {:>13} {:>14} {:>6.2} {:>5} {:>5.0}% {:>8} {:>8} {:>9} {:>7}",
            row.pattern,
            amount(row.achieved, row.unit),
            binary,
            amount(row.limit, row.unit),
            row.ratio,
            row.goal.map_or("-".to_owned(), |goal| format!("{goal:.2}")),
            row.spread * 100.0,
            latency(row.p50_us),
            latency(row.p99_us),
            latency(row.p999_us),
            if has_latency { format!("{:.2}", row.cpu_seconds_per_gb) } else { "-".to_owned() },
        ),
    );
    push(text, &format!("    limit: {}", row.limit_is));
    if let (Some(same), Some(ratio)) = (row.same_io, row.same_io_ratio) {
        let same = amount(same, row.unit);
        push(text, &format!("    the same member I/O, raw, at once: {same}; ratio {ratio:.2}"));
    }
    if let Some(walking) = row.walking {
        push(text, &format!("    while it walked: {}", amount(walking, row.unit)));
    }
    if let Some(durable) = row.durable {
        push(text, &format!("    durable: {}", amount(durable, row.unit)));
    }
    for flag in &row.flags {
        push(text, &format!("    ! {flag}"));
    }
}

fn atto(text: &mut String, report: &Report) {
    for rows in report.atto.chunk_by(|a, b| (&a.target, &a.level) == (&b.target, &b.level)) {
        push(text, "");
        let (target, level) = (&rows[0].target, &rows[0].level);
        let name =
            if target == "member" { "one raw member".into() } else { format!("{target} {level}") };
        push(text, &format!("ATTO, {name}: 256 MiB, 4 transfers under way"));
        push(
            text,
            &format!(
                "{:>9} {:>12} {:>12} {:>12} {:>12} {:>14}",
                "transfer", "write MB/s", "MiB/s", "read MB/s", "MiB/s", "durable MB/s"
            ),
        );
        for row in rows {
            push(
                text,
                &format!(
                    "{:>9} {:>12} {:>12} {:>12} {:>12} {:>14}  {}",
                    short_size(row.bytes),
                    figure(row.write / MB),
                    figure(row.write / MIB),
                    figure(row.read / MB),
                    figure(row.read / MIB),
                    figure(row.write_durable / MB),
                    marks(&row.flags),
                ),
            );
        }
    }
}

/// Flags as one short remark.
fn marks(flags: &[String]) -> String {
    if flags.is_empty() { String::new() } else { format!("! {}", flags.join("; ")) }
}

fn hdtune(text: &mut String, report: &Report) {
    let Some(tune) = &report.hdtune else { return };
    push(text, "");
    push(
        text,
        &format!("HD Tune, {} {}: one request at a time in 512 MiB", tune.target, tune.level),
    );
    push(
        text,
        &format!(
            "{:>9} {:>6} {:>11} {:>12} {:>10} {:>10}",
            "size", "", "IOPS", "average ms", "p99 ms", "MB/s"
        ),
    );
    for access in &tune.random {
        push(
            text,
            &format!(
                "{:>9} {:>6} {:>11} {:>12.3} {:>10.3} {:>10}  {}",
                access.what,
                access.kind,
                figure(access.iops),
                access.average_ms,
                access.p99_ms,
                figure(access.bytes_a_second / MB),
                marks(&access.flags),
            ),
        );
    }
    let (transfer, access) = (&tune.transfer, &tune.access_ms);
    push(
        text,
        &format!(
            "transfer: least {} MB/s, most {}, median {} over {} points; access: median {:.3} ms, \
             most {:.3} ms",
            figure(transfer.min / MB),
            figure(transfer.max / MB),
            figure(transfer.median / MB),
            tune.curve.len(),
            access.median,
            access.max,
        ),
    );
    for flag in &tune.flags {
        push(text, &format!("    ! {flag}"));
    }
}

fn spool(text: &mut String, report: &Report) {
    let Some(first) = report.spool.first() else { return };
    push(text, "");
    push(text, &format!("News spool, {}: files of 8 KiB, one at a time", first.how));
    push(
        text,
        &format!(
            "{:<8} {:<16} {:>10} {:>10} {:>7}",
            "target", "order", "files/s", "MB/s", "spread"
        ),
    );
    for row in &report.spool {
        let files = row.files_a_second;
        push(
            text,
            &format!(
                "{:<8} {:<16} {:>10} {:>10} {:>6.0}%  {}",
                row.target,
                row.order,
                if files > 0.0 { figure(files) } else { "-".to_owned() },
                figure(row.bytes_a_second / MB),
                row.spread * 100.0,
                marks(&row.flags),
            ),
        );
    }
}

fn parity(text: &mut String, report: &Report) {
    if report.parity.is_empty() {
        return;
    }
    push(text, "");
    push(text, "Parity, one core, GB/s of source data; the limit moves the same bytes");
    for row in &report.parity {
        let (gb_s, limit) = (figure(row.gb_s), figure(row.limit_gb_s));
        let line =
            format!("{:<24} {:<10} {gb_s:>8} {limit:>8} {:>5.2}", row.case, row.kernel, row.ratio);
        push(text, &line);
    }
}

fn published(text: &mut String, report: &Report) {
    push(text, "");
    push(
        text,
        "Published by others, on other hardware: nothing of this was run here. Ratios to one",
    );
    push(text, "member of the same array, beside what so many members could give:");
    for (card, figure) in ratios(&report.published) {
        let (ratio, ideal) = (figure.ratio.unwrap_or(0.0), figure.ideal.unwrap_or(0.0));
        let _ = writeln!(
            text,
            "  {:<32} {:<9} {:>2} members  {:<34} {ratio:>6.2} of {ideal:.0}",
            card.system, card.level, card.members, figure.what,
        );
    }
    let ours: Vec<String> = ours_to_member(report)
        .into_iter()
        .map(|(what, ratio, ideal)| format!("{what} {ratio:.2} of {ideal:.0}"))
        .collect();
    if !ours.is_empty() {
        push(text, &format!("  this run, to one raw member: {}", ours.join(", ")));
    }
}

/// The figures whose ratio is to a member of the same array.
pub(crate) fn ratios(cards: &[Card]) -> impl Iterator<Item = (&Card, &crate::cards::Figure)> {
    cards.iter().flat_map(|card| {
        let has_both =
            |figure: &&crate::cards::Figure| figure.ratio.is_some() && figure.ideal.is_some();
        card.figures.iter().filter(has_both).map(move |figure| (card, figure))
    })
}

/// This run's own ratios to one raw member, where it measured one: what, ratio, ideal.
pub(crate) fn ours_to_member(report: &Report) -> Vec<(String, f64, f64)> {
    let mut ratios = Vec::new();
    let best = |target: &str, level: &str, is_read: bool| {
        let rows = report.atto.iter().filter(|row| row.target == target && row.level == level);
        rows.map(|row| if is_read { row.read } else { row.write }).fold(0.0, f64::max)
    };
    let level = &report.settings.level;
    let members = report.settings.members as f64;
    let data = match level.as_str() {
        "raid5" | "raid4" => members - 1.0,
        "raid6" | "raid50" => members - 2.0,
        "raid60" => members - 4.0,
        "raid10" => members / 2.0,
        "raid1" => 1.0,
        _ => members,
    };
    for (what, is_read) in [("sequential read", true), ("sequential write", false)] {
        let (ours, member) = (best("ours", level, is_read), best("member", "member", is_read));
        if ours > 0.0 && member > 0.0 {
            let mirrors = matches!(level.as_str(), "raid1" | "raid10");
            let ideal = if is_read && mirrors { members } else { data };
            ratios.push((what.to_owned(), ours / member, ideal));
        }
    }
    for row in &report.rows {
        if matches!(row.pattern, "rebuild" | "check" | "resync") {
            ratios.push((format!("{}, a member", row.pattern), row.ratio, 1.0));
        }
    }
    ratios
}
