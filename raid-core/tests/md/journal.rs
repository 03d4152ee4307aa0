//! The journal of an array that Linux md wrote: read, replayed over members that have lost what it
//! holds, and bytes that nobody should write.

use raid_core::geometry::Geometry;
use raid_core::md::assemble::{Abilities, AssembleOptions, Consistency, RejectReason};
use raid_core::md::journal::{
    BLOCK_BYTES, BLOCK_SECTORS, JournalError, JournalPlace, Log, Payload, Replay, SEQUENCE_JUMP,
    replay, scan,
};
use raid_core::md::superblock::Role;
use raid_core::md::update::{Change, apply};
use raid_core::md::{AssembleError, MdTime, Superblock, assemble, fuzz};
use sha2::{Digest, Sha256};

use crate::assemble::{READ_ONLY, READ_WRITE};
use crate::bitmap::geometry_of;
use crate::images::{self, Image, Members};

const NAME: &str = "raid5-n3-journal-v1.2";
const JOURNAL: usize = 3;

struct Lab {
    geometry: Geometry,
    place: JournalPlace,
    journal: Vec<u8>,
    data: Vec<Vec<u8>>,
    sha256: String,
}

fn lab() -> Lab {
    let image = images::named(NAME);
    let superblock = image.members[JOURNAL].decode().unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&image.text("manifest.json")).unwrap();
    let data = |index: usize| {
        let range = image.members[index].decode().unwrap().data_bytes();
        image.whole(index)[range.start as usize..range.end as usize].to_vec()
    };
    Lab {
        geometry: geometry_of(&image.members[0].decode().unwrap()),
        place: JournalPlace::new(&superblock).unwrap(),
        journal: image.whole(JOURNAL),
        data: (0..3).map(data).collect(),
        sha256: manifest["logical_sha256"].as_str().unwrap().to_owned(),
    }
}

impl Lab {
    fn scan(&self) -> Result<Log, JournalError> {
        scan(&self.place, 1, &mut |offset, block| read(&self.journal, offset, block))
    }

    /// Does what the log says; returns how many bytes of the members have changed.
    fn execute(&mut self, replay: &Replay) -> usize {
        let mut changed = 0;
        for stripe in &replay.stripes {
            for write in stripe.data.iter().chain(&stripe.parity) {
                let mut block = [0; BLOCK_BYTES];
                assert!(read(&self.journal, self.place.offset(write.block.position), &mut block));
                assert_eq!(self.place.checksum(&block), write.block.checksum);
                let target = &mut self.data[write.slot][stripe.offset as usize..][..BLOCK_BYTES];
                changed += target.iter().zip(&block).filter(|(old, new)| old != new).count();
                target.copy_from_slice(&block);
            }
        }
        changed
    }

    fn content_sha256(&self) -> String {
        let mut content = Vec::new();
        while (content.len() as u64) < self.geometry.array_bytes() {
            let place = self.geometry.place(content.len() as u64);
            let start = place.member_offset as usize;
            let end = start + place.contiguous_bytes as usize;
            content.extend_from_slice(&self.data[place.slot][start..end]);
        }
        format!("{:x}", Sha256::digest(content))
    }
}

fn read(journal: &[u8], offset: u64, block: &mut [u8; BLOCK_BYTES]) -> bool {
    let Some(bytes) = journal.get(offset as usize..offset as usize + BLOCK_BYTES) else {
        return false;
    };
    block.copy_from_slice(bytes);
    true
}

/// After a clean stop the log still holds its last writes; they are on the members already.
#[test]
fn stopped_cleanly() {
    let mut lab = lab();
    assert_eq!(lab.place.tail_sectors, 19208);
    let log = lab.scan().unwrap();
    assert_eq!(
        (log.blocks.len(), log.blocks[0].sequence, log.blocks[0].position),
        (1, 0x1b_6302, 19208)
    );
    let replay = replay(&log, &lab.geometry);
    assert!(replay.stripes.iter().all(|stripe| !stripe.parity.is_empty()));
    assert_eq!((lab.execute(&replay), replay.dropped_count), (0, 0));
    assert_eq!(lab.content_sha256(), lab.sha256);
    assert_eq!(replay.next_sequence, 0x1b_6303 + SEQUENCE_JUMP);
}

