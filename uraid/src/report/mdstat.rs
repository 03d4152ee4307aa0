//! The form of /proc/mdstat, as node_exporter, monitoring plugins and eyes parse it.
//!
//! ```text
//! Personalities : [raid0] [raid1] [raid10] [raid6] [raid5] [raid4]
//! md0 : active raid5 c.img[2] b.img[1](F) a.img[0]
//!       8192 blocks super 1.2 level 5, 64k chunk, algorithm 2 [3/2] [U_U]
//!
//! unused devices: <none>
//! ```
//!
//! A nested array shows as the kernel would show it: one `md` for each group, and one over them.

use std::fmt::Write;

use raid_core::layout::{Layout, Level};
use raid_io::{BitmapStatus, GroupStatus, MemberStatus, Status};

use super::progress::{Earlier, Progress};

/// What a group's lines need besides the group.
struct Seen<'a> {
    status: &'a Status,
    progress: Option<Progress<'a>>,
}

/// Renders the arrays of `status`; `earlier` tells the speed of background work.
pub(crate) fn render(status: &Status, earlier: Option<&Earlier>) -> String {
    let mut text = String::from("Personalities : ");
    for level in ["raid0", "raid1", "raid10", "raid6", "raid5", "raid4", "linear"] {
        let _ = write!(text, "[{level}] ");
    }
    text.push('\n');
    if status.groups.len() > 1 {
        outer(&mut text, status);
    }
    for (index, group) in status.groups.iter().enumerate().rev() {
        let number = if status.groups.len() > 1 { index + 1 } else { 0 };
        let progress = Progress::of(status, index, earlier);
        array(&mut text, number, group, Seen { status, progress });
    }
    text.push_str("unused devices: <none>\n");
    text
}

/// The striped set over groups, whose members are the groups' arrays.
fn outer(text: &mut String, status: &Status) {
    let _ = write!(text, "md0 : {} raid0", activity(status));
    for index in (0..status.groups.len()).rev() {
        let _ = write!(text, " md{}[{index}]", index + 1);
    }
    let blocks = status.size_bytes >> 10;
    let _ =
        writeln!(text, "\n      {blocks} blocks super 1.2{}\n      ", chunks(status.chunk_bytes));
}

fn array(text: &mut String, number: usize, group: &GroupStatus, seen: Seen<'_>) {
    let Seen { status, progress } = seen;
    // One that lost too much is "broken", as newer kernels say.
    let activity = if group.failed || group.write_failed { "broken" } else { activity(status) };
    let _ = write!(text, "md{number} : {activity} {}", group.level);
    // Those that came last are first.
    let mut members: Vec<&MemberStatus> = group.members.iter().collect();
    members.sort_by_key(|member| std::cmp::Reverse(member.number.or(member.slot)));
    for member in members {
        text.push_str(&member_word(member));
    }
    let blocks = group.size_bytes >> 10;
    let _ = writeln!(text, "\n      {blocks} blocks super 1.2{}", shape(group));
    text.push_str("      ");
    if let Some(progress) = progress {
        text.push_str(&progress_line(&progress));
        text.push_str("\n      ");
    } else if !group.in_sync {
        text.push_str("\tresync=PENDING\n      ");
    }
    if let Some(bitmap) = &group.bitmap {
        text.push_str(&bitmap_line(bitmap));
    }
    text.push('\n');
}

fn activity(status: &Status) -> &'static str {
    if status.read_only { "active (read-only)" } else { "active" }
}

/// `bitmap: 1/1 pages [4KB], 64KB chunk`: the pages of its counters that md would hold in memory.
fn bitmap_line(bitmap: &BitmapStatus) -> String {
    // 16 bits for each region, 4 KiB for a page.
    let pages = bitmap.regions.div_ceil(2048);
    let used = pages.min(bitmap.dirty);
    let chunk = bitmap.chunk_bytes;
    let (chunk, unit) = if chunk < 1024 { (chunk, "B") } else { (chunk >> 10, "KB") };
    format!("bitmap: {used}/{pages} pages [{}KB], {chunk}{unit} chunk", used * 4)
}

