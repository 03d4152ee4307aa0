//! What is wrong with an array in plain words, and what to do about it.

use raid_io::{GroupStatus, MemberStatus, Status};

/// The words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Story {
    /// What is wrong, in one line.
    pub(crate) trouble: String,
    /// Each slot that is not in sync, and why as far as it is known.
    pub(crate) slots: Vec<String>,
    /// What to do.
    pub(crate) action: &'static str,
}

/// Tells what is wrong; `None` if every slot is in sync.
pub(crate) fn of(status: &Status) -> Option<Story> {
    let is_nested = status.groups.len() > 1;
    let mut slots = Vec::new();
    for (index, group) in status.groups.iter().enumerate() {
        let place = if is_nested { format!("group {index}, ") } else { String::new() };
        let lost = lost_slots(group);
        slots.extend(lost.into_iter().map(|(slot, why)| format!("{place}slot {slot}: {why}")));
    }
    let lost: Vec<_> = status.groups.iter().filter(|group| group.failed).collect();
    if let Some(group) = lost.first() {
        let GroupStatus { degraded, slot_count, degraded_max, level, .. } = group;
        let which = if is_nested { "a group, " } else { "" };
        // A RAID 10 may lose more, if they are the right ones.
        let least = if level == "raid10" { "not every set of more than " } else { "" };
        let trouble = format!(
            "{degraded} of {slot_count} slots of {which}{level} are lost, and it bears \
             {least}{degraded_max}: requests that need them fail, nothing is made up"
        );
        let action = "stop it, bring lost members back, and serve it again; write nothing to them";
        return Some(Story { trouble, slots, action });
    }
    if let Some(group) = status.groups.iter().find(|group| group.write_failed) {
        let trouble = format!(
            "a write failed on a member that this {} cannot do without: it keeps its slot, \
             requests that need it fail, nothing is made up",
            group.level
        );
        for member in group.members.iter().filter(|member| member.state == "in_sync") {
            let MemberStatus { path, read_errors, slot: Some(slot), .. } = member else { continue };
            if *read_errors > 0 {
                slots.push(format!("slot {slot}: {path} has made {read_errors} errors"));
            }
        }
        let action = "stop it, make that member work again, and serve the array with --force";
        return Some(Story { trouble, slots, action });
    }
    if status.degraded == 0 {
        return None;
    }
    let trouble = format!("{} of the slots are not in sync; the data is whole", status.degraded);
    let is_filled = |group: &GroupStatus| group.members.iter().any(is_being_filled);
    let action = if status.groups.iter().any(is_filled) {
        "none: a member is being filled"
    } else {
        "add a member (uraid add), or the missing one again"
    };
    Some(Story { trouble, slots, action })
}

/// A spare with a slot is being filled, or waits for that.
pub(crate) fn is_being_filled(member: &MemberStatus) -> bool {
    match member.state.as_str() {
        "recovering" | "replacement" => true,
        "spare" => member.slot.is_some(),
        _ => false,
    }
}

fn lost_slots(group: &GroupStatus) -> Vec<(u32, String)> {
    let in_slot = |slot| group.members.iter().filter(move |member| member.slot == Some(slot));
    let mut lost = Vec::new();
    for slot in 0..group.slot_count {
        if in_slot(slot).any(|member| member.state == "in_sync") {
            continue;
        }
        let why = in_slot(slot).map(why).next().unwrap_or_else(|| "no member".to_owned());
        lost.push((slot, why));
    }
    lost
}

fn why(member: &MemberStatus) -> String {
    let MemberStatus { path, state, reason, read_errors, .. } = member;
    let mut text = match state.as_str() {
        _ if is_being_filled(member) => format!("{path} is being filled"),
        "missing" | "removed" | "" => "no member".to_owned(),
        "faulty" => format!("{path} has failed"),
        other => format!("{path} is {other}"),
    };
    if !reason.is_empty() {
        text += &format!(" ({reason})");
    }
    if *read_errors > 0 {
        text += &format!(", after {read_errors} read errors");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u32, state: &str) -> MemberStatus {
        let path = if state == "missing" { String::new() } else { format!("/m{slot}") };
        MemberStatus { path, slot: Some(slot), state: state.into(), ..MemberStatus::default() }
    }

    fn status(states: &[&str]) -> Status {
        let each = |(slot, state): (usize, &&str)| member(slot as u32, state);
        let degraded = states.iter().filter(|state| **state != "in_sync").count() as u32;
        let group = GroupStatus {
            level: "raid5".into(),
            slot_count: states.len() as u32,
            degraded,
            degraded_max: 1,
            failed: degraded > 1,
            members: states.iter().enumerate().map(each).collect(),
            ..GroupStatus::default()
        };
        Status { degraded, groups: vec![group], ..Status::default() }
    }

    #[test]
    fn a_whole_array_has_no_story() {
        assert_eq!(of(&status(&["in_sync"; 3])), None);
    }

    #[test]
    fn an_array_beyond_its_redundancy_tells_which_slots_and_why() {
        let mut status = status(&["faulty", "in_sync", "missing"]);
        status.groups[0].members[0].read_errors = 3;
        let story = of(&status).unwrap();
        assert_eq!(
            story.trouble,
            "2 of 3 slots of raid5 are lost, and it bears 1: requests that need them fail, \
             nothing is made up"
        );
        assert_eq!(
            story.slots,
            ["slot 0: /m0 has failed, after 3 read errors", "slot 2: no member"]
        );
    }

    #[test]
    fn nothing_needs_to_be_done_while_a_member_is_filled() {
        let story = of(&status(&["recovering", "in_sync", "in_sync"])).unwrap();
        assert_eq!(story.slots, ["slot 0: /m0 is being filled"]);
        assert_eq!(story.action, "none: a member is being filled");
        let story = of(&status(&["missing", "in_sync", "in_sync"])).unwrap();
        assert!(story.action.contains("add a member"), "{story:?}");
    }
}
