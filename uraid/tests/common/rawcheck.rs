//! An independent reader and judge of member files: it never calls the engine.
//!
//! It parses the few superblock fields it needs by itself, knows the layouts by its own formulas,
//! computes parity with byte loops, and so answers two questions about a set of member files:
//!
//! - are parity and mirrors consistent ([`RawSet::mismatches`]), and
//! - what are the array's bytes ([`RawSet::content`]).
//!
//! Nested arrays are followed downwards: the content of inner arrays is searched for a superblock
//! of an outer one. Whole members are read into memory, so it is meant for arrays of some hundred
//! MiB. It is itself checked against arrays made by the kernel in `rawcheck_golden.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SECTOR_BYTES: usize = 512;
/// "No position": a RAID member's superblock says all of it is in sync.
const IN_SYNC: u64 = u64::MAX;

/// The fields of a superblock, of version 1 or 0.90, that placement depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSuper {
    pub array_uuid: [u8; 16],
    pub level: i32,
    pub layout: u32,
    pub size_bytes: usize,
    pub chunk_bytes: usize,
    pub slot_count: usize,
    pub data_offset: usize,
    pub data_bytes: usize,
    pub dev_number: u32,
    pub events: u64,
    pub resync_sectors: u64,
    /// The slot this member fills, or nothing for a spare or a faulty one.
    pub slot: Option<usize>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Byte offsets at which a version-1 superblock may be: 1.2, 1.1, and 1.0 near the end.
fn candidate_offsets(image_len: usize) -> [usize; 3] {
    let end = (image_len / SECTOR_BYTES).saturating_sub(16) & !7;
    [4096, 0, end * SECTOR_BYTES]
}

impl RawSuper {
    /// Parses the superblock of a member image, if there is one.
    pub fn of(image: &[u8]) -> Option<Self> {
        let newer = candidate_offsets(image.len()).into_iter().find_map(|at| Self::at(image, at));
        newer.or_else(|| Self::old(image))
    }

    /// Version 0.90, as machines with the low byte first write it: 32-bit words, 64 to 128 KiB
    /// before the end.
    fn old(image: &[u8]) -> Option<Self> {
        const ALIGN: usize = 64 << 10;
        let at = (image.len() / ALIGN * ALIGN).checked_sub(ALIGN)?;
        let word = |index: usize| u32_at(image, at + 4 * index);
        if [word(0), word(1), word(2)] != [0xa92b_4efc, 0, 90] {
            return None;
        }
        let long = |index: usize| u64::from(word(index)) | u64::from(word(index + 1)) << 32;
        let mut array_uuid = [0; 16];
        for (part, index) in array_uuid.chunks_mut(4).zip([5, 13, 14, 15]) {
            part.copy_from_slice(&word(index).to_le_bytes());
        }
        let slot_count = word(10) as usize;
        // The descriptor of this member: number, major, minor, slot, state.
        let (dev_number, slot, is_in_sync) = (word(992), word(995) as usize, word(996) & 4 != 0);
        Some(Self {
            array_uuid,
            level: word(7) as i32,
            layout: word(64),
            size_bytes: word(8) as usize * 1024,
            chunk_bytes: word(65) as usize,
            slot_count,
            data_offset: 0,
            data_bytes: at,
            dev_number,
            events: long(39),
            resync_sectors: if word(33) & 1 != 0 { IN_SYNC } else { 0 },
            slot: (is_in_sync && slot < slot_count).then_some(slot),
        })
    }

