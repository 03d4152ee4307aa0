//! The version-0.90 superblock: 1024 words at the last 64 KiB boundary that leaves 64 KiB behind
//! it.
//!
//! ```text
//!   word 0          32         64           128                          992          1024
//!   | constants    | state    | layout     | 27 descriptors of 32 words | this member |
//! ```
//!
//! Words are in the byte order of the machine that wrote them, and 64-bit values in its order of
//! words, so both orders are read, and written back as they were. It has no name, no identity of
//! members, no data offset, no features: [`Superblock`] holds what the version-1 fields would be.
//!
//! A member being recovered is listed as a spare, because there is nowhere to say how far it got.
//! In memory it has its role like any other: an active number that is not its slot is written as a
//! spare, and gets the number of its slot when it is in sync ([`mod@crate::md::update`]), as the
//! kernel numbers them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::decode::fold;
use super::{
    ALL_SECTORS, AREA_BYTES, Context, Features, LogArea, MAGIC, Minor, Reshape, Role, Superblock,
    SuperblockError, check,
};
use crate::md::{MdTime, MdUuid, SECTOR_BYTES};

/// Members that it can name.
pub(in crate::md) const MEMBER_COUNT_MAX: usize = 27;
/// Sectors behind it that are kept for a bitmap.
pub(in crate::md) const BITMAP_SECTORS: u64 = 120;
/// Where the bitmap starts, in sectors from it.
pub(in crate::md) const BITMAP_OFFSET: i32 = 8;
/// Sectors of a member that can be used: the kernel ignores the rest.
pub(in crate::md) const SIZE_SECTORS_MAX: u64 = (2 << 32) - 2;

const WORDS: usize = AREA_BYTES / 4;
type Words = [u32; WORDS];

// Facts: the kernel's uapi `linux/raid/md_p.h`.
const MAJOR: usize = 1;
const MINOR: usize = 2;
const UUID: [usize; 4] = [5, 13, 14, 15];
const CTIME: usize = 6;
const LEVEL: usize = 7;
const SIZE: usize = 8;
const NR_DISKS: usize = 9;
const RAID_DISKS: usize = 10;
const UTIME: usize = 32;
const STATE: usize = 33;
const ACTIVE_DISKS: usize = 34;
const WORKING_DISKS: usize = 35;
const FAILED_DISKS: usize = 36;
const SPARE_DISKS: usize = 37;
const CHECKSUM: usize = 38;
const EVENTS: usize = 39;
const CP_EVENTS: usize = 41;
const RECOVERY_CP: usize = 43;
const RESHAPE_POSITION: usize = 44;
const NEW_LEVEL: usize = 46;
const DELTA_DISKS: usize = 47;
const NEW_LAYOUT: usize = 48;
const NEW_CHUNK: usize = 49;
const LAYOUT: usize = 64;
const CHUNK: usize = 65;
const DISKS: usize = 128;
const THIS_DISK: usize = 992;
const DISK_WORDS: usize = 32;
/// Words that md writes as zero.
const RESERVED: [core::ops::Range<usize>; 3] = [16..32, 50..64, 68..128];

// In a descriptor.
const NUMBER: usize = 0;
const RAID_DISK: usize = 3;
const DISK_STATE: usize = 4;
const FAULTY: u32 = 1 << 0;
const ACTIVE: u32 = 1 << 1;
const SYNC: u32 = 1 << 2;
const REMOVED: u32 = 1 << 3;
const WRITE_MOSTLY: u32 = 1 << 9;
const FAIL_FAST: u32 = 1 << 10;

const STATE_CLEAN: u32 = 1 << 0;
const STATE_CLUSTERED: u32 = 1 << 5;
const STATE_BITMAP: u32 = 1 << 8;

/// The words of an area, 64-bit values with their lower word first; whether they are big-endian.
fn words(area: &[u8; AREA_BYTES]) -> (Box<Words>, bool) {
    let is_big = area[..4] == MAGIC.to_be_bytes();
    let mut words = Box::new([0; WORDS]);
    for (word, bytes) in words.iter_mut().zip(area.as_chunks::<4>().0) {
        *word = if is_big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
    }
    if is_big {
        swap_pairs(&mut words);
    }
    (words, is_big)
}

fn swap_pairs(words: &mut Words) {
    for low in [EVENTS, CP_EVENTS, RESHAPE_POSITION] {
        words.swap(low, low + 1);
    }
}

