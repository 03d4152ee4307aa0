//! Partial parity logs that Linux md wrote, of arrays that were stopped and of one whose machine
//! was killed; the recovery done on its members, and bytes that nobody should write.

use raid_core::geometry::Geometry;
use raid_core::md::assemble::{Abilities, AssembleOptions, Consistency};
use raid_core::md::ppl::{
    Entry, HEADER_BYTES, Header, PplError, Recovery, is_clean_after, newest, partial_checksum,
    recover, signature,
};
use raid_core::md::{AssembleError, Superblock, assemble, fuzz};
use raid_core::slots::SlotSet;
use sha2::{Digest, Sha256};

use crate::assemble::{READ_ONLY, READ_WRITE};
use crate::bitmap::geometry_of;
use crate::images::{self, Image, Members};

/// Everything of a member that matters here.
struct Member {
    superblock: Superblock,
    area: Vec<u8>,
    data: Vec<u8>,
}

fn load(image: &Image) -> Vec<Member> {
    (0..image.members.len())
        .map(|index| {
            let superblock = image.members[index].decode().unwrap();
            let whole = image.whole(index);
            let (ppl, data) = (superblock.ppl_bytes().unwrap(), superblock.data_bytes());
            Member {
                area: whole[ppl.start as usize..ppl.end as usize].to_vec(),
                data: whole[data.start as usize..data.end as usize].to_vec(),
                superblock,
            }
        })
        .collect()
}

fn seed(members: &[Member]) -> u32 {
    signature(&members[0].superblock.array_uuid_bytes())
}

/// What the logs of all members say, in the order of the slots.
fn recover_all(
    members: &[Member],
    geometry: &Geometry,
    present: &SlotSet,
) -> Vec<Result<Recovery, PplError>> {
    let seed = seed(members);
    let one = |(slot, member): (usize, &Member)| {
        newest(&member.area, seed).map(|log| recover(&log, &member.area, geometry, slot, present))
    };
    members.iter().enumerate().filter(|(slot, _)| present.contains(*slot)).map(one).collect()
}

/// Does what a recovery says.
fn execute(members: &mut [Member], recovery: &Recovery) {
    for fix in &recovery.fixes {
        for byte in 0..fix.len as usize {
            let at = fix.offset as usize + byte;
            let reads = fix.reads.iter().fold(0, |sum, &slot| sum ^ members[slot].data[at]);
            let partial = fix
                .partial
                .as_ref()
                .map_or(0, |range| members[fix.parity_slot].area[range.start + byte]);
            members[fix.parity_slot].data[at] = reads ^ partial;
        }
    }
}

fn mismatch_count(members: &[Member]) -> usize {
    let len = members[0].data.len();
    (0..len).filter(|&at| members.iter().fold(0, |sum, member| sum ^ member.data[at]) != 0).count()
}

fn logical(members: &[Member], geometry: &Geometry) -> Vec<u8> {
    let mut content = Vec::new();
    while (content.len() as u64) < geometry.array_bytes() {
        let place = geometry.place(content.len() as u64);
        let start = place.member_offset as usize;
        let data = &members[place.slot].data[start..start + place.contiguous_bytes as usize];
        content.extend_from_slice(data);
    }
    content
}

/// The array whose machine was killed: recovery makes every parity right, and the content is what
/// the kernel's own recovery made of it.
#[test]
fn after_a_crash() {
    let image = images::named("dirty-raid5-n3-ppl-v1.2");
    let candidates = Members::of(&image);
    let error = assemble(&candidates.candidates(), READ_WRITE).unwrap_err();
    assert!(matches!(error, AssembleError::Unsupported { can_read: false, .. }), "{error:?}");
    let options = AssembleOptions { abilities: Abilities::ALL, ..READ_WRITE };
    let assembly = assemble(&candidates.candidates(), options).unwrap();
    assert_eq!((assembly.consistency, assembly.resynced_bytes), (Consistency::Ppl, Some(0)));

    let mut members = load(&image);
    let geometry = geometry_of(&members[0].superblock);
    let present = geometry.slots();
    let recoveries = recover_all(&members, &geometry, &present);
    assert!(is_clean_after(&recoveries, false));
    assert!(!is_clean_after(&recoveries, true));
    let fixes: usize = recoveries.iter().flatten().map(|recovery| recovery.fixes.len()).sum();
    assert!(fixes >= 4, "{recoveries:?}");
    for recovery in recoveries.iter().flatten() {
        assert!(recovery.damage.is_empty() && recovery.mismatch_count == 0);
        execute(&mut members, recovery);
    }
    assert_eq!(mismatch_count(&members), 0);
    let manifest: serde_json::Value = serde_json::from_str(&image.text("manifest.json")).unwrap();
    let sha256 = format!("{:x}", Sha256::digest(logical(&members, &geometry)));
    assert_eq!(sha256, manifest["after_recovery"]["logical_sha256"].as_str().unwrap());
    // Twice is the same.
    for recovery in recoveries.iter().flatten() {
        execute(&mut members, recovery);
    }
    assert_eq!(mismatch_count(&members), 0);
}

