//! Goal: the geometry is md's. Method: take arrays that mdadm and the kernel made (`tests/golden`),
//! put their content together from the members' bytes by `place`, `copy` and `stripe` alone, and
//! compare it with the SHA-256 of what md itself gave back; then check every parity byte and every
//! mirror with plain byte loops that share nothing with the engine's kernels, and compute what each
//! tolerated loss would take away.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use raid_core::geometry::{ChunkKind, Geometry, GeometrySpec, Layout, Level, Place, Stripe};
use raid_core::slots::SlotSet;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// An array of the golden folder.
struct Golden {
    name: String,
    geometry: Geometry,
    /// The data area of each slot's member; empty for a slot that md counts as missing.
    slots: Vec<Vec<u8>>,
    missing: SlotSet,
    logical_bytes: u64,
    logical_sha256: String,
}

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn text<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a str> {
    value[key].as_str()
}

/// The value of `key : NUMBER sectors` in the part of `mdadm --examine` about one member.
fn examined_bytes(examine: &str, member: &str, key: &str) -> Option<u64> {
    let part = examine.split("### ").find(|part| part.lines().next() == Some(member))?;
    let line = part.lines().find(|line| line.trim().starts_with(key))?;
    let number = line.split(" : ").nth(1)?.split_whitespace().next()?;
    number.parse::<u64>().ok().map(|sectors| sectors * 512)
}

fn parse_size(size: &str) -> u64 {
    size.strip_suffix('K').and_then(|kib| kib.parse::<u64>().ok()).unwrap() * 1024
}

/// Slots that the newest member says are not active.
fn missing_slots(members: &[serde_json::Value]) -> SlotSet {
    let events =
        |member: &serde_json::Value| text(member, "events").unwrap().parse::<u64>().unwrap();
    let active = members.iter().filter(|m| text(m, "role").unwrap().starts_with("Active"));
    let newest = active.max_by_key(|member| events(member)).unwrap();
    let state = text(newest, "array_state").unwrap().split_whitespace().next().unwrap().to_owned();
    state.bytes().enumerate().filter(|(_, s)| *s != b'A').map(|(slot, _)| slot).collect()
}