fn to_area(mut words: Box<Words>, is_big: bool) -> Box<[u8; AREA_BYTES]> {
    if is_big {
        swap_pairs(&mut words);
    }
    let mut area = Box::new([0; AREA_BYTES]);
    for (bytes, word) in area.as_chunks_mut::<4>().0.iter_mut().zip(words.iter()) {
        *bytes = if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
    }
    area
}

fn checksum(words: &Words) -> u32 {
    let sum = words.iter().enumerate().filter(|&(index, _)| index != CHECKSUM);
    fold(sum.map(|(_, &word)| u64::from(word)).sum())
}

/// Makes the checksum of an area right, for the fuzz targets.
pub(super) fn fix_checksum(area: &mut [u8; AREA_BYTES]) {
    let (mut words, is_big) = words(area);
    words[CHECKSUM] = checksum(&words);
    *area = *to_area(words, is_big);
}

fn pair(words: &Words, low: usize) -> u64 {
    u64::from(words[low]) | u64::from(words[low + 1]) << 32
}

fn set_pair(words: &mut Words, low: usize, value: u64) {
    (words[low], words[low + 1]) = (value as u32, (value >> 32) as u32);
}

/// How far the redundancy is known to be right.
fn resync_offset(words: &Words) -> u64 {
    if words[STATE] & STATE_CLEAN != 0 {
        ALL_SECTORS
    } else if pair(words, EVENTS) == pair(words, CP_EVENTS) {
        words[RECOVERY_CP].into()
    } else {
        0
    }
}

/// The descriptor `number`.
fn disk(number: usize) -> usize {
    DISKS + DISK_WORDS * number
}

fn role(words: &Words, number: usize) -> Role {
    let state = words[disk(number) + DISK_STATE];
    if state & FAULTY != 0 {
        Role::Faulty
    } else if state & SYNC != 0 {
        Role::Active(u16::try_from(words[disk(number) + RAID_DISK]).unwrap_or(0xff00))
    } else {
        Role::Spare
    }
}

fn device_flags(words: &Words, number: usize) -> u8 {
    let state = words[disk(number) + DISK_STATE];
    u8::from(state & WRITE_MOSTLY != 0) | u8::from(state & FAIL_FAST != 0) << 1
}

/// Decodes and checks a version-0.90 superblock; `super_offset` is where it was found.
pub(super) fn decode(
    area: &[u8; AREA_BYTES],
    context: Context,
    super_offset: u64,
) -> Result<Superblock, SuperblockError> {
    let (words, _) = words(area);
    if words[0] != MAGIC {
        return Err(SuperblockError::Magic { magic: words[0] });
    }
    let (major, minor) = (words[MAJOR], words[MINOR]);
    if major != 0 || !matches!(minor, 90 | 91) {
        return Err(SuperblockError::OldVersion { major, minor });
    }
    let (stored, computed) = (words[CHECKSUM], checksum(&words));
    if stored != computed {
        return Err(SuperblockError::Checksum { stored, computed });
    }
    let (slot_count, max) = (words[RAID_DISKS], MEMBER_COUNT_MAX as u32);
    if slot_count > max {
        return Err(SuperblockError::SlotCount { slot_count, min: 1, max });
    }
    let (dev_number, max_dev) = (words[THIS_DISK + NUMBER], max);
    if dev_number >= max_dev {
        return Err(SuperblockError::DevNumber { dev_number, max_dev });
    }
    for chunk in [words[CHUNK], if minor == 91 { words[NEW_CHUNK] } else { 0 }] {
        if !chunk.is_multiple_of(SECTOR_BYTES as u32) {
            return Err(SuperblockError::Chunk { chunk_sectors: chunk / SECTOR_BYTES as u32 });
        }
    }
    let superblock = convert(area, &words, super_offset / SECTOR_BYTES);
    check::check(&superblock, context.member_bytes / SECTOR_BYTES)?;
    Ok(superblock)
}

fn features(words: &Words) -> Features {
    let state = words[STATE];
    let bits = [
        (state & STATE_BITMAP != 0, Features::BITMAP),
        (state & STATE_CLUSTERED != 0, Features::CLUSTERED),
        (words[MINOR] == 91, Features::RESHAPE),
    ];
    Features(bits.into_iter().filter(|bit| bit.0).map(|bit| bit.1).sum())
}

