//! What outlives a crash: the members, and what the oracle remembers.

use std::collections::BTreeSet;

use raid_core::geometry::Geometry;
use raid_core::md::bitmap::{BitmapImage, BitmapWishes, choose};
use raid_core::md::create::{CreateOptions, Initial, NewMember, NewPlace, plan};
use raid_core::md::regions::sync_bytes;
use raid_core::md::superblock::{Features, LogArea, Minor};
use raid_core::md::{MdTime, MdUuid, Superblock};
use raid_core::slots::SlotSet;

use crate::checks::{group_of, places};
use crate::disk::{Lie, SimMember};
use crate::options::{DATA_OFFSET, Options};
use crate::oracle::Oracle;
use crate::random::{Random, mix};
use crate::report::Counts;
use crate::workload::{SECTOR, value_of};

/// Where every member's bitmap starts.
pub(crate) const BITMAP_OFFSET: u64 = 8192;

/// See the module's text.
pub(crate) struct Machine {
    pub(crate) options: Options,
    /// Of each group.
    pub(crate) geometry: Geometry,
    pub(crate) outer: Option<Geometry>,
    pub(crate) members: Vec<SimMember>,
    pub(crate) oracle: Oracle,
    /// Rows of groups whose parity was not right when a degraded group was started by force, or
    /// that a failed write to a degraded group left behind: the write hole.
    pub(crate) tainted: BTreeSet<(usize, u64)>,
    /// Member and sector of everything that was ever unreadable: regenerated in a tainted row it is
    /// lost in the write hole, also when a later write stores it again.
    pub(crate) was_bad: BTreeSet<(usize, u64)>,
    /// Sectors already counted as lost in it.
    pub(crate) holes: BTreeSet<u64>,
    /// For each group, the slots that durable superblocks call faulty.
    pub(crate) recorded_out: Vec<SlotSet>,
    /// For each group, the slots that were in sync when it ran last.
    pub(crate) last_in_sync: Vec<SlotSet>,
    /// Counts events: orders everything.
    pub(crate) clock: u64,
    pub(crate) stamp: u64,
    pub(crate) counts: Counts,
    /// For each group, true until its first recovery from members full of old bytes: its parity
    /// was never right.
    pub(crate) raw: Vec<bool>,
    /// Lines in words, when somebody wants to read them.
    pub(crate) log: Option<Vec<String>>,
    /// A hash of all events: two runs of one seed have the same.
    pub(crate) trace: u64,
}

impl Machine {
    /// Makes the members of a new array.
    pub(crate) fn new(options: Options) -> Self {
        let geometry = options.shape.geometry();
        let mut random = Random::new(options.seed ^ 0x6d65_6d62);
        let mut members = Vec::new();
        for group in 0..options.shape.groups {
            members.extend(group_members(&options, &geometry, group, &mut random));
        }
        let oracle = first_values(&options, &members);
        if let Some(lie) = options.lie {
            let liar = random.below(members.len() as u64) as usize;
            members[liar].lie = Some((lie, 1 + random.below(12)));
        }
        Self {
            outer: options.shape.outer(),
            last_in_sync: vec![geometry.slots(); options.shape.groups],
            recorded_out: vec![SlotSet::new(); options.shape.groups],
            raw: vec![options.garbage; options.shape.groups],
            log: None,
            options,
            geometry,
            members,
            oracle,
            tainted: BTreeSet::new(),
            was_bad: BTreeSet::new(),
            holes: BTreeSet::new(),
            clock: 1,
            stamp: 0,
            counts: Counts { seeds: 1, ..Counts::default() },
            trace: 0,
        }
    }

    /// The next moment.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Adds an event to the trace.
    pub(crate) fn note(&mut self, event: u64) {
        self.trace = mix(self.trace ^ event);
    }

    /// Index of a member among all.
    pub(crate) fn member(&self, group: usize, slot: usize) -> usize {
        group * self.options.shape.slots + slot
    }

    /// The row of an array sector that the write hole could reach: group and number.
    pub(crate) fn row(&self, sector: u64) -> (usize, u64) {
        let (group, byte) = group_of(&self.options.shape, sector * SECTOR as u64);
        let block = u64::from(self.options.block);
        (group, crate::checks::row(&self.options.shape, byte, block))
    }

