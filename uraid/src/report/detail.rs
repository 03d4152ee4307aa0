//! An array in the words and the frame of `mdadm --detail`.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use raid_io::{Detail, GroupStatus, MemberStatus, Status};

use super::story::{self, is_being_filled};
use crate::size;

/// Renders `detail`; a nested array is followed by each of its groups.
pub(crate) fn render(detail: &Detail) -> String {
    let mut text = String::new();
    let status = &detail.status;
    let title = if status.name.is_empty() { &status.uuid } else { &status.name };
    let _ = writeln!(text, "{title}:");
    head(&mut text, detail);
    state(&mut text, status);
    shape(&mut text, detail);
    for (index, group) in status.groups.iter().enumerate() {
        if status.groups.len() > 1 {
            let _ = writeln!(text, "\nGroup {index}, {}, UUID {}:", group.level, group.uuid);
        }
        members(&mut text, group);
    }
    if let Some(story) = story::of(status).filter(|_| exit_code(status) > 1) {
        let _ = writeln!(text, "\n{}.", story.trouble);
        for slot in story.slots {
            let _ = writeln!(text, "    {slot}");
        }
        let _ = writeln!(text, "To do: {}.", story.action);
    }
    text
}

/// The exit code of `mdadm --detail --test`: 0 fine, 1 degraded, 2 unusable.
pub(crate) fn exit_code(status: &Status) -> u8 {
    let is_broken = |group: &GroupStatus| group.failed || group.write_failed;
    if status.state == "failed" || status.groups.iter().any(is_broken) {
        2
    } else if status.degraded > 0 {
        1
    } else {
        0
    }
}

fn line(text: &mut String, label: &str, value: &str) {
    let _ = writeln!(text, "{label:>18} : {value}");
}

fn all(status: &Status) -> impl Iterator<Item = &MemberStatus> {
    status.groups.iter().flat_map(|group| &group.members)
}

/// States of members that mdadm calls spares: a replacement is one until it takes over.
const SPARE: [&str; 3] = ["spare", "recovering", "replacement"];
/// States of members that mdadm calls working.
const WORKING: [&str; 5] = ["in_sync", "spare", "recovering", "replacement", "journal"];

fn count(status: &Status, wanted: &[&str]) -> usize {
    let of = |member: &&MemberStatus| wanted.contains(&member.state.as_str());
    all(status).filter(of).count()
}

fn blocks(bytes: u64) -> String {
    format!("{}{}", bytes >> 10, size::human(bytes))
}

/// A layout as mdadm calls it: it keeps quiet about far sets, and about how a RAID 0 stripes
/// unequal members if its superblocks do.
pub(crate) fn layout(name: &str) -> &str {
    match name {
        "dangerous" => "-unknown-",
        name => name.split(", far-sets").next().unwrap_or(name),
    }
}

/// A time as `ctime` prints it, of this machine's zone.
pub(crate) fn time(seconds: u64) -> String {
    let stamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    let local = stamp.map(|stamp| TimeZone::system().to_datetime(stamp));
    let text = local.and_then(|local| strtime::format("%a %b %e %H:%M:%S %Y", local).ok());
    text.unwrap_or_else(|| format!("{seconds} seconds after 1970"))
}

fn head(text: &mut String, detail: &Detail) {
    let status = &detail.status;
    let slots: u32 = status.groups.iter().map(|group| group.slot_count).sum();
    line(text, "Version", &detail.version);
    line(text, "Creation Time", &time(detail.creation_time));
    line(text, "Raid Level", &status.level);
    line(text, "Array Size", &blocks(status.size_bytes));
    if !matches!(status.level.as_str(), "raid0" | "linear") {
        line(text, "Used Dev Size", &blocks(detail.component_bytes));
    }
    line(text, "Raid Devices", &slots.to_string());
    let total = count(status, &WORKING) + count(status, &["faulty"]);
    line(text, "Total Devices", &total.to_string());
    line(text, "Persistence", "Superblock is persistent");
    text.push('\n');
    if status.groups.iter().any(|group| group.bitmap.is_some()) {
        line(text, "Intent Bitmap", "Internal");
        text.push('\n');
    }
    line(text, "Update Time", &time(detail.update_time));
}

fn state(text: &mut String, status: &Status) {
    line(text, "State", &state_words(status));
    line(text, "Active Devices", &count(status, &["in_sync"]).to_string());
    line(text, "Working Devices", &count(status, &WORKING).to_string());
    line(text, "Failed Devices", &count(status, &["faulty"]).to_string());
    line(text, "Spare Devices", &count(status, &SPARE).to_string());
    text.push('\n');
}

