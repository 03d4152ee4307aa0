//! A simulated member: what it shows, what it has on stable media, and what may become of the
//! difference.
//!
//! ```text
//!   write --> live image, and a version of each sector in the cache
//!   flush --> the versions written before the flush was SENT become durable
//!   FUA   --> durable at once
//!   power cut --> for each sector of the cache, any one version or none becomes durable
//! ```
//!
//! Invariant: `live` and `durable` differ only in sectors that have versions in the cache.
//! Harsher than a real member: sectors of one write persist independently, in any order, and a
//! flush does not cover a write that was answered after the flush had been sent.

use std::collections::{BTreeMap, BTreeSet};

use crate::random::Random;
use crate::workload::SECTOR;

/// Ways in which a member lies. No RAID without checksums survives them: they test the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lie {
    /// A flush does nothing.
    Flush,
    /// A write is acknowledged and forgotten.
    LostWrite,
    /// A write lands in the sector behind the right one.
    Misdirected,
    /// A bit of a stored sector flips.
    BitRot,
    /// Half of a sector is stored at a power cut.
    TornSector,
}

#[derive(Clone, Debug)]
struct Version {
    /// When it was written.
    clock: u64,
    bytes: Box<[u8; SECTOR]>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct SimMember {
    live: Vec<u8>,
    durable: Vec<u8>,
    cache: BTreeMap<u64, Vec<Version>>,
    /// Sectors that cannot be read until they are written.
    bad: BTreeSet<u64>,
    /// Not there: every operation fails.
    pub(crate) gone: bool,
    /// Latency is multiplied by this.
    pub(crate) slowness: u64,
    /// What it lies about from now on, and after how many writes once for the rarer ones.
    pub(crate) lie: Option<(Lie, u64)>,
}

impl SimMember {
    pub(crate) fn new(image: Vec<u8>) -> Self {
        assert!(image.len().is_multiple_of(SECTOR), "whole sectors");
        Self {
            durable: image.clone(),
            live: image,
            cache: BTreeMap::new(),
            bad: BTreeSet::new(),
            gone: false,
            slowness: 1,
            lie: None,
        }
    }

    /// What a reader sees, whatever cannot be read.
    pub(crate) fn live(&self) -> &[u8] {
        &self.live
    }

    /// What is on stable media.
    pub(crate) fn durable(&self) -> &[u8] {
        &self.durable
    }

    pub(crate) fn len(&self) -> u64 {
        self.live.len() as u64
    }

    /// Makes sectors unreadable until they are written.
    pub(crate) fn spoil(&mut self, sector: u64, count: u64) {
        self.bad.extend(sector..sector + count);
    }

    /// True if some sector of these bytes cannot be read.
    pub(crate) fn is_bad(&self, offset: u64, len: u64) -> bool {
        let sectors = offset / SECTOR as u64..(offset + len).div_ceil(SECTOR as u64);
        self.bad.range(sectors).next().is_some()
    }

    /// Unreadable sectors.
    pub(crate) fn bad_sectors(&self) -> impl Iterator<Item = u64> + '_ {
        self.bad.iter().copied()
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], fua: bool, clock: u64) {
        let mut first = offset / SECTOR as u64;
        match &mut self.lie {
            Some((Lie::LostWrite, left)) | Some((Lie::Misdirected, left)) if *left > 1 => {
                *left -= 1;
            }
            Some((Lie::LostWrite, left)) if *left == 1 => {
                *left = 0;
                return;
            }
            Some((Lie::Misdirected, left)) if *left == 1 => {
                *left = 0;
                let last = self.live.len() as u64 / SECTOR as u64;
                first = (first + 1).min(last - bytes.len() as u64 / SECTOR as u64);
            }
            _ => {}
        }
        for (index, new) in bytes.chunks_exact(SECTOR).enumerate() {
            let sector = first + index as u64;
            let at = sector as usize * SECTOR;
            self.live[at..at + SECTOR].copy_from_slice(new);
            self.bad.remove(&sector);
            if fua {
                self.durable[at..at + SECTOR].copy_from_slice(new);
                self.cache.remove(&sector);
            } else {
                let mut copy = Box::new([0; SECTOR]);
                copy.copy_from_slice(new);
                self.cache.entry(sector).or_default().push(Version { clock, bytes: copy });
            }
        }
    }

    /// Makes durable what was written before `sent`.
    pub(crate) fn flush(&mut self, sent: u64) {
        if matches!(self.lie, Some((Lie::Flush, _))) {
            return;
        }
        let durable = &mut self.durable;
        self.cache.retain(|&sector, versions| {
            let covered = versions.iter().take_while(|version| version.clock < sent).count();
            if let Some(last) = covered.checked_sub(1) {
                let at = sector as usize * SECTOR;
                durable[at..at + SECTOR].copy_from_slice(&versions[last].bytes[..]);
                versions.drain(..covered);
            }
            !versions.is_empty()
        });
    }

    /// The first sector at or after byte `start` with a version written before `clock` that is not
    /// durable.
    pub(crate) fn unflushed(&self, start: u64, clock: u64) -> Option<u64> {
        let mut sectors = self.cache.range(start / SECTOR as u64..);
        sectors
            .find(|(_, versions)| versions.iter().any(|version| version.clock < clock))
            .map(|(&sector, _)| sector)
    }

    /// Loses the power: of each sector in the cache `percent` in a hundred keep some version.
    pub(crate) fn power_cut(&mut self, percent: u64, random: &mut Random) {
        let torn = matches!(self.lie, Some((Lie::TornSector, _)));
        for (sector, versions) in std::mem::take(&mut self.cache) {
            let at = sector as usize * SECTOR;
            if random.chance(percent) {
                // The newest mostly; an older one when the member writes them back in no order.
                let last = versions.len() as u64 - 1;
                let chosen = if random.chance(75) { last } else { random.below(last + 1) };
                let bytes = &versions[chosen as usize].bytes;
                let kept = if torn && random.chance(20) { SECTOR / 2 } else { SECTOR };
                self.durable[at..at + kept].copy_from_slice(&bytes[..kept]);
            }
            self.live[at..at + SECTOR].copy_from_slice(&self.durable[at..at + SECTOR]);
        }
    }

    /// Flips a bit of what is stored in a sector.
    pub(crate) fn rot(&mut self, sector: u64, bit: u64) {
        let at = sector as usize * SECTOR + (bit / 8) as usize % SECTOR;
        let flip = 1 << (bit % 8);
        self.live[at] ^= flip;
        self.durable[at] ^= flip;
    }
}
