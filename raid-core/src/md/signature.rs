//! Whose data a device may hold: asked before anything is overwritten.
//!
//! [`probe`] looks at the start and the end of a device, where partition tables, file systems,
//! volume managers and other RAIDs sign. A signature may be a remnant; that is for a person to
//! decide, so every one is reported and none is weighed. When there is no signature, bytes that are
//! not zero are still a finding.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

mod table;

use crate::md::superblock::Minor;

/// Bytes at the start of a device that [`probe`] looks at: 1 MiB, and what VMware writes right
/// behind.
pub const HEAD_BYTES: u64 = (1 << 20) + (64 << 10);
/// Bytes at the end of a device that [`probe`] looks at.
pub const TAIL_BYTES: u64 = 1 << 20;

/// The byte ranges that the caller must read for [`probe`]: head and tail. They overlap on a small
/// device.
#[must_use]
pub fn ranges(member_bytes: u64) -> (Range<u64>, Range<u64>) {
    (0..HEAD_BYTES.min(member_bytes), member_bytes.saturating_sub(TAIL_BYTES)..member_bytes)
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose.
    pub kind: Kind,
    /// Where the signature lies, in bytes from the start of the device.
    pub offset: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (signature at byte {})", self.kind, self.offset)
    }
}

/// Whose data it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An md superblock, any version.
    Md,
    /// Another RAID, a volume manager, a cache or an encryption, by its name.
    Container(&'static str),
    /// A file system or swap space, by its name.
    FileSystem(&'static str),
    /// A partition table, by its name.
    PartitionTable(&'static str),
    /// Bytes that are not zero, without any signature; the weakest finding.
    NonZero,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Md => f.write_str("md superblock"),
            Self::Container(name) => write!(f, "{name}"),
            Self::FileSystem(name) => write!(f, "{name} file system"),
            Self::PartitionTable(name) => write!(f, "{name} partition table"),
            Self::NonZero => f.write_str("data that is not zero"),
        }
    }
}

/// Looks for signatures in the bytes of [`ranges`]. Empty when all of them are zero.
///
/// `head` starts at byte 0, `tail` ends at byte `member_bytes`; shorter slices are looked at as far
/// as they go. Findings are in ascending order of their offsets, [`Kind::NonZero`] only comes
/// alone.
#[must_use]
pub fn probe(member_bytes: u64, head: &[u8], tail: &[u8]) -> Vec<Finding> {
    let device = Device { member_bytes, head, tail };
    let mut findings = Vec::new();
    device.probe_md(&mut findings);
    device.probe_table(&mut findings);
    device.probe_zfs(&mut findings);
    device.probe_nilfs(&mut findings);
    device.probe_drbd(&mut findings);
    device.probe_mbr(&mut findings);
    findings.sort_by_key(|finding| finding.offset);
    findings.dedup();
    if findings.is_empty() {
        findings
            .extend(device.first_non_zero().map(|offset| Finding { kind: Kind::NonZero, offset }));
    }
    findings
}

/// The two ends of a device.
struct Device<'a> {
    member_bytes: u64,
    head: &'a [u8],
    tail: &'a [u8],
}