/// `clean, degraded, recovering`
pub(crate) fn state_words(status: &Status) -> String {
    // As mdadm says it: read-only is how an array was opened, not a state of its data.
    let mut words = vec![match status.state.as_str() {
        "readonly" | "" if status.was_clean => "clean",
        "readonly" | "" => "active",
        // What the superblocks say is not known here: they may be out of reach.
        "failed" => "active",
        other => other,
    }];
    match exit_code(status) {
        2 => words.push("FAILED"),
        1 => words.push("degraded"),
        _ => {}
    }
    if !status.was_clean {
        words.push("not stopped cleanly");
    }
    for group in &status.groups {
        let word = match group.sync_action.as_str() {
            "recover" => "recovering",
            // mdadm goes by /proc/mdstat, where a repair is a resync.
            "resync" | "repair" => "resyncing",
            "check" => "checking",
            "reshape" => "reshaping",
            _ if group.members.iter().any(is_being_filled) => "recovering (PENDING)",
            _ if !group.in_sync => "resyncing (PENDING)",
            _ => continue,
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

fn shape(text: &mut String, detail: &Detail) {
    let status = &detail.status;
    if !status.layout.is_empty() {
        line(text, "Layout", layout(&status.layout));
    }
    if status.chunk_bytes != 0 {
        line(text, "Chunk Size", &size::short(status.chunk_bytes));
    }
    text.push('\n');
    line(text, "Consistency Policy", &detail.consistency_policy);
    text.push('\n');
    for group in &status.groups {
        if group.sync_total_bytes > 0 && !matches!(group.sync_action.as_str(), "" | "idle") {
            let percent =
                u128::from(group.sync_done_bytes) * 100 / u128::from(group.sync_total_bytes);
            let label = match group.sync_action.as_str() {
                "recover" => "Rebuild Status",
                "resync" | "repair" => "Resync Status",
                _ => "Check Status",
            };
            line(text, label, &format!("{percent}% complete"));
            text.push('\n');
        }
    }
    line(text, "Name", &status.name);
    line(text, "UUID", &status.uuid);
    line(text, "Events", &detail.events.to_string());
}

fn members(text: &mut String, group: &GroupStatus) {
    text.push_str("\n    Number   Major   Minor   RaidDevice State\n");
    let (in_slots, others): (Vec<_>, Vec<_>) =
        group.members.iter().partition(|member| member.slot.is_some());
    for member in in_slots {
        text.push_str(&member_row(member));
    }
    if !others.is_empty() {
        text.push('\n');
    }
    for member in others {
        text.push_str(&member_row(member));
    }
}

fn member_row(member: &MemberStatus) -> String {
    let or_dash = |number: Option<u32>| number.map_or_else(|| "-".into(), |n| n.to_string());
    let (number, slot) = (or_dash(member.number), or_dash(member.slot));
    let (major, minor) = member.device.unwrap_or_default();
    let words = match (member.state.as_str(), member.slot) {
        ("missing" | "removed", Some(_)) => {
            return format!("{:>8} {:>7} {:>8} {slot:>8}      removed\n", "-", 0, 0);
        }
        ("in_sync", _) => "active sync",
        ("stale", _) => "left out",
        _ if is_being_filled(member) => "spare rebuilding",
        (other, _) => other,
    };
    format!("{number:>8} {major:>7} {minor:>8} {slot:>8}      {words}   {}\n", member.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u32, state: &str) -> MemberStatus {
        MemberStatus {
            path: format!("member{slot}"),
            number: Some(slot),
            slot: Some(slot),
            state: state.into(),
            device: Some((7, slot)),
            ..MemberStatus::default()
        }
    }

    fn example(states: &[&str]) -> Detail {
        let each = |(slot, state): (usize, &&str)| member(slot as u32, state);
        let degraded = states.iter().filter(|state| **state != "in_sync").count() as u32;
        let group = GroupStatus {
            level: "raid5".into(),
            slot_count: states.len() as u32,
            degraded,
            degraded_max: 1,
            failed: degraded > 1,
            in_sync: true,
            members: states.iter().enumerate().map(each).collect(),
            ..GroupStatus::default()
        };
        let status = Status {
            name: "lab:raid5".into(),
            uuid: "f1bad600:dcc88a94:a4463f91:cd71fa2c".into(),
            level: "raid5".into(),
            layout: "left-symmetric".into(),
            chunk_bytes: 65536,
            size_bytes: 9216 << 10,
            state: "clean".into(),
            was_clean: true,
            degraded,
            groups: vec![group],
            ..Status::default()
        };
        Detail {
            status,
            version: "1.2".into(),
            component_bytes: 3072 << 10,
            events: 23,
            consistency_policy: "resync".into(),
            ..Detail::default()
        }
    }

    /// The lines are those of mdadm 4.2 for the same array, but for the times.
    #[test]
    fn an_array_shows_as_with_mdadm() {
        let text = render(&example(&["in_sync", "missing", "in_sync", "in_sync"]));
        for line in [
            "           Version : 1.2",
            "        Array Size : 9216 (9.00 MiB 9.44 MB)",
            "     Used Dev Size : 3072",
            "     Total Devices : 3",
            "             State : clean, degraded",
            "        Chunk Size : 64K",
            "Consistency Policy : resync",
            "            Events : 23",
            "    Number   Major   Minor   RaidDevice State",
            "       0       7        0        0      active sync   member0",
            "       -       0        0        1      removed",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n--\n{text}");
        }
    }

    /// Number, slot and state of each member, as mdadm 4.2 showed them on Linux 7.3: a spare fills
    /// slot 1, and a replacement stands beside slot 2.
    #[test]
    fn members_show_as_with_mdadm() {
        let mut detail = example(&["in_sync", "recovering", "in_sync", "in_sync"]);
        let group = &mut detail.status.groups[0];
        group.members[1].number = Some(5);
        group.members.insert(3, MemberStatus { number: Some(4), ..member(2, "replacement") });
        group.members.push(MemberStatus { slot: None, ..member(1, "faulty") });
        group.sync_action = "recover".into();
        (group.sync_done_bytes, group.sync_total_bytes) = (1408, 64512);
        let text = render(&detail);
        let table = text.split_once("RaidDevice State\n").unwrap().1;
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>())
            .map(|words| words.into_iter().enumerate().filter(|(i, _)| !(1..3).contains(i)))
            .map(|words| words.map(|(_, word)| word).collect())
            .collect();
        let right: [&[&str]; 7] = [
            &["0", "0", "active", "sync", "member0"],
            &["5", "1", "spare", "rebuilding", "member1"],
            &["2", "2", "active", "sync", "member2"],
            &["4", "2", "spare", "rebuilding", "member2"],
            &["3", "3", "active", "sync", "member3"],
            &[],
            &["1", "-", "faulty", "member1"],
        ];
        assert_eq!(rows, right, "{text}");
        for line in [
            "             State : clean, degraded, recovering",
            "    Active Devices : 3",
            "   Working Devices : 5",
            "    Failed Devices : 1",
            "     Spare Devices : 2",
            "    Rebuild Status : 2% complete",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n--\n{text}");
        }
    }

    #[test]
    fn beyond_redundancy_the_words_come_too() {
        let mut detail = example(&["faulty", "missing", "in_sync", "in_sync"]);
        let text = render(&detail);
        assert!(text.contains("             State : clean, FAILED\n"), "{text}");
        let story = "\n2 of 4 slots of raid5 are lost, and it bears 1: requests that need them \
                     fail, nothing is made up.\n    slot 0: member0 has failed\n    \
                     slot 1: no member\nTo do: stop it, ";
        assert!(text.contains(story), "{text}");
        detail.status.state = "failed".into();
        assert!(render(&detail).contains("             State : active, FAILED\n"));
        assert!(!render(&example(&["faulty", "in_sync", "in_sync"])).contains("To do:"));
    }

    /// What mdadm says of each action, on Linux 7.3.
    #[test]
    fn work_is_called_as_with_mdadm() {
        for (action, state, label) in [
            ("recover", "recovering", "    Rebuild Status"),
            ("resync", "resyncing", "     Resync Status"),
            ("repair", "resyncing", "     Resync Status"),
            ("check", "checking", "      Check Status"),
        ] {
            let mut detail = example(&["in_sync"; 4]);
            detail.status.groups[0].sync_action = action.into();
            detail.status.groups[0].sync_total_bytes = 100;
            let text = render(&detail);
            assert!(text.contains(&format!("State : clean, {state}\n")), "{text}");
            assert!(text.contains(&format!("{label} : 0% complete\n")), "{text}");
        }
    }

    #[test]
    fn exit_codes_are_those_of_mdadm() {
        assert_eq!(exit_code(&example(&["in_sync"; 4]).status), 0);
        assert_eq!(exit_code(&example(&["in_sync", "faulty", "in_sync"]).status), 1);
        assert_eq!(exit_code(&example(&["in_sync", "faulty", "missing"]).status), 2);
    }

    #[test]
    fn times_out_of_range_are_shown_as_numbers() {
        assert_eq!(time(u64::MAX), format!("{} seconds after 1970", u64::MAX));
        assert!(time(1_796_080_770).contains(" 2026"));
    }
}
