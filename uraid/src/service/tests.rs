//! Requests against an engine that notes down what it is asked to do.

use std::os::unix::fs::symlink;
use std::sync::Mutex;
use std::time::Duration;

use raid_io::{GroupStatus, MemberStatus};

use super::*;
use crate::events::Next;

#[derive(Default)]
struct Notes {
    members: Vec<PathBuf>,
    asked: Mutex<Vec<String>>,
    action: Mutex<String>,
}

impl Notes {
    fn note(&self, what: String) -> Result<(), Error> {
        self.asked.lock().unwrap().push(what);
        Ok(())
    }
}

impl Engine for Notes {
    fn status(&self) -> Status {
        let member = |path: &PathBuf| MemberStatus {
            path: path.display().to_string(),
            ..MemberStatus::default()
        };
        let members = self.members.iter().map(member).collect();
        let sync_action = self.action.lock().unwrap().clone();
        let group = GroupStatus { members, sync_action, ..GroupStatus::default() };
        Status { name: "notes".into(), groups: vec![group], ..Status::default() }
    }

    fn detail(&self) -> Detail {
        Detail { status: self.status(), ..Detail::default() }
    }

    fn fail(&self, member: &Path) -> Result<(), Error> {
        self.note(format!("fail {}", member.display()))
    }

    fn remove(&self, member: &Path) -> Result<(), Error> {
        self.note(format!("remove {}", member.display()))
    }

    fn add(&self, member: &Path, force: bool) -> Result<(), Error> {
        self.note(format!("add {} {force}", member.display()))
    }

    fn re_add(&self, member: &Path) -> Result<(), Error> {
        self.note(format!("re-add {}", member.display()))
    }

    fn replace(&self, member: &Path, with: Option<&Path>) -> Result<(), Error> {
        self.note(format!("replace {} {with:?}", member.display()))
    }

    fn scrub(&self, repair: Repair) -> Result<(), Error> {
        self.note(format!("scrub {repair:?}"))
    }

    fn stop_scrub(&self) -> Result<(), Error> {
        Err(Error::Unsupported("stopping"))
    }

    fn set_speed(&self, min: Option<u64>, max: Option<u64>) -> Result<(), Error> {
        self.note(format!("speed {min:?} {max:?}"))
    }
}

/// Has `request` answered at once, and returns what the engine was asked on the way.
fn outcome(notes: &Arc<Notes>, request: Request) -> (Result<Value, String>, Vec<String>) {
    let engine: Arc<dyn Engine> = Arc::<Notes>::clone(notes);
    let Some(Reply::Now(answer)) = answer(&engine, &Bus::default(), request) else {
        panic!("no answer at once");
    };
    (answer, std::mem::take(&mut *notes.asked.lock().unwrap()))
}

fn folder_of_members() -> (tempfile::TempDir, Arc<Notes>) {
    let folder = tempfile::tempdir().unwrap();
    let members: Vec<_> = ["a", "b"].iter().map(|name| folder.path().join(name)).collect();
    std::fs::write(&members[0], "").unwrap();
    (folder, Arc::new(Notes { members, ..Notes::default() }))
}

#[test]
fn members_go_by_the_arrays_own_names() {
    let (folder, notes) = folder_of_members();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let link = folder.path().join("link");
    symlink(&a, &link).unwrap();
    // `b` is no file: a member that has vanished.
    for (given, right) in [(&a, &a), (&link, &a), (&b, &b)] {
        let (answer, asked) = outcome(&notes, Request::Fail { member: given.clone() });
        assert_eq!(answer, Ok(Value::Null));
        assert_eq!(asked, [format!("fail {}", right.display())]);
    }
    let request = Request::Replace { member: link.clone(), with: Some(b.clone()) };
    let (_, asked) = outcome(&notes, request);
    assert_eq!(asked, [format!("replace {} Some({b:?})", a.display())]);
}

#[test]
fn strangers_are_refused_before_the_array_is_asked() {
    let (folder, notes) = folder_of_members();
    let stranger = folder.path().join("c");
    let relative = PathBuf::from("a");
    for (request, right) in [
        (Request::Fail { member: stranger.clone() }, "not a member of this array"),
        (Request::Remove { member: stranger.clone() }, "not a member of this array"),
        (Request::Replace { member: stranger.clone(), with: None }, "not a member of this array"),
        (Request::Fail { member: relative.clone() }, "not an absolute path"),
        (Request::Add { member: relative.clone(), force: false }, "not an absolute path"),
        (
            Request::Replace { member: folder.path().join("a"), with: Some(relative) },
            "not an absolute path",
        ),
    ] {
        let (answer, asked) = outcome(&notes, request.clone());
        assert!(answer.clone().unwrap_err().contains(right), "{request:?}: {answer:?}");
        assert_eq!(asked, [""; 0], "{request:?}");
    }
}

#[test]
fn every_other_verb_reaches_the_array() {
    let (folder, notes) = folder_of_members();
    let c = folder.path().join("c");
    for (request, right) in [
        (Request::Add { member: c.clone(), force: false }, format!("add {} false", c.display())),
        (Request::Add { member: c.clone(), force: true }, format!("add {} true", c.display())),
        (Request::ReAdd { member: c.clone() }, format!("re-add {}", c.display())),
        (Request::Check {}, "scrub None".into()),
        (Request::Repair { trust_data: false }, "scrub Proven".into()),
        (Request::Repair { trust_data: true }, "scrub TrustData".into()),
        (Request::SetSpeed { min: Some(1), max: Some(1) }, "speed Some(1) Some(1)".into()),
        (Request::SetSpeed { min: None, max: Some(5) }, "speed None Some(5)".into()),
    ] {
        assert_eq!(outcome(&notes, request), (Ok(Value::Null), vec![right]));
    }
    let (answer, _) = outcome(&notes, Request::StopCheck {});
    assert_eq!(answer, Err("not supported: stopping".into()));
}

#[test]
fn speeds_that_contradict_each_other_are_refused() {
    let (_folder, notes) = folder_of_members();
    for (min, max) in [(None, None), (Some(2), Some(1))] {
        let (answer, asked) = outcome(&notes, Request::SetSpeed { min, max });
        assert!(answer.is_err() && asked.is_empty(), "{min:?} {max:?}: {answer:?}");
    }
}

#[test]
fn waiting_lasts_as_long_as_the_work() {
    let notes = Arc::new(Notes::default());
    let engine: Arc<dyn Engine> = Arc::<Notes>::clone(&notes);
    let Some(Reply::Later(mut ask)) = answer(&engine, &Bus::default(), Request::Wait {}) else {
        panic!("answered at once");
    };
    for action in ["recover", "check", "resync"] {
        *notes.action.lock().unwrap() = action.into();
        assert_eq!(ask(), None, "{action}");
    }
    *notes.action.lock().unwrap() = "idle".into();
    assert_eq!(ask(), Some(Ok(Value::Null)));
}

#[test]
fn a_test_message_goes_the_way_of_all_events() {
    let engine: Arc<dyn Engine> = Arc::new(Notes::default());
    let bus = Bus::default();
    let Some(Reply::Events(events)) = answer(&engine, &bus, Request::Events {}) else {
        panic!("no events");
    };
    assert!(matches!(answer(&engine, &bus, Request::TestMessage {}), Some(Reply::Now(Ok(_)))));
    let Next::Event(event) = events.next(Duration::ZERO) else { panic!("no event") };
    assert_eq!((event.event, event.array.as_str()), (Kind::TestMessage, "notes"));
}
