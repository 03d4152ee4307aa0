//! Bytes to [`Superblock`]: every check, in the order that keeps each step safe.

use alloc::boxed::Box;
use alloc::vec::Vec;

use zerocopy::FromBytes;

use super::raw::{HEAD_BYTES, RawHead};
use super::{
    AREA_BYTES, Context, Features, LogArea, MAGIC, MAX_DEV_MAX, Minor, Reshape, Role, Superblock,
    SuperblockError, check, v0,
};
use crate::md::{MdTime, MdUuid, SECTOR_BYTES};

/// Decodes and checks the superblock in `bytes`, which start where `context.minor` puts it.
///
/// `bytes` holds at least [`AREA_BYTES`]; what follows is not looked at. A superblock with unknown
/// feature bits or nonzero reserved bytes is decoded as far as this code understands it:
/// [`Superblock::write_obstacle`] then forbids writing.
///
/// # Errors
///
/// The first comparison that fails, see [`SuperblockError`].
pub fn decode(bytes: &[u8], context: Context) -> Result<Superblock, SuperblockError> {
    let Context { minor, member_bytes } = context;
    let super_offset = minor
        .super_offset_bytes(member_bytes)
        .ok_or(SuperblockError::MemberTooSmall { minor, member_bytes })?;
    let too_short = SuperblockError::TooShort { len: bytes.len(), need: AREA_BYTES };
    let Some(area) = bytes.first_chunk::<AREA_BYTES>() else { return Err(too_short) };
    if minor == Minor::V0_90 {
        return v0::decode(area, context, super_offset);
    }
    let Ok((head, _)) = RawHead::read_from_prefix(area) else { return Err(too_short) };

    check_identity(&head)?;
    let max_dev = check_max_dev(&head)?;
    check_checksum(area, &head, max_dev)?;

    let superblock = convert(area, &head, max_dev, minor);
    let found = super_offset / SECTOR_BYTES;
    if superblock.super_offset_sectors != found {
        let super_offset = superblock.super_offset_sectors;
        return Err(SuperblockError::SuperOffset { minor, super_offset, found });
    }
    check::check(&superblock, member_bytes / SECTOR_BYTES)?;
    Ok(superblock)
}

fn check_identity(head: &RawHead) -> Result<(), SuperblockError> {
    if head.magic.get() != MAGIC {
        return Err(SuperblockError::Magic { magic: head.magic.get() });
    }
    if head.major_version.get() != 1 {
        return Err(SuperblockError::Version { major: head.major_version.get() });
    }
    Ok(())
}

/// Bounds the only length in the superblock, before anything is derived from it.
fn check_max_dev(head: &RawHead) -> Result<usize, SuperblockError> {
    let max_dev = head.max_dev.get();
    match usize::try_from(max_dev) {
        Ok(count) if count <= MAX_DEV_MAX => Ok(count),
        _ => Err(SuperblockError::MaxDev { max_dev, limit: MAX_DEV_MAX as u32 }),
    }
}

fn check_checksum(
    area: &[u8; AREA_BYTES],
    head: &RawHead,
    max_dev: usize,
) -> Result<(), SuperblockError> {
    let stored = head.sb_csum.get();
    let computed = checksum(&area[..HEAD_BYTES + 2 * max_dev]);
    if stored == computed { Ok(()) } else { Err(SuperblockError::Checksum { stored, computed }) }
}

/// Offset of the checksum field.
const CHECKSUM_OFFSET: usize = core::mem::offset_of!(RawHead, sb_csum);

/// The checksum of `bytes`, the head and the roles: the sum of all little-endian 32-bit words (and
/// of a 16-bit one at the end), the checksum itself taken as zero, in 64 bits, folded once.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum = 0_u64;
    for (index, word) in words.iter().enumerate() {
        if index * 4 != CHECKSUM_OFFSET {
            sum += u64::from(u32::from_le_bytes(*word));
        }
    }
    if let [low, high, ..] = *rest {
        sum += u64::from(u16::from_le_bytes([low, high]));
    }
    fold(sum)
}