    fn at(image: &[u8], at: usize) -> Option<Self> {
        let sb = image.get(at..at + 4096.min(image.len().checked_sub(at)?))?;
        if sb.len() < 512 || u32_at(sb, 0) != 0xa92b_4efc || u32_at(sb, 4) != 1 {
            return None;
        }
        if u64_at(sb, 144) as usize != at / SECTOR_BYTES {
            return None;
        }
        let dev_number = u32_at(sb, 160);
        let role_at = 256 + 2 * dev_number as usize;
        let role = if role_at + 2 <= sb.len() { u16_at(sb, role_at) } else { 0xffff };
        let slot_count = u32_at(sb, 92) as usize;
        Some(Self {
            array_uuid: sb[16..32].try_into().unwrap(),
            level: u32_at(sb, 72) as i32,
            layout: u32_at(sb, 76),
            size_bytes: u64_at(sb, 80) as usize * SECTOR_BYTES,
            chunk_bytes: u32_at(sb, 88) as usize * SECTOR_BYTES,
            slot_count,
            data_offset: u64_at(sb, 128) as usize * SECTOR_BYTES,
            data_bytes: u64_at(sb, 136) as usize * SECTOR_BYTES,
            dev_number,
            events: u64_at(sb, 200),
            resync_sectors: u64_at(sb, 208),
            slot: (usize::from(role) < slot_count).then_some(usize::from(role)),
        })
    }

    /// Whether the superblock says that the array was stopped cleanly.
    pub fn is_clean(&self) -> bool {
        self.resync_sectors == IN_SYNC
    }
}

/// One place where redundancy and data disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub array_uuid: [u8; 16],
    pub what: String,
}

/// One array: for each slot the data area of its member, or nothing when it is missing.
pub struct RawArray {
    sb: RawSuper,
    slots: Vec<Option<Vec<u8>>>,
    /// Usable bytes of each slot's member (they differ in RAID 0 only).
    member_bytes: Vec<usize>,
}

/// The outermost array, and every array checked on the way to it.
pub struct RawSet {
    outer: RawArray,
    inner: Vec<RawArray>,
}

impl RawSet {
    /// Reads the given member files. Files without a superblock are left out.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Self {
        let images = paths.iter().map(|path| {
            let path: PathBuf = path.as_ref().to_owned();
            fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        });
        Self::of_images(images.collect())
    }

    /// As [`RawSet::open`], of images in memory.
    pub fn of_images(images: Vec<Vec<u8>>) -> Self {
        let mut arrays = group(images);
        assert!(!arrays.is_empty(), "no member has a superblock");
        if arrays.len() == 1 && !holds_member(&arrays[0]) {
            return Self { outer: arrays.remove(0), inner: Vec::new() };
        }
        let contents = arrays.iter().map(RawArray::content).collect();
        let mut outer = group(contents);
        assert_eq!(outer.len(), 1, "inner arrays belong to one outer array");
        Self { outer: outer.remove(0), inner: arrays }
    }

    /// The array's bytes, regenerated where a member is missing.
    pub fn content(&self) -> Vec<u8> {
        self.outer.content()
    }

    /// Every disagreement between data and redundancy, at all levels.
    pub fn mismatches(&self) -> Vec<Mismatch> {
        let all = self.inner.iter().chain([&self.outer]);
        all.flat_map(RawArray::mismatches).collect()
    }

    /// The superblock of the outermost array.
    pub fn superblock(&self) -> &RawSuper {
        &self.outer.sb
    }
}

fn holds_member(array: &RawArray) -> bool {
    RawSuper::of(&array.content()).is_some_and(|sb| sb.level == 0 && sb.slot.is_some())
}

/// Sorts images into arrays by array UUID; the newest superblock speaks for each.
fn group(images: Vec<Vec<u8>>) -> Vec<RawArray> {
    let mut by_uuid: BTreeMap<[u8; 16], Vec<(RawSuper, Vec<u8>)>> = BTreeMap::new();
    for image in images {
        if let Some(sb) = RawSuper::of(&image) {
            by_uuid.entry(sb.array_uuid).or_default().push((sb, image));
        }
    }
    by_uuid.into_values().map(RawArray::of).collect()
}

