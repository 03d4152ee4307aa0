//! Planning a new array: sizes and offsets as mdadm chooses them, and the superblock of each
//! member.

use alloc::vec::Vec;

use crate::geometry::{Geometry, GeometryError, GeometrySpec};
use crate::layout::{Layout, LayoutError, Level};
use crate::md::bitmap::{self, BitmapError, BitmapImage, BitmapWishes};
use crate::md::redundancy::{has_parity, tolerates};
use crate::md::superblock::{
    self, ALL_SECTORS, AREA_BYTES, Features, LogArea, MAX_DEV_MAX, Minor, OLD_BITMAP_OFFSET,
    OLD_BITMAP_SECTORS, OLD_SIZE_SECTORS_MAX, Role, SLOT_COUNT_MAX,
};
use crate::md::{MdTime, MdUuid, SECTOR_BYTES, Superblock, SuperblockError};

/// Longest name, as for mdadm.
const NAME_BYTES_MAX: usize = 31;

/// What the array shall be.
#[derive(Clone, Debug)]
pub struct CreateOptions<'a> {
    /// Where the superblocks go.
    pub minor: Minor,
    /// md's number of the level: -1 linear, 0, 1, 4, 5, 6, 10.
    pub level: i32,
    /// md's number of the layout (RAID 0: 1 original, 2 alternate).
    pub layout: u32,
    /// Chunk size in bytes; levels 1 and linear ignore it.
    pub chunk_bytes: u64,
    /// Slot count.
    pub slot_count: usize,
    /// Name of the array, without a host.
    pub name: &'a str,
    /// Put before the name as `host:` where the 32 bytes have room for it, as mdadm does.
    pub host: Option<&'a str>,
    /// Identity of the array.
    pub array_uuid: MdUuid,
    /// Now.
    pub time: MdTime,
    /// Used size of each member in bytes (mdadm `--size`); `None` for all that the smallest one
    /// has.
    pub size_bytes: Option<u64>,
    /// Data offset in bytes for every member (mdadm `--data-offset`); `None` for the choice of
    /// mdadm.
    pub data_offset_bytes: Option<u64>,
    /// Whether redundancy has to be made.
    pub initial: Initial,
    /// The write-intent bitmap (mdadm `--bitmap internal`); `None` for none.
    pub bitmap: Option<BitmapWishes>,
}

/// Whether the redundancy of a new array has to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The members agree already, or nobody cares (mdadm `--assume-clean`).
    AssumeClean,
    /// A resync has to run: the array starts dirty. Levels without redundancy are always clean, and
    /// so is parity with a slot missing, which has nothing to be compared with.
    Resync,
}

/// A member of the array to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewMember {
    /// Its size.
    pub member_bytes: u64,
    /// Its identity.
    pub device_uuid: MdUuid,
    /// Its place.
    pub place: NewPlace,
    /// `device_flags` of its superblock: 1 write-mostly, 2 fail fast.
    pub device_flags: u8,
}

/// What a new member is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPlace {
    /// A slot. Slots without a member are created missing (degraded).
    Slot(u16),
    /// A spare.
    Spare,
}

/// What is to be written, and the numbers behind it.
#[derive(Clone, Debug)]
pub struct CreatePlan {
    /// One for each member, in the order they were given.
    pub superblocks: Vec<Superblock>,
    /// Used bytes of each member; 0 for level 0 and linear, where each uses its whole data area.
    pub component_bytes: u64,
    /// The data offset of every member.
    pub data_offset_bytes: u64,
    /// The bitmap, to be written to every member at its [`Superblock::bitmap_room`].
    pub bitmap: Option<BitmapImage>,
}