impl Golden {
    fn load(folder: &Path) -> Self {
        let manifest = fs::read(folder.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let examine = fs::read_to_string(folder.join("examine.txt")).unwrap();
        let name = text(&manifest, "name").unwrap().to_owned();
        let level: Level = text(&manifest, "level").unwrap().parse().unwrap();
        let layout_name = text(&manifest, "layout").unwrap_or("default");
        // Far sets are in the number alone: mdadm has no words for them.
        let layout = match manifest["layout_number"].as_u64() {
            Some(number) => Layout::from_md(level, u32::try_from(number).unwrap()).unwrap(),
            None => Layout::parse(level, layout_name).unwrap(),
        };
        let slot_count: usize = text(&manifest, "raid_devices").unwrap().parse().unwrap();
        let members = manifest["members"].as_array().unwrap();
        let mut areas = vec![Vec::new(); slot_count];
        let mut sizes = vec![0; slot_count];
        let mut used_bytes = 0;
        for member in members {
            // Spares and journals hold nothing of the content.
            let role = text(member, "role").unwrap();
            let Some(slot) = role.strip_prefix("Active device ") else { continue };
            let slot: usize = slot.parse().unwrap();
            let file = text(member, "file").unwrap();
            let image = zstd::decode_all(fs::File::open(folder.join(file)).unwrap()).unwrap();
            let member_name = file.strip_suffix(".img.zst").unwrap();
            // 1.0 says nothing about the offset, since it is always 0.
            let offset = examined_bytes(&examine, member_name, "Data Offset").unwrap_or(0);
            let available = examined_bytes(&examine, member_name, "Avail Dev Size").unwrap();
            // mdadm prints the used size only where it differs.
            let used = examined_bytes(&examine, member_name, "Used Dev Size");
            used_bytes = used.filter(|&bytes| bytes > 0).unwrap_or(available);
            // RAID 1 has no chunk to round to: what mdadm chose is known from the superblock alone.
            sizes[slot] = if level == Level::Raid1 { used_bytes } else { available };
            let start = usize::try_from(offset).unwrap();
            areas[slot] = image[start..start + usize::try_from(sizes[slot]).unwrap()].to_vec();
        }
        let chunk_bytes = text(&manifest, "chunk").map_or(0, parse_size);
        let spec =
            GeometrySpec { level, layout, slot_count, chunk_bytes, member_data_bytes: &sizes };
        let geometry = Geometry::new(spec).unwrap();
        if !matches!(level, Level::Linear | Level::Raid0) {
            assert_eq!(geometry.component_bytes(), used_bytes, "{name}: size used of each member");
        }
        if layout_name != "default" {
            let printed = layout.to_string();
            let printed = printed.split(", far-sets").next().unwrap();
            assert_eq!(printed, layout_name, "{name}: name of the layout");
        }
        let missing = missing_slots(members);
        for slot in missing {
            areas[slot].clear();
        }
        let logical_bytes = manifest["logical_bytes"].as_u64().unwrap();
        let logical_sha256 = text(&manifest, "logical_sha256").unwrap().to_owned();
        Self { name, geometry, slots: areas, missing, logical_bytes, logical_sha256 }
    }

    fn bytes_at(&self, place: Place, len: usize) -> &[u8] {
        let start = usize::try_from(place.member_offset).unwrap();
        &self.slots[place.slot][start..start + len]
    }

    /// The part of the members that holds stripe `index`; empty where the slot is missing.
    fn stripe_chunks(&self, index: u64) -> Vec<&[u8]> {
        let start = usize::try_from(self.geometry.member_offset_of_stripe(index)).unwrap();
        let len = usize::try_from(self.geometry.chunk_bytes()).unwrap();
        let chunk = |area: &'_ Vec<u8>| start..(start + len).min(area.len());
        self.slots.iter().map(|a| if a.is_empty() { &a[..] } else { &a[chunk(a)] }).collect()
    }

    /// The array's content, from the first copy that is not missing; missing parity members are
    /// regenerated before.
    fn content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        let mut offset = 0;
        while offset < self.geometry.array_bytes() {
            let copies = (0..self.geometry.copy_count()).map(|c| self.geometry.copy(offset, c));
            let place = copies.into_iter().find(|p| !self.slots[p.slot].is_empty()).unwrap();
            assert!(place.contiguous_bytes > 0);
            let len = place.contiguous_bytes.min(self.geometry.array_bytes() - offset);
            content.extend_from_slice(self.bytes_at(place, usize::try_from(len).unwrap()));
            offset += len;
        }
        content
    }
}

/// GF(2^8) over x^8 + x^4 + x^3 + x^2 + 1, by the schoolbook.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

fn power_of_two(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| multiply(power, 2))
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| multiply(a, b) == 1).unwrap()
}

/// What a factor makes of every byte.
fn table(factor: u8) -> Vec<u8> {
    (0..=255).map(|byte| multiply(factor, byte)).collect()
}

/// P and Q over the data chunks that are there.
fn syndrome(stripe: &Stripe, chunks: &[&[u8]], len: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for k in 0..stripe.data_count() {
        assert!(stripe.syndrome_index(k) < stripe.syndrome_width());
        let times = table(power_of_two(stripe.syndrome_index(k)));
        let data = chunks[stripe.data_slot(k)];
        for (i, byte) in data.iter().enumerate() {
            p[i] ^= byte;
            q[i] ^= times[usize::from(*byte)];
        }
    }
    (p, q)
}