/// As if the machine had stopped before anything of the last dozen writes had reached the members.
#[test]
fn replayed() {
    let mut lab = lab();
    lab.place.tail_sectors = 17104;
    let log = lab.scan().unwrap();
    assert_eq!((log.blocks.len(), log.end_sequence), (12, 0x1b_6303));
    assert!(log.blocks.iter().all(|meta| meta.is_whole));
    let replay = replay(&log, &lab.geometry);
    assert!(replay.stripes.len() > 50, "{}", replay.stripes.len());
    for stripe in &replay.stripes {
        for write in stripe.data.iter().chain(&stripe.parity) {
            lab.data[write.slot][stripe.offset as usize..][..BLOCK_BYTES].fill(0xee);
        }
        for (write, &logical) in stripe.data.iter().zip(&stripe.logical) {
            let place = lab.geometry.place(logical);
            assert_eq!((place.slot, place.member_offset), (write.slot, stripe.offset));
        }
    }
    assert_ne!(lab.content_sha256(), lab.sha256);
    assert!(lab.execute(&replay) > 0);
    assert_eq!(lab.content_sha256(), lab.sha256);
    for at in 0..lab.geometry.component_bytes() as usize {
        assert_eq!(lab.data.iter().fold(0, |sum, data| sum ^ data[at]), 0, "parity at {at}");
    }
    assert_eq!(lab.execute(&replay), 0);

    // The new log behind it: found, empty, and not continued by what is left of the old one.
    let (position, sequence) = (replay.next_position, replay.next_sequence);
    let block = lab.place.empty_block(position, sequence);
    let at = lab.place.offset(position) as usize;
    lab.journal[at..at + BLOCK_BYTES].copy_from_slice(&block);
    let mut superblock = images::named(NAME).members[JOURNAL].decode().unwrap();
    let dev_number = superblock.dev_number;
    let tail = Change::JournalTail { dev_number, position_sectors: position };
    apply(&mut [&mut superblock], &[tail], MdTime(1)).unwrap();
    lab.place = JournalPlace::new(&superblock).unwrap();
    let log = lab.scan().unwrap();
    assert_eq!((log.blocks.len(), log.end_position), (1, position + BLOCK_SECTORS));
    let replay = raid_core::md::journal::replay(&log, &lab.geometry);
    assert!(replay.is_empty());
}

/// A torn write is dropped whole, and what comes behind it is still found; the log ends where a
/// meta block is torn. A broken tail is an error, a journal that was never used is not.
#[test]
fn torn() {
    let mut lab = lab();
    lab.place.tail_sectors = 17104;
    let whole = lab.scan().unwrap();
    let (torn, end) = (&whole.blocks[4], &whole.blocks[9]);
    let data_at = lab.place.offset(torn.position + BLOCK_SECTORS) as usize;
    lab.journal[data_at + 77] ^= 1;
    let log = lab.scan().unwrap();
    assert_eq!(log.blocks.len(), whole.blocks.len());
    assert!(!log.blocks[4].is_whole && log.blocks[4].payloads.is_empty());
    assert_eq!(log.blocks[5..], whole.blocks[5..]);
    assert_eq!(replay(&log, &lab.geometry).dropped_count, 1);

    let meta_at = lab.place.offset(end.position) as usize;
    lab.journal[meta_at + 200] ^= 1;
    let log = lab.scan().unwrap();
    assert_eq!((log.blocks.len(), log.end_position), (9, end.position));

    lab.place.tail_sectors = end.position;
    let position = end.position;
    assert_eq!(lab.scan(), Err(JournalError::Tail { position, what: "the checksum" }));
    // Data, where a meta block should be.
    let position = 17104 + 8;
    lab.place.tail_sectors = position;
    assert_eq!(lab.scan(), Err(JournalError::Tail { position, what: "the magic number" }));
    let at = lab.place.offset(position) as usize;
    lab.journal[at..at + BLOCK_BYTES].fill(0);
    assert!(lab.scan().unwrap().blocks.is_empty());
    lab.journal.truncate(at);
    assert_eq!(lab.scan(), Err(JournalError::Unreadable { position }));
}

fn with_all(options: AssembleOptions) -> AssembleOptions {
    AssembleOptions { abilities: Abilities::ALL, ..options }
}

