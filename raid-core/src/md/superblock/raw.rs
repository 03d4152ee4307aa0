//! The bytes of `struct mdp_superblock_1` (facts: the kernel's uapi `linux/raid/md_p.h`).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes before the roles.
pub(super) const HEAD_BYTES: usize = 256;

/// The first 256 bytes; the roles follow, two bytes each.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHead {
    pub(super) magic: U32,
    pub(super) major_version: U32,
    pub(super) feature_map: U32,
    pub(super) pad0: U32,
    pub(super) set_uuid: [u8; 16],
    pub(super) set_name: [u8; 32],
    pub(super) ctime: U64,
    pub(super) level: I32,
    pub(super) layout: U32,
    pub(super) size: U64,
    pub(super) chunksize: U32,
    pub(super) raid_disks: U32,
    /// Bitmap offset (i32), or with a PPL its offset (i16) and size (u16).
    pub(super) bitmap_or_ppl: U32,
    pub(super) new_level: I32,
    pub(super) reshape_position: U64,
    pub(super) delta_disks: I32,
    pub(super) new_layout: U32,
    pub(super) new_chunk: U32,
    pub(super) new_offset: I32,

    pub(super) data_offset: U64,
    pub(super) data_size: U64,
    pub(super) super_offset: U64,
    /// Or the journal's tail.
    pub(super) recovery_offset: U64,
    pub(super) dev_number: U32,
    pub(super) cnt_corrected_read: U32,
    pub(super) device_uuid: [u8; 16],
    pub(super) devflags: u8,
    pub(super) bblog_shift: u8,
    pub(super) bblog_size: U16,
    pub(super) bblog_offset: I32,

    pub(super) utime: U64,
    pub(super) events: U64,
    pub(super) resync_offset: U64,
    pub(super) sb_csum: U32,
    pub(super) max_dev: U32,
    /// Zero from older kernels; Linux 7.3 writes it.
    pub(super) logical_block_size: U32,
    pub(super) pad3: [u8; 28],
}

// The three groups of the format are 128, 64 and 64 bytes long.
const _: () = assert!(offset_of!(RawHead, data_offset) == 128);
const _: () = assert!(offset_of!(RawHead, utime) == 192);
const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);