impl RawArray {
    fn of(members: Vec<(RawSuper, Vec<u8>)>) -> Self {
        let newest = members.iter().map(|(sb, _)| sb).max_by_key(|sb| sb.events).unwrap().clone();
        let mut slots: Vec<Option<Vec<u8>>> = vec![None; newest.slot_count];
        let mut member_bytes = vec![newest.size_bytes; newest.slot_count];
        for (sb, image) in members {
            // A member that missed events is not part of the array any more.
            let Some(slot) = sb.slot.filter(|_| newest.events - sb.events <= 1) else { continue };
            let bytes =
                if matches!(newest.level, 0 | -1) { sb.data_bytes } else { newest.size_bytes };
            assert!(slots[slot].is_none(), "two members claim slot {slot}");
            slots[slot] = Some(image[sb.data_offset..sb.data_offset + bytes].to_vec());
            member_bytes[slot] = bytes;
        }
        Self { sb: newest, slots, member_bytes }
    }

    fn chunk(&self) -> usize {
        self.sb.chunk_bytes
    }

    fn n(&self) -> usize {
        self.sb.slot_count
    }

    fn content(&self) -> Vec<u8> {
        match self.sb.level {
            -1 => self.linear_content(),
            0 => self.striped_content(),
            1 => self.any_member(0..self.sb.size_bytes, |_| 0),
            4..=6 => self.parity_content(),
            10 => self.raid10_content(),
            other => panic!("level {other} is not known to the raw checker"),
        }
    }

    fn mismatches(&self) -> Vec<Mismatch> {
        let found = match self.sb.level {
            1 => self.mirror_mismatches(),
            4..=6 => self.parity_mismatches(),
            10 => self.raid10_mismatches(),
            _ => Vec::new(),
        };
        found.into_iter().map(|what| Mismatch { array_uuid: self.sb.array_uuid, what }).collect()
    }

    fn at(&self, slot: usize, offset: usize, len: usize) -> Option<&[u8]> {
        self.slots[slot].as_ref().map(|data| &data[offset..offset + len])
    }

    // Levels without redundancy.

    fn linear_content(&self) -> Vec<u8> {
        let part = |slot: usize| {
            let data = self.slots[slot].as_ref().expect("linear has no redundancy");
            let unit = self.chunk().max(SECTOR_BYTES);
            data[..data.len() / unit * unit].to_vec()
        };
        (0..self.n()).flat_map(part).collect()
    }

    /// RAID 0 in zones: while members last, stripes run over those that still have room.
    fn striped_content(&self) -> Vec<u8> {
        let chunk = self.chunk();
        let chunks: Vec<usize> = self.member_bytes.iter().map(|bytes| bytes / chunk).collect();
        let mut content = Vec::new();
        let (mut zone_start, mut row) = (0, 0);
        while let Some(end) = chunks.iter().copied().filter(|&count| count > row).min() {
            let zone: Vec<usize> = (0..self.n()).filter(|&slot| chunks[slot] > row).collect();
            for index in 0..(end - row) * zone.len() {
                // The first kernels rotated by the chunk number of the array, later ones by that of
                // the zone.
                let turn = if self.sb.layout == 2 { index } else { zone_start + index };
                let offset = (row + index / zone.len()) * chunk;
                let slot = zone[turn % zone.len()];
                content.extend(self.at(slot, offset, chunk).expect("RAID 0 has no redundancy"));
            }
            zone_start += (end - row) * zone.len();
            row = end;
        }
        // md cuts bits off a member's size where the chunk is no power of two: the array ends
        // there.
        let sectors = chunk / SECTOR_BYTES;
        let published = chunks.iter().map(|count| (count * sectors) & !(sectors - 1));
        content.truncate(published.sum::<usize>() * SECTOR_BYTES);
        content
    }

    // Mirrors.

    fn any_member(&self, range: std::ops::Range<usize>, first: impl Fn(usize) -> usize) -> Vec<u8> {
        let start = first(range.start);
        let slot = (start..self.n()).chain(0..start).find(|&slot| self.slots[slot].is_some());
        self.at(slot.expect("no mirror is left"), range.start, range.len()).unwrap().to_vec()
    }

