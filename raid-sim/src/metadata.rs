//! Superblocks and bitmaps of a running group, and the order in which an update reaches a member.
//!
//! ```text
//!   flush -> bitmap words -> flush -> superblock -> flush
//! ```
//!
//! The first flush stands before words that take bits back: what those regions hold must be stable
//! on this member before its bitmap stops saying that it may not be. The bitmap comes before the
//! superblock, so that the newest superblock never has an older bitmap beside it.

use std::collections::VecDeque;

use raid_core::md::bitmap::{BitmapContext, BitmapHead, HEAD_BYTES};
use raid_core::md::regions::sync_bytes;
use raid_core::md::superblock::Role;
use raid_core::md::update::{Change, apply};
use raid_core::md::{MdTime, Superblock};
use raid_core::slots::SlotSet;
use raid_core::volume::MetadataUpdate;

use crate::machine::BITMAP_OFFSET;
use crate::report::Violation;
use crate::workload::SECTOR;

/// One thing to be done to a member.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Flush,
    Write { offset: u64, bytes: Vec<u8> },
}

/// The metadata of one group in memory.
#[derive(Clone, Debug)]
pub(crate) struct GroupMetadata {
    /// By slot, of members in sync.
    pub(crate) superblocks: Vec<Option<Superblock>>,
    /// The bitmap as the members have been told, whole sectors.
    pub(crate) bitmap: Option<Vec<u8>>,
}

/// Who hears of the end of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The queue that took it over.
    Queue(usize),
    /// The start: every member in sync gets the bits that any of them had.
    Start,
    /// The orderly stop.
    Stop,
}

/// An update on its way.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) update: MetadataUpdate,
    pub(crate) purpose: Purpose,
    /// What is left to be done, by slot.
    pub(crate) steps: Vec<(usize, VecDeque<Step>)>,
    /// Slots that are not through yet.
    pub(crate) left: usize,
    pub(crate) failed: SlotSet,
}

impl GroupMetadata {
    /// Makes the change in memory; returns what each member has to be told.
    pub(crate) fn begin(
        &mut self,
        update: MetadataUpdate,
        purpose: Purpose,
        resynced_bytes: Option<u64>,
        geometry_sync_bytes: u64,
    ) -> Result<Job, Violation> {
        let mut tails = VecDeque::new();
        if let Some(image) = &update.intent {
            let bitmap = self.bitmap.as_mut().ok_or_else(|| {
                Violation::new("O9", "bitmap words for an array without a bitmap")
            })?;
            for &index in &image.changed {
                let at = HEAD_BYTES + index * 8;
                let end = (at + 8).min(bitmap.len());
                let bytes = image.words[index].to_le_bytes();
                bitmap[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        if update.superblocks {
            self.apply(&update, resynced_bytes, geometry_sync_bytes)?;
        }
        if let Some(bitmap) = self.bitmap.as_ref() {
            tails.push_back(Step::Flush);
            tails.push_back(Step::Write { offset: BITMAP_OFFSET, bytes: bitmap.clone() });
            tails.push_back(Step::Flush);
        }
        let mut steps = Vec::new();
        for (slot, superblock) in self.superblocks.iter().enumerate() {
            let Some(superblock) = superblock else { continue };
            let mut own = tails.clone();
            if update.superblocks {
                let bytes = superblock.encode()[..].to_vec();
                own.push_back(Step::Write { offset: superblock.super_offset_bytes(), bytes });
                own.push_back(Step::Flush);
            }
            steps.push((slot, own));
        }
        let left = steps.len();
        Ok(Job { update, purpose, steps, left, failed: SlotSet::new() })
    }

    /// Tells every member the bitmap as it is in memory.
    pub(crate) fn begin_start(&self, update: MetadataUpdate) -> Option<Job> {
        let bitmap = self.bitmap.clone()?;
        let write = Step::Write { offset: BITMAP_OFFSET, bytes: bitmap };
        let steps: Vec<(usize, VecDeque<Step>)> = update
            .in_sync
            .iter()
            .map(|slot| (slot, VecDeque::from([write.clone(), Step::Flush])))
            .collect();
        let left = steps.len();
        Some(Job { update, purpose: Purpose::Start, steps, left, failed: SlotSet::new() })
    }

    fn apply(
        &mut self,
        update: &MetadataUpdate,
        resynced_bytes: Option<u64>,
        geometry_sync_bytes: u64,
    ) -> Result<(), Violation> {
        let change =
            if update.dirty { Change::MarkDirty } else { Change::MarkClean { resynced_bytes } };
        let mut changes = vec![change];
        for (slot, superblock) in self.superblocks.iter_mut().enumerate() {
            if !update.in_sync.contains(slot)
                && let Some(left) = superblock.take()
            {
                changes.push(Change::Fail { dev_number: left.dev_number });
            }
            // Members that force put back are still called faulty by the newest tables.
            if let Some(own) = superblock {
                let (dev_number, role) = (own.dev_number, Role::Active(slot as u16));
                changes.push(Change::SetRole { dev_number, role });
            }
        }
        let whole = self.superblocks.iter().all(Option::is_some);
        let mut all: Vec<&mut Superblock> = self.superblocks.iter_mut().flatten().collect();
        let now = MdTime::new(1_100_000_000, 0);
        let events = apply(&mut all, &changes, now)
            .map_err(|error| Violation::new("engine", format!("update: {error}")))?;
        if let Some(bitmap) = &mut self.bitmap {
            let mut head = head_of(all[0], bitmap, geometry_sync_bytes)?;
            // A member that force put back may be older than its array's bitmap.
            head.events = events;
            if whole || head.events_cleared > events {
                head.events_cleared = events;
            }
            bitmap[..HEAD_BYTES].copy_from_slice(&head.encode());
        }
        Ok(())
    }
}

fn head_of(
    superblock: &Superblock,
    bitmap: &[u8],
    geometry_sync_bytes: u64,
) -> Result<BitmapHead, Violation> {
    let context = BitmapContext {
        uuid_bytes: superblock.array_uuid_bytes(),
        sync_sectors: geometry_sync_bytes / SECTOR as u64,
        room_bytes: 8192,
    };
    BitmapHead::decode(bitmap, &context)
        .map_err(|error| Violation::new("O9", format!("our own bitmap: {error}")))
}

/// md's resync position of a group's byte: bytes of a member, but of the array in RAID 10.
pub(crate) fn position_of(geometry: &raid_core::geometry::Geometry, bytes: u64) -> u64 {
    let bytes = bytes.min(geometry.array_bytes());
    if sync_bytes(geometry) == geometry.array_bytes() {
        bytes
    } else {
        bytes / geometry.data_slots() as u64
    }
}