/// Why no array can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Not a level that can be made.
    #[error("level {level} cannot be created")]
    Level {
        /// What was asked for.
        level: i32,
    },
    /// A shape that cannot be.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A layout that does not exist.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Any rule of the superblock that the wishes break.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A bitmap that cannot be.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// A bitmap for a level that has nothing to resync.
    #[error("level {level} has no redundancy, so it has no bitmap")]
    NoBitmap {
        /// The level.
        level: i32,
    },
    /// A RAID 0 whose superblock cannot say how its members are striped.
    #[error("superblocks of version 0.90 cannot describe a RAID 0 completely: use another version")]
    OldRaid0,
    /// A chunk size that is no whole number of sectors.
    #[error("chunk size of {chunk_bytes} bytes is not a multiple of 512")]
    Chunk {
        /// What was asked for.
        chunk_bytes: u64,
    },
    /// A member is too small.
    #[error("member {index} has {member_bytes} bytes, {need_bytes} are needed")]
    MemberTooSmall {
        /// Index among the members given.
        index: usize,
        /// Its size.
        member_bytes: u64,
        /// The least that would do.
        need_bytes: u64,
    },
    /// The data offset asked for leaves no room for the metadata, or is no multiple of 4 KiB.
    #[error("data offset {data_offset_bytes} is not a multiple of 4096 of at least {min_bytes}")]
    DataOffset {
        /// What was asked for.
        data_offset_bytes: u64,
        /// The least.
        min_bytes: u64,
    },
    /// The used size asked for is no multiple of the chunk size (or of 4 KiB).
    #[error("size {size_bytes} is not a multiple of {unit_bytes} above 0")]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// The chunk size, or 4 KiB.
        unit_bytes: u64,
    },
    /// A slot given twice, or beyond the slot count.
    #[error("slot {slot} is given twice, or is not below the slot count {slot_count}")]
    Slot {
        /// Which.
        slot: u16,
        /// How many there are.
        slot_count: usize,
    },
    /// More slots without a member than the level can bear.
    #[error("level {level} cannot do without slots {slots:?}")]
    TooManyMissing {
        /// Slots without a member.
        slots: Vec<usize>,
        /// The level.
        level: i32,
    },
    /// A RAID 6 without one slot has two parities that need not agree, and no kernel resyncs it
    /// like that.
    #[error(
        "a RAID 6 cannot be built with one slot missing: leave out a second one and give its \
            member as a spare"
    )]
    OneMissing,
    /// The name does not fit.
    #[error("name of {len} bytes > 31")]
    Name {
        /// Its length.
        len: usize,
    },
}

/// Bytes that mirrors and parity levels leave unused at the end of large members, so that a
/// replacement of the same nominal size but another make fits.
pub const TAIL_SLACK_BYTES: u64 = 1 << 20;
/// What a new bitmap is written in: its place and its room are multiples of this.
const BITMAP_BLOCK_BYTES: u32 = 4096;
/// Members with less room than this leave no slack.
const SLACK_FROM_BYTES: u64 = 64 << 20;

/// The chunk size; mirrors and linear have none, whatever was asked for.
fn chunk_bytes(options: &CreateOptions<'_>) -> u64 {
    if matches!(options.level, 1 | -1) { 0 } else { options.chunk_bytes }
}

/// The least data offset: superblock area and bad-block log.
fn data_offset_min(minor: Minor) -> u64 {
    match minor {
        Minor::V0_90 | Minor::V1_0 => 0,
        Minor::V1_1 => 8192,
        Minor::V1_2 => 12288,
    }
}