/// The lost data chunks of a stripe, of which `chunks` holds the rest; lost slots are empty slices.
fn lost_data(stripe: &Stripe, chunks: &[&[u8]], len: usize) -> Vec<(usize, Vec<u8>)> {
    let lost: Vec<usize> =
        (0..stripe.data_count()).filter(|&k| chunks[stripe.data_slot(k)].is_empty()).collect();
    let (p_rest, q_rest) = syndrome(stripe, chunks, len);
    let stored = |slot: Option<usize>| slot.map(|s| chunks[s]).filter(|chunk| !chunk.is_empty());
    let difference = |rest: &[u8], stored: &[u8]| -> Vec<u8> {
        rest.iter().zip(stored).map(|(a, b)| a ^ b).collect()
    };
    let factor = |k: usize| power_of_two(stripe.syndrome_index(k));
    match (lost[..].as_ref(), stored(stripe.p), stored(stripe.q)) {
        ([], _, _) => Vec::new(),
        (&[a], Some(p), _) => vec![(a, difference(&p_rest, p))],
        (&[a], None, Some(q)) => {
            let divide = table(inverse(factor(a)));
            let bytes = difference(&q_rest, q);
            vec![(a, bytes.iter().map(|&byte| divide[usize::from(byte)]).collect())]
        }
        (&[a, b], Some(p), Some(q)) => {
            // a + b = dp and fa a + fb b = dq, so a = (dq + fb dp) / (fa + fb).
            let (dp, dq) = (difference(&p_rest, p), difference(&q_rest, q));
            let times_b = table(factor(b));
            let divide = table(inverse(factor(a) ^ factor(b)));
            let solve = |(dp, dq): (&u8, &u8)| divide[usize::from(dq ^ times_b[usize::from(*dp)])];
            let bytes_a: Vec<u8> = dp.iter().zip(&dq).map(solve).collect();
            let bytes_b = difference(&bytes_a, &dp);
            vec![(a, bytes_a), (b, bytes_b)]
        }
        (lost, ..) => panic!("{} data chunks lost", lost.len()),
    }
}

fn goldens() -> Vec<PathBuf> {
    let entries = fs::read_dir(golden_folder()).unwrap().map(|entry| entry.unwrap().path());
    let is_whole = |path: &PathBuf| {
        // Cut off in the middle of something, several arrays, or without what is asked of it here.
        let others = ["dirty-", "-mid", "raid50", "-v0.90", "-missing"];
        let name = path.file_name().unwrap().to_str().unwrap();
        path.is_dir() && !others.iter().any(|word| name.contains(word))
    };
    let mut folders: Vec<PathBuf> = entries.filter(is_whole).collect();
    folders.sort();
    folders
}

fn parity_goldens() -> impl Iterator<Item = Golden> {
    goldens()
        .into_iter()
        .map(|folder| Golden::load(&folder))
        .filter(|golden| golden.geometry.parity_count() > 0)
}

// The array is read as md reads it, lost members included.
#[test]
fn content_is_what_md_read() {
    let mut levels = BTreeSet::new();
    for folder in goldens() {
        let mut golden = Golden::load(&folder);
        let name = golden.name.clone();
        assert_eq!(golden.geometry.array_bytes(), golden.logical_bytes, "{name}: array size");
        assert!(golden.geometry.tolerates(&golden.missing), "{name}: {:?}", golden.missing);
        if golden.geometry.parity_count() > 0 && !golden.missing.is_empty() {
            regenerate_missing(&mut golden);
        }
        let sha256 = format!("{:x}", Sha256::digest(golden.content()));
        assert_eq!(sha256, golden.logical_sha256, "{name}: content");
        levels.insert(golden.geometry.level());
    }
    assert_eq!(levels.len(), Level::ALL.len(), "levels with a golden array: {levels:?}");
}

fn regenerate_missing(golden: &mut Golden) {
    let chunk_bytes = usize::try_from(golden.geometry.chunk_bytes()).unwrap();
    let component = usize::try_from(golden.geometry.component_bytes()).unwrap();
    let mut regenerated = vec![vec![0; component]; golden.slots.len()];
    for index in 0..golden.geometry.stripe_count() {
        let stripe = golden.geometry.stripe(index);
        let start = usize::try_from(golden.geometry.member_offset_of_stripe(index)).unwrap();
        for (k, bytes) in lost_data(&stripe, &golden.stripe_chunks(index), chunk_bytes) {
            regenerated[stripe.data_slot(k)][start..start + chunk_bytes].copy_from_slice(&bytes);
        }
    }
    for slot in golden.missing {
        golden.slots[slot] = std::mem::take(&mut regenerated[slot]);
    }
}

// Every stripe has the P and the Q that md wrote.
#[test]
fn every_parity_byte_is_what_md_wrote() {
    let mut layouts = BTreeSet::new();
    for golden in parity_goldens().filter(|golden| golden.missing.is_empty()) {
        let chunk_bytes = usize::try_from(golden.geometry.chunk_bytes()).unwrap();
        for index in 0..golden.geometry.stripe_count() {
            let stripe = golden.geometry.stripe(index);
            let chunks = golden.stripe_chunks(index);
            let (p, q) = syndrome(&stripe, &chunks, chunk_bytes);
            assert!(chunks[stripe.p.unwrap()] == p, "{}: P of stripe {index}", golden.name);
            if let Some(slot) = stripe.q {
                assert!(chunks[slot] == q, "{}: Q of stripe {index}", golden.name);
            }
        }
        layouts.insert((golden.geometry.level(), golden.geometry.layout().to_md()));
    }
    // RAID 4, six of RAID 5, fourteen of RAID 6.
    assert_eq!(layouts.len(), 1 + 6 + 14, "layouts with a golden array: {layouts:?}");
}

