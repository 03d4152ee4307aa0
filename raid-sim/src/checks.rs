//! Where md puts bytes, and what parity is, written once more from the definitions: nothing here
//! uses the engine. Sources: md(4), the kernel's documentation of the layouts, H. P. Anvin's
//! "The mathematics of RAID-6".

use raid_core::geometry::Level;

use crate::options::{DATA_OFFSET, OUTER_OFFSET, Shape};
use crate::workload::{SECTOR, value_of};

/// Where a group's byte is: the slot, and the offset from the member's data offset.
pub(crate) type At = (usize, u64);

/// What one stripe of a parity level is made of.
#[derive(Clone, Debug)]
pub(crate) struct Stripe {
    /// Slot of each data chunk.
    pub(crate) data: Vec<usize>,
    pub(crate) p: usize,
    pub(crate) q: Option<usize>,
}

/// The stripe `index` of a level with parity.
pub(crate) fn stripe(shape: &Shape, index: u64) -> Stripe {
    let n = shape.slots;
    let turn = (index % n as u64) as usize;
    let (left, right) = (n - 1 - turn, turn);
    let name = shape.layout_name;
    let parities = if shape.level == Level::Raid6 { 2 } else { 1 };
    let count = n - parities;
    let p = match name {
        "parity-first" => 0,
        "parity-last" | "" => n - 1,
        name if name.starts_with("left") => left,
        _ => right,
    };
    let q = (parities == 2).then(|| (p + 1) % n);
    let after = (p + parities) % n;
    let data = if name.ends_with("-symmetric") {
        (0..count).map(|k| (after + k) % n).collect()
    } else {
        // In the order of the slots, past the parities.
        (0..n).filter(|&slot| slot != p && Some(slot) != q).collect()
    };
    Stripe { data, p, q }
}

/// The coefficient's exponent of a data slot in Q: its place in turn behind Q, data slots alone.
fn exponent(stripe: &Stripe, slot: usize, n: usize) -> usize {
    let q = stripe.q.unwrap_or(0);
    let turn = |slot: usize| (slot + n - q - 1) % n;
    stripe.data.iter().filter(|&&other| turn(other) < turn(slot)).count()
}

/// The group and the byte within it of an array byte.
pub(crate) fn group_of(shape: &Shape, byte: u64) -> (usize, u64) {
    if shape.groups == 1 {
        return (0, byte);
    }
    let (chunk, within) = (byte / shape.chunk, byte % shape.chunk);
    let groups = shape.groups as u64;
    ((chunk % groups) as usize, OUTER_OFFSET + chunk / groups * shape.chunk + within)
}

/// Every place of a group's byte: one, or one for each copy.
pub(crate) fn places(shape: &Shape, byte: u64) -> Vec<At> {
    let n = shape.slots as u64;
    let chunk_bytes = shape.chunk;
    let (chunk, within) = (byte / chunk_bytes, byte % chunk_bytes);
    let number = |prefix: &str| shape.layout_name.strip_prefix(prefix)?.parse::<u64>().ok();
    match shape.level {
        Level::Raid0 => vec![((chunk % n) as usize, chunk / n * chunk_bytes + within)],
        Level::Raid1 => (0..shape.slots).map(|slot| (slot, byte)).collect(),
        Level::Raid10 => {
            let at = |slot: u64, row: u64| (slot as usize, row * chunk_bytes + within);
            if let Some(near) = number("near=") {
                let copy = |i| at((chunk * near + i) % n, (chunk * near + i) / n);
                return (0..near).map(copy).collect();
            }
            if let Some(far) = number("far=") {
                let stride = shape.component / chunk_bytes / far;
                let copy = |i| at((chunk + i) % n, chunk / n + i * stride);
                return (0..far).map(copy).collect();
            }
            let copies = number("offset=").unwrap_or(1);
            let copy = |i| at((chunk + i) % n, chunk / n * copies + i);
            (0..copies).map(copy).collect()
        }
        _ => {
            let count = stripe(shape, 0).data.len() as u64;
            let slot = stripe(shape, chunk / count).data[(chunk % count) as usize];
            vec![(slot, chunk / count * chunk_bytes + within)]
        }
    }
}

/// The row of a group's sector: what a write of that sector can touch together with others of the
/// same number. A row is `block` bytes high in one stripe; for levels without parity it is the
/// sector itself.
pub(crate) fn row(shape: &Shape, byte: u64, block: u64) -> u64 {
    match shape.level {
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            let (_, at) = places(shape, byte)[0];
            at / block
        }
        _ => byte / block,
    }
}

