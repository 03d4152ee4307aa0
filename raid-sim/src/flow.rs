//! Between the queues and the world: operations out, results in, requests in, completions out.

use raid_core::plan::IoKind;
use raid_core::queue::MemberError;
use raid_core::request::{Completion, Request, RequestErrorKind, RequestKind};
use raid_core::slots::SlotSet;

use crate::metadata::{Purpose, Step};
use crate::options::{FaultKind, Op, OpKind};
use crate::report::Violation;
use crate::workload::{SECTOR, ZERO, fill, value_of};
use crate::world::{Errand, Flight, Pending, Source, World};

impl World<'_> {
    /// Moves everything forward that needs no time.
    pub(crate) fn drive(&mut self) -> Result<(), Violation> {
        loop {
            let mut progress = false;
            for queue in 0..self.queues.len() {
                progress |= self.drive_queue(queue)?;
            }
            if !progress {
                self.note_leavers();
                return Ok(());
            }
        }
    }

    fn drive_queue(&mut self, queue: usize) -> Result<bool, Violation> {
        let mut progress = false;
        if self.queues[queue].has_computes() {
            self.queues[queue].run_computes(&mut self.memories[queue]);
            progress = true;
        }
        while let Some(io) = self.queues[queue].poll_io() {
            let pending = Pending {
                source: Source::Queue { queue, token: io.token, segments: io.segments.to_vec() },
                member: io.member,
                kind: io.kind,
                offset: io.offset,
                len: io.len,
                fua: io.fua,
                sent: 0,
            };
            self.poll(pending)?;
            progress = true;
        }
        if let Some(update) = self.queues[queue].poll_metadata() {
            let group = update.group;
            let sync_bytes = raid_core::md::regions::sync_bytes(&self.machine.geometry);
            let job =
                self.metadata[group].begin(update, Purpose::Queue(queue), None, sync_bytes)?;
            self.start_job(job);
            progress = true;
        }
        let mut woken = 0_u64;
        while let Some(other) = self.queues[queue].poll_wakeup() {
            woken |= 1 << other;
            progress = true;
        }
        for (other, queue) in self.queues.iter_mut().enumerate() {
            if woken >> other & 1 != 0 {
                queue.handle_wakeup();
            }
        }
        while let Some(completion) = self.queues[queue].poll_completion() {
            self.complete(queue, completion)?;
            progress = true;
        }
        Ok(progress)
    }

    fn poll(&mut self, mut pending: Pending) -> Result<(), Violation> {
        pending.sent = self.machine.tick();
        self.monitor_io(&pending, "is sent")?;
        self.machine.note(pending.offset ^ (pending.member as u64) << 48 ^ pending.len << 24);
        self.send(pending);
        Ok(())
    }

    /// A member answers.
    pub(crate) fn answer(&mut self, pending: Pending) -> Result<(), Violation> {
        self.machine.tick();
        self.monitor_io(&pending, "is executed")?;
        let result = self.execute(&pending);
        if result.is_err() && pending.kind != IoKind::Read {
            let (group, _) = self.place_of(pending.member);
            self.taint_beyond(group, result == Err(MemberError::NoSpace));
        }
        self.machine.note(pending.sent << 1 ^ u64::from(result.is_err()));
        self.log(|| {
            let Pending { member, kind, offset, len, sent, .. } = &pending;
            let what = match pending.source {
                Source::Queue { queue, .. } => format!("queue {queue}"),
                Source::Metadata { .. } => "metadata".to_owned(),
            };
            format!("{what}: member {member} {kind:?} {offset}+{len} sent {sent}: {result:?}")
        });
        match pending.source {
            Source::Queue { queue, token, .. } => self.queues[queue].handle_io(token, result),
            Source::Metadata { job, slot, .. } => {
                if result.is_err()
                    && let Some(job) = &mut self.jobs[job]
                {
                    job.failed.insert(slot);
                    job.steps.iter_mut().filter(|own| own.0 == slot).for_each(|own| own.1.clear());
                }
                self.job_on(job, slot);
            }
        }
        Ok(())
    }

    fn execute(&mut self, pending: &Pending) -> Result<(), MemberError> {
        let index = pending.member;
        let (group, slot) = self.place_of(index);
        if self.machine.members[index].gone {
            self.hurt[group].insert(slot);
            self.note_bad(pending);
            return Err(MemberError::Gone);
        }
        let is_write = matches!(pending.kind, IoKind::Write | IoKind::WriteZeroes { .. });
        let is_data = matches!(pending.source, Source::Queue { .. });
        let fitting = |kind: &FaultKind| match kind {
            FaultKind::WriteError => is_write,
            FaultKind::NoSpace => is_write && is_data,
            _ => true,
        };
        let due = self.due_faults[index].iter().position(fitting);
        if let Some(kind) = due.map(|position| self.due_faults[index].remove(position)) {
            if is_write && self.random.chance(50) {
                self.store(pending);
            }
            if kind == FaultKind::NoSpace {
                self.no_space_at = self.machine.clock;
                return Err(MemberError::NoSpace);
            }
            self.hurt[group].insert(slot);
            self.note_bad(pending);
            self.machine.oracle.forget_reads();
            let late = kind == FaultKind::Timeout;
            return Err(if late { MemberError::Timeout } else { MemberError::Io });
        }
        match pending.kind {
            IoKind::Read => return self.load(pending),
            IoKind::Flush => self.machine.members[index].flush(pending.sent),
            IoKind::Write | IoKind::WriteZeroes { .. } => self.store(pending),
        }
        Ok(())
    }

    /// Remembers for the write hole what could not be read.
    fn note_bad(&mut self, pending: &Pending) {
        let sectors = pending.offset / 512..(pending.offset + pending.len).div_ceil(512);
        let member = pending.member;
        self.machine.was_bad.extend(sectors.map(|sector| (member, sector)));
    }

    fn load(&mut self, pending: &Pending) -> Result<(), MemberError> {
        let Source::Queue { queue, segments, .. } = &pending.source else { return Ok(()) };
        let member = &self.machine.members[pending.member];
        if member.is_bad(pending.offset, pending.len) {
            self.machine.counts.latent_errors += 1;
            return Err(MemberError::Io);
        }
        let mut at = pending.offset as usize;
        for segment in segments {
            let end = at + segment.len as usize;
            self.memories[*queue].put(segment, &member.live()[at..end]);
            at = end;
        }
        Ok(())
    }

    /// The bytes of a write.
    pub(crate) fn bytes_of(&mut self, pending: &Pending) -> Vec<u8> {
        match (&pending.source, pending.kind) {
            (_, IoKind::WriteZeroes { .. }) => vec![0; pending.len as usize],
            (Source::Metadata { bytes, .. }, _) => bytes.clone(),
            (Source::Queue { queue, segments, .. }, _) => {
                let mut bytes = Vec::with_capacity(pending.len as usize);
                let memory = &mut self.memories[*queue];
                segments.iter().for_each(|segment| memory.get(segment, &mut bytes));
                bytes
            }
        }
    }

    fn store(&mut self, pending: &Pending) {
        let bytes = self.bytes_of(pending);
        let clock = self.machine.clock;
        let member = &mut self.machine.members[pending.member];
        member.write(pending.offset, &bytes, pending.fua, clock);
    }

    /// Starts the next step of an update on one member, or ends it.
    pub(crate) fn job_on(&mut self, index: usize, slot: usize) {
        let Some(job) = &mut self.jobs[index] else { return };
        let group = job.update.group;
        let own = job.steps.iter_mut().find(|own| own.0 == slot);
        if let Some(step) = own.and_then(|own| own.1.pop_front()) {
            let (kind, offset, bytes) = match step {
                Step::Flush => (IoKind::Flush, 0, Vec::new()),
                Step::Write { offset, bytes } => (IoKind::Write, offset, bytes),
            };
            let len = bytes.len() as u64;
            let member = self.machine.member(group, slot);
            let source = Source::Metadata { job: index, slot, bytes };
            let sent = self.machine.tick();
            self.send(Pending { source, member, kind, offset, len, fua: false, sent });
            return;
        }
        job.left -= 1;
        if job.left > 0 {
            return;
        }
        let Some(job) = self.jobs[index].take() else { return };
        self.log(|| {
            let in_sync: Vec<usize> = job.update.in_sync.iter().collect();
            let failed: Vec<usize> = job.failed.iter().collect();
            let what = if job.update.superblocks { "superblocks" } else { "bitmap" };
            format!("{what} of group {group} are on {in_sync:?} but {failed:?}")
        });
        if job.failed.is_empty() && job.update.superblocks {
            let out = self.machine.geometry.slots().difference(job.update.in_sync);
            self.machine.recorded_out[group] = out;
        }
        match job.purpose {
            Purpose::Queue(queue) => self.queues[queue].handle_metadata(&job.update, &job.failed),
            Purpose::Start if job.failed.is_empty() => {}
            Purpose::Start => {
                let woken = self.volume.handle_metadata(&job.update, &job.failed);
                for (other, queue) in self.queues.iter_mut().enumerate() {
                    if woken >> other & 1 != 0 {
                        queue.handle_wakeup();
                    }
                }
            }
            Purpose::Stop if job.failed.is_empty() => self.volume.marked_clean(group),
            Purpose::Stop => {}
        }
    }

    /// Submits the requests that are due.
    pub(crate) fn feed(&mut self) -> Result<(), Violation> {
        if self.is_starting() {
            return Ok(());
        }
        for queue in 0..self.script.len() {
            while let Some(op) = self.script[queue].front().copied() {
                let own = self.flights.range((queue, 0)..=(queue, u32::MAX));
                let used: Vec<u32> = own.map(|(&(_, tag), _)| tag).collect();
                if self.base + op.at > self.now || used.len() >= self.machine.options.depth {
                    break;
                }
                self.script[queue].pop_front();
                let tag = (0..).find(|tag| !used.contains(tag)).unwrap_or(0);
                self.submit(queue, tag, op)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, queue: usize, tag: u32, op: Op) -> Result<(), Violation> {
        let began = self.machine.tick();
        self.machine.counts.ops += 1;
        let bytes = op.count as usize * SECTOR;
        self.log(|| format!("queue {queue} tag {tag}: {op:?}"));
        let (kind, value) = match op.kind {
            OpKind::Read => (RequestKind::Read, ZERO),
            OpKind::Flush => (RequestKind::Flush, ZERO),
            OpKind::Discard => (RequestKind::Discard, ZERO),
            OpKind::Zeroes => {
                (RequestKind::WriteZeroes { unmap: op.first.is_multiple_of(2) }, ZERO)
            }
            OpKind::Write => {
                self.machine.stamp += 1;
                (RequestKind::Write, self.machine.stamp)
            }
        };
        if matches!(op.kind, OpKind::Read | OpKind::Write) {
            let buffer = self.memories[queue].prepare(tag, bytes);
            if op.kind == OpKind::Write {
                for (sector, chunk) in (op.first..).zip(buffer.chunks_exact_mut(SECTOR)) {
                    fill(chunk, value, sector);
                }
            }
        }
        if matches!(op.kind, OpKind::Discard | OpKind::Write | OpKind::Zeroes) {
            for sector in op.first..op.first + op.count {
                self.machine.oracle.write_begins(sector, value, began);
            }
        }
        let errand = Errand::Client(op);
        self.launch(
            queue,
            tag,
            kind,
            Flight { errand, first: op.first, count: op.count, began, value },
        )
    }

    /// Submits a request of the world's own, or a client's.
    pub(crate) fn launch(
        &mut self,
        queue: usize,
        tag: u32,
        kind: RequestKind,
        flight: Flight,
    ) -> Result<(), Violation> {
        let fua = matches!(&flight.errand, Errand::Client(op) if op.fua);
        let request = Request {
            tag,
            kind,
            offset: flight.first * SECTOR as u64,
            len: flight.count * SECTOR as u64,
            fua,
        };
        self.flights.insert((queue, tag), flight);
        self.queues[queue]
            .submit(request)
            .map_err(|error| Violation::new("engine", format!("{request:?}: {error}")))
    }

    fn complete(&mut self, queue: usize, completion: Completion) -> Result<(), Violation> {
        let key = (queue, completion.tag);
        let Some(flight) = self.flights.remove(&key) else {
            let what = format!("request {} of queue {queue} ends twice", completion.tag);
            return Err(Violation::new("O10", what));
        };
        let clock = self.machine.tick();
        let error = completion.result.err().map(|error| error.kind);
        self.machine.note(clock << 2 ^ u64::from(error.is_some()));
        self.log(|| {
            let Flight { errand, value, began, .. } = &flight;
            format!("queue {queue} ends: {errand:?} value {value} began {began}: {error:?}")
        });
        match flight.errand {
            Errand::Resync { group, end, .. } => {
                if error.is_none() {
                    self.monitor_ack(&[group], flight.began, false)?;
                }
                self.sync_done(group, end, flight.began, error.is_some())
            }
            Errand::Check => {
                let values = self.values_of(key, &flight);
                for (sector, value) in (flight.first..).zip(values) {
                    self.found.insert(sector, error.is_none().then_some(value));
                }
                if error.is_some() { self.check_error(&flight, error) } else { Ok(()) }
            }
            Errand::Flush => {
                self.flush_result = Some(error.is_none());
                if error.is_some() {
                    return self.check_error(&flight, error);
                }
                self.flushed(&flight)
            }
            Errand::Client(op) => self.complete_client(key, &flight, op, error),
        }
    }

    fn values_of(&self, (queue, tag): (usize, u32), flight: &Flight) -> Vec<u64> {
        let sectors = self.memories[queue].buffer(tag).chunks_exact(SECTOR);
        (flight.first..).zip(sectors).map(|(sector, bytes)| value_of(bytes, sector)).collect()
    }

    fn complete_client(
        &mut self,
        key: (usize, u32),
        flight: &Flight,
        op: Op,
        error: Option<RequestErrorKind>,
    ) -> Result<(), Violation> {
        let clock = self.machine.clock;
        let write = (flight.value, flight.began);
        let sectors = flight.first..flight.first + flight.count;
        let modifies = matches!(op.kind, OpKind::Discard | OpKind::Write | OpKind::Zeroes);
        if error.is_some() {
            self.machine.counts.failed_ops += 1;
            if modifies {
                self.taint_failed(flight);
                let oracle = &mut self.machine.oracle;
                sectors.for_each(|sector| oracle.write_fails(sector, write, clock));
            }
            return self.check_error(flight, error);
        }
        if modifies {
            let sure = op.kind != OpKind::Discard;
            if sure {
                let whole = self.is_one_unit(flight);
                self.monitor_ack(&self.groups_of(flight), flight.began, whole)?;
            }
            let oracle = &mut self.machine.oracle;
            for sector in sectors {
                oracle.write_succeeds(sector, write, (sure, op.fua), clock);
            }
            return Ok(());
        }
        if op.kind == OpKind::Flush {
            return self.flushed(flight);
        }
        for (sector, value) in (flight.first..).zip(self.values_of(key, flight)) {
            self.judge(sector, value, flight.began)?;
        }
        Ok(())
    }

    fn flushed(&mut self, flight: &Flight) -> Result<(), Violation> {
        let groups: Vec<usize> = (0..self.volume.group_count()).collect();
        self.monitor_ack(&groups, flight.began, groups.len() == 1)?;
        self.monitor_flush(flight.began)?;
        self.machine.oracle.flush_succeeds(flight.began);
        Ok(())
    }

    /// A read returned a value.
    pub(crate) fn judge(&mut self, sector: u64, value: u64, began: u64) -> Result<(), Violation> {
        self.machine.counts.sectors += 1;
        // Known: where copies are not in sync yet, a member that cannot be read for a while, or one
        // unreadable sector that a resync meets in a unit, lets another copy answer, so that what
        // was seen of the first one may change back.
        let (group, _) = self.machine.row(sector);
        let bad = self.ever_bad.iter().any(|at| self.place_of(at.0).0 == group);
        let flaps = bad || !self.hurt[group].is_empty();
        let holds = self.was_trusted(group, began) || !flaps;
        let result = self.machine.oracle.read_returns(sector, value, began, holds);
        if let Err(message) = result {
            if self.is_hole(sector) {
                if self.machine.holes.insert(sector) {
                    self.machine.counts.hole_sectors += 1;
                }
                return Ok(());
            }
            return Err(Violation::new("O1/O2/O4", message));
        }
        Ok(())
    }

    /// Groups that a request concerns.
    pub(crate) fn groups_of(&self, flight: &Flight) -> Vec<usize> {
        let mut groups: Vec<usize> = (flight.first..flight.first + flight.count)
            .map(|sector| self.machine.row(sector).0)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// True if a request lies within one lock unit of one group.
    fn is_one_unit(&self, flight: &Flight) -> bool {
        let unit = self.volume.resync_unit(0);
        let place = |sector: u64| {
            let (group, within, _) = self.volume.locate(sector * SECTOR as u64);
            (group, within / unit)
        };
        place(flight.first) == place(flight.first + flight.count - 1) && self.sync.len() == 1
    }

    /// Slots of a group that count as lost: left the array, gone, or hurt in this boot.
    pub(crate) fn lost(&self, group: usize) -> SlotSet {
        let slots = self.machine.geometry.slots();
        let gone = slots
            .iter()
            .filter(|&slot| self.machine.members[self.machine.member(group, slot)].gone);
        let gone: SlotSet = gone.collect();
        slots.difference(self.volume.in_sync(group)).union(gone).union(self.hurt[group])
    }
}