impl Device<'_> {
    /// The bytes at `offset`, from whichever end has them; `None` when neither has all of them.
    fn bytes(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let within = |slice: &[u8], start: u64| -> Option<Range<usize>> {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            let to = from.checked_add(len)?;
            (to <= slice.len()).then_some(from..to)
        };
        let tail_start = self.member_bytes.checked_sub(self.tail.len() as u64)?;
        match within(self.head, 0) {
            Some(range) => Some(&self.head[range]),
            None => within(self.tail, tail_start).map(|range| &self.tail[range]),
        }
    }

    fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        self.bytes(offset, N)?.first_chunk::<N>().copied()
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// The offset that lies `distance` before the end.
    fn before_end(&self, distance: u64) -> Option<u64> {
        self.member_bytes.checked_sub(distance)
    }

    fn first_non_zero(&self) -> Option<u64> {
        let in_head = self.head.iter().position(|&byte| byte != 0).map(|index| index as u64);
        let tail_start = self.member_bytes.saturating_sub(self.tail.len() as u64);
        let in_tail =
            || self.tail.iter().position(|&byte| byte != 0).map(|index| tail_start + index as u64);
        in_head.or_else(in_tail)
    }

    /// md superblocks of every version; 0.90 lies 64 KiB before the end, rounded down to 64 KiB, in
    /// the byte order of the machine that wrote it.
    fn probe_md(&self, findings: &mut Vec<Finding>) {
        let magic = crate::md::superblock::MAGIC;
        let places =
            Minor::ALL.into_iter().map(|minor| minor.super_offset_bytes(self.member_bytes));
        for offset in places.flatten() {
            if self.has(offset, &magic.to_le_bytes()) || self.has(offset, &magic.to_be_bytes()) {
                findings.push(Finding { kind: Kind::Md, offset });
            }
        }
    }

    fn probe_table(&self, findings: &mut Vec<Finding>) {
        for &(kind, place, magic) in table::SIGNATURES {
            let offset = match place {
                table::Place::Start(offset) => Some(offset),
                table::Place::End(distance) => self.before_end(distance),
            };
            if let Some(offset) = offset.filter(|&offset| self.has(offset, magic)) {
                findings.push(Finding { kind, offset });
            }
        }
    }

    /// ZFS: four labels of 256 KiB, two at each end; the uberblocks fill the second half of a
    /// label, one for each KiB or more, in the byte order of the writer. One finding for each
    /// label.
    fn probe_zfs(&self, findings: &mut Vec<Finding>) {
        const LABEL: u64 = 256 << 10;
        const UBERBLOCK: u64 = 0x00ba_b10c;
        let end = self.member_bytes / LABEL * LABEL;
        let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
        for label in labels.into_iter().flatten() {
            let uberblocks = (label + LABEL / 2..label + LABEL).step_by(1024);
            let found = uberblocks.into_iter().find(|&offset| {
                self.has(offset, &UBERBLOCK.to_le_bytes())
                    || self.has(offset, &UBERBLOCK.to_be_bytes())
            });
            let kind = Kind::FileSystem("zfs");
            findings.extend(found.map(|offset| Finding { kind, offset }));
        }
    }

    /// NILFS2 signs with two bytes only, so its revision and superblock size are looked at as well.
    fn probe_nilfs(&self, findings: &mut Vec<Finding>) {
        let second = (self.member_bytes / 4096).checked_sub(1).map(|block| block * 4096);
        for offset in [Some(1024), second].into_iter().flatten() {
            let Some([2, 0, 0, 0, 0, 0, 0x34, 0x34, size_low, size_high]) = self.array(offset)
            else {
                continue;
            };
            if (64..=1024).contains(&u16::from_le_bytes([size_low, size_high])) {
                findings.push(Finding { kind: Kind::FileSystem("nilfs2"), offset: offset + 6 });
            }
        }
    }

    /// DRBD's internal metadata ends with a block in the last 4 KiB; its magic counts up with the
    /// version.
    fn probe_drbd(&self, findings: &mut Vec<Finding>) {
        let Some(block) = (self.member_bytes / 4096).checked_sub(1) else { return };
        let offset = block * 4096 + 60;
        let magic = self.array(offset).map(u32::from_be_bytes);
        if magic.is_some_and(|magic| (0x8374_0267..=0x8374_026f).contains(&magic)) {
            findings.push(Finding { kind: Kind::Container("DRBD metadata"), offset });
        }
    }

    /// A DOS partition table: its two bytes are in boot sectors of file systems too, so the entries
    /// must make sense.
    fn probe_mbr(&self, findings: &mut Vec<Finding>) {
        let Some(sector) = self.bytes(0, 512) else { return };
        if sector[510..] != [0x55, 0xaa] {
            return;
        }
        let entries = sector[446..510].chunks(16);
        let is_table = entries.clone().all(|entry| matches!(entry[0], 0 | 0x80));
        let is_used = entries.into_iter().any(|entry| entry[4] != 0 && entry[12..] != [0; 4]);
        if is_table && is_used {
            findings.push(Finding { kind: Kind::PartitionTable("DOS"), offset: 510 });
        }
    }
}

#[cfg(test)]
mod tests;