/// Dirty, and a member is missing: writing goes on, and what is lost is named; read-only access
/// would have to write first, so it needs force.
#[test]
fn degraded() {
    let image = images::named("dirty-raid5-n3-ppl-v1.2");
    let members = load(&image);
    let geometry = geometry_of(&members[0].superblock);
    let mut damage = 0;
    for missing in 0..3 {
        let mut candidates = Members::of(&image);
        drop(candidates.0.remove(missing));
        let options = AssembleOptions { abilities: Abilities::ALL, ..READ_WRITE };
        assemble(&candidates.candidates(), options).unwrap();
        let options = AssembleOptions { abilities: Abilities::ALL, ..READ_ONLY };
        let error = assemble(&candidates.candidates(), options).unwrap_err();
        assert!(matches!(error, AssembleError::DirtyDegraded { .. }), "{error:?}");
        let mut present = geometry.slots();
        present.remove(missing);
        for recovery in recover_all(&members, &geometry, &present).iter().flatten() {
            assert!(recovery.fixes.iter().all(|fix| !fix.reads.contains(&missing)));
            assert!(recovery.damage.iter().all(|damage| damage.slot == missing));
            damage += recovery.damage.len();
        }
    }
    assert!(damage > 0);
}

/// The logs of an array that was stopped: the header of each is valid and encodes to the same
/// bytes.
#[test]
fn same_bytes() {
    for name in ["raid5-n4-ppl-v1.2", "dirty-raid5-n3-ppl-v1.2"] {
        let members = load(&images::named(name));
        let seed = seed(&members);
        for member in &members {
            let mut at = 0;
            let mut count = 0;
            while let Ok(header) = Header::decode(&member.area[at..], seed) {
                assert!(header.encode(seed)[..] == member.area[at..at + HEADER_BYTES], "{name}");
                let partial: u32 = header.entries.iter().map(|entry| entry.partial_bytes).sum();
                at += HEADER_BYTES + partial as usize;
                count += 1;
            }
            assert!(count > 0, "{name}");
            // The last one in this golden area is the newest, as generations count up.
            let log = newest(&member.area, seed).unwrap();
            assert!(log.offset < at);
        }
        assert_eq!(Header::decode(&Header::empty().encode(seed), seed), Ok(Header::empty()));
    }
}

/// Every shape of entry on a small array, against a model that knows which bytes were written.
#[test]
fn shapes() {
    let image = images::named("raid5-n4-ppl-v1.2");
    let superblock = image.members[0].decode().unwrap();
    let geometry = geometry_of(&superblock);
    let (chunk, stripe) = (geometry.chunk_bytes(), 5);
    let parity_slot = geometry.stripe(stripe).p.unwrap();
    let base = geometry.member_offset_of_stripe(stripe);
    let array = stripe * chunk * 3;
    let slot = |k| geometry.stripe(stripe).data_slot(k);
    // Array offset in the stripe, partial bytes, data bytes; rows (from, len) with the chunks read.
    type Case = (u64, u64, u64, Option<Vec<(u64, u64, Vec<usize>)>>);
    let cases: Vec<Case> = vec![
        (0, 4096, 4096, Some(vec![(0, 4096, vec![0])])),
        (chunk + 512, 1024, 2048, Some(vec![(512, 1024, vec![1, 2])])),
        (4096, 0, 3 * 8192, Some(vec![(4096, 8192, vec![0, 1, 2])])),
        (0, 0, 3 * chunk, Some(vec![(0, chunk, vec![0, 1, 2])])),
        (0, chunk, 2 * chunk, Some(vec![(0, chunk, vec![0, 1])])),
        (2 * chunk, chunk, chunk, Some(vec![(0, chunk, vec![2])])),
        // From the end of one chunk to the start of the next.
        (chunk - 4096, chunk, 8192, Some(vec![(0, 4096, vec![1]), (chunk - 4096, 4096, vec![0])])),
        (
            chunk - 4096,
            chunk,
            chunk + 4096,
            Some(vec![(0, chunk - 4096, vec![1]), (chunk - 4096, 4096, vec![0, 1])]),
        ),
        // Out of the stripe, no whole sectors, nothing at all.
        (2 * chunk, 4096, 8192, None),
        (chunk - 4096, 8192, 8192, None),
        (chunk, 0, 3 * 4096, None),
        (0, 0, 4096, None),
        (0, 4096, 6144, None),
        (0, 100, 100, None),
        (0, 4096, 0, None),
        (0, 2 * chunk, 2 * chunk, None),
        (2 * chunk + 4096, chunk, chunk, None),
    ];
    for (offset, partial, data, expected) in cases {
        let mut area = vec![0; HEADER_BYTES + partial as usize];
        let checksum = partial_checksum(&area[HEADER_BYTES..]);
        let entry = Entry {
            data_sector: (array + offset) / 512,
            partial_bytes: partial as u32,
            data_bytes: data as u32,
            parity_slot: parity_slot as u32,
            checksum,
        };
        let header = Header { generation: 1, entries: vec![entry] };
        area[..HEADER_BYTES].copy_from_slice(&header.encode(9));
        let log = newest(&area, 9).unwrap();
        let recovery = recover(&log, &area, &geometry, parity_slot, &geometry.slots());
        let context = format!("{offset} {partial} {data}: {recovery:?}");
        let Some(expected) = expected else {
            assert_eq!((recovery.fixes.len(), recovery.mismatch_count), (0, 1), "{context}");
            continue;
        };
        let mut fixes: Vec<_> = recovery
            .fixes
            .iter()
            .map(|fix| (fix.offset - base, fix.len, fix.reads.clone()))
            .collect();
        fixes.sort();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(from, len, chunks)| {
                (from, len, chunks.into_iter().map(slot).collect::<Vec<usize>>())
            })
            .collect();
        assert_eq!(fixes, expected, "{context}");
        for fix in &recovery.fixes {
            assert_eq!(fix.partial.is_some(), partial > 0);
            assert!(fix.partial.as_ref().is_none_or(|range| range.end <= area.len()));
        }
        // Of another member's parity it is not.
        let other = recover(&log, &area, &geometry, slot(0), &geometry.slots());
        assert_eq!((other.fixes.len(), other.mismatch_count), (0, 1));
    }
}