/// Sectors that mdadm keeps for a bitmap, by the size of the member or of its used part.
fn bitmap_space_sectors(sectors: u64) -> u64 {
    const GIB: u64 = 1 << 21;
    match sectors {
        0..128 => 0,
        _ if sectors - 128 >= 200 * GIB => 256,
        _ if sectors - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

/// The data offset that mdadm (4.2 and later) chooses for a member with the superblock in front.
///
/// Metadata, room for a bitmap and headroom for a later reshape, in all a multiple of 1 MiB. The
/// headroom is 128 MiB, halved while it is more than a 1024th of the member, but not below two to
/// four chunks.
#[must_use]
pub fn default_data_offset_bytes(minor: Minor, member_bytes: u64, chunk_bytes: u64) -> u64 {
    const MIB_SECTORS: u64 = 2048;
    if matches!(minor, Minor::V0_90 | Minor::V1_0) {
        return 0;
    }
    let sectors = member_bytes / SECTOR_BYTES;
    let chunk_sectors = chunk_bytes / SECTOR_BYTES;
    let mut headroom = 128 * MIB_SECTORS;
    while headroom << 10 > sectors && (chunk_sectors == 0 || headroom / 2 >= chunk_sectors * 2) {
        headroom /= 2;
    }
    let offset = 24 + bitmap_space_sectors(sectors) + headroom;
    offset.next_multiple_of(MIB_SECTORS) * SECTOR_BYTES
}

/// Plans a new array.
///
/// Member numbers are as mdadm gives them: the slot for members in slots, then the spares.
///
/// # Errors
///
/// [`CreateError`] with the numbers of the rule that the wishes break.
pub fn plan(options: &CreateOptions<'_>, members: &[NewMember]) -> Result<CreatePlan, CreateError> {
    check_wishes(options, members)?;
    let smallest = members.iter().map(|member| member.member_bytes).min().unwrap_or(0);
    let data_offset_bytes = data_offset(options, smallest)?;
    let size_sectors = size_sectors(options, members, data_offset_bytes)?;

    let spare_count = members.iter().filter(|member| member.place == NewPlace::Spare).count();
    let is_degraded = members.len() - spare_count < options.slot_count;
    let mut common = blank(options, spare_count, is_degraded);
    common.size_sectors = size_sectors;
    let bitmap = bitmap(options, &mut common, is_degraded)?;
    let mut spare_number = options.slot_count as u32;
    let mut superblocks = Vec::new();
    for member in members {
        let mut superblock = common.clone();
        let (dev_number, role) = match member.place {
            NewPlace::Slot(slot) => (slot.into(), Role::Active(slot)),
            NewPlace::Spare => (spare_number, Role::Spare),
        };
        spare_number += u32::from(role == Role::Spare);
        superblock.dev_number = dev_number;
        superblock.device_uuid = member.device_uuid;
        superblock.device_flags = member.device_flags;
        superblock.place(member.member_bytes, data_offset_bytes);
        superblocks.push((superblock, role));
    }
    let roles: Vec<_> = superblocks.iter().map(|(own, role)| (own.dev_number, *role)).collect();
    let mut finished = Vec::new();
    for ((mut superblock, _), member) in superblocks.into_iter().zip(members) {
        for &(dev_number, role) in &roles {
            superblock.set_role(dev_number, role)?;
            if role == Role::Spare {
                superblock.list_spare(dev_number, true);
            }
        }
        superblock.check(member.member_bytes)?;
        finished.push(superblock);
    }
    let component_bytes = size_sectors * SECTOR_BYTES;
    Ok(CreatePlan { superblocks: finished, component_bytes, data_offset_bytes, bitmap })
}

/// Chooses the bitmap and notes its place in the superblock.
fn bitmap(
    options: &CreateOptions<'_>,
    common: &mut Superblock,
    is_degraded: bool,
) -> Result<Option<BitmapImage>, CreateError> {
    let Some(wishes) = options.bitmap else { return Ok(None) };
    if options.level <= 0 {
        return Err(CreateError::NoBitmap { level: options.level });
    }
    let sync_sectors = match options.level {
        10 => geometry_10(options, common.component_bytes())?.array_bytes() / SECTOR_BYTES,
        _ => common.size_sectors,
    };
    let room_sectors = match common.minor {
        Minor::V0_90 => OLD_BITMAP_SECTORS,
        _ => bitmap_space_sectors(common.size_sectors),
    };
    let uuid_bytes = common.array_uuid_bytes();
    let head = bitmap::choose(uuid_bytes, sync_sectors, room_sectors * SECTOR_BYTES, wishes)?;
    // Without every slot nothing may be cleared: whoever comes back needs all of it.
    let image = BitmapImage::new(head, is_degraded || !common.is_clean(), BITMAP_BLOCK_BYTES);
    let offset = match common.minor {
        Minor::V0_90 => OLD_BITMAP_OFFSET,
        // Before the bad-block log.
        Minor::V1_0 => -8 - (image.bytes().len() as u64 / SECTOR_BYTES) as i32,
        Minor::V1_1 | Minor::V1_2 => 8,
    };
    common.features.0 |= Features::BITMAP;
    common.bitmap_or_ppl = offset.cast_unsigned();
    Ok(Some(image))
}

/// Plans the superblock of a member that joins an existing array as a spare.
///
/// Its data offset is that of `peer`, a current member, when the member has room for it, else the
/// largest multiple of 4 KiB with which the used size fits.
///
/// # Errors
///
/// [`CreateError::MemberTooSmall`] with the least size that would do.
pub fn plan_spare(
    peer: &Superblock,
    dev_number: u32,
    device_uuid: MdUuid,
    member_bytes: u64,
) -> Result<Superblock, CreateError> {
    let mut spare = peer.clone();
    spare.dev_number = dev_number;
    spare.device_uuid = device_uuid;
    spare.device_flags = 0;
    spare.corrected_read_count = 0;
    spare.recovery_offset_sectors = 0;
    spare.features.0 &= !(Features::RECOVERY_OFFSET | Features::REPLACEMENT | Features::BAD_BLOCKS);
    spare.set_role(dev_number, Role::Spare)?;

    spare.list_spare(dev_number, true);

    let reserve = match peer.minor {
        // The superblock lies 64 to 128 KiB before the end.
        Minor::V0_90 => {
            peer.component_bytes().next_multiple_of(65536) + 65536 - peer.component_bytes()
        }
        // The superblock lies 8 to 12 KiB before the end, the log before it.
        Minor::V1_0 => 12288 + 4096,
        _ => 0,
    };
    let used = peer.component_bytes();
    let need_bytes = used + reserve + data_offset_min(peer.minor);
    let index = 0;
    if member_bytes < need_bytes {
        return Err(CreateError::MemberTooSmall { index, member_bytes, need_bytes });
    }
    let room = (member_bytes - used - reserve) / 4096 * 4096;
    spare.place(member_bytes, room.min(peer.data_offset_sectors * SECTOR_BYTES));
    spare.check(member_bytes)?;
    Ok(spare)
}

fn check_wishes(options: &CreateOptions<'_>, members: &[NewMember]) -> Result<(), CreateError> {
    let level = options.level;
    if !matches!(level, -1..=1 | 4..=6 | 10) {
        return Err(CreateError::Level { level });
    }
    let slot_count = options.slot_count;
    if slot_count > SLOT_COUNT_MAX {
        let slot_count = u32::try_from(slot_count).unwrap_or(u32::MAX);
        let max = SLOT_COUNT_MAX as u32;
        return Err(SuperblockError::SlotCount { slot_count, min: 1, max }.into());
    }
    check_old(options, members.len())?;
    if options.name.len() > NAME_BYTES_MAX {
        return Err(CreateError::Name { len: options.name.len() });
    }
    let mut missing = alloc::vec![true; slot_count];
    for member in members {
        let NewPlace::Slot(slot) = member.place else { continue };
        match missing.get_mut(usize::from(slot)) {
            Some(is_missing) if *is_missing => *is_missing = false,
            _ => return Err(CreateError::Slot { slot, slot_count }),
        }
    }
    // Before anything is computed from layout and chunk size.
    let chunk_bytes = chunk_bytes(options);
    if !chunk_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(CreateError::Chunk { chunk_bytes });
    }
    let chunk_sectors = u32::try_from(chunk_bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
    superblock::check_shape(level, options.layout, slot_count as u32, chunk_sectors)?;
    if !tolerates(level, options.layout, &missing) {
        let slots = (0..slot_count).filter(|&slot| missing[slot]).collect();
        return Err(CreateError::TooManyMissing { slots, level });
    }
    let missing_count = missing.iter().filter(|&&is_missing| is_missing).count();
    if level == 6 && missing_count == 1 && options.initial == Initial::Resync {
        return Err(CreateError::OneMissing);
    }
    Ok(())
}

/// What version 0.90 cannot say.
fn check_old(options: &CreateOptions<'_>, member_count: usize) -> Result<(), CreateError> {
    if options.minor != Minor::V0_90 {
        return Ok(());
    }
    if options.level == 0 {
        return Err(CreateError::OldRaid0);
    }
    let limit = Minor::V0_90.role_count_max();
    let count = options.slot_count.max(member_count);
    if count > limit {
        let (slot_count, max) = (u32::try_from(count).unwrap_or(u32::MAX), limit as u32);
        return Err(SuperblockError::SlotCount { slot_count, min: 1, max }.into());
    }
    Ok(())
}

fn data_offset(options: &CreateOptions<'_>, smallest: u64) -> Result<u64, CreateError> {
    let Some(data_offset_bytes) = options.data_offset_bytes else {
        return Ok(default_data_offset_bytes(options.minor, smallest, chunk_bytes(options)));
    };
    let min_bytes = data_offset_min(options.minor);
    let is_fixed = options.minor == Minor::V0_90 && data_offset_bytes != 0;
    if data_offset_bytes < min_bytes || !data_offset_bytes.is_multiple_of(4096) || is_fixed {
        return Err(CreateError::DataOffset { data_offset_bytes, min_bytes });
    }
    Ok(data_offset_bytes)
}

/// Bytes of a member that can hold data; `None` when it cannot even hold the metadata.
fn usable_bytes(minor: Minor, member_bytes: u64, data_offset_bytes: u64) -> Option<u64> {
    let sectors = member_bytes / SECTOR_BYTES;
    let end = match minor {
        Minor::V0_90 => {
            let end = minor.super_offset_bytes(member_bytes)? / SECTOR_BYTES;
            end.min(OLD_SIZE_SECTORS_MAX / 8 * 8)
        }
        // Superblock, its alignment, bad-block log and bitmap.
        Minor::V1_0 => (sectors / 8 * 8).checked_sub(24 + bitmap_space_sectors(sectors))?,
        _ => sectors,
    };
    (end * SECTOR_BYTES).checked_sub(data_offset_bytes)
}

/// The used size of each member in sectors, 0 for the levels that have none.
fn size_sectors(
    options: &CreateOptions<'_>,
    members: &[NewMember],
    data_offset_bytes: u64,
) -> Result<u64, CreateError> {
    let unit_bytes = chunk_bytes(options).max(4096);
    if let Some(size_bytes) = options.size_bytes
        && (size_bytes == 0 || !size_bytes.is_multiple_of(unit_bytes))
    {
        return Err(CreateError::Size { size_bytes, unit_bytes });
    }
    let need = options.size_bytes.unwrap_or(unit_bytes);
    let mut least = u64::MAX;
    for (index, member) in members.iter().enumerate() {
        let member_bytes = member.member_bytes;
        let usable = usable_bytes(options.minor, member_bytes, data_offset_bytes);
        match usable {
            Some(usable) if usable >= need => least = least.min(usable),
            _ => {
                // At the end lie superblock, log and room for a bitmap, rounded.
                let tail = match options.minor {
                    Minor::V0_90 => 131_072,
                    Minor::V1_0 => 20480,
                    Minor::V1_1 | Minor::V1_2 => 0,
                };
                let need_bytes = need.saturating_add(data_offset_bytes).saturating_add(tail);
                return Err(CreateError::MemberTooSmall { index, member_bytes, need_bytes });
            }
        }
    }
    if options.level <= 0 {
        return Ok(0);
    }
    let slack =
        if least >= SLACK_FROM_BYTES { TAIL_SLACK_BYTES.min(least - unit_bytes) } else { 0 };
    // mdadm rounds mirrors too, so that they can become a RAID 5 later.
    let unit_bytes = if options.level == 1 && least >= 65536 { 65536 } else { unit_bytes };
    let all = (least - slack) / unit_bytes * unit_bytes;
    used_sectors(options, options.size_bytes.unwrap_or(all))
}

/// What is used of `size_bytes` on each member: less than all where a RAID 10 does not come out
/// even.
fn used_sectors(options: &CreateOptions<'_>, size_bytes: u64) -> Result<u64, CreateError> {
    if options.level != 10 {
        return Ok(size_bytes / SECTOR_BYTES);
    }
    Ok(geometry_10(options, size_bytes)?.component_bytes() / SECTOR_BYTES)
}

/// The shape of a RAID 10 with so many bytes of each member.
fn geometry_10(options: &CreateOptions<'_>, size_bytes: u64) -> Result<Geometry, CreateError> {
    Ok(Geometry::new(GeometrySpec {
        level: Level::Raid10,
        layout: Layout::from_md(Level::Raid10, options.layout)?,
        slot_count: options.slot_count,
        chunk_bytes: options.chunk_bytes,
        member_data_bytes: &alloc::vec![size_bytes; options.slot_count],
    })?)
}

/// What every superblock of the array has in common.
fn blank(options: &CreateOptions<'_>, spare_count: usize, is_degraded: bool) -> Superblock {
    // mdadm: as many roles as fill the last 512 bytes that are needed.
    let role_count = options.slot_count + spare_count;
    let head = AREA_BYTES - 2 * MAX_DEV_MAX;
    let max_dev = ((head + 2 * role_count).next_multiple_of(512) - head) / 2;
    let max_dev =
        if options.minor == Minor::V0_90 { Minor::V0_90.role_count_max() } else { max_dev };
    let mut superblock = Superblock::blank(options.minor, max_dev);
    superblock.array_uuid = options.array_uuid;
    if options.minor == Minor::V0_90 {
        // mdadm starts at 1 there.
        superblock.events = 1;
    } else {
        superblock.name_bytes = name_bytes(options);
    }
    superblock.created = MdTime(options.time.unix_seconds());
    superblock.updated = superblock.created;
    superblock.level = options.level;
    superblock.layout = options.layout;
    superblock.slot_count = options.slot_count as u32;
    superblock.chunk_sectors = (chunk_bytes(options) / SECTOR_BYTES) as u32;
    if options.level == 0 {
        superblock.features.0 |= Features::RAID0_LAYOUT;
    }
    // Without a slot there is nothing to compare parity with: what is missing is what parity says.
    let is_clean = options.level <= 0
        || options.initial == Initial::AssumeClean
        || has_parity(options.level) && is_degraded;
    superblock.resync_offset_sectors = if is_clean { ALL_SECTORS } else { 0 };
    superblock
}

fn name_bytes(options: &CreateOptions<'_>) -> [u8; 32] {
    let name = options.name.as_bytes();
    let host = options.host.map(str::as_bytes).unwrap_or_default();
    let mut text = Vec::new();
    let has_room = host.len() + 1 + name.len() <= NAME_BYTES_MAX;
    if !host.is_empty() && !name.contains(&b':') && has_room {
        text.extend_from_slice(host);
        text.push(b':');
    }
    text.extend_from_slice(name);
    let mut bytes = [0; 32];
    bytes[..text.len()].copy_from_slice(&text);
    bytes
}

impl Superblock {
    /// Sets the places of superblock, data and bad-block log on a member of `member_bytes`, as
    /// mdadm does.
    fn place(&mut self, member_bytes: u64, data_offset_bytes: u64) {
        let sectors = member_bytes / SECTOR_BYTES;
        let data_offset = data_offset_bytes / SECTOR_BYTES;
        let super_offset = self.minor.super_offset_bytes(member_bytes).unwrap_or(0) / SECTOR_BYTES;
        let bitmap_space = bitmap_space_sectors(self.size_sectors);
        self.super_offset_sectors = super_offset;
        self.data_offset_sectors = data_offset;
        self.bad_block_shift = 0;
        if self.minor == Minor::V0_90 {
            self.data_size_sectors = super_offset;
            return;
        }
        let (data_size, log_offset) = if self.minor == Minor::V1_0 {
            let before = (bitmap_space + 8).min(super_offset.saturating_sub(self.size_sectors));
            (super_offset.saturating_sub(before + data_offset), -8)
        } else {
            // Behind the room for a bitmap, or right before the data when there is not enough.
            let last = data_offset.saturating_sub(8 + super_offset);
            (sectors.saturating_sub(data_offset), (8 + bitmap_space).min(last) as i64)
        };
        self.data_size_sectors = data_size;
        self.bad_block_log = LogArea { offset_sectors: log_offset as i32, size_sectors: 8 };
    }
}
