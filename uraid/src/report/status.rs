//! The state of a served array in a few lines: what is wrong first, then the counters.

use std::fmt::Write;

use raid_io::{GroupStatus, MemberStatus, Statistics, Status};

use super::detail::state_words;
use super::progress::{Earlier, Progress};
use super::{bar, story};
use crate::size;

/// Renders `status` for people.
pub(crate) fn render(status: &Status, earlier: Option<&Earlier>) -> String {
    let mut text = String::new();
    let name = if status.name.is_empty() { &status.uuid } else { &status.name };
    let _ = writeln!(text, "array:   {name} ({}{})", status.level, shape(status));
    let bytes = status.size_bytes;
    let _ = writeln!(text, "size:    {bytes} bytes{}", size::human(bytes));
    let access = if status.read_only { ", read-only" } else { "" };
    let _ = writeln!(text, "state:   {}{access}", state_words(status));
    if let Some(story) = story::of(status) {
        let _ = writeln!(text, "status:  {}\naction:  {}", story.trouble, story.action);
    }
    background(&mut text, status, earlier);
    let _ = writeln!(text, "backend: {}\n\nmembers:", status.backend);
    for group in &status.groups {
        if status.groups.len() > 1 {
            let _ = writeln!(text, "  {} {}", group.level, group.uuid);
        }
        group_members(&mut text, group);
    }
    counters(&mut text, &status.statistics);
    text
}

fn shape(status: &Status) -> String {
    let mut text = String::new();
    if !status.layout.is_empty() {
        let _ = write!(text, ", {}", status.layout);
    }
    if status.chunk_bytes != 0 {
        let _ = write!(text, ", chunk {}", size::short(status.chunk_bytes));
    }
    text
}

fn background(text: &mut String, status: &Status, earlier: Option<&Earlier>) {
    for progress in (0..status.groups.len()).filter_map(|i| Progress::of(status, i, earlier)) {
        let label = format!("{}:", progress.action);
        let _ = writeln!(text, "{label:<8} {}", bar::numbers(&progress));
    }
}

fn group_members(text: &mut String, group: &GroupStatus) {
    let or_dash = |number: Option<u32>| number.map_or_else(|| "-".into(), |n| n.to_string());
    let _ = writeln!(text, "  slot  state        reads     writes  read errors  path");
    for member in &group.members {
        let MemberStatus { path, slot, state, reads, writes, read_errors, .. } = member;
        let slot = or_dash(*slot);
        let row = format!("  {slot:>4}  {state:<8} {reads:>9} {writes:>10} {read_errors:>12}");
        let row = format!("{row}  {path}");
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

fn counters(text: &mut String, statistics: &Statistics) {
    let Statistics { reads, writes, flushes, full_stripe_writes, rmw, rcw, .. } = statistics;
    let Statistics { degraded_reads, member_reads, member_writes, merged, .. } = statistics;
    let _ = writeln!(
        text,
        "\nrequests: {reads} reads ({degraded_reads} degraded), {writes} writes, \
         {flushes} flushes\n\
         stripes:  {full_stripe_writes} full-stripe writes, {rmw} read-modify-writes, \
         {rcw} reconstruct-writes\n\
         members:  {member_reads} reads, {member_writes} writes, {merged} merged"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_degraded_array_says_so_and_what_to_do() {
        let member = |slot, state: &str| MemberStatus {
            slot: Some(slot),
            state: state.into(),
            ..MemberStatus::default()
        };
        let group = GroupStatus {
            slot_count: 2,
            degraded: 1,
            degraded_max: 1,
            in_sync: true,
            members: vec![member(0, "in_sync"), member(1, "missing")],
            ..GroupStatus::default()
        };
        let mut status = Status {
            state: "clean".into(),
            was_clean: true,
            degraded: 1,
            groups: vec![group],
            ..Status::default()
        };
        let text = render(&status, None);
        assert!(text.contains("state:   clean, degraded\nstatus:  1 of the slots"), "{text}");
        (status.groups[0].degraded, status.groups[0].failed) = (2, true);
        assert!(render(&status, None).contains("and it bears 1: requests that need them fail"));
        (status.groups[0].degraded, status.groups[0].failed) = (0, false);
        status.degraded = 0;
        assert!(!render(&status, None).contains("action:"));
    }
}