    fn mirror_mismatches(&self) -> Vec<String> {
        let mut present = (0..self.n()).filter(|&slot| self.slots[slot].is_some());
        let Some(first) = present.next() else { return Vec::new() };
        let model = self.slots[first].as_ref().unwrap();
        let differs = |slot: &usize| self.slots[*slot].as_ref().unwrap() != model;
        present.filter(differs).map(|slot| format!("slots {first} and {slot} differ")).collect()
    }

    /// Where the copies of chunk `index` are in RAID 10: pairs of slot and byte offset.
    fn raid10_places(&self, index: usize) -> Vec<(usize, usize)> {
        let (n, chunk, layout) = (self.n(), self.chunk(), self.sb.layout);
        let (near, far) = ((layout & 0xff) as usize, (layout >> 8 & 0xff) as usize);
        let is_offset = layout & 1 << 16 != 0;
        assert_eq!(layout & 6 << 16, 0, "far sets are not known to the raw checker");
        let rows = self.sb.size_bytes / chunk;
        // A far copy is one chunk further (offset), or in the next 1/far of the member.
        let used_rows = (rows / far * n / near * near * far).div_ceil(n);
        let distance = if is_offset { chunk } else { used_rows / far * chunk };
        let mut places = Vec::new();
        for copy in 0..near {
            let position = index * near + copy;
            let row = position / n * if is_offset { far } else { 1 };
            for turn in 0..far {
                let slot = (position % n + turn * near) % n;
                places.push((slot, row * chunk + turn * distance));
            }
        }
        places
    }

    fn raid10_chunk_count(&self) -> usize {
        let (near, far) = (self.sb.layout & 0xff, self.sb.layout >> 8 & 0xff);
        self.sb.size_bytes / self.chunk() / far as usize * self.n() / near as usize
    }

    fn raid10_copies(&self, index: usize) -> Vec<(usize, &[u8])> {
        let places = self.raid10_places(index).into_iter();
        places.filter_map(|(slot, at)| Some((slot, self.at(slot, at, self.chunk())?))).collect()
    }

    fn raid10_content(&self) -> Vec<u8> {
        let copy = |index| self.raid10_copies(index).first().expect("no copy is left").1.to_vec();
        (0..self.raid10_chunk_count()).flat_map(copy).collect()
    }

    fn raid10_mismatches(&self) -> Vec<String> {
        let mut found = Vec::new();
        for index in 0..self.raid10_chunk_count() {
            let copies = self.raid10_copies(index);
            let Some((first, model)) = copies.first() else { continue };
            for (slot, data) in &copies[1..] {
                if data != model {
                    found.push(format!("chunk {index}: slots {first} and {slot} differ"));
                }
            }
        }
        found
    }

    // Parity.

    fn parity_count(&self) -> usize {
        if self.sb.level == 6 { 2 } else { 1 }
    }

    fn stripe(&self, index: usize) -> RawStripe {
        match self.sb.level {
            4 => RawStripe::raid4(self.n()),
            5 => RawStripe::raid5(self.n(), self.sb.layout, index),
            _ => RawStripe::raid6(self.n(), self.sb.layout, index),
        }
    }

    fn stripe_count(&self) -> usize {
        self.sb.size_bytes / self.chunk()
    }