// For every slot, and every pair of slots on RAID 6: what the others say is what the lost members
// held. A few bytes at both ends of each chunk do, since the test above has looked at all of them.
#[test]
fn every_tolerated_loss_can_be_computed() {
    const SAMPLE_BYTES: usize = 24;
    for golden in parity_goldens().filter(|golden| golden.missing.is_empty()) {
        let slot_count = golden.geometry.slot_count();
        let pair_end = if golden.geometry.parity_count() == 2 { slot_count } else { 0 };
        for first in 0..slot_count {
            for second in std::iter::once(first).chain(first + 1..pair_end) {
                let lost: SlotSet = [first, second].into_iter().collect();
                assert!(golden.geometry.tolerates(&lost), "{}: {lost:?}", golden.name);
                for index in 0..golden.geometry.stripe_count() {
                    check_loss(&golden, index, lost, SAMPLE_BYTES);
                }
            }
        }
    }
}

fn check_loss(golden: &Golden, index: u64, lost: SlotSet, sample_bytes: usize) {
    let stripe = golden.geometry.stripe(index);
    let whole = golden.stripe_chunks(index);
    let end = whole[0].len();
    for range in [0..sample_bytes, end - sample_bytes..end] {
        let sample = |(slot, chunk): (usize, &&'_ [u8])| {
            if lost.contains(slot) { Vec::new() } else { chunk[range.clone()].to_vec() }
        };
        let rest: Vec<Vec<u8>> = whole.iter().enumerate().map(sample).collect();
        let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
        let found = lost_data(&stripe, &rest, sample_bytes);
        let lost_data_count =
            lost.iter().filter(|&slot| matches!(stripe.kind_of(slot), ChunkKind::Data(_))).count();
        assert_eq!(found.len(), lost_data_count);
        for (k, bytes) in found {
            let expected = &whole[stripe.data_slot(k)][range.clone()];
            assert!(bytes == expected, "{}: stripe {index} without {lost:?}", golden.name);
        }
    }
}

// All copies of every chunk are equal, and on slots of their own.
#[test]
fn every_mirror_is_equal() {
    for folder in goldens() {
        let golden = Golden::load(&folder);
        let geometry = &golden.geometry;
        if geometry.copy_count() == 1 || !golden.missing.is_empty() {
            continue;
        }
        let mut offset = 0;
        while offset < geometry.array_bytes() {
            let first = geometry.place(offset);
            let len = usize::try_from(first.contiguous_bytes).unwrap();
            let mut slots = SlotSet::one(first.slot);
            for copy in 1..geometry.copy_count() {
                let place = geometry.copy(offset, copy);
                assert!(slots.insert(place.slot), "{}: two copies on a slot", golden.name);
                let is_equal = golden.bytes_at(first, len) == golden.bytes_at(place, len);
                assert!(is_equal, "{}: copy {copy} of byte {offset}", golden.name);
            }
            offset += first.contiguous_bytes;
        }
    }
}

// Going through the members instead of the array gives the same content: `logical_of` is the
// inverse on real arrays.
#[test]
fn members_say_where_their_bytes_belong() {
    for folder in goldens() {
        let golden = Golden::load(&folder);
        if !golden.missing.is_empty() {
            continue;
        }
        let content = golden.content();
        let mut seen = vec![0usize; content.len() / 512];
        for (slot, area) in golden.slots.iter().enumerate() {
            for (sector, bytes) in area.chunks_exact(512).enumerate() {
                let Some(logical) = golden.geometry.logical_of(slot, sector as u64 * 512) else {
                    continue;
                };
                let start = usize::try_from(logical.offset).unwrap();
                assert!(&content[start..start + 512] == bytes, "{}: slot {slot}", golden.name);
                seen[start / 512] += 1;
            }
        }
        let copies = golden.geometry.copy_count();
        assert!(seen.iter().all(|&count| count == copies), "{}: copies found", golden.name);
    }
}
