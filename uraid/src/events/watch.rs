//! Tells events by what has changed between two looks at the status, as mdadm's monitor does.
//!
//! What comes and goes between two looks is not seen; a check of a tiny array may leave no trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use raid_io::{GroupStatus, MemberStatus, Status};

use super::{Bus, Event, Kind, array_name};
use crate::failure::Failure;
use crate::service::Engine;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// Percent between two events of one rebuild, mdadm's default.
const STEP: u64 = 20;

/// The thread that looks. [`Watch::finish`] it before the array is stopped.
pub(crate) struct Watch {
    bus: Bus,
    end: Sender<()>,
    thread: JoinHandle<Status>,
}

impl Watch {
    /// Publishes what the array is found as, then what happens to it.
    ///
    /// # Errors
    /// Fails if no thread can be made.
    pub(crate) fn start(engine: Arc<dyn Engine>, bus: Bus) -> Result<Self, Failure> {
        let (end, ended) = channel();
        let publisher = bus.clone();
        let look = move || {
            let mut before = engine.status();
            publish(&publisher, found(&before));
            loop {
                let is_last = ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                let now = engine.status();
                publish(&publisher, changed(&before, &now));
                before = now;
                if is_last {
                    return before;
                }
            }
        };
        let thread = thread::Builder::new().name("events".into()).spawn(look)?;
        Ok(Self { bus, end, thread })
    }

    /// Looks a last time.
    pub(crate) fn finish(self) -> Stopping {
        let _ = self.end.send(());
        let status = self.thread.join().unwrap_or_default();
        Stopping { bus: self.bus, array: array_name(&status).to_owned() }
    }
}

/// An array that is being stopped.
pub(crate) struct Stopping {
    bus: Bus,
    array: String,
}

impl Stopping {
    /// Tells that it has been, and lets every listener end.
    pub(crate) fn stopped(self, cleanly: bool) {
        let Self { bus, array } = self;
        let how = if cleanly { "stopped cleanly" } else { "gone, and not stopped cleanly" };
        let text = format!("{array} is {how}");
        publish(&bus, vec![Event::new(Kind::DeviceDisappeared, &array, None, text)]);
        bus.close();
    }
}

fn publish(bus: &Bus, events: Vec<Event>) {
    for event in events {
        event.log();
        bus.publish(event);
    }
}

/// What there is to say of an array at its first sight.
fn found(status: &Status) -> Vec<Event> {
    let name = array_name(status);
    let text = format!("{name} ({}) is served", status.level);
    let mut events = vec![Event::new(Kind::NewArray, name, None, text)];
    if status.degraded > 0 {
        let text = format!("{} slots of {name} are not in sync", status.degraded);
        events.push(Event::new(Kind::DegradedArray, name, None, text));
    }
    for group in &status.groups {
        events.extend(begun(name, group));
    }
    events
}

/// What has happened between two looks, in the order in which a group's members are listed.
fn changed(before: &Status, now: &Status) -> Vec<Event> {
    let name = array_name(now);
    let mut events = Vec::new();
    for (old, new) in before.groups.iter().zip(&now.groups) {
        events.extend(members_changed(name, old, new));
        events.extend(work_changed(name, old, new));
    }
    events
}

/// What a member is for, as far as events tell it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    InUse,
    Spare,
    Out,
}

fn place(member: &MemberStatus) -> Place {
    match member.state.as_str() {
        "in_sync" => Place::InUse,
        "spare" | "recovering" | "replacement" => Place::Spare,
        _ => Place::Out,
    }
}

fn members_changed(name: &str, old: &GroupStatus, new: &GroupStatus) -> Vec<Event> {
    // A member may be listed twice, by its slot and as left out; what it is in a slot counts.
    let mut places: HashMap<&str, (Place, &MemberStatus)> = HashMap::new();
    for member in new.members.iter().filter(|member| !member.path.is_empty()) {
        places.entry(&member.path).or_insert((place(member), member));
    }
    let mut events = Vec::new();
    let mut tell = |kind, path: &str, text| events.push(Event::new(kind, name, Some(path), text));
    for member in old.members.iter().filter(|member| !member.path.is_empty()) {
        let path = member.path.as_str();
        let after = places.get(path).copied();
        let is_faulty = after.is_some_and(|(_, member)| member.state == "faulty");
        match (place(member), after.map(|(place, _)| place)) {
            (Place::InUse, None | Some(Place::Out)) => {
                tell(Kind::Fail, path, format!("{path} has failed; {}", health(new)));
            }
            (Place::Spare, Some(Place::Out)) if is_faulty => {
                tell(Kind::FailSpare, path, format!("the spare {path} has failed"));
            }
            (Place::Spare, Some(Place::InUse)) => {
                tell(Kind::SpareActive, path, format!("{path} is in use; {}", health(new)));
            }
            _ => {}
        }
    }
    events
}

fn health(group: &GroupStatus) -> String {
    let GroupStatus { slot_count, degraded, level, .. } = group;
    match (degraded, group.failed) {
        (0, _) => format!("all {slot_count} slots of the {level} are in sync"),
        (_, false) => {
            let left = slot_count.saturating_sub(*degraded);
            format!("{left} of {slot_count} slots of the {level} are in sync, the data is whole")
        }
        (_, true) => format!("{degraded} of {slot_count} slots of the {level} are lost: too many"),
    }
}