/// Makes the checksum of an area right, for the fuzz targets; `max_dev` may say anything.
pub(in crate::md) fn fix_checksum(area: &mut [u8], minor: Minor) {
    let Some(area) = area.first_chunk_mut::<AREA_BYTES>() else { return };
    if minor == Minor::V0_90 {
        v0::fix_checksum(area);
        return;
    }
    let Ok((head, _)) = RawHead::read_from_prefix(area) else { return };
    if let Ok(max_dev) = check_max_dev(&head) {
        let sum = checksum(&area[..HEAD_BYTES + 2 * max_dev]);
        area[CHECKSUM_OFFSET..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The upper half of a sum added to the lower one.
pub(super) fn fold(sum: u64) -> u32 {
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

fn convert(area: &[u8; AREA_BYTES], head: &RawHead, max_dev: usize, minor: Minor) -> Superblock {
    let roles = &area[HEAD_BYTES..HEAD_BYTES + 2 * max_dev];
    let roles: Vec<u16> =
        roles.as_chunks::<2>().0.iter().map(|&role| u16::from_le_bytes(role)).collect();
    Superblock {
        minor,
        features: Features(head.feature_map.get()),
        array_uuid: MdUuid(head.set_uuid),
        name_bytes: head.set_name,
        created: MdTime(head.ctime.get()),
        level: head.level.get(),
        layout: head.layout.get(),
        size_sectors: head.size.get(),
        chunk_sectors: head.chunksize.get(),
        slot_count: head.raid_disks.get(),
        bitmap_or_ppl: head.bitmap_or_ppl.get(),
        reshape: Reshape {
            new_level: head.new_level.get(),
            position_sectors: head.reshape_position.get(),
            delta_slots: head.delta_disks.get(),
            new_layout: head.new_layout.get(),
            new_chunk_sectors: head.new_chunk.get(),
            new_offset_sectors: head.new_offset.get(),
        },
        data_offset_sectors: head.data_offset.get(),
        data_size_sectors: head.data_size.get(),
        super_offset_sectors: head.super_offset.get(),
        recovery_offset_sectors: head.recovery_offset.get(),
        dev_number: head.dev_number.get(),
        corrected_read_count: head.cnt_corrected_read.get(),
        device_uuid: MdUuid(head.device_uuid),
        device_flags: head.devflags,
        bad_block_shift: head.bblog_shift,
        bad_block_log: LogArea {
            offset_sectors: head.bblog_offset.get(),
            size_sectors: head.bblog_size.get().into(),
        },
        updated: MdTime(head.utime.get()),
        events: head.events.get(),
        resync_offset_sectors: head.resync_offset.get(),
        logical_block_bytes: head.logical_block_size.get(),
        roles,
        area: Box::new(*area),
    }
}

/// See [`Superblock::has_reserved_bytes`].
pub(super) fn has_reserved_bytes(area: &[u8; AREA_BYTES]) -> bool {
    RawHead::read_from_prefix(area)
        .is_ok_and(|(head, _)| head.pad0.get() != 0 || head.pad3 != [0; 28])
}

impl Superblock {
    /// The superblock area as it is to be written, with its checksum.
    ///
    /// All of [`AREA_BYTES`] may be written while [`write_obstacle`](Self::write_obstacle) is
    /// `None`; bytes that have no meaning to this code are those that were read.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; AREA_BYTES]> {
        if self.minor == Minor::V0_90 {
            return v0::encode(self);
        }
        let mut area = self.area.clone();
        for (index, role) in self.roles.iter().enumerate() {
            area[HEAD_BYTES + 2 * index..][..2].copy_from_slice(&role.to_le_bytes());
        }
        if let Ok((head, _)) = RawHead::mut_from_prefix(&mut area[..]) {
            self.fill(head);
        }
        let sum = checksum(&area[..HEAD_BYTES + 2 * self.roles.len()]);
        area[CHECKSUM_OFFSET..][..4].copy_from_slice(&sum.to_le_bytes());
        area
    }

    /// Sets every field of `head` that has a meaning.
    fn fill(&self, head: &mut RawHead) {
        head.magic.set(MAGIC);
        head.major_version.set(1);
        head.feature_map.set(self.features.0);
        head.set_uuid = self.array_uuid.0;
        head.set_name = self.name_bytes;
        head.ctime.set(self.created.0);
        head.level.set(self.level);
        head.layout.set(self.layout);
        head.size.set(self.size_sectors);
        head.chunksize.set(self.chunk_sectors);
        head.raid_disks.set(self.slot_count);
        head.bitmap_or_ppl.set(self.bitmap_or_ppl);
        head.new_level.set(self.reshape.new_level);
        head.reshape_position.set(self.reshape.position_sectors);
        head.delta_disks.set(self.reshape.delta_slots);
        head.new_layout.set(self.reshape.new_layout);
        head.new_chunk.set(self.reshape.new_chunk_sectors);
        head.new_offset.set(self.reshape.new_offset_sectors);
        head.data_offset.set(self.data_offset_sectors);
        head.data_size.set(self.data_size_sectors);
        head.super_offset.set(self.super_offset_sectors);
        head.recovery_offset.set(self.recovery_offset_sectors);
        head.dev_number.set(self.dev_number);
        head.cnt_corrected_read.set(self.corrected_read_count);
        head.device_uuid = self.device_uuid.0;
        head.devflags = self.device_flags;
        head.bblog_shift = self.bad_block_shift;
        // At most u16::MAX: read from 16 bits, or 8 when planned.
        head.bblog_size.set(self.bad_block_log.size_sectors.min(u16::MAX.into()) as u16);
        head.bblog_offset.set(self.bad_block_log.offset_sectors);
        head.utime.set(self.updated.0);
        head.events.set(self.events);
        head.resync_offset.set(self.resync_offset_sectors);
        head.logical_block_size.set(self.logical_block_bytes);
        // `set_role` and `decode` keep it at or below MAX_DEV_MAX.
        head.max_dev.set(self.roles.len() as u32);
    }
}

impl Superblock {
    /// A superblock with nothing in it but its place and `max_dev` unused roles.
    pub(in crate::md) fn blank(minor: Minor, max_dev: usize) -> Self {
        let area = if minor == Minor::V0_90 { v0::blank_area() } else { [0; AREA_BYTES] };
        let head = RawHead::read_from_prefix(&[0; AREA_BYTES])
            .map_or_else(|_| unreachable!(), |(head, _)| head);
        let mut blank = convert(&[0; AREA_BYTES], &head, 0, minor);
        blank.area = Box::new(area);
        blank.roles = alloc::vec![Role::Spare.to_md(); max_dev.min(minor.role_count_max())];
        blank
    }
}