fn reshape(words: &Words) -> Reshape {
    if words[MINOR] != 91 {
        return Reshape::default();
    }
    Reshape {
        new_level: words[NEW_LEVEL].cast_signed(),
        position_sectors: pair(words, RESHAPE_POSITION),
        delta_slots: words[DELTA_DISKS].cast_signed(),
        new_layout: words[NEW_LAYOUT],
        new_chunk_sectors: words[NEW_CHUNK] / SECTOR_BYTES as u32,
        new_offset_sectors: 0,
    }
}

fn convert(area: &[u8; AREA_BYTES], words: &Words, super_offset: u64) -> Superblock {
    let features = features(words);
    let mut uuid = [0; 16];
    for (bytes, word) in uuid.as_chunks_mut::<4>().0.iter_mut().zip(UUID) {
        // As mdadm prints it.
        *bytes = words[word].to_be_bytes();
    }
    let dev_number = words[THIS_DISK + NUMBER];
    let bitmap = if features.has(Features::BITMAP) { BITMAP_OFFSET } else { 0 };
    Superblock {
        minor: Minor::V0_90,
        features,
        array_uuid: MdUuid(uuid),
        name_bytes: [0; 32],
        created: MdTime(words[CTIME].into()),
        level: words[LEVEL].cast_signed(),
        layout: words[LAYOUT],
        size_sectors: u64::from(words[SIZE]) * 2,
        chunk_sectors: words[CHUNK] / SECTOR_BYTES as u32,
        slot_count: words[RAID_DISKS],
        bitmap_or_ppl: bitmap.cast_unsigned(),
        reshape: reshape(words),
        data_offset_sectors: 0,
        data_size_sectors: super_offset,
        super_offset_sectors: super_offset,
        recovery_offset_sectors: 0,
        dev_number,
        corrected_read_count: 0,
        device_uuid: MdUuid::default(),
        device_flags: device_flags(words, dev_number as usize % MEMBER_COUNT_MAX),
        bad_block_shift: 0,
        bad_block_log: LogArea::default(),
        updated: MdTime(words[UTIME].into()),
        events: pair(words, EVENTS),
        resync_offset_sectors: resync_offset(words),
        logical_block_bytes: 0,
        roles: (0..MEMBER_COUNT_MAX).map(|number| role(words, number).to_md()).collect::<Vec<_>>(),
        area: Box::new(*area),
    }
}

/// Nonzero words where md writes zeros.
pub(super) fn has_reserved_words(area: &[u8; AREA_BYTES]) -> bool {
    RESERVED.iter().any(|words| area[4 * words.start..4 * words.end].iter().any(|&byte| byte != 0))
}

/// An area with nothing in it.
pub(super) fn blank_area() -> [u8; AREA_BYTES] {
    let mut words = Box::new([0; WORDS]);
    (words[0], words[MINOR]) = (MAGIC, 90);
    words[THIS_DISK + NUMBER] = u32::MAX;
    *to_area(words, false)
}

/// The array's identity in the order of bytes on the member.
pub(super) fn stored_uuid(superblock: &Superblock) -> [u8; 16] {
    let mut uuid = superblock.array_uuid.0;
    if superblock.area[..4] != MAGIC.to_be_bytes() {
        uuid.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    }
    uuid
}

/// The area as it is to be written, with its checksum.
pub(super) fn encode(superblock: &Superblock) -> Box<[u8; AREA_BYTES]> {
    let (mut words, is_big) = words(&superblock.area);
    let uuid = superblock.array_uuid.0;
    for (bytes, word) in uuid.as_chunks::<4>().0.iter().zip(UUID) {
        words[word] = u32::from_be_bytes(*bytes);
    }
    words[CTIME] = superblock.created.unix_seconds() as u32;
    words[LEVEL] = superblock.level.cast_unsigned();
    words[LAYOUT] = superblock.layout;
    words[SIZE] = (superblock.size_sectors / 2) as u32;
    words[CHUNK] = superblock.chunk_sectors.wrapping_mul(SECTOR_BYTES as u32);
    words[RAID_DISKS] = superblock.slot_count;
    words[UTIME] = superblock.updated.unix_seconds() as u32;
    words[STATE] &= !STATE_BITMAP;
    if superblock.features.has(Features::BITMAP) {
        words[STATE] |= STATE_BITMAP;
    }
    encode_state(superblock, &mut words);
    encode_disks(superblock, &mut words);
    words[CHECKSUM] = checksum(&words);
    to_area(words, is_big)
}