/// Which log is the newest: generations must not fall, and a torn one ends the row.
#[test]
fn which_is_newest() {
    let log = |generation| Header { generation, entries: vec![] }.encode(3);
    let area = |generations: &[u64]| {
        generations
            .iter()
            .flat_map(|&generation| log(generation))
            .chain([0; 4096])
            .collect::<Vec<u8>>()
    };
    let offset = |area: &[u8]| newest(area, 3).map(|log| log.offset / HEADER_BYTES);
    assert_eq!(offset(&area(&[5, 6, 7, 4])), Ok(2));
    assert_eq!(offset(&area(&[5, 5, 4, 9])), Ok(1));
    assert!(matches!(offset(&area(&[])), Err(PplError::Checksum { .. })));
    assert!(matches!(newest(&area(&[5]), 4), Err(PplError::Signature { .. })));
    assert!(matches!(offset(&[]), Err(PplError::TooShort { len: 0 })));
    let mut torn = area(&[5, 6]);
    torn[4096 + 100] ^= 1;
    assert_eq!(offset(&torn), Ok(0));
}

/// Every word of a header at the ends of its range, with the checksum right, and every bit flipped.
#[test]
fn malformed() {
    let members = load(&images::named("dirty-raid5-n3-ppl-v1.2"));
    let (geometry, seed) = (geometry_of(&members[0].superblock), seed(&members));
    let log = newest(&members[2].area, seed).unwrap();
    let area = &members[2].area[log.offset..log.offset + 64 * 1024];
    let check = |area: &[u8]| {
        fuzz::fuzz_ppl(area);
        let Ok(log) = newest(area, seed) else { return };
        let recovery = recover(&log, area, &geometry, 2, &geometry.slots());
        for fix in &recovery.fixes {
            assert!(fix.offset + fix.len <= geometry.component_bytes());
            assert!(fix.partial.as_ref().is_none_or(|range| range.end <= area.len()));
            assert!(!fix.reads.contains(&fix.parity_slot) && !fix.reads.is_empty());
        }
    };
    let mut noise = images::Noise(4);
    for offset in (512..536 + 48).step_by(4) {
        let ends =
            [0, 1, 147, 148, 149, 511, 4095, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX];
        for value in ends.into_iter().chain(noise.some::<u32, 8>()) {
            let mut area = area.to_vec();
            area[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            check(&area);
            fuzz::fix_ppl_checksum(&mut area);
            check(&area);
        }
    }
    for bit in (0..(536 + 48) * 8).chain(4096 * 8..4104 * 8) {
        let mut area = area.to_vec();
        area[bit / 8] ^= 1 << (bit % 8);
        check(&area);
        fuzz::fix_ppl_checksum(&mut area);
        check(&area);
    }
    let mut count = area.to_vec();
    count[528..532].copy_from_slice(&149_u32.to_le_bytes());
    fuzz::fix_ppl_checksum(&mut count);
    assert_eq!(newest(&count, seed), Err(PplError::EntryCount { count: 149 }));
}