    /// The array sector as a group, and its places in it.
    pub(crate) fn places(&self, sector: u64) -> (usize, Vec<(usize, u64)>) {
        let (group, byte) = group_of(&self.options.shape, sector * SECTOR as u64);
        (group, places(&self.options.shape, byte))
    }

    /// What the lie of one member is, done once at a boot.
    pub(crate) fn lie_at_boot(&mut self, random: &mut Random) {
        let sectors = self.options.shape.component / SECTOR as u64;
        for member in &mut self.members {
            if let Some((Lie::BitRot, left)) = &mut member.lie {
                if *left == 0 {
                    continue;
                }
                *left = 0;
                for _ in 0..8 {
                    let sector = DATA_OFFSET / SECTOR as u64 + random.below(sectors);
                    member.rot(sector, random.below(4096));
                }
            }
        }
    }
}

fn uuid(random: &mut Random) -> MdUuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.next().to_le_bytes());
    bytes[8..].copy_from_slice(&random.next().to_le_bytes());
    MdUuid(bytes)
}

fn group_members(
    options: &Options,
    geometry: &Geometry,
    group: usize,
    random: &mut Random,
) -> Vec<SimMember> {
    let shape = &options.shape;
    let member_bytes = DATA_OFFSET + shape.component;
    let create = CreateOptions {
        minor: Minor::V1_2,
        level: shape.level.to_md(),
        layout: shape.layout.to_md(),
        chunk_bytes: shape.chunk,
        slot_count: shape.slots,
        name: "simulated",
        host: None,
        array_uuid: uuid(random),
        time: MdTime::new(1_000_000_000 + group as u64, 0),
        size_bytes: Some(shape.component),
        data_offset_bytes: Some(DATA_OFFSET),
        initial: if options.garbage { Initial::Resync } else { Initial::AssumeClean },
        bitmap: None,
    };
    let places: Vec<NewMember> = (0..shape.slots as u16)
        .map(|slot| NewMember {
            member_bytes,
            device_uuid: uuid(random),
            place: NewPlace::Slot(slot),
            device_flags: 0,
        })
        .collect();
    let plan = plan(&create, &places).expect("shapes can be created");
    let mut members = Vec::new();
    for mut superblock in plan.superblocks {
        let mut image = vec![0; member_bytes as usize];
        if options.garbage {
            image[DATA_OFFSET as usize..].chunks_exact_mut(8).for_each(|word| {
                word.copy_from_slice(&(random.next() | 1 << 63).to_le_bytes());
            });
        }
        if let Some(granule) = options.granule {
            let file = add_bitmap(&mut superblock, geometry, granule, options.garbage);
            image[BITMAP_OFFSET as usize..BITMAP_OFFSET as usize + file.len()]
                .copy_from_slice(&file);
        }
        image[4096..8192].copy_from_slice(&superblock.encode()[..]);
        members.push(SimMember::new(image));
    }
    members
}

/// Gives a superblock a bitmap between itself and the data; returns the bitmap's bytes.
fn add_bitmap(
    superblock: &mut Superblock,
    geometry: &Geometry,
    granule: u64,
    dirty: bool,
) -> Vec<u8> {
    superblock.features.0 |= Features::BITMAP;
    superblock.bitmap_or_ppl = ((BITMAP_OFFSET - 4096) / SECTOR as u64) as u32;
    superblock.bad_block_log = LogArea::default();
    let wishes = BitmapWishes { chunk_bytes: Some(granule as u32), ..BitmapWishes::default() };
    let sync_sectors = sync_bytes(geometry) / SECTOR as u64;
    let head = choose(superblock.array_uuid_bytes(), sync_sectors, 8192, wishes);
    BitmapImage::new(head.expect("there is room"), dirty, SECTOR as u32).bytes().to_vec()
}

/// What each sector may read as before anything was written: the bytes of any of its copies.
fn first_values(options: &Options, members: &[SimMember]) -> Oracle {
    let shape = &options.shape;
    let values = (0..shape.array_bytes() / SECTOR as u64).map(|sector| {
        let (group, byte) = group_of(shape, sector * SECTOR as u64);
        let mut values: Vec<u64> = places(shape, byte)
            .into_iter()
            .map(|(slot, offset)| {
                let start = (DATA_OFFSET + offset) as usize;
                let image = members[group * shape.slots + slot].live();
                value_of(&image[start..start + SECTOR], sector)
            })
            .collect();
        values.dedup();
        values
    });
    Oracle::new(values)
}