/// Event count and resync position. Unchanged ones are left as they are, as there is more than one
/// way to say the same.
fn encode_state(superblock: &Superblock, words: &mut Words) {
    let (events, resync) = (superblock.events, superblock.resync_offset_sectors);
    if (events, resync) == (pair(words, EVENTS), resync_offset(words)) {
        return;
    }
    set_pair(words, EVENTS, events);
    words[STATE] &= !STATE_CLEAN;
    // A position beyond 32 bits cannot be said: less is safe.
    words[RECOVERY_CP] = resync.min(u64::from(u32::MAX - 1)) as u32;
    if resync == ALL_SECTORS {
        words[STATE] |= STATE_CLEAN;
        words[RECOVERY_CP] = u32::MAX;
    }
    if resync != 0 {
        set_pair(words, CP_EVENTS, events);
    }
}

/// The descriptors, where a role has changed, and what is counted from them.
fn encode_disks(superblock: &Superblock, words: &mut Words) {
    let slot_count = superblock.slot_count as usize;
    let mut is_changed = words[THIS_DISK + NUMBER] != superblock.dev_number;
    for (number, &wanted) in superblock.roles.iter().enumerate().take(MEMBER_COUNT_MAX) {
        let wanted = Role::from_md(wanted);
        if role(words, number) != wanted {
            is_changed |= encode_disk(&mut words[disk(number)..], number, wanted, slot_count);
        }
    }
    let own = superblock.dev_number as usize % MEMBER_COUNT_MAX;
    if device_flags(words, own) != superblock.device_flags & 3 {
        let state = &mut words[disk(own) + DISK_STATE];
        *state &= !(WRITE_MOSTLY | FAIL_FAST);
        *state |= u32::from(superblock.device_flags & 1) * WRITE_MOSTLY;
        *state |= u32::from(superblock.device_flags >> 1 & 1) * FAIL_FAST;
        is_changed = true;
    }
    if is_changed {
        words.copy_within(disk(own)..disk(own) + DISK_WORDS, THIS_DISK);
        words[THIS_DISK + NUMBER] = superblock.dev_number;
        count(words, slot_count);
    }
}

/// Writes one descriptor; returns whether it differs now.
fn encode_disk(disk: &mut [u32], number: usize, wanted: Role, slot_count: usize) -> bool {
    let flags = disk[DISK_STATE] & (WRITE_MOSTLY | FAIL_FAST);
    let (raid_disk, state) = match wanted {
        Role::Active(slot) if usize::from(slot) == number => (number, ACTIVE | SYNC | flags),
        // Being recovered.
        Role::Active(_) => (number, flags),
        Role::Faulty if number >= slot_count => (number, FAULTY),
        Role::Spare if number >= slot_count => (number, flags),
        // A slot without a member.
        _ => (number, FAULTY | REMOVED),
    };
    let before = (disk[NUMBER], disk[RAID_DISK], disk[DISK_STATE]);
    let after = (number as u32, raid_disk as u32, state);
    (disk[NUMBER], disk[RAID_DISK], disk[DISK_STATE]) = after;
    before != after
}

/// The numbers that nobody relies on but mdadm prints.
fn count(words: &mut Words, slot_count: usize) {
    let (mut active, mut spare, mut failed, mut removed) = (0, 0, 0, 0);
    for number in 0..MEMBER_COUNT_MAX {
        let is_used = words[disk(number)..][..DISK_STATE + 1].iter().any(|&word| word != 0);
        match role(words, number) {
            Role::Active(_) => active += 1,
            Role::Faulty => {
                failed += 1;
                removed += u32::from(words[disk(number) + DISK_STATE] & REMOVED != 0);
            }
            _ if is_used && number >= slot_count => spare += 1,
            _ => {}
        }
    }
    words[ACTIVE_DISKS] = active;
    words[SPARE_DISKS] = spare;
    words[FAILED_DISKS] = failed;
    words[WORKING_DISKS] = active + spare;
    words[NR_DISKS] = active + spare + failed - removed;
}

impl Superblock {
    /// Lists `number` as a spare in a version-0.90 superblock, or as nothing at all: the role alone
    /// cannot tell them apart. Version 1 does not care.
    pub(in crate::md) fn list_spare(&mut self, number: u32, is_there: bool) {
        let index = number as usize;
        if self.minor != Minor::V0_90 || index >= MEMBER_COUNT_MAX {
            return;
        }
        let (mut words, is_big) = words(&self.area);
        words[disk(index)..disk(index + 1)].fill(0);
        if is_there {
            (words[disk(index) + NUMBER], words[disk(index) + RAID_DISK]) = (number, number);
        }
        count(&mut words, self.slot_count as usize);
        self.area = to_area(words, is_big);
    }
}
