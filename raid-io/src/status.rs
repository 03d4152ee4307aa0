//! An array's state, as values that can be shown and serialised.

use serde::{Deserialize, Serialize};

/// A running array at one moment: what `status --json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The array's name, from its superblock.
    pub name: String,
    /// The array's identity in md's notation, four groups of eight digits.
    pub uuid: String,
    /// "raid5", "raid10", "raid50", ...
    pub level: String,
    /// The layout by mdadm's name, empty for levels that have none.
    pub layout: String,
    /// The chunk size, zero for levels that have none.
    pub chunk_bytes: u64,
    /// The array's size.
    pub size_bytes: u64,
    /// Refuses writes.
    pub read_only: bool,
    /// md's array state: "clean", "active", "readonly" or "failed".
    pub state: String,
    /// No write was outstanding when the array was stopped the last time.
    pub was_clean: bool,
    /// What member I/O goes through: "io_uring" or "blocking".
    pub backend: String,
    /// Slots that are not in sync, in all groups.
    pub degraded: u32,
    /// The groups; one, unless the level is nested.
    pub groups: Vec<GroupStatus>,
    /// Counters since the array was opened.
    pub statistics: Statistics,
}

/// One md array: the whole, or one group of a nested array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its identity in md's notation.
    pub uuid: String,
    /// Its level.
    pub level: String,
    /// Its layout by mdadm's name, empty for levels that have none.
    pub layout: String,
    /// Its chunk size, zero for levels that have none.
    pub chunk_bytes: u64,
    /// Its size as an array of its own.
    pub size_bytes: u64,
    /// Slots of a fully functional array.
    pub slot_count: u32,
    /// Slots that are not in sync.
    pub degraded: u32,
    /// Slots that may be lost before data is.
    pub degraded_max: u32,
    /// Parity and copies are known to match the data.
    pub in_sync: bool,
    /// What goes on in the background: "idle", "resync", "recover", "check" or "repair".
    pub sync_action: String,
    /// Bytes of each member that the action has passed.
    pub sync_done_bytes: u64,
    /// Bytes of each member that the action goes over.
    pub sync_total_bytes: u64,
    /// Its members, by slot, then the ones without.
    pub members: Vec<MemberStatus>,
}

/// One member, or a slot without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its path, empty for a missing member.
    pub path: String,
    /// md's `dev_number`, its permanent identity.
    pub number: Option<u32>,
    /// The slot it fills.
    pub slot: Option<u32>,
    /// "in_sync", "faulty", "spare" or "missing".
    pub state: String,
    /// Major and minor number of a block device.
    pub device: Option<(u32, u32)>,
    /// Read errors that were answered by regeneration.
    pub read_errors: u64,
    /// Reads sent to it since the array was opened.
    pub reads: u64,
    /// Writes sent to it since the array was opened.
    pub writes: u64,
}

/// Counters of the engine's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Read requests completed.
    pub reads: u64,
    /// Write requests completed.
    pub writes: u64,
    /// Flush requests completed.
    pub flushes: u64,
    /// Bytes of the completed reads.
    pub read_bytes: u64,
    /// Bytes of the completed writes.
    pub written_bytes: u64,
    /// Stripes written without a read.
    pub full_stripe_writes: u64,
    /// Stripes written by read-modify-write.
    pub rmw: u64,
    /// Stripes written by reconstruct-write.
    pub rcw: u64,
    /// Reads that had to regenerate lost data.
    pub degraded_reads: u64,
    /// Reads sent to members.
    pub member_reads: u64,
    /// Writes sent to members.
    pub member_writes: u64,
    /// Member operations that were saved by joining neighbours.
    pub merged: u64,
}

/// Everything `mdadm --detail` shows of an array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The state.
    pub status: Status,
    /// The metadata version: "1.2".
    pub version: String,
    /// Creation time, in seconds of the Unix clock.
    pub creation_time: u64,
    /// The last superblock update, in seconds of the Unix clock.
    pub update_time: u64,
    /// The bytes used of each member.
    pub component_bytes: u64,
    /// The event count.
    pub events: u64,
    /// "resync", "bitmap", "ppl" or "none".
    pub consistency_policy: String,
}
