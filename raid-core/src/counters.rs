//! What the engine did, counted where it happens and added up when somebody asks.
//!
//! Each queue has its own cache lines and is their only writer, so counting costs no shared line.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;

/// The engine's counters, added up over all queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Stripes written whole, without a read.
    pub full_stripe_writes: u64,
    /// Stripes written by read-modify-write.
    pub rmw: u64,
    /// Stripes written by reconstruct-write.
    pub rcw: u64,
    /// Stripes written after regenerating lost data.
    pub regenerating_writes: u64,
    /// Parts of reads answered by regeneration.
    pub regenerated_reads: u64,
    /// Member operations that rode along in another one.
    pub merged: u64,
    /// Waiting writes that were joined into the plan of another one.
    pub joined: u64,
    /// Parts that had to wait for a stripe.
    pub lock_waits: u64,
    /// Read operations sent to members.
    pub member_reads: u64,
    /// Write operations sent to members, zeroes included.
    pub member_writes: u64,
    /// Flush operations sent to members.
    pub member_flushes: u64,
    /// For each member over all groups: what it was sent.
    pub members: Box<[MemberCounters]>,
}

/// What one member was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounters {
    /// Read operations.
    pub reads: u64,
    /// Write operations, zeroes included.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, zeroes included.
    pub written_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads that failed though the member is there.
    pub read_errors: u64,
    /// Places that were written anew and read back because they could not be read, or were wrong.
    pub rewritten: u64,
}

/// Index of a counter of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    FullStripeWrites,
    Rmw,
    Rcw,
    RegeneratingWrites,
    RegeneratedReads,
    Merged,
    Joined,
    LockWaits,
    Flushes,
}

const COUNTER_COUNT: usize = Counter::Flushes as usize + 1;

#[derive(Debug, Default)]
pub(crate) struct MemberCells {
    reads: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    read_errors: AtomicU64,
    rewritten: AtomicU64,
}

/// One queue's counters.
#[derive(Debug)]
pub(crate) struct QueueCounters {
    cells: CachePadded<[AtomicU64; COUNTER_COUNT]>,
    members: CachePadded<Box<[CachePadded<MemberCells>]>>,
}

/// Adds without a locked instruction: the calling queue is the only writer.
fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl QueueCounters {
    pub(crate) fn new(member_count: usize) -> Self {
        Self {
            cells: CachePadded::default(),
            members: CachePadded::new((0..member_count).map(|_| CachePadded::default()).collect()),
        }
    }

    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        add(&self.cells[counter as usize], amount);
    }

    pub(crate) fn count_read(&self, member: usize, bytes: u64) {
        add(&self.members[member].reads, 1);
        add(&self.members[member].read_bytes, bytes);
    }

    pub(crate) fn count_write(&self, member: usize, bytes: u64) {
        add(&self.members[member].writes, 1);
        add(&self.members[member].written_bytes, bytes);
    }

    pub(crate) fn count_error(&self, member: usize) {
        add(&self.members[member].errors, 1);
    }

    pub(crate) fn count_read_error(&self, member: usize) {
        add(&self.members[member].read_errors, 1);
    }

    pub(crate) fn count_rewritten(&self, member: usize) {
        add(&self.members[member].rewritten, 1);
    }

    /// Adds this queue's counters to `sum`, whose member list has the right length.
    pub(crate) fn add_to(&self, sum: &mut Counters) {
        let value = |counter: Counter| self.cells[counter as usize].load(Ordering::Relaxed);
        sum.full_stripe_writes += value(Counter::FullStripeWrites);
        sum.rmw += value(Counter::Rmw);
        sum.rcw += value(Counter::Rcw);
        sum.regenerating_writes += value(Counter::RegeneratingWrites);
        sum.regenerated_reads += value(Counter::RegeneratedReads);
        sum.merged += value(Counter::Merged);
        sum.joined += value(Counter::Joined);
        sum.lock_waits += value(Counter::LockWaits);
        sum.member_flushes += value(Counter::Flushes);
        for (total, cells) in sum.members.iter_mut().zip(self.members.iter()) {
            let reads = cells.reads.load(Ordering::Relaxed);
            let writes = cells.writes.load(Ordering::Relaxed);
            sum.member_reads += reads;
            sum.member_writes += writes;
            total.reads += reads;
            total.writes += writes;
            total.read_bytes += cells.read_bytes.load(Ordering::Relaxed);
            total.written_bytes += cells.written_bytes.load(Ordering::Relaxed);
            total.errors += cells.errors.load(Ordering::Relaxed);
            total.read_errors += cells.read_errors.load(Ordering::Relaxed);
            total.rewritten += cells.rewritten.load(Ordering::Relaxed);
        }
    }
}
