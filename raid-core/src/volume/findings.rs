//! What checks and recoveries have to tell, until the driver takes it.

use super::Volume;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crossbeam_queue::SegQueue;

/// Findings and losses that wait to be taken; what comes beyond is counted only.
const KEPT_MAX: usize = 4096;

/// A place where redundancy and data do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The group.
    pub group: usize,
    /// The group byte concerned: of the wrong chunk if it is data, else the first of the stripe.
    pub offset: u64,
    /// Where it is on the members, in bytes from where their data starts.
    pub member_offset: u64,
    /// Length in bytes on each member.
    pub len: u64,
    /// Whose content is wrong, if that can be told.
    pub slot: Option<usize>,
    /// It was made right, and read back.
    pub repaired: bool,
}

/// Sectors that a recovery could not get: what is on the member there is not the array's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The group.
    pub group: usize,
    /// The slot whose member lacks them.
    pub slot: usize,
    /// Where they are, in bytes from where the member's data starts.
    pub member_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A list that grows to [`KEPT_MAX`] and counts what came beyond.
#[derive(Debug)]
pub(super) struct Bounded<T> {
    items: SegQueue<T>,
    kept: AtomicUsize,
    dropped: AtomicU64,
}

impl<T> Bounded<T> {
    pub(super) fn new() -> Self {
        Self { items: SegQueue::new(), kept: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    }

    fn push(&self, item: T) {
        if self.kept.fetch_add(1, Ordering::AcqRel) < KEPT_MAX {
            self.items.push(item);
        } else {
            self.kept.fetch_sub(1, Ordering::AcqRel);
            self.dropped.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn pop(&self) -> Option<T> {
        let item = self.items.pop()?;
        self.kept.fetch_sub(1, Ordering::AcqRel);
        Some(item)
    }
}

impl Volume {
    pub(crate) fn push_finding(&self, finding: Finding) {
        let sectors = finding.len / 512;
        self.groups[finding.group].mismatches.fetch_add(sectors, Ordering::Relaxed);
        self.findings.push(finding);
    }

    pub(crate) fn push_loss(&self, loss: Loss) {
        self.losses.push(loss);
    }

    /// Takes what checks have found, one place after the other. At most 4096 wait; take them while
    /// a check runs, or the rest is only counted.
    pub fn poll_finding(&self) -> Option<Finding> {
        self.findings.pop()
    }

    /// 512-byte sectors (of one member) where checks of a group have found a mismatch since
    /// [`Volume::forget_findings`], as md's `mismatch_cnt` counts.
    pub fn mismatch_sectors(&self, group: usize) -> u64 {
        self.groups[group].mismatches.load(Ordering::Relaxed)
    }

    /// A new check begins: counts are zero, findings that nobody took are dropped.
    pub fn forget_findings(&self, group: usize) {
        while self.findings.pop().is_some() {}
        self.groups[group].mismatches.store(0, Ordering::Relaxed);
    }

    /// Takes what recoveries could not get. Before [`Volume::note_recovered`] is told of the range,
    /// these sectors must be known to be lost to everybody who reads that member.
    pub fn poll_loss(&self) -> Option<Loss> {
        self.losses.pop()
    }

    /// Losses that were not kept for there were too many: the members that they concern cannot be
    /// used.
    pub fn losses_dropped(&self) -> u64 {
        self.losses.dropped.load(Ordering::Acquire)
    }
}