    fn parity_content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        for index in 0..self.stripe_count() {
            let stripe = self.stripe(index);
            let mut chunks: Vec<Option<Vec<u8>>> = (0..self.n())
                .map(|slot| self.at(slot, index * self.chunk(), self.chunk()).map(<[u8]>::to_vec))
                .collect();
            stripe.regenerate(&mut chunks, self.chunk());
            for slot in &stripe.data {
                content.extend(chunks[*slot].as_ref().unwrap());
            }
        }
        assert_eq!(
            content.len(),
            self.stripe_count() * self.chunk() * (self.n() - self.parity_count())
        );
        content
    }

    fn parity_mismatches(&self) -> Vec<String> {
        let mut found = Vec::new();
        for index in 0..self.stripe_count() {
            let stripe = self.stripe(index);
            let chunk = |slot: usize| self.at(slot, index * self.chunk(), self.chunk());
            let data: Option<Vec<&[u8]>> = stripe.data.iter().map(|&slot| chunk(slot)).collect();
            let Some(data) = data else { continue };
            let p = xor(&data, self.chunk());
            if chunk(stripe.p).is_some_and(|on_disk| on_disk != p) {
                found.push(format!("stripe {index}: P on slot {} is wrong", stripe.p));
            }
            let Some(q_slot) = stripe.q else { continue };
            let q = syndrome(&data, &stripe.exponents, self.chunk());
            if chunk(q_slot).is_some_and(|on_disk| on_disk != q) {
                found.push(format!("stripe {index}: Q on slot {q_slot} is wrong"));
            }
        }
        found
    }
}

/// Who holds what in one stripe.
pub struct RawStripe {
    p: usize,
    q: Option<usize>,
    /// Slot of data chunk k.
    data: Vec<usize>,
    /// Exponent of 2 that data chunk k has in Q.
    exponents: Vec<usize>,
}

impl RawStripe {
    fn raid4(n: usize) -> Self {
        Self { p: n - 1, q: None, data: (0..n - 1).collect(), exponents: Vec::new() }
    }

    fn raid5(n: usize, layout: u32, index: usize) -> Self {
        let turn = index % n;
        let p = match layout {
            0 | 2 => n - 1 - turn,
            1 | 3 => turn,
            4 => 0,
            5 => n - 1,
            other => panic!("RAID 5 layout {other} is not known to the raw checker"),
        };
        let data = match layout {
            2 | 3 => (0..n - 1).map(|k| (p + 1 + k) % n).collect(),
            _ => (0..n).filter(|&slot| slot != p).collect(),
        };
        Self { p, q: None, data, exponents: Vec::new() }
    }

    fn raid6(n: usize, layout: u32, index: usize) -> Self {
        let turn = index % n;
        let (p, q) = match layout {
            0 | 2 => (n - 1 - turn, (n - turn) % n),
            1 | 3 => (turn, (turn + 1) % n),
            4 => (0, 1),
            5 => (n - 2, n - 1),
            // Q fixed on the last slot; the rest is RAID 5 over the others.
            16..=20 => {
                let inner = Self::raid5(n - 1, layout - 16, index);
                return Self::with_q(n, inner.p, n - 1, inner.data);
            }
            8..=10 => return Self::ddf(n, layout, index),
            other => panic!("RAID 6 layout {other} is not known to the raw checker"),
        };
        let data = match layout {
            2 | 3 => (0..n - 2).map(|k| (q + 1 + k) % n).collect(),
            _ => (0..n).filter(|&slot| slot != p && slot != q).collect(),
        };
        Self::with_q(n, p, q, data)
    }

    /// DDF's three. P goes round, upwards (8) or downwards (9 begins a step later), with Q behind
    /// it or, where the data continues (10), before it. The exponent of a slot is its number.
    fn ddf(n: usize, layout: u32, index: usize) -> Self {
        let p = match layout {
            8 => index % n,
            9 => n - 1 - (index + 1) % n,
            _ => n - 1 - index % n,
        };
        let q = if layout == 10 { (p + n - 1) % n } else { (p + 1) % n };
        let first = if layout == 10 { p + 1 } else { 0 };
        let slots = (first..first + n).map(|slot| slot % n);
        let data: Vec<usize> = slots.filter(|&slot| slot != p && slot != q).collect();
        Self { p, q: Some(q), exponents: data.clone(), data }
    }

