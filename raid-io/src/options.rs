//! Options for making, opening and imitating arrays.

use std::path::PathBuf;
use std::time::Duration;

use crate::Level;

/// Which machinery carries out member I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// io_uring where it is to be had, [`Backend::Blocking`] with one warning otherwise.
    #[default]
    Automatic,
    /// One system call for each member I/O; works everywhere.
    Blocking,
    /// io_uring or an error.
    IoUring,
}

/// The version of the superblocks of a new array: what they can say, and where they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetadataVersion {
    /// Near the end; at most 27 members of 4 TiB, no name, no RAID 0.
    V0_90,
    /// At the end.
    V1_0,
    /// At the start.
    V1_1,
    /// 4 KiB from the start.
    #[default]
    V1_2,
}

/// Whether a new array keeps a write-intent bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BitmapChoice {
    /// As mdadm: if the level has redundancy and more than 100 GiB of each member are used.
    #[default]
    Automatic,
    /// None.
    None,
    /// Near the superblock of every member.
    Internal,
}

/// What has become of a member that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Added {
    /// It was here before, and gets what it missed.
    ReAdded {
        /// Its slot.
        slot: u32,
    },
    /// It stands by, or fills a slot that has no member from the start.
    Spare,
}

/// How to make an array. `CreateOptions::new(level)` has mdadm's defaults.
///
/// ```
/// use raid_io::{CreateOptions, Level};
/// let mut options = CreateOptions::new(Level::Raid5);
/// options.chunk_bytes = 64 << 10;
/// options.member_bytes = Some(256 << 20); // missing members are made as sparse files
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The level; of each group, when there are several.
    pub level: Level,
    /// The layout by mdadm's name ("left-symmetric", "n2", "f2", "original"); `None`: the default.
    pub layout: Option<String>,
    /// The chunk size in bytes: a power of two, 4 KiB at least.
    pub chunk_bytes: u32,
    /// Groups of equal size that the members are divided into, in order. More than one makes a
    /// striped set over the groups: RAID 50 is level 5 in groups, RAID 60 level 6.
    pub groups: u32,
    /// How much of each member to use; `None`: as much as the smallest has.
    pub size_bytes: Option<u64>,
    /// Missing members are made as sparse files of this size; `None`: they are an error.
    pub member_bytes: Option<u64>,
    /// Members to stand by.
    pub spares: Vec<PathBuf>,
    /// The array's name, as md stores it, 32 bytes at most.
    pub name: String,
    /// The version of the superblocks.
    pub metadata: MetadataVersion,
    /// The write-intent bitmap.
    pub bitmap: BitmapChoice,
    /// Bytes of a member (of the array in RAID 10) that one bit of it stands for, a power of two;
    /// `None`: as mdadm, 64 MiB or as much as it takes to find room.
    pub bitmap_chunk_bytes: Option<u32>,
    /// Take the members' contents for consistent already.
    pub assume_clean: bool,
    /// Overwrite members that look like somebody's data.
    pub force: bool,
    /// The array's identity; `None`: a random one.
    pub uuid: Option<uuid::Uuid>,
    /// How the new array is opened.
    pub open: OpenOptions,
}

impl CreateOptions {
    /// Returns mdadm's defaults for `level`: 512 KiB chunks, the level's default layout.
    #[must_use]
    pub fn new(level: Level) -> Self {
        Self {
            level,
            layout: None,
            chunk_bytes: 512 << 10,
            groups: 1,
            size_bytes: None,
            member_bytes: None,
            spares: Vec::new(),
            name: String::new(),
            metadata: MetadataVersion::default(),
            bitmap: BitmapChoice::default(),
            bitmap_chunk_bytes: None,
            assume_clean: false,
            force: false,
            uuid: None,
            open: OpenOptions::default(),
        }
    }
}

/// How to open an array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Open the members read-only, write nothing, take no lock that needs the right to write.
    pub read_only: bool,
    /// Start a dirty and degraded parity array, whose lost data may come back wrong.
    pub force: bool,
    /// Make the redundancy of an array that was not stopped cleanly right again, in the background.
    pub resync: bool,
    /// How long nothing must have been written before an array is marked clean while it is open
    /// (md's `safe_mode_delay`); zero: never.
    pub idle_after: Duration,
    /// Bytes of each member in a second that a resync, recovery or check goes over at least, if
    /// the members can: below that it does not give way to requests.
    pub speed_min: u64,
    /// Bytes of each member in a second that it goes over at most; `None`: as many as it can.
    pub speed_max: Option<u64>,
    /// How long a member may take to answer one operation; zero: any time. A member that takes
    /// longer (up to a quarter) leaves the array, if that can be borne; else requests that need it
    /// fail until it answers again.
    pub io_timeout: Duration,
    /// How many reads of a member may fail in an hour and be made good, older ones counting half
    /// for each hour (md's `max_read_errors`); with more it leaves the array, if that
    /// can be borne. Zero: any number.
    pub corrected_max: u32,
    /// The machinery of member I/O.
    pub backend: Backend,
    /// Use `O_DIRECT` where the file system has it.
    pub direct: bool,
    /// Requests that each queue carries at once.
    pub request_count_max: u32,
    /// Memory of each queue for the engine's own reads and parity.
    pub scratch_bytes: u32,
    /// Memory of each queue for [`Queue::buffer`](crate::Queue::buffer).
    pub pool_bytes: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            force: false,
            resync: true,
            idle_after: Duration::from_millis(200),
            speed_min: 1000 << 10,
            speed_max: None,
            io_timeout: Duration::from_secs(30),
            corrected_max: 20,
            backend: Backend::Automatic,
            direct: true,
            request_count_max: 256,
            scratch_bytes: 32 << 20,
            pool_bytes: 16 << 20,
        }
    }
}

/// An array whose members are memory, for examples and tests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// The level; of each group, when there are several.
    pub level: Level,
    /// The layout by mdadm's name; `None`: the default.
    pub layout: Option<String>,
    /// Slots, in all groups together.
    pub slot_count: u32,
    /// Groups of equal size; see [`CreateOptions::groups`].
    pub groups: u32,
    /// The size of each member.
    pub member_bytes: u64,
    /// The chunk size in bytes.
    pub chunk_bytes: u32,
    /// The members' block size: 512 or 4096.
    pub block_bytes: u32,
    /// How the array is opened.
    pub open: OpenOptions,
}

impl Default for MemoryOptions {
    /// RAID 5 over three members of 4 MiB, 64 KiB chunks.
    fn default() -> Self {
        Self {
            level: Level::Raid5,
            layout: None,
            slot_count: 3,
            groups: 1,
            member_bytes: 4 << 20,
            chunk_bytes: 64 << 10,
            block_bytes: 512,
            open: OpenOptions {
                request_count_max: 64,
                scratch_bytes: 4 << 20,
                pool_bytes: 1 << 20,
                ..OpenOptions::default()
            },
        }
    }
}
