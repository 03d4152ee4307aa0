//! What requests over the control socket come to.
//!
//! An [`Engine`] is what is asked of an array; with it between, every request can be tried without
//! one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use raid_io::{Array, Detail, Error, Repair, Status};
use serde::Serialize;
use serde_json::Value;

use crate::control::{Reply, Request};
use crate::events::{Bus, Event, Kind, array_name};
use crate::report;
use crate::report::progress::is_busy;

/// What is asked of an array that is served.
pub(crate) trait Engine: Send + Sync {
    /// See [`Array::status`].
    fn status(&self) -> Status;
    /// See [`Array::detail`].
    fn detail(&self) -> Detail;
    /// Takes a member for broken.
    fn fail(&self, member: &Path) -> Result<(), Error>;
    /// Lets go of a member that is not in use.
    fn remove(&self, member: &Path) -> Result<(), Error>;
    /// Takes a device in; `force`: even if it looks like somebody's data.
    fn add(&self, member: &Path, force: bool) -> Result<(), Error>;
    /// Takes a member back that can catch up.
    fn re_add(&self, member: &Path) -> Result<(), Error>;
    /// Copies a member to its successor.
    fn replace(&self, member: &Path, with: Option<&Path>) -> Result<(), Error>;
    /// Goes over everything, and makes right what `repair` allows.
    fn scrub(&self, repair: Repair) -> Result<(), Error>;
    /// Ends that.
    fn stop_scrub(&self) -> Result<(), Error>;
    /// Limits background work in bytes of each member in a second.
    fn set_speed(&self, min: Option<u64>, max: Option<u64>) -> Result<(), Error>;
}

impl Engine for Array {
    fn status(&self) -> Status {
        Self::status(self)
    }

    fn detail(&self) -> Detail {
        Self::detail(self)
    }

    fn fail(&self, member: &Path) -> Result<(), Error> {
        Self::fail(self, member)
    }

    fn remove(&self, member: &Path) -> Result<(), Error> {
        Self::remove(self, member)
    }

    fn add(&self, member: &Path, force: bool) -> Result<(), Error> {
        Self::add(self, member, force).map(drop)
    }

    fn re_add(&self, member: &Path) -> Result<(), Error> {
        Self::re_add(self, member)
    }

    fn replace(&self, member: &Path, with: Option<&Path>) -> Result<(), Error> {
        Self::replace(self, member, with)
    }

    fn scrub(&self, repair: Repair) -> Result<(), Error> {
        Self::scrub(self, repair)
    }

    fn stop_scrub(&self) -> Result<(), Error> {
        Self::stop_scrub(self);
        Ok(())
    }

    fn set_speed(&self, min: Option<u64>, max: Option<u64>) -> Result<(), Error> {
        Self::set_speed(self, min, max);
        Ok(())
    }
}

/// Answers every request but `stop`, which is the command's own business.
pub(crate) fn answer(engine: &Arc<dyn Engine>, bus: &Bus, request: Request) -> Option<Reply> {
    let status = || engine.status();
    Some(Reply::Now(match request {
        Request::Stop {} => return None,
        Request::Events {} => return Some(Reply::Events(bus.subscribe())),
        Request::Wait {} => return Some(wait(Arc::clone(engine))),
        Request::Status {} => to_value(&status()),
        Request::Detail {} => to_value(&engine.detail()),
        Request::Metrics {} => report::metrics::render(&status()).map(Value::from),
        Request::TestMessage {} => {
            let status = status();
            let text = "this is a test".to_owned();
            let event = Event::new(Kind::TestMessage, array_name(&status), None, text);
            event.log();
            bus.publish(event);
            Ok(Value::Null)
        }
        Request::Fail { member } => on_member(&status(), &member, |path| engine.fail(path)),
        Request::Remove { member } => on_member(&status(), &member, |path| engine.remove(path)),
        Request::Add { member, force } => on_device(&member, |path| engine.add(path, force)),
        Request::ReAdd { member } => on_device(&member, |path| engine.re_add(path)),
        Request::Replace { member, with } => {
            if let Some(with) = with.as_deref().filter(|with| with.is_relative()) {
                return Some(Reply::Now(Err(relative(with))));
            }
            let status = status();
            // A spare goes by the name under which the array has it.
            let with = with.map(|with| known(&status, &with).unwrap_or(with));
            on_member(&status, &member, |path| engine.replace(path, with.as_deref()))
        }
        Request::Check {} => done(engine.scrub(Repair::None)),
        Request::Repair { trust_data: false } => done(engine.scrub(Repair::Proven)),
        Request::Repair { trust_data: true } => done(engine.scrub(Repair::TrustData)),
        Request::StopCheck {} => done(engine.stop_scrub()),
        Request::SetSpeed { min, max } => set_speed(engine, min, max),
    }))
}

fn to_value(value: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

fn done(outcome: Result<(), Error>) -> Result<Value, String> {
    outcome.map(|()| Value::Null).map_err(|error| error.to_string())
}

fn wait(engine: Arc<dyn Engine>) -> Reply {
    Reply::Later(Box::new(move || (!is_busy(&engine.status())).then_some(Ok(Value::Null))))
}

fn set_speed(
    engine: &Arc<dyn Engine>,
    min: Option<u64>,
    max: Option<u64>,
) -> Result<Value, String> {
    match (min, max) {
        (None, None) => Err("set-speed: neither min nor max is given".to_owned()),
        (Some(min), Some(max)) if min > max => {
            Err(format!("set-speed: min {min} is more than max {max}"))
        }
        _ => done(engine.set_speed(min, max)),
    }
}

fn relative(path: &Path) -> String {
    format!("{}: not an absolute path, and this process may be in another folder", path.display())
}

/// Does something to a member that the array has, under the name by which the array has it.
fn on_member(
    status: &Status,
    member: &Path,
    act: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<Value, String> {
    if member.is_relative() {
        return Err(relative(member));
    }
    let Some(path) = known(status, member) else {
        return Err(format!("{}: not a member of this array", member.display()));
    };
    done(act(&path))
}

/// Does something with a device that the array may not have yet.
fn on_device(member: &Path, act: impl FnOnce(&Path) -> Result<(), Error>) -> Result<Value, String> {
    if member.is_relative() {
        return Err(relative(member));
    }
    done(act(member))
}

/// The array's own name for the member at `wanted`: the same path, or another one to the same file.
/// A member that has vanished is found by its path alone.
fn known(status: &Status, wanted: &Path) -> Option<PathBuf> {
    let members = || status.groups.iter().flat_map(|group| &group.members);
    let paths = || members().filter(|member| !member.path.is_empty()).map(|m| Path::new(&m.path));
    let same_path = |path: &&Path| std::path::absolute(path).is_ok_and(|path| path == wanted);
    let same_file = |path: &&Path| match (path.canonicalize(), wanted.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    };
    paths().find(same_path).or_else(|| paths().find(same_file)).map(Path::to_owned)
}

#[cfg(test)]
mod tests;