/// ` name[number](state)`; a slot without a member has no word.
fn member_word(member: &MemberStatus) -> String {
    let Some(number) = member.number.or(member.slot) else { return String::new() };
    let flag = match member.state.as_str() {
        "missing" | "removed" | "stale" => return String::new(),
        "journal" => "(J)",
        "faulty" => "(F)",
        "spare" if member.slot.is_none() => "(S)",
        "replacement" => "(R)",
        _ => "",
    };
    format!(" {}[{number}]{flag}", device_name(&member.path))
}

/// The last part of a path, without what would break the line for a parser.
fn device_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    let plain = |c: char| if c.is_whitespace() || "[]()".contains(c) { '_' } else { c };
    name.chars().map(plain).collect()
}

fn chunks(chunk_bytes: u64) -> String {
    format!(" {}k chunks", chunk_bytes >> 10)
}

/// What each level's personality says about itself.
fn shape(group: &GroupStatus) -> String {
    let kilobytes = group.chunk_bytes >> 10;
    let members = health(group);
    match group.level.as_str() {
        "raid0" => chunks(group.chunk_bytes),
        "linear" => format!(" {}k rounding", kilobytes / 2),
        "raid1" => format!(" {members}"),
        "raid10" => format!(" {kilobytes}K chunks{} {members}", copies(group)),
        level => {
            let number = level.trim_start_matches("raid");
            let algorithm = layout(group).to_md();
            format!(" level {number}, {kilobytes}k chunk, algorithm {algorithm} {members}")
        }
    }
}

/// `[4/3] [UU_U]`
fn health(group: &GroupStatus) -> String {
    let slots = group.slot_count as usize;
    let mut marks = vec!['_'; slots];
    for member in group.members.iter().filter(|member| member.state == "in_sync") {
        if let Some(mark) = member.slot.and_then(|slot| marks.get_mut(slot as usize)) {
            *mark = 'U';
        }
    }
    let in_sync = marks.iter().filter(|mark| **mark == 'U').count();
    format!("[{slots}/{in_sync}] [{}]", marks.iter().collect::<String>())
}

/// The layout as values; a name that does not parse is the level's default.
fn layout(group: &GroupStatus) -> Layout {
    let level: Level = group.level.parse().unwrap_or(Level::Raid5);
    Layout::parse(level, &group.layout).unwrap_or(Layout::default_for(level))
}

/// ` 2 near-copies`
fn copies(group: &GroupStatus) -> String {
    let Layout::Raid10(layout) = layout(group) else { return String::new() };
    let mut text = String::new();
    if layout.near > 1 {
        let _ = write!(text, " {} near-copies", layout.near);
    }
    if layout.far > 1 {
        let kind = if layout.offset { "offset" } else { "far" };
        let _ = write!(text, " {} {kind}-copies", layout.far);
    }
    text
}