fn word(group: &GroupStatus) -> Option<&str> {
    match group.sync_action.as_str() {
        "" | "idle" => None,
        "recover" => Some("recovery"),
        other => Some(other),
    }
}

fn begun(name: &str, group: &GroupStatus) -> Option<Event> {
    let word = word(group)?;
    let text = format!("{word} of {} bytes of each member has begun", group.sync_total_bytes);
    Some(Event::new(Kind::RebuildStarted, name, None, text))
}

fn percent(group: &GroupStatus) -> u64 {
    let (done, total) = (u128::from(group.sync_done_bytes), u128::from(group.sync_total_bytes));
    (done * 100 / total.max(1)).min(100) as u64
}

fn work_changed(name: &str, old: &GroupStatus, new: &GroupStatus) -> Vec<Event> {
    let mut events = Vec::new();
    if word(old) == word(new) {
        // The highest step that was passed, as with mdadm: not all of them at once.
        let (from, to) = (percent(old) / STEP, percent(new) / STEP);
        if let Some(word) = word(new).filter(|_| from < to && to * STEP < 100) {
            let percent = (to * STEP) as u8;
            let text = format!("{word} has passed {percent}%");
            events.push(Event::new(Kind::Rebuild(percent), name, None, text));
        }
        return events;
    }
    if let Some(word) = word(old) {
        let text = format!("{word} has ended; {}", health(new));
        events.push(Event::new(Kind::RebuildFinished, name, None, text));
    }
    events.extend(begun(name, new));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(path: &str, slot: Option<u32>, state: &str) -> MemberStatus {
        let (path, state) = (path.to_owned(), state.to_owned());
        MemberStatus { path, slot, state, ..MemberStatus::default() }
    }

    fn status(action: &str, done: u64, states: &[&str]) -> Status {
        let each = |(slot, state): (usize, &&str)| {
            let in_slot = (*state != "spare").then_some(slot as u32);
            member(&format!("/m{slot}"), in_slot, state)
        };
        let members: Vec<_> = states.iter().enumerate().map(each).collect();
        let degraded = 3 - states.iter().filter(|state| **state == "in_sync").count() as u32;
        let group = GroupStatus {
            level: "raid5".into(),
            slot_count: 3,
            degraded,
            failed: degraded > 1,
            sync_action: action.into(),
            sync_done_bytes: done,
            sync_total_bytes: 1000,
            members,
            ..GroupStatus::default()
        };
        Status { name: "a".into(), degraded, groups: vec![group], ..Status::default() }
    }

    fn names(events: Vec<Event>) -> Vec<String> {
        let name = |event: Event| match event.member {
            Some(member) => format!("{} {member}", event.event),
            None => event.event.to_string(),
        };
        events.into_iter().map(name).collect()
    }

    #[test]
    fn an_array_is_told_as_it_is_found() {
        let healthy = status("idle", 0, &["in_sync"; 3]);
        assert_eq!(names(found(&healthy)), ["NewArray"]);
        let degraded = status("recover", 0, &["in_sync", "in_sync", "recovering"]);
        assert_eq!(names(found(&degraded)), ["NewArray", "DegradedArray", "RebuildStarted"]);
    }

    /// A member fails, a spare takes over: each look against the one before.
    #[test]
    fn a_failure_and_its_recovery_are_told_in_order() {
        let looks = [
            status("idle", 0, &["in_sync", "in_sync", "in_sync", "spare"]),
            status("idle", 0, &["in_sync", "faulty", "in_sync", "spare"]),
            status("recover", 0, &["in_sync", "faulty", "in_sync", "recovering"]),
            status("recover", 190, &["in_sync", "faulty", "in_sync", "recovering"]),
            status("recover", 450, &["in_sync", "faulty", "in_sync", "recovering"]),
            status("recover", 990, &["in_sync", "faulty", "in_sync", "recovering"]),
            status("idle", 1000, &["in_sync", "faulty", "in_sync", "in_sync"]),
        ];
        let told: Vec<Vec<String>> =
            looks.windows(2).map(|two| names(changed(&two[0], &two[1]))).collect();
        let right: [&[&str]; 6] = [
            &["Fail /m1"],
            &["RebuildStarted"],
            &[],
            &["Rebuild40"],
            &["Rebuild80"],
            &["SpareActive /m3", "RebuildFinished"],
        ];
        assert_eq!(told, right);
    }

    #[test]
    fn a_spare_that_fails_is_no_failure_of_the_array() {
        let before = status("recover", 10, &["in_sync", "in_sync", "recovering"]);
        let after = status("idle", 0, &["in_sync", "in_sync", "faulty"]);
        assert_eq!(names(changed(&before, &after)), ["FailSpare /m2", "RebuildFinished"]);
        // One that is taken out by hand is neither.
        let before = status("idle", 0, &["in_sync", "in_sync", "in_sync", "spare"]);
        let after = status("idle", 0, &["in_sync"; 3]);
        assert_eq!(names(changed(&before, &after)), [""; 0]);
    }

    #[test]
    fn a_member_that_is_gone_from_the_list_has_failed() {
        let before = status("idle", 0, &["in_sync"; 3]);
        let after = status("idle", 0, &["in_sync"; 2]);
        let events = changed(&before, &after);
        assert_eq!(
            events[0].text,
            "/m2 has failed; 2 of 3 slots of the raid5 are in sync, the data is whole"
        );
        assert_eq!(names(events), ["Fail /m2"]);
    }
}