/// Bytes of the member's data area.
fn data(image: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = (DATA_OFFSET + offset) as usize;
    &image[start..start + len]
}

/// Multiplies in GF(2^8) over 0x11d, bit by bit.
const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product, mut bit) = (a, 0, 0);
    while bit < 8 {
        if b >> bit & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        bit += 1;
    }
    product
}

/// Products of every byte with the first powers of 2, as there are many rows to check.
static PRODUCTS: [[u8; 256]; 8] = {
    let mut products = [[0; 256]; 8];
    let (mut exponent, mut power) = (0, 1);
    while exponent < 8 {
        let mut byte = 0;
        while byte < 256 {
            products[exponent][byte] = multiply(byte as u8, power);
            byte += 1;
        }
        power = multiply(power, 2);
        exponent += 1;
    }
    products
};

/// Checks P and Q of one 512-byte row of one group: the images are by slot, `None` where nothing is
/// known. Rows with a missing slot are left to the degraded reads.
fn check_row(shape: &Shape, images: &[Option<&[u8]>], offset: u64) -> Result<(), String> {
    let stripe = stripe(shape, offset / shape.chunk);
    let mut p = [0; SECTOR];
    let mut q = [0; SECTOR];
    for &slot in &stripe.data {
        let Some(image) = images[slot] else { return Ok(()) };
        let product = &PRODUCTS[exponent(&stripe, slot, shape.slots)];
        for (at, &byte) in data(image, offset, SECTOR).iter().enumerate() {
            p[at] ^= byte;
            q[at] ^= product[usize::from(byte)];
        }
    }
    for (name, slot, expected) in [("P", Some(stripe.p), &p), ("Q", stripe.q, &q)] {
        let Some(image) = slot.and_then(|slot| images[slot]) else { continue };
        if data(image, offset, SECTOR) != expected {
            let index = offset / shape.chunk;
            return Err(format!(
                "{name} of stripe {index}, slot {}, member byte {offset} is wrong",
                slot.unwrap_or(0)
            ));
        }
    }
    Ok(())
}

/// Checks the redundancy of one group on raw images. `exempt` tells which rows may be wrong.
pub(crate) fn check_parity(
    shape: &Shape,
    images: &[Option<&[u8]>],
    exempt: &dyn Fn(u64) -> bool,
) -> Result<(), String> {
    if !matches!(shape.level, Level::Raid4 | Level::Raid5 | Level::Raid6) {
        return Ok(());
    }
    for offset in (0..shape.component).step_by(SECTOR) {
        if !exempt(offset) {
            check_row(shape, images, offset)?;
        }
    }
    Ok(())
}

/// Checks that each place of an array sector has `value`.
pub(crate) fn check_sector(
    shape: &Shape,
    images: &[Option<&[u8]>],
    sector: u64,
    value: u64,
) -> Result<(), String> {
    let (group, byte) = group_of(shape, sector * SECTOR as u64);
    for (slot, offset) in places(shape, byte) {
        let Some(image) = images[group * shape.slots + slot] else { continue };
        let found = value_of(data(image, offset, SECTOR), sector);
        if found != value {
            return Err(format!(
                "sector {sector} on group {group} slot {slot} is {}, read as {}",
                crate::workload::describe(found),
                crate::workload::describe(value)
            ));
        }
    }
    Ok(())
}

/// What a superblock of version 1.2 on an image says of dirt, and of the member with a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSuperblock {
    pub(crate) events: u64,
    /// `resync_offset`: 0 while writes may be under way.
    pub(crate) resync_offset: u64,
}

fn word(image: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&image[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// Reads a superblock without a parser: fixed places of the format.
pub(crate) fn raw_superblock(image: &[u8]) -> RawSuperblock {
    RawSuperblock { events: word(image, 4096 + 200), resync_offset: word(image, 4096 + 208) }
}

/// The stored role of a member number: 0xfffe is faulty.
pub(crate) fn raw_role(image: &[u8], number: usize) -> u16 {
    let at = 4096 + 256 + 2 * number;
    u16::from_le_bytes([image[at], image[at + 1]])
}

/// Whether the bitmap on an image has the bits of all these bitmap addresses.
pub(crate) fn raw_bits(image: &[u8], granule: u64, start: u64, len: u64) -> bool {
    let (first, last) = (start / granule, (start + len - 1) / granule);
    (first..=last).all(|bit| image[8192 + 256 + (bit / 8) as usize] >> (bit % 8) & 1 != 0)
}