/// `[=>...................]  recovery =  8.5% (16775552/195310144) finish=17.0min speed=...`,
/// while something goes on. Parsers want every part of it.
fn progress_line(progress: &Progress<'_>) -> String {
    // The kernel counts in units of 1024 sectors here, and one more than there are.
    let units = |kib: u64| kib >> 9;
    let permille = units(progress.done) * 1000 / (units(progress.total) + 1);
    let filled = (permille / 50) as usize;
    let bar = format!("{}>{}", "=".repeat(filled), ".".repeat(20 - filled));
    let Progress { action, done, total, speed } = progress;
    let action = if *action == "repair" { "resync" } else { action };
    let (whole, tenth) = (permille / 10, permille % 10);
    let left = progress.tenth_minutes_left();
    format!(
        "[{bar}]  {action} = {whole:>2}.{tenth}% ({done}/{total}) finish={}.{}min \
         speed={speed}K/sec",
        left / 10,
        left % 10
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, slot: u32, state: &str) -> MemberStatus {
        MemberStatus {
            path: format!("/dev/{name}"),
            number: Some(slot),
            slot: Some(slot),
            state: state.into(),
            ..MemberStatus::default()
        }
    }

    fn group(level: &str, layout: &str, size: u64, members: Vec<MemberStatus>) -> GroupStatus {
        GroupStatus {
            level: level.into(),
            layout: layout.into(),
            chunk_bytes: 64 << 10,
            size_bytes: size << 10,
            slot_count: members.len() as u32,
            in_sync: true,
            sync_action: "idle".into(),
            members,
            ..GroupStatus::default()
        }
    }

    fn loops(states: &[&str]) -> Vec<MemberStatus> {
        let each =
            |(slot, state): (usize, &&str)| member(&format!("loop{slot}"), slot as u32, state);
        states.iter().enumerate().map(each).collect()
    }

    fn one(group: GroupStatus) -> Status {
        Status {
            size_bytes: group.size_bytes,
            chunk_bytes: group.chunk_bytes,
            groups: vec![group],
            ..Status::default()
        }
    }

    const HEAD: &str =
        "Personalities : [raid0] [raid1] [raid10] [raid6] [raid5] [raid4] [linear] \n";
    const TAIL: &str = "      \nunused devices: <none>\n";

    /// The right values are copied from a kernel (6.1.176) with the same arrays.
    #[test]
    fn arrays_show_as_in_the_kernel() {
        let one_lost = ["in_sync", "faulty", "in_sync", "in_sync"];
        let cases = [
            (
                group("raid5", "left-symmetric", 9216, loops(&["in_sync"; 4])),
                "md0 : active raid5 loop3[3] loop2[2] loop1[1] loop0[0]\n      \
                 9216 blocks super 1.2 level 5, 64k chunk, algorithm 2 [4/4] [UUUU]\n",
            ),
            (
                group("raid5", "left-symmetric", 9216, loops(&one_lost)),
                "md0 : active raid5 loop3[3] loop2[2] loop1[1](F) loop0[0]\n      \
                 9216 blocks super 1.2 level 5, 64k chunk, algorithm 2 [4/3] [U_UU]\n",
            ),
            (
                group("raid10", "far=2", 4096, loops(&["in_sync"; 4])),
                "md0 : active raid10 loop3[3] loop2[2] loop1[1] loop0[0]\n      \
                 4096 blocks super 1.2 64K chunks 2 far-copies [4/4] [UUUU]\n",
            ),
            (
                group("raid0", "", 6144, loops(&["in_sync"; 3])),
                "md0 : active raid0 loop2[2] loop1[1] loop0[0]\n      \
                 6144 blocks super 1.2 64k chunks\n",
            ),
        ];
        for (group, right) in cases {
            assert_eq!(render(&one(group), None), format!("{HEAD}{right}{TAIL}"));
        }
    }

    #[test]
    fn a_nested_array_shows_its_groups() {
        let groups = vec![
            group("raid5", "left-symmetric", 4096, loops(&["in_sync"; 3])),
            group("raid5", "left-symmetric", 4096, loops(&["in_sync"; 3])),
        ];
        let status =
            Status { size_bytes: 6144 << 10, chunk_bytes: 65536, groups, ..Status::default() };
        let text = render(&status, None);
        let right = "md0 : active raid0 md2[1] md1[0]\n      \
                     6144 blocks super 1.2 64k chunks\n      \n\
                     md2 : active raid5 ";
        assert!(text.contains(right), "{text}");
    }

    #[test]
    fn progress_shows_as_in_the_kernel() {
        let mut group = group("raid1", "", 195_310_144, loops(&["in_sync", "spare"]));
        group.sync_action = "recover".into();
        group.sync_done_bytes = 16_775_552 << 10;
        group.sync_total_bytes = 195_310_144 << 10;
        let right = "      [=>...................]  recovery =  8.5% (16775552/195310144) \
                     finish=11.4min speed=259783K/sec\n";
        let status = one(group);
        let mut before = status.clone();
        before.groups[0].sync_done_bytes -= 259_783 << 10;
        let earlier = Earlier { status: before, age: std::time::Duration::from_secs(1) };
        let text = render(&status, Some(&earlier));
        assert!(text.contains(right), "{text}");
        assert!(text.contains(" [2/1] [U_]\n"), "{text}");
    }

    /// Five ram disks in Linux 7.3, an array of four with one spare, from the kernel's own
    /// /proc/mdstat at each of the moments that the names say.
    const RECORDED: [(&str, &str); 8] = [
        ("spare", include_str!("mdstat/spare.txt")),
        ("check", include_str!("mdstat/check.txt")),
        ("repair", include_str!("mdstat/repair.txt")),
        ("replace", include_str!("mdstat/replace.txt")),
        ("replaced", include_str!("mdstat/replaced.txt")),
        ("recover", include_str!("mdstat/recover.txt")),
        ("spare_failed", include_str!("mdstat/spare_failed.txt")),
        ("broken", include_str!("mdstat/broken.txt")),
    ];

    /// `number name state`, with `slot` after a slash when it has one.
    fn rams(members: &[(u32, Option<u32>, &str)]) -> Vec<MemberStatus> {
        let each = |(number, slot, state): &(u32, Option<u32>, &str)| MemberStatus {
            number: Some(*number),
            slot: *slot,
            ..member(&format!("ram{number}"), 0, state)
        };
        members.iter().map(each).collect()
    }

    /// The group at one of the recorded moments, and KiB done and KiB a second of what goes on.
    fn moment(name: &str) -> (GroupStatus, u64, u64) {
        let (u, s, f) = ("in_sync", "spare", "faulty");
        let whole = [(0, Some(0), u), (1, Some(1), u), (2, Some(2), u), (3, Some(3), u)];
        let with = |last| [&whole[..], &[last]].concat();
        let lost = |zero: &'static str, fifth: (u32, Option<u32>, &'static str)| {
            let rest = [(4, Some(2), u), (3, Some(3), u), (1, None, f)];
            [&[(0, Some(0), zero), fifth][..], &rest].concat()
        };
        let (members, action, done, speed) = match name {
            "spare" => (with((4, None, s)), "idle", 0, 0),
            "check" => (with((4, None, s)), "check", 1152, 1152),
            "repair" => (with((4, None, s)), "repair", 2944, 1792),
            "replace" => (with((4, Some(2), "replacement")), "recover", 1152, 1152),
            "replaced" => {
                let members = [whole[0], whole[1], (4, Some(2), u), whole[3], (2, None, f)];
                (members.to_vec(), "idle", 0, 0)
            }
            "recover" => (lost(u, (5, Some(1), "recovering")), "recover", 1408, 704),
            "spare_failed" => (lost(u, (5, None, f)), "idle", 0, 0),
            "broken" => (lost(f, (5, None, f)), "idle", 0, 0),
            other => panic!("no such moment: {other}"),
        };
        let mut group = group("raid5", "left-symmetric", 193_536, rams(&members));
        group.slot_count = 4;
        group.failed = name == "broken";
        group.sync_action = action.into();
        (group.sync_done_bytes, group.sync_total_bytes) = (done << 10, 64_512 << 10);
        (group, done, speed)
    }

    #[test]
    fn every_moment_shows_as_in_the_kernel() {
        for (name, right) in RECORDED {
            let (group, done, speed) = moment(name);
            let status = one(group);
            let mut before = status.clone();
            before.groups[0].sync_done_bytes = (done - speed.min(done)) << 10;
            // One second at `speed`, or as much less as has been done.
            let age = std::time::Duration::from_millis(1000 * speed.min(done) / speed.max(1));
            let earlier = Earlier { status: before, age };
            let text = render(&status, Some(&earlier));
            // The first line lists what a kernel has loaded, in the order of loading.
            let (_, text) = text.split_once('\n').unwrap();
            let (_, right) = right.split_once('\n').unwrap();
            assert_eq!(text, right, "{name}");
        }
    }

    #[test]
    fn a_resync_that_waits_shows_as_in_the_kernel() {
        let mut group = group("raid1", "", 64512, loops(&["in_sync"; 2]));
        group.in_sync = false;
        let mut status = one(group);
        status.read_only = true;
        let right = "md0 : active (read-only) raid1 loop1[1] loop0[0]\n      \
                     64512 blocks super 1.2 [2/2] [UU]\n      \tresync=PENDING\n";
        assert_eq!(render(&status, None), format!("{HEAD}{right}{TAIL}"));
    }

    #[test]
    fn a_member_name_cannot_break_the_line() {
        assert_eq!(device_name("/a b/my disk[1].img"), "my_disk_1_.img");
    }
}
