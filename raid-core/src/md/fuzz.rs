//! Bodies of the fuzz targets: anything goes in, nothing may panic but on a broken promise.
//!
//! Small corpora are in `tests/corpus`; `cargo test` runs every body over them and over mutations.

use alloc::vec::Vec;

use crate::geometry::{Geometry, GeometrySpec};
use crate::layout::{Layout, Level};
use crate::md::assemble::{Abilities, Access, AssembleOptions};
use crate::md::bad_blocks::BadBlocks;
use crate::md::bitmap::{BitmapContext, BitmapHead, BitmapImage};
use crate::md::crc::crc32c;
use crate::md::journal::{self, BLOCK_BYTES, JournalPlace};
use crate::md::ppl;
use crate::md::superblock::{self, Context, Features, LogArea, Minor};
use crate::md::update::{Change, apply};
use crate::md::{Candidate, MdTime, Superblock, assemble, signature};

const MEMBER_BYTES: u64 = 1 << 30;

/// Decodes arbitrary bytes as each version. What is accepted must encode to the same bytes, be
/// assembled or refused, and still be accepted after an update.
///
/// # Panics
///
/// When a promise of the parser is broken: that is the finding.
pub fn fuzz_superblock(bytes: &[u8]) {
    let _ = signature::probe(bytes.len() as u64, bytes, bytes);
    for minor in Minor::ALL {
        let context = Context { minor, member_bytes: MEMBER_BYTES };
        let Ok(decoded) = superblock::decode(bytes, context) else { continue };
        assert_eq!(decoded.encode()[..], bytes[..superblock::AREA_BYTES]);
        try_assemble(core::slice::from_ref(&decoded));
        let mut next = decoded.clone();
        let events = apply(&mut [&mut next], &[Change::MarkDirty], MdTime(1));
        assert_eq!(events, Ok(decoded.events + 1));
        // The greatest event count that is accepted is the only one whose successor is not.
        let again = superblock::decode(&next.encode()[..], context);
        assert!(again.as_ref() == Ok(&next) || decoded.events == superblock::EVENTS_MAX);
    }
}

/// A set of members: every 4 KiB are one's superblock, with the checksum made right. Whatever is
/// decided, the members that fill the slots are there.
///
/// # Panics
///
/// When a promise is broken: that is the finding.
pub fn fuzz_members(bytes: &[u8]) {
    for minor in [Minor::V1_2, Minor::V0_90] {
        let context = Context { minor, member_bytes: MEMBER_BYTES };
        let areas = bytes.chunks_exact(superblock::AREA_BYTES).take(8);
        let members: Vec<Superblock> = areas
            .filter_map(|area| {
                let mut area = area.to_vec();
                superblock::fix_checksum(&mut area, minor);
                superblock::decode(&area, context).ok()
            })
            .collect();
        try_assemble(&members);
    }
}

fn try_assemble(members: &[Superblock]) {
    let candidate =
        |superblock| Candidate { name: "", member_bytes: MEMBER_BYTES, superblock: Ok(superblock) };
    let candidates: Vec<Candidate<'_>> = members.iter().map(candidate).collect();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        for (force, abilities) in
            [(false, Abilities::ALL), (true, Abilities::ALL), (true, Abilities::NONE)]
        {
            let options = AssembleOptions { access, force, abilities };
            let Ok(assembly) = assemble(&candidates, options) else { continue };
            assert!(assembly.slots.len() <= superblock::SLOT_COUNT_MAX);
            assert!(assembly.newest < members.len());
            assert!(assembly.journal.is_none_or(|journal| journal < members.len()));
        }
    }
}

/// Decodes arbitrary bytes as a bitmap of the array that its header says it is of.
///
/// # Panics
///
/// When a promise is broken: that is the finding.
pub fn fuzz_bitmap(bytes: &[u8]) {
    let Some(uuid_bytes) = bytes.get(8..24).and_then(|uuid| uuid.first_chunk::<16>()) else {
        return;
    };
    let sync = bytes.get(40..48).and_then(|sync| sync.first_chunk::<8>());
    let sync_sectors = u64::from_le_bytes(*sync.unwrap_or(&[0; 8]));
    let room_bytes = bytes.len() as u64;
    let context = BitmapContext { uuid_bytes: *uuid_bytes, sync_sectors, room_bytes };
    if let Ok(head) = BitmapHead::decode(bytes, &context) {
        assert_eq!(head.encode()[..], bytes[..256]);
        assert!(head.file_bytes() <= room_bytes);
    }
    let Ok(mut image) = BitmapImage::decode(bytes, &context, 512) else { return };
    let regions = image.regions();
    assert!(regions.runs().all(|run| !run.is_empty() && run.end <= regions.sync_bytes()));
    image.set_regions(&regions);
    assert_eq!(image.regions(), regions);
    image.mark(0..u64::MAX);
    assert!(!image.needs_mark(0..u64::MAX));
    image.clear(0..u64::MAX);
    assert!(image.regions().is_clean());
    let blocks = image.take_changed();
    assert!(blocks.iter().all(|block| block.end <= image.bytes().len() as u64));
}

