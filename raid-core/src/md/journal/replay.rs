//! From the log to what has to be written to the members.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Block, Log, Payload, SEQUENCE_JUMP};
use crate::geometry::Geometry;

/// A block of the journal and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWrite {
    /// The slot.
    pub slot: usize,
    /// The block, to be read from the journal again (and its checksum compared).
    pub block: Block,
}

/// One row of blocks, 4 KiB of each member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StripeReplay {
    /// Where, from the start of each member's data, in bytes.
    pub offset: u64,
    /// Data blocks.
    pub data: Vec<BlockWrite>,
    /// P (and Q) that belong to all of this data. Empty when the data had not got its parity yet:
    /// then it is a write that the array has to do in the usual way, computing parity.
    pub parity: Vec<BlockWrite>,
    /// Array offset of each data block, in the order of `data`.
    pub logical: Vec<u64>,
}

/// What has to be done with a log before the array is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Rows in the order of their offsets. Writing them twice does no harm.
    pub stripes: Vec<StripeReplay>,
    /// Meta blocks that were not whole, and payloads outside of the array.
    pub dropped_count: usize,
    /// Where the log goes on once everything is on the members: an
    /// [`empty_block`](super::JournalPlace::empty_block) has to be written here, and then the
    /// journal's superblock (see [`crate::md::update::Change::JournalTail`]).
    pub next_position: u64,
    /// The sequence number of that block.
    pub next_sequence: u64,
}

impl Replay {
    /// Nothing is left in the journal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }
}

/// Decides what of the log has to be written.
///
/// In the order of the log: data of a row that has its parity already was a later write, so what is
/// there is on the members or will be overwritten whole; it is kept as a row of its own before.
/// Parity makes a row complete. Rows that were flushed are dropped. Parity without data was flushed
/// before.
#[must_use]
pub fn replay(log: &Log, geometry: &Geometry) -> Replay {
    let mut rows = Rows { geometry, open: BTreeMap::new(), done: Vec::new(), dropped_count: 0 };
    for meta in &log.blocks {
        rows.dropped_count += usize::from(!meta.is_whole);
        for payload in &meta.payloads {
            match payload {
                Payload::Data { offset, block } => rows.data(*offset, *block),
                Payload::Parity { offset, blocks } => rows.parity(*offset, blocks),
                Payload::Flush { offsets } => {
                    for offset in offsets {
                        rows.open.remove(offset);
                        rows.done.retain(|row| row.offset != *offset);
                    }
                }
            }
        }
    }
    let Rows { open, mut done, dropped_count, .. } = rows;
    done.extend(open.into_values().filter(|row| !row.data.is_empty()));
    // Of one row the earlier one stays first.
    done.sort_by_key(|row| row.offset);
    Replay {
        stripes: done,
        dropped_count,
        next_position: log.end_position,
        next_sequence: log.end_sequence.wrapping_add(SEQUENCE_JUMP),
    }
}

struct Rows<'a> {
    geometry: &'a Geometry,
    open: BTreeMap<u64, StripeReplay>,
    done: Vec<StripeReplay>,
    dropped_count: usize,
}

impl Rows<'_> {
    fn data(&mut self, offset: u64, block: Block) {
        let is_block = offset.is_multiple_of(super::BLOCK_BYTES as u64);
        if !is_block || offset >= self.geometry.array_bytes() || self.geometry.parity_count() == 0 {
            self.dropped_count += 1;
            return;
        }
        let place = self.geometry.place(offset);
        let row = self.open.entry(place.member_offset).or_default();
        row.offset = place.member_offset;
        if !row.parity.is_empty() {
            let complete = core::mem::take(row);
            row.offset = complete.offset;
            if !complete.data.is_empty() {
                self.done.push(complete);
            }
        }
        let write = BlockWrite { slot: place.slot, block };
        match row.data.iter_mut().find(|data| data.slot == place.slot) {
            // Written again before it got its parity: the newer one counts.
            Some(data) => *data = write,
            None => {
                row.data.push(write);
                row.logical.push(offset);
            }
        }
    }

    fn parity(&mut self, offset: u64, blocks: &[Block]) {
        let is_block = offset.is_multiple_of(super::BLOCK_BYTES as u64);
        let geometry = self.geometry;
        if !is_block || geometry.parity_count() == 0 || offset >= geometry.component_bytes() {
            self.dropped_count += 1;
            return;
        }
        let stripe = geometry.stripe(offset / geometry.chunk_bytes());
        let row = self.open.entry(offset).or_default();
        row.offset = offset;
        let slots = [stripe.p, stripe.q];
        let writes = slots.into_iter().flatten().zip(blocks);
        row.parity = writes.map(|(slot, &block)| BlockWrite { slot, block }).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MetaBlock, SEQUENCE_JUMP};
    use super::{Block, Geometry, Log, Payload, replay};
    use crate::geometry::GeometrySpec;
    use crate::layout::{Layout, Level};

    fn block(position: u64) -> Block {
        Block { position, checksum: 0 }
    }

    fn data(offset: u64, position: u64) -> Payload {
        Payload::Data { offset, block: block(position) }
    }

    fn parity(offset: u64, position: u64) -> Payload {
        Payload::Parity { offset, blocks: alloc::vec![block(position)] }
    }

    /// Complete rows, rows that were written again, flushed ones, data alone, and nonsense.
    #[test]
    fn rows() {
        let geometry = Geometry::new(GeometrySpec {
            level: Level::Raid5,
            layout: Layout::from_md(Level::Raid5, 2).unwrap(),
            slot_count: 3,
            chunk_bytes: 4096,
            member_data_bytes: &[1 << 20; 3],
        })
        .unwrap();
        let payloads = alloc::vec![
            // Row 0 twice, row 4096 flushed, row 8192 without parity, row 12288 without data.
            data(0, 8),
            data(4096, 16),
            parity(0, 24),
            data(0, 32),
            data(8192, 40),
            parity(4096, 48),
            Payload::Flush { offsets: alloc::vec![4096, 1 << 40] },
            data(16384, 56),
            data(16384, 64),
            parity(12288, 72),
            data(1 << 50, 80),
            data(512, 80),
            parity(1 << 20, 80),
        ];
        let meta = MetaBlock { sequence: 5, position: 0, payloads, is_whole: true };
        let torn =
            MetaBlock { sequence: 6, position: 88, payloads: alloc::vec![], is_whole: false };
        let log = Log { blocks: alloc::vec![meta, torn], end_position: 96, end_sequence: 7 };
        let replay = replay(&log, &geometry);
        let rows: alloc::vec::Vec<_> = replay
            .stripes
            .iter()
            .map(|row| (row.offset, row.data.len(), row.parity.len(), row.data[0].block.position))
            .collect();
        assert_eq!(rows, [(0, 2, 1, 8), (0, 1, 0, 32), (8192, 1, 0, 64)]);
        assert_eq!(replay.stripes[2].logical, [16384]);
        assert_eq!((replay.dropped_count, replay.next_position), (4, 96));
        assert_eq!(replay.next_sequence, 7 + SEQUENCE_JUMP);
    }
}