    /// Exponents count data slots upwards from the one behind Q, whatever their order as data.
    fn with_q(n: usize, p: usize, q: usize, data: Vec<usize>) -> Self {
        let order: Vec<usize> =
            (1..=n).map(|step| (q + step) % n).filter(|&slot| slot != p && slot != q).collect();
        let exponent = |slot: &usize| order.iter().position(|other| other == slot).unwrap();
        let exponents = data.iter().map(exponent).collect();
        Self { p, q: Some(q), data, exponents }
    }

    /// Fills in missing data chunks (`None`) from what is there.
    fn regenerate(&self, chunks: &mut [Option<Vec<u8>>], len: usize) {
        let lost: Vec<usize> =
            (0..self.data.len()).filter(|&k| chunks[self.data[k]].is_none()).collect();
        match lost[..] {
            [] => {}
            [k] if chunks[self.p].is_some() => {
                let others =
                    self.data.iter().chain([&self.p]).filter(|slot| chunks[**slot].is_some());
                let sources: Vec<&[u8]> =
                    others.map(|slot| chunks[*slot].as_deref().unwrap()).collect();
                chunks[self.data[k]] = Some(xor(&sources, len));
            }
            [k] => {
                let rest = self.q_without(chunks, &[k], len);
                let over = products(inverse(power(self.exponents[k])));
                chunks[self.data[k]] = Some(rest.iter().map(|&q| over[usize::from(q)]).collect());
            }
            [x, y] => {
                let q = self.q_without(chunks, &[x, y], len);
                let present =
                    self.data.iter().chain([&self.p]).filter_map(|slot| chunks[*slot].as_deref());
                let p = xor(&present.collect::<Vec<_>>(), len);
                let (gx, gy) = (power(self.exponents[x]), power(self.exponents[y]));
                // p = x + y and q = gx x + gy y, so x = (q + gy p) / (gx + gy).
                let (by_gy, over) = (products(gy), products(inverse(gx ^ gy)));
                let solve = |(p, q): (&u8, &u8)| over[usize::from(q ^ by_gy[usize::from(*p)])];
                let first: Vec<u8> = p.iter().zip(&q).map(solve).collect();
                chunks[self.data[y]] = Some(xor(&[&p, &first], len));
                chunks[self.data[x]] = Some(first);
            }
            _ => panic!("{} data chunks of one stripe are lost", lost.len()),
        }
    }

    /// Q of the data chunks that are there, added to the Q on disk: what the lost ones contribute.
    fn q_without(&self, chunks: &[Option<Vec<u8>>], lost: &[usize], len: usize) -> Vec<u8> {
        let zeroes = vec![0; len];
        let of = |k: usize| chunks[self.data[k]].as_deref().unwrap_or(&zeroes);
        let data: Vec<&[u8]> = (0..self.data.len()).map(of).collect();
        let q = chunks[self.q.expect("too many members are missing")].as_deref();
        let q = q.unwrap_or_else(|| panic!("data chunks {lost:?} and Q are lost"));
        xor(&[q, &syndrome(&data, &self.exponents, len)], len)
    }
}

// Arithmetic over GF(2^8) with polynomial 0x11d, one byte at a time.

fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |value, _| multiply(value, 2))
}

fn inverse(value: u8) -> u8 {
    (1..=255).find(|&other| multiply(value, other) == 1).expect("zero has no inverse")
}

/// What each byte gives when multiplied by `factor`.
fn products(factor: u8) -> Vec<u8> {
    (0..=255).map(|byte| multiply(byte, factor)).collect()
}

fn xor(sources: &[&[u8]], len: usize) -> Vec<u8> {
    let mut sum = vec![0; len];
    for source in sources {
        sum.iter_mut().zip(*source).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

fn syndrome(data: &[&[u8]], exponents: &[usize], len: usize) -> Vec<u8> {
    let mut sum = vec![0; len];
    for (source, exponent) in data.iter().zip(exponents) {
        let products = products(power(*exponent));
        sum.iter_mut().zip(*source).for_each(|(sum, byte)| *sum ^= products[usize::from(*byte)]);
    }
    sum
}