/// With its journal the array is used; without, or with a stale one, it is refused, and by force it
/// can be read but not written.
#[test]
fn missing() {
    let image = images::named(NAME);
    let mut members = Members::of(&image);
    for options in [READ_ONLY, READ_WRITE] {
        let error = assemble(&members.candidates(), options).unwrap_err();
        assert!(matches!(error, AssembleError::Unsupported { .. }), "{error:?}");
        let assembly = assemble(&members.candidates(), with_all(options)).unwrap();
        assert_eq!((assembly.journal, assembly.consistency), (Some(JOURNAL), Consistency::Journal));
        assert!(assembly.rejected.is_empty());
    }
    let check = |members: &Members, is_stale: bool| {
        let forced = AssembleOptions { force: true, ..READ_ONLY };
        let refused = [READ_ONLY, READ_WRITE, AssembleOptions { force: true, ..READ_WRITE }];
        for options in refused {
            let error = assemble(&members.candidates(), with_all(options)).unwrap_err();
            assert!(matches!(error, AssembleError::JournalMissing { .. }), "{error:?}");
            assert_eq!(error.can_force(), !options.force);
            assert_eq!(error.to_string().contains("stale journal"), is_stale, "{error}");
        }
        let assembly = assemble(&members.candidates(), with_all(forced)).unwrap();
        assert_eq!((assembly.journal, assembly.warnings.len()), (None, 1));
        assert_eq!(assembly.rejected.len(), usize::from(is_stale));
    };
    members.superblock(JOURNAL).events -= 1;
    assemble(&members.candidates(), with_all(READ_WRITE)).unwrap();
    members.superblock(JOURNAL).events -= 1;
    check(&members, true);
    let reason = RejectReason::StaleJournal { events: 22, newest_events: 24 };
    assert!(reason.to_string().contains("22"));
    members.superblock(JOURNAL).events += 2;
    // Its number stands for something else by now.
    for index in 0..3 {
        let number = members.superblock(JOURNAL).dev_number;
        members.superblock(index).set_role(number, Role::Spare).unwrap();
        members.superblock(index).events += 1;
    }
    check(&members, true);
    members.0.truncate(3);
    check(&members, false);
}

/// Every word of a meta block and of its payloads at the ends of its range, with the checksum
/// right, and every bit flipped: no write outside of the array, no panic, no endless reading.
#[test]
fn malformed() {
    let lab = lab();
    let at = lab.place.offset(lab.place.tail_sectors) as usize;
    let mut tail = lab.journal[at..at + 64 * 1024].to_vec();
    let mut small = lab.place;
    (small.start, small.ring_sectors, small.tail_sectors) = (0, 128, 0);
    tail[24..32].fill(0);
    let check = |bytes: &[u8]| {
        let log = scan(&small, 1, &mut |offset, block| read(bytes, offset, block));
        let Ok(log) = log else { return };
        for stripe in replay(&log, &lab.geometry).stripes {
            assert!(stripe.offset + 4096 <= lab.geometry.component_bytes());
            assert!(stripe.data.iter().chain(&stripe.parity).all(|write| write.slot < 3));
        }
    };
    let uuid = small.uuid_bytes;
    fuzz::fix_journal_checksum(&mut tail, uuid);
    let log = scan(&small, 1, &mut |offset, block| read(&tail, offset, block)).unwrap();
    assert!(matches!(log.blocks[0].payloads[0], Payload::Data { .. }), "{log:?}");
    let mut noise = images::Noise(5);
    for offset in (0..152).step_by(4) {
        let ends =
            [0, 1, 2, 3, 8, 16, 31, 32, 33, 4095, 4096, 4097, 1 << 31, u32::MAX - 1, u32::MAX];
        for value in ends.into_iter().chain(noise.some::<u32, 8>()) {
            let mut bytes = tail.clone();
            bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            check(&bytes);
            fuzz::fix_journal_checksum(&mut bytes, uuid);
            check(&bytes);
            fuzz::fuzz_journal(&bytes[..8192]);
        }
    }
    for bit in 0..152 * 8 {
        let mut bytes = tail.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(&bytes);
        fuzz::fix_journal_checksum(&mut bytes, uuid);
        check(&bytes);
    }
    let ring: Image = images::named(NAME);
    let mut superblock: Superblock = ring.members[JOURNAL].decode().unwrap();
    superblock.data_size_sectors = 8;
    assert_eq!(JournalPlace::new(&superblock), None);
    (superblock.data_size_sectors, superblock.recovery_offset_sectors) = (100, u64::MAX);
    let place = JournalPlace::new(&superblock).unwrap();
    assert_eq!((place.ring_sectors, place.tail_sectors), (96, 0));
}
