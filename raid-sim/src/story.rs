//! Plays a script: assemble, recover, check, serve, crash; again and again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use raid_core::plan::IoKind;
use raid_core::slots::SlotSet;

use crate::assembly::{GroupStart, assemble_all};
use crate::machine::Machine;
use crate::options::{Boot, End, Script};
use crate::random::Random;
use crate::report::{Counts, Violation};
use crate::world::World;

/// What came of a script.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) trace: u64,
    pub(crate) violation: Option<Violation>,
    /// The events of the last boots in words.
    pub(crate) log: Vec<String>,
}

/// Plays a script to its end or to the first violation. A panic is a violation too.
pub(crate) fn play(script: &Script) -> Outcome {
    play_logged(script, false)
}

/// Plays a script, and keeps a log if told to.
pub(crate) fn play_logged(script: &Script, logs: bool) -> Outcome {
    let mut machine = Machine::new(script.options.clone());
    machine.log = logs.then(Vec::new);
    let played = catch_unwind(AssertUnwindSafe(|| {
        for boot in &script.boots {
            play_boot(&mut machine, boot)?;
        }
        Ok(())
    }));
    let violation = match played {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Some(Violation::new("engine", text.unwrap_or_else(|| "a panic".to_owned())))
        }
    };
    let log = machine.log.unwrap_or_default();
    Outcome { counts: machine.counts, trace: machine.trace, violation, log }
}

fn play_boot(machine: &mut Machine, boot: &Boot) -> Result<(), Violation> {
    let mut random = Random::new(boot.seed ^ 0x626f_6f74);
    for index in 0..machine.members.len() {
        machine.members[index].gone = boot.absent.contains(&index);
        machine.members[index].slowness = 1;
    }
    machine.lie_at_boot(&mut random);
    offer_somebody_current(machine);
    let starts = match assemble_all(machine, false)? {
        Some(starts) => starts,
        None => {
            // Whoever was left out comes back: then it must start.
            machine.members.iter_mut().for_each(|member| member.gone = false);
            let wrong = || Violation::new("O10", "refused though every member is there");
            assemble_all(machine, true)?.ok_or_else(wrong)?
        }
    };
    machine.last_in_sync = starts.iter().map(|start| start.config.in_sync).collect();
    count_losses(machine, &starts.iter().map(|start| start.config.in_sync).collect::<Vec<_>>());
    if let Some(log) = &mut machine.log {
        let slots = |start: &GroupStart| start.config.in_sync.iter().collect::<Vec<_>>();
        let text = |start: &GroupStart| {
            let (trust, dirty) = (start.config.trust, start.config.dirty);
            format!("{:?} {trust:?} dirty {dirty} forced {}", slots(start), start.forced)
        };
        log.push(format!("assembled: {:?}", starts.iter().map(text).collect::<Vec<_>>()));
    }
    let forced = starts.iter().any(|start| start.forced);
    if forced {
        taint(machine, &starts.iter().map(|start| start.forced).collect::<Vec<_>>());
    }
    let mut world = World::new(machine, boot, starts)?;
    if boot.reads_first || world.forced {
        world.read_all()?;
    }
    if boot.settles_first {
        world.verify()?;
    }
    let before: Vec<SlotSet> = in_sync(&world);
    world.play(boot.end)?;
    for (group, before) in before.iter().enumerate() {
        let left = before.difference(world.volume.in_sync(group)).len() as u64;
        world.machine.counts.losses += left;
    }
    world.machine.last_in_sync = in_sync(&world);
    match boot.end {
        End::Kill { .. } | End::PowerCut { .. } => {}
        End::Stop => world.stop()?,
        End::Rest => {
            world.retry_sync();
            world.verify()?;
        }
    }
    world.machine.counts.nanoseconds += world.now;
    end(world, boot.end, &mut random)
}

/// Members that are all recorded as faulty elsewhere would start alone as what they were: nothing
/// on them says that they are out. Which members to offer is the operator's choice, never that.
fn offer_somebody_current(machine: &mut Machine) {
    let slots = machine.options.shape.slots;
    for group in 0..machine.options.shape.groups {
        let mut current = machine.geometry.slots().difference(machine.recorded_out[group]).iter();
        if current.all(|slot| machine.members[group * slots + slot].gone) {
            machine.members.iter_mut().for_each(|member| member.gone = false);
        }
    }
}

fn in_sync(world: &World<'_>) -> Vec<SlotSet> {
    (0..world.volume.group_count()).map(|group| world.volume.in_sync(group)).collect()
}

/// Members that are lost at the assembly, and were not before.
fn count_losses(machine: &mut Machine, in_sync: &[SlotSet]) {
    for (group, in_sync) in in_sync.iter().enumerate() {
        let known = in_sync.union(machine.recorded_out[group]);
        machine.counts.losses += machine.geometry.slots().difference(known).len() as u64;
    }
}

/// A parity group was dirty and degraded: the rows that were being written are not to be trusted.
fn taint(machine: &mut Machine, forced: &[bool]) {
    let rows: Vec<(usize, u64)> =
        machine.oracle.unsettled().iter().map(|&sector| machine.row(sector)).collect();
    machine.tainted.extend(rows.into_iter().filter(|&(group, _)| forced[group]));
    let block = u64::from(machine.options.block);
    for group in (0..forced.len()).filter(|&group| forced[group] && machine.raw[group]) {
        let rows = machine.options.shape.component / block;
        machine.tainted.extend((0..rows).map(|row| (group, row)));
    }
}

/// The crash, or the end of an orderly stop: operations under way may have been executed, in part
/// or in whole, or not.
fn end(mut world: World<'_>, end: End, random: &mut Random) -> Result<(), Violation> {
    let recovering = !world.is_recovered();
    let pending = std::mem::take(&mut world.pending);
    for (_, operation) in pending {
        let is_write = matches!(operation.kind, IoKind::Write | IoKind::WriteZeroes { .. });
        if !is_write || world.machine.members[operation.member].gone || random.chance(40) {
            continue;
        }
        let bytes = world.bytes_of(&operation);
        let clock = world.machine.tick();
        let member = &mut world.machine.members[operation.member];
        let whole = random.chance(50);
        for (index, sector) in bytes.chunks_exact(512).enumerate() {
            if whole || random.chance(50) {
                member.write(operation.offset + index as u64 * 512, sector, false, clock);
            }
        }
    }
    let clean = world.stopped_cleanly;
    let machine = world.machine;
    let clock = machine.tick();
    machine.counts.crashes_in_recovery += u64::from(recovering && !clean);
    let percent = match end {
        End::Kill { .. } => None,
        End::PowerCut { percent, .. } => Some(percent),
        // Nothing that was not flushed is needed any more.
        End::Rest | End::Stop => Some(0),
    };
    match percent {
        None => machine.counts.kills += 1,
        Some(_) if clean => machine.counts.stops += 1,
        Some(_) => machine.counts.power_cuts += 1,
    }
    if let Some(percent) = percent {
        for member in &mut machine.members {
            member.power_cut(percent, random);
        }
    }
    machine.oracle.crash(clock, percent.is_none());
    Ok(())
}