/// Decodes arbitrary bytes as a bad-block log.
///
/// # Panics
///
/// When a promise is broken: that is the finding.
pub fn fuzz_bad_blocks(bytes: &[u8]) {
    let mut superblock = Superblock::blank(Minor::V1_2, 1);
    superblock.features = Features(Features::BAD_BLOCKS);
    superblock.bad_block_log = LogArea { offset_sectors: 16, size_sectors: 8 };
    for shift in [0, 12] {
        superblock.bad_block_shift = shift;
        let Ok(bad) = BadBlocks::decode(&superblock, MEMBER_BYTES, bytes) else { continue };
        assert!(bad.ranges().iter().all(|range| range.end <= MEMBER_BYTES && !range.is_empty()));
        if let Ok(log) = bad.encode(&superblock) {
            assert_eq!(BadBlocks::decode(&superblock, MEMBER_BYTES, &log).as_ref(), Ok(&bad));
        }
    }
}

/// The shape that logs are tried on: a RAID 5, or a RAID 6.
fn geometry(level: Level, slot_count: usize) -> Option<Geometry> {
    let layout = Layout::from_md(level, 2).ok()?;
    let member_data_bytes = &alloc::vec![1 << 20; slot_count];
    let spec = GeometrySpec { level, layout, slot_count, chunk_bytes: 65536, member_data_bytes };
    Geometry::new(spec).ok()
}

/// Decodes arbitrary bytes as the PPL area of each member of a RAID 5.
///
/// # Panics
///
/// When a promise is broken: that is the finding.
pub fn fuzz_ppl(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    fix_ppl_checksum(&mut bytes);
    let stored = bytes.get(512..516).and_then(|bytes| bytes.first_chunk::<4>());
    let signature = u32::from_le_bytes(*stored.unwrap_or(&[0; 4]));
    let Some(geometry) = geometry(Level::Raid5, 4) else { return };
    let Ok(newest) = ppl::newest(&bytes, signature) else { return };
    for slot in 0..4 {
        let mut present = geometry.slots();
        present.remove((slot + 1) % 4);
        for present in [geometry.slots(), present] {
            let recovery = ppl::recover(&newest, &bytes, &geometry, slot, &present);
            for fix in &recovery.fixes {
                assert!(fix.offset + fix.len <= geometry.component_bytes() && fix.len > 0);
                assert!(fix.parity_slot == slot && !fix.reads.contains(&slot));
                assert!(fix.partial.as_ref().is_none_or(|range| range.end <= bytes.len()));
            }
        }
    }
}

/// Makes the checksum of the first header in a PPL area right.
pub fn fix_ppl_checksum(area: &mut [u8]) {
    let Some(header) = area.first_chunk_mut::<{ ppl::HEADER_BYTES }>() else { return };
    let sum = crc32c(&[&header[..532], &[0; 4], &header[536..]]);
    header[532..536].copy_from_slice(&sum.to_le_bytes());
}

/// Reads arbitrary bytes as a journal of which they are the whole ring.
///
/// # Panics
///
/// When a promise is broken: that is the finding.
pub fn fuzz_journal(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    fix_journal_checksum(&mut bytes, [0; 16]);
    let ring_sectors = bytes.len() as u64 / 4096 * 8;
    if ring_sectors < 16 {
        return;
    }
    let place = JournalPlace { uuid_bytes: [0; 16], start: 0, ring_sectors, tail_sectors: 0 };
    for (level, slot_count) in [(Level::Raid5, 3), (Level::Raid6, 5)] {
        let Some(geometry) = geometry(level, slot_count) else { return };
        let mut read = |offset: u64, block: &mut [u8; BLOCK_BYTES]| {
            assert!(offset + BLOCK_BYTES as u64 <= bytes.len() as u64);
            block.copy_from_slice(&bytes[offset as usize..][..BLOCK_BYTES]);
            true
        };
        let Ok(log) = journal::scan(&place, geometry.parity_count(), &mut read) else { continue };
        for stripe in journal::replay(&log, &geometry).stripes {
            assert!(stripe.offset + BLOCK_BYTES as u64 <= geometry.component_bytes());
            assert_eq!(stripe.data.len(), stripe.logical.len());
            assert!(stripe.data.iter().all(|write| write.slot < slot_count));
        }
    }
}

/// Makes the checksum of every block that has the magic of a meta block right, and those that its
/// payloads list for the blocks behind it.
pub fn fix_journal_checksum(ring: &mut [u8], uuid: [u8; 16]) {
    for at in (0..ring.len() / BLOCK_BYTES).map(|index| index * BLOCK_BYTES) {
        let block = &mut ring[at..at + BLOCK_BYTES];
        if block[..4] != journal::MAGIC.to_le_bytes() {
            continue;
        }
        let sum = !crc32c(&[&uuid, &block[..4], &[0; 4], &block[8..]]);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}
