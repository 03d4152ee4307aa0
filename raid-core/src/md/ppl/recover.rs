//! From the newest log of a member to the parity that has to be written.

use alloc::vec::Vec;
use core::ops::Range;

use super::{HEADER_BYTES, Newest, partial_checksum};
use crate::geometry::Geometry;
use crate::layout::Level;
use crate::md::SECTOR_BYTES;
use crate::slots::SlotSet;

/// Rows whose parity has to be computed and written: parity = XOR of all `reads` and of `partial`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFix {
    /// The slot that holds the parity, which is the one whose log this is from.
    pub parity_slot: usize,
    /// Where to write it, from the start of the member's data.
    pub offset: u64,
    /// Bytes of the rows.
    pub len: u64,
    /// The slots to read, each at the same offset and length: the chunks that may have been
    /// written.
    pub reads: Vec<usize>,
    /// The partial parity, as bytes of the PPL area; `None` where every chunk is read.
    pub partial: Option<Range<usize>>,
}

/// Rows that were being written while a data member that took part is missing: they cannot be
/// recovered. What the missing member's chunk would be regenerated to is neither old nor new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The missing slot.
    pub slot: usize,
    /// The part of its chunk, from the start of the member's data.
    pub range: Range<u64>,
}

/// What a member's log says has to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// In the order of the log. Each is independent of the others.
    pub fixes: Vec<RowFix>,
    /// What stays damaged.
    pub damage: Vec<Damage>,
    /// Entries that were understood, those with damage included.
    pub recovered_count: usize,
    /// Entries whose partial parity does not have its checksum, or that are none of this array:
    /// the log was being written, so their data was not yet.
    pub mismatch_count: usize,
}

/// Says what has to be done for the newest log of the member in slot `slot`, before anything else
/// is written. `area` is that member's whole PPL area, `present` the slots whose members are in
/// sync.
///
/// Reading, computing and writing are the caller's; when a read or a write fails, the array has to
/// be resynced (or refused, if it cannot be).
#[must_use]
pub fn recover(
    newest: &Newest,
    area: &[u8],
    geometry: &Geometry,
    slot: usize,
    present: &SlotSet,
) -> Recovery {
    let mut recovery = Recovery::default();
    let mut offset = newest.offset.saturating_add(HEADER_BYTES);
    for entry in &newest.header.entries {
        let start = offset;
        // Whole sectors, as the log is written.
        let sectors = entry.partial_bytes as u64 / SECTOR_BYTES * SECTOR_BYTES;
        offset = offset.saturating_add(sectors as usize);
        let partial = area.get(start..start.saturating_add(entry.partial_bytes as usize));
        let is_whole = partial.is_some_and(|partial| partial_checksum(partial) == entry.checksum);
        let shape = Shape::of(entry, geometry).filter(|shape| shape.parity_slot == slot);
        match shape.filter(|_| is_whole && entry.parity_slot as usize == slot) {
            Some(shape) => {
                recovery.recovered_count += 1;
                shape.recover(start, entry.partial_bytes > 0, geometry, present, &mut recovery);
            }
            None => recovery.mismatch_count += 1,
        }
    }
    recovery
}

/// Whether a dirty array is clean once the logs of all its members have been recovered:
/// `recoveries` has one for each slot, an error for a log that could not be read. Otherwise a
/// resync has to follow.
#[must_use]
pub fn is_clean_after<'a, E: 'a>(
    recoveries: impl IntoIterator<Item = &'a Result<Recovery, E>>,
    is_degraded: bool,
) -> bool {
    let mut recovered_count = 0;
    for recovery in recoveries {
        match recovery {
            Ok(recovery) if recovery.mismatch_count == 0 => {
                recovered_count += recovery.recovered_count;
            }
            _ => return false,
        }
    }
    // As in the kernel: logs that are all empty prove nothing about an array that is dirty.
    !is_degraded && recovered_count > 0
}

/// The rows of an entry, checked against the array.
struct Shape {
    stripe: u64,
    /// First data chunk of the stripe that may have been written.
    first: usize,
    /// Offset in the chunk.
    chunk_offset: u64,
    /// Bytes of partial parity, hence of rows; at most to the end of the chunk unless
    /// `is_wrapped`.
    rows: u64,
    /// Bytes from the data sector on that were written when the rows are whole chunks.
    linear: Option<u64>,
    /// Data chunks from `first` on.
    count: usize,
    parity_slot: usize,
}

