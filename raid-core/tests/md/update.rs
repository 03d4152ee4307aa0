//! Changes of state: what each superblock says afterwards, and that a crash in the middle is
//! understood.

use raid_core::md::superblock::{ALL_SECTORS, Features, Role, decode};
use raid_core::md::update::{Change, UpdateError, apply};
use raid_core::md::{MdTime, Superblock, assemble};

use crate::assemble::READ_WRITE;
use crate::images::{self, Members};

const NOW: MdTime = MdTime(0x1234_5678);

fn apply_to(
    members: &mut Members,
    taking_part: &[usize],
    changes: &[Change],
) -> Result<u64, UpdateError> {
    let mut superblocks: Vec<&mut Superblock> = Vec::new();
    for (index, member) in members.0.iter_mut().enumerate() {
        if taking_part.contains(&index) {
            superblocks.extend(member.2.as_mut().ok());
        }
    }
    apply(&mut superblocks, changes, NOW)
}

/// First write, failure of a member, stop: one event each, the same fields in all, and every result
/// passes the checks of a superblock that is read.
#[test]
fn life() {
    let image = images::named("raid5-n4-c64k-v1.2");
    let mut members = Members::of(&image);
    let all = [0, 1, 2, 3];
    assert_eq!(apply_to(&mut members, &all, &[Change::MarkDirty]), Ok(18));
    for index in all {
        let superblock = members.superblock(index);
        assert_eq!((superblock.events, superblock.resync_offset_sectors), (18, 0));
        assert_eq!((superblock.updated, superblock.created != NOW), (NOW, true));
    }
    let fail = [Change::Fail { dev_number: 2 }];
    assert_eq!(apply_to(&mut members, &[0, 1, 3], &fail), Ok(19));
    assert_eq!(members.superblock(0).role_of(2), Role::Faulty);
    assert_eq!(members.superblock(2).role_of(2), Role::Active(2));
    let clean = [Change::MarkClean { resynced_bytes: None }];
    assert_eq!(apply_to(&mut members, &[0, 1, 3], &clean), Ok(20));
    assert_eq!(members.superblock(0).resync_offset_sectors, ALL_SECTORS);

    let assembly = assemble(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(assembly.events, 20);
    assert_eq!(assembly.rejected.len(), 1);
    for (member, original) in members.0.iter().zip(&image.members) {
        let superblock = member.2.as_ref().unwrap();
        let again = decode(&superblock.encode()[..], original.context).unwrap();
        assert!(again.encode() == superblock.encode());
        assert_eq!((again.events, again.roles().len()), (superblock.events, 128));
    }
}

/// Recovery: a spare gets a slot, its position is written, and at the end it is in sync.
#[test]
fn recovery() {
    let mut members = Members::of(&images::named("raid5-n3-spare-v1.2"));
    drop(members.0.remove(1));
    let all = [0, 1, 2];
    let start = [
        Change::SetRole { dev_number: 3, role: Role::Active(1) },
        Change::Recovered { dev_number: 3, recovered_bytes: Some(0) },
    ];
    assert_eq!(apply_to(&mut members, &all, &start), Ok(18));
    // Who was in the slot and does not take part is faulty without being told.
    assert_eq!(members.superblock(0).role_of(1), Role::Faulty);
    let spare = members.superblock(2);
    assert_eq!((spare.role(), spare.recovered_bytes()), (Role::Active(1), Some(0)));
    let step = [Change::Recovered { dev_number: 3, recovered_bytes: Some(65536) }];
    assert_eq!(apply_to(&mut members, &all, &step), Ok(19));
    assert_eq!(members.superblock(2).recovered_bytes(), Some(65536));
    assert!(!members.superblock(0).features.has(Features::RECOVERY_OFFSET));
    let end = [Change::Recovered { dev_number: 3, recovered_bytes: None }];
    assert_eq!(apply_to(&mut members, &all, &end), Ok(20));
    assert_eq!(members.superblock(2).recovered_bytes(), None);
    let assembly = assemble(&members.candidates(), READ_WRITE).unwrap();
    assert!(assembly.rejected.is_empty() && assembly.spares.is_empty());
}

/// An update that cannot be made changes nothing.
#[test]
fn errors() {
    let mut members = Members::of(&images::named("raid5-n4-c64k-v1.2"));
    let before = members.superblock(0).clone();
    let cases = [
        [Change::MarkDirty, Change::Fail { dev_number: 1920 }],
        [Change::MarkDirty, Change::Recovered { dev_number: 9, recovered_bytes: None }],
    ];
    for changes in cases {
        apply_to(&mut members, &[0, 1, 2, 3], &changes).unwrap_err();
        assert!(*members.superblock(0) == before);
    }
    assert_eq!(apply(&mut [], &[Change::MarkDirty], NOW), Err(UpdateError::Empty));
}

/// Every update may be cut off after any subset of its superblocks has been written: then either
/// what was before or what was meant is found, and no member that still takes part is lost.
#[test]
fn crash_within_an_update() {
    let clean = Change::MarkClean { resynced_bytes: None };
    let steps: [(&[usize], Change); 4] = [
        (&[0, 1, 2, 3], Change::MarkDirty),
        (&[0, 1, 2, 3], clean),
        (&[0, 1, 2, 3], Change::MarkDirty),
        (&[0, 1, 3], Change::Fail { dev_number: 2 }),
    ];
    let mut members = Members::of(&images::named("raid6-n5-left-symmetric-c64k-v1.2"));
    members.0.pop();
    for (taking_part, change) in steps {
        let before = Members(members.0.clone());
        apply_to(&mut members, taking_part, &[change]).unwrap();
        for written in 0..1 << taking_part.len() {
            let mut torn = Members(before.0.clone());
            for (bit, &index) in taking_part.iter().enumerate() {
                if written >> bit & 1 == 1 {
                    torn.0[index] = members.0[index].clone();
                }
            }
            // Dirty and degraded needs force here, that is not the question.
            let options = crate::assemble::FORCE;
            let assembly = assemble(&torn.candidates(), options).unwrap();
            assert!(assembly.forced.is_empty());
            let out: Vec<usize> = assembly.rejected.iter().map(|r| r.member).collect();
            let is_recorded = written != 0 && matches!(change, Change::Fail { .. });
            assert_eq!(out, if is_recorded { vec![2] } else { vec![] }, "{change:?} {written:b}");
        }
    }
}

/// A longer table of roles is taken over, a shorter one does not cut off.
#[test]
fn tables_of_different_length() {
    let mut members = Members::of(&images::named("raid1-n2-v1.2"));
    members.superblock(0).set_role(300, Role::Spare).unwrap();
    members.superblock(0).events += 1;
    apply_to(&mut members, &[0, 1], &[Change::MarkDirty]).unwrap();
    assert_eq!(members.superblock(1).roles().len(), 301);
    members.superblock(1).set_role(400, Role::Faulty).unwrap();
    apply_to(&mut members, &[0, 1], &[Change::MarkDirty]).unwrap();
    assert_eq!(members.superblock(1).roles().len(), 401);
    assert_eq!(members.superblock(1).role_of(400), Role::Spare);
}