impl Shape {
    fn of(entry: &super::Entry, geometry: &Geometry) -> Option<Self> {
        if geometry.level() != Level::Raid5 {
            return None;
        }
        let start = entry.data_sector.checked_mul(SECTOR_BYTES)?;
        let (partial, data) = (u64::from(entry.partial_bytes), u64::from(entry.data_bytes));
        let is_sectors = partial % SECTOR_BYTES == 0 && data % SECTOR_BYTES == 0;
        if start >= geometry.array_bytes() || data == 0 || !is_sectors {
            return None;
        }
        let at = geometry.locate(start);
        let stripe = geometry.stripe(at.stripe);
        let (chunk, all) = (geometry.chunk_bytes(), stripe.data_count());
        let (rows, count, linear) = match partial {
            0 if data % all as u64 == 0 && at.data == 0 => (data / all as u64, all, None),
            0 => return None,
            _ if partial < chunk && data % partial == 0 => {
                (partial, usize::try_from(data / partial).ok()?, None)
            }
            _ if partial == chunk => (chunk, all, Some(data)),
            _ => return None,
        };
        let is_inside = match linear {
            // From the data sector to the end of the stripe at most.
            Some(data) => data <= (all - at.data) as u64 * chunk - at.chunk_offset,
            None => at.data + count <= all && at.chunk_offset + rows <= chunk,
        };
        is_inside.then_some(Self {
            stripe: at.stripe,
            first: at.data,
            chunk_offset: at.chunk_offset,
            rows,
            linear,
            count,
            parity_slot: stripe.p?,
        })
    }

    /// Adds what is to be done; `partial_at` is where the partial parity lies.
    fn recover(
        &self,
        partial_at: usize,
        has_partial: bool,
        geometry: &Geometry,
        present: &SlotSet,
        recovery: &mut Recovery,
    ) {
        let stripe = geometry.stripe(self.stripe);
        let base = geometry.member_offset_of_stripe(self.stripe);
        for (rows, chunks) in self.parts(geometry.chunk_bytes()) {
            let reads: Vec<usize> = chunks.map(|k| stripe.data_slot(k)).collect();
            let range = base + rows.start..base + rows.end;
            let missing = reads.iter().filter(|&&slot| !present.contains(slot));
            let before = recovery.damage.len();
            recovery.damage.extend(missing.map(|&slot| Damage { slot, range: range.clone() }));
            if recovery.damage.len() > before {
                continue;
            }
            // The partial parity of the row at `chunk_offset` comes first; rows before it follow at
            // the end.
            let chunk = geometry.chunk_bytes();
            let at = partial_at + ((rows.start + chunk - self.chunk_offset) % chunk) as usize;
            let len = rows.end - rows.start;
            recovery.fixes.push(RowFix {
                parity_slot: self.parity_slot,
                offset: range.start,
                len,
                reads,
                partial: has_partial.then_some(at..at + len as usize),
            });
        }
    }

    /// Runs of rows (offsets in the chunk) with the data chunks that may have been written in them.
    fn parts(&self, chunk: u64) -> Vec<(Range<u64>, Range<usize>)> {
        let Some(data) = self.linear else {
            let rows = self.chunk_offset..self.chunk_offset + self.rows;
            return alloc::vec![(rows, self.first..self.first + self.count)];
        };
        // The data runs on from the end of one chunk to the start of the next.
        let end = self.chunk_offset + data;
        let (last, last_end) = (((end - 1) / chunk) as usize, (end - 1) % chunk + 1);
        let mut cuts = alloc::vec![0, self.chunk_offset, last_end, chunk];
        cuts.sort_unstable();
        cuts.dedup();
        let touched = |row: u64| {
            let from = if row >= self.chunk_offset { 0 } else { 1 };
            let to = if row < last_end { last + 1 } else { last };
            self.first + from..self.first + to.max(from)
        };
        let parts = cuts.windows(2).map(|cut| (cut[0]..cut[1], touched(cut[0])));
        parts.filter(|(_, chunks)| !chunks.is_empty()).collect()
    }
}
