//! Who belongs to an array: the golden arrays as Linux left them, and stories from the field made
//! of their superblocks. Every decision is asked for in every order of the members.

use raid_core::md::assemble::{
    Abilities, Access, AssembleOptions, RejectReason, SlotState, Unsupported, split_by_array,
};
use raid_core::md::superblock::{Features, Role};
use raid_core::md::{AssembleError, Assembly, Candidate, SuperblockError, assemble};

use crate::images::{self, Members};

const fn options(access: Access, force: bool) -> AssembleOptions {
    AssembleOptions { access, force, abilities: Abilities::NONE }
}

pub(crate) const READ_ONLY: AssembleOptions = options(Access::ReadOnly, false);
pub(crate) const READ_WRITE: AssembleOptions = options(Access::ReadWrite, false);
pub(crate) const FORCE: AssembleOptions = options(Access::ReadWrite, true);

/// All orders of `0..count`, for small counts.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let shorter = orders(count - 1);
    let insert = |order: &Vec<usize>| {
        let order = order.clone();
        (0..count).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            longer
        })
    };
    shorter.iter().flat_map(insert).collect()
}

/// Gives the members of an assembly the indexes that they have in `order`.
fn renamed(mut assembly: Assembly, order: &[usize]) -> Assembly {
    for slot in &mut assembly.slots {
        if let SlotState::Member(member) = slot {
            member.member = order[member.member];
        }
    }
    assembly.newest = order[assembly.newest];
    for list in [&mut assembly.spares, &mut assembly.forced] {
        list.iter_mut().for_each(|member| *member = order[*member]);
        list.sort_unstable();
    }
    assembly.rejected.iter_mut().for_each(|rejected| rejected.member = order[rejected.member]);
    assembly.rejected.sort_by_key(|rejected| rejected.member);
    assembly.warnings.sort();
    assembly
}

/// Assembles in every order, asserts that it makes no difference, and returns the decision.
fn decide(
    candidates: &[Candidate<'_>],
    options: AssembleOptions,
) -> Result<Assembly, AssembleError> {
    let in_order = |order: &[usize]| {
        let candidates: Vec<_> = order.iter().map(|&index| candidates[index]).collect();
        assemble(&candidates, options).map(|assembly| renamed(assembly, order))
    };
    let identity: Vec<usize> = (0..candidates.len()).collect();
    let first = in_order(&identity);
    for order in orders(candidates.len().min(5)) {
        let order: Vec<usize> = order.into_iter().chain(5..candidates.len()).collect();
        match (&first, in_order(&order)) {
            (Ok(first), Ok(other)) => assert_eq!(*first, other),
            // Lists in errors are in the order of the members.
            (Err(first), Err(other)) => {
                assert_eq!(core::mem::discriminant(first), core::mem::discriminant(&other));
                assert_eq!(first.can_force(), other.can_force());
            }
            (first, other) => panic!("{order:?}: {first:?} or {other:?}"),
        }
    }
    first
}

/// `0 1 - 3+`: the member in each slot, `-` for none, `+` for one that is being recovered.
fn slots(assembly: &Assembly) -> String {
    let show = |slot: &SlotState| match slot {
        SlotState::Missing => "-".to_owned(),
        SlotState::Member(member) => {
            let plus = if member.recovered_bytes.is_some() { "+" } else { "" };
            format!("{}{plus}", member.member)
        }
    };
    assembly.slots.iter().map(show).collect::<Vec<_>>().join(" ")
}

fn rejected(assembly: &Assembly) -> Vec<usize> {
    assembly.rejected.iter().map(|rejected| rejected.member).collect()
}

/// What every golden array is: slots, spares, rejected members, clean or the resync position in
/// sectors.
#[test]
fn golden() {
    type Case = (&'static str, &'static str, &'static [usize], &'static [usize], Option<u64>);
    let cases: &[Case] = &[
        ("raid5-n4-c64k-v1.2", "0 1 2 3", &[], &[], None),
        ("raid0-n3-uneven-original-v1.2", "0 1 2", &[], &[], None),
        ("linear-n3-uneven-v1.2", "0 1 2", &[], &[], None),
        ("raid1-n3-v1.1", "0 1 2", &[], &[], None),
        ("raid1-n2-v1.0", "0 1", &[], &[], None),
        ("raid5-n3-spare-v1.2", "0 1 2", &[3], &[], None),
        ("raid5-n4-failed1-v1.2", "0 - 2 3", &[], &[1], None),
        ("raid5-n4-removed2-v1.2", "0 1 - 3", &[], &[2], None),
        ("raid5-n4-missing3-v1.2", "0 1 2 -", &[], &[3], None),
        ("raid6-n5-failed1-3-v1.2", "0 - 2 - 4", &[], &[1, 3], None),
        ("raid10-n4-n2-failed1-2-v1.2", "0 - - 3", &[], &[1, 2], None),
        ("raid10-n4-f2-failed0-v1.2", "- 1 2 3", &[], &[0], None),
        ("raid1-n2-failed1-v1.2", "0 -", &[], &[1], None),
        ("raid1-n2-midrecovery-v1.2", "0 2+", &[], &[1], None),
        ("raid5-n4-midrecovery-v1.2", "0 4+ 2 3", &[], &[1], None),
        ("raid10-n4-midrecovery-v1.2", "0 4+ 2 3", &[], &[1], None),
        ("dirty-raid5-n3-v1.2", "0 1 2", &[], &[], Some(0)),
        ("raid5-n4-midresync-v1.2", "0 1 2 3", &[], &[], Some(4096 * 512)),
        ("dirty-raid1-n2-v1.2", "0 1", &[], &[], Some(0)),
    ];
    for &(name, expected, spares, out, resynced) in cases {
        let members = Members::of(&images::named(name));
        let assembly = decide(&members.candidates(), READ_WRITE);
        let assembly = assembly.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(slots(&assembly), expected, "{name}");
        assert_eq!(assembly.spares, spares, "{name}");
        assert_eq!(rejected(&assembly), out, "{name}");
        assert_eq!(assembly.resynced_bytes, resynced, "{name}");
        assert!(assembly.forced.is_empty(), "{name}");
    }
}

/// All golden arrays can be decided about without a surprise: read-only they start or are refused
/// for a feature, and the numbers come from the newest superblock.
#[test]
fn golden_read_only() {
    for image in images::all() {
        let members = Members::of(&image);
        match assemble(&members.candidates(), READ_ONLY) {
            Ok(assembly) => {
                let newest = members.0[assembly.newest].2.as_ref().unwrap();
                assert_eq!(assembly.name, newest.name(), "{}", image.name);
                assert_eq!(assembly.slots.len(), newest.slot_count as usize, "{}", image.name);
                assert_eq!(assembly.events, newest.events, "{}", image.name);
            }
            Err(AssembleError::Unsupported { .. }) => {
                let words = ["midreshape", "journal", "dirty-raid5-n3-ppl", "badblocks"];
                assert!(words.iter().any(|word| image.name.contains(word)), "{}", image.name);
            }
            // The six members of the RAID 50 are two arrays.
            Err(AssembleError::DifferentArrays { .. }) => {
                assert!(image.name.starts_with("raid50-2"))
            }
            Err(error) => panic!("{}: {error}", image.name),
        }
    }
}

/// Features that come later are recognised and refused by name.
#[test]
fn later_features() {
    let cases = [
        ("raid5-n4to5-midreshape-v1.2", READ_ONLY, Unsupported::Reshape, false),
        ("raid5-n4-rechunk-midreshape-v1.2", READ_ONLY, Unsupported::Reshape, false),
        ("raid5-n3-journal-v1.2", READ_ONLY, Unsupported::Journal, false),
        ("raid5-n4-ppl-v1.2", READ_WRITE, Unsupported::Ppl, true),
        ("dirty-raid5-n3-ppl-v1.2", READ_ONLY, Unsupported::Ppl, false),
        ("dirty-raid5-n3-bitmap-v1.2", READ_WRITE, Unsupported::Bitmap, true),
        ("raid1-n2-badblocks-v1.2", READ_ONLY, Unsupported::BadBlocks, false),
    ];
    for (name, options, what, can_read) in cases {
        let members = Members::of(&images::named(name));
        let error = decide(&members.candidates(), options).unwrap_err();
        assert_eq!(error, AssembleError::Unsupported { what, can_read }, "{name}");
        let forced = AssembleOptions { force: true, ..options };
        assert_eq!(decide(&members.candidates(), forced).unwrap_err(), error, "{name}");
    }
    // Clean arrays with a bitmap are fine.
    let members = Members::of(&images::named("raid5-n4-bitmap-v1.2"));
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(assembly.bitmap.map(|area| area.offset_sectors), Some(8));
}

/// RAID 50: the inner arrays first, then the outer one from the superblocks read through them.
#[test]
fn nested() {
    let members = Members::of(&images::named("raid50-2x3-c64k-v1.2"));
    let candidates = members.candidates();
    let arrays = split_by_array(&candidates);
    assert_eq!(arrays.len(), 2);
    let mut inner = Vec::new();
    for array in &arrays {
        let own: Vec<_> = array.members.iter().map(|&index| candidates[index]).collect();
        let assembly = decide(&own, READ_WRITE).unwrap();
        assert_eq!((assembly.level, slots(&assembly).as_str()), (5, "0 1 2"));
        inner.push(assembly.name);
    }
    assert_eq!(inner, ["lab:leg0", "lab:leg1"]);
    let outer = Members::of(&images::named("raid50-outer"));
    let assembly = decide(&outer.candidates(), READ_WRITE).unwrap();
    assert_eq!(assembly.name, "lab:raid50-2x3-c64k-v1.2");
    assert_eq!(assembly.array_uuid.to_string(), "ee536542:f220236e:6f8814a5:ed095c1a");
    assert_eq!(
        (assembly.level, assembly.chunk_bytes, slots(&assembly).as_str()),
        (0, 65536, "0 1")
    );
    // A leg that is gone is named.
    let error = decide(&outer.candidates()[..1], READ_WRITE).unwrap_err();
    let AssembleError::TooManyMissing { missing, can_force: false, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(missing, [1]);
}

/// Lets some members of an array fall behind by so many events; the newest tables still list them.
fn lagging(name: &str, lags: &[u64]) -> Members {
    let mut members = Members::of(&images::named(name));
    for (index, lag) in lags.iter().enumerate() {
        let superblock = members.superblock(index);
        superblock.events = 100 - lag;
    }
    members
}

/// FC-03: a crash between superblock writes leaves some members one event behind: they are current.
/// More is stale, and whether the array starts depends on which mirror sets are left.
#[test]
fn events_behind() {
    let near = "raid10-n4-n2-c64k-v1.2";
    let offset = "raid10-n4-o2-c64k-v1.2";
    for name in [near, offset] {
        let assembly = decide(&lagging(name, &[0, 0, 1, 1]).candidates(), READ_WRITE).unwrap();
        assert_eq!(slots(&assembly), "0 1 2 3");
        assert!(rejected(&assembly).is_empty());
    }
    // Near pairs are (0,1) and (2,3): one stale member of each.
    let assembly = decide(&lagging(near, &[0, 4, 0, 4]).candidates(), READ_WRITE).unwrap();
    assert_eq!(slots(&assembly), "0 - 2 -");
    assert!(matches!(
        assembly.rejected[0].reason,
        RejectReason::Stale { events: 96, newest_events: 100 }
    ));
    // Both of one pair: refused, and force takes one of that pair alone.
    let members = lagging(near, &[0, 0, 4, 5]);
    let error = decide(&members.candidates(), READ_WRITE).unwrap_err();
    assert!(error.can_force(), "{error}");
    let AssembleError::TooManyMissing { missing, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*missing, [2, 3]);
    assert!(error.to_string().contains("slots 2 and 3 of 4"), "{error}");
    assert!(error.to_string().contains("member3: it is stale: its event count is 95"), "{error}");
    let assembly = decide(&members.candidates(), FORCE).unwrap();
    assert_eq!((slots(&assembly).as_str(), assembly.forced.as_slice()), ("0 1 2 -", &[2][..]));
    assert_eq!(assembly.warnings.len(), 1);
}

/// FC-04: force adds as few stale members as possible, the newest first; the oldest stays out.
#[test]
fn force_leaves_the_oldest_out() {
    let members = lagging("raid5-n4-c64k-v1.2", &[0, 0, 3, 40]);
    assert!(decide(&members.candidates(), READ_WRITE).unwrap_err().can_force());
    let assembly = decide(&members.candidates(), FORCE).unwrap();
    assert_eq!(slots(&assembly), "0 1 2 -");
    assert_eq!((assembly.forced.as_slice(), rejected(&assembly).as_slice()), (&[2][..], &[3][..]));
    // With enough current members nobody is forced.
    let members = lagging("raid5-n4-c64k-v1.2", &[0, 0, 0, 40]);
    let assembly = decide(&members.candidates(), FORCE).unwrap();
    assert_eq!((slots(&assembly).as_str(), assembly.forced.len()), ("0 1 2 -", 0));
}

/// R04: one event behind, but listed as faulty (or no longer listed) by the newest: out.
#[test]
fn the_tables_decide() {
    for role in [Role::Faulty, Role::Spare] {
        let mut members = lagging("raid5-n4-c64k-v1.2", &[0, 1, 0, 0]);
        for index in [0, 2, 3] {
            members.superblock(index).set_role(1, role).unwrap();
        }
        let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
        assert_eq!(
            (slots(&assembly).as_str(), rejected(&assembly).as_slice()),
            ("0 - 2 3", &[1][..])
        );
    }
    // The update that recorded slot 1's failure reached member 0 alone: 2 and 3 stay, 1 is out.
    let mut members = lagging("raid5-n4-c64k-v1.2", &[0, 1, 1, 1]);
    members.superblock(0).set_role(1, Role::Faulty).unwrap();
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!((slots(&assembly).as_str(), rejected(&assembly).as_slice()), ("0 - 2 3", &[1][..]));
}

/// FC-06: dirty and degraded parity is refused, the same way in every order, and started by force;
/// mirrors start, and so does a RAID 4 that has lost its parity alone.
#[test]
fn dirty_degraded() {
    let dirty = |name: &str, missing: usize| {
        let mut members = Members::of(&images::named(name));
        members.0.iter_mut().for_each(|member| {
            member.2.as_mut().unwrap().resync_offset_sectors = 0;
        });
        drop(members.0.remove(missing));
        members
    };
    for name in ["raid5-n4-c64k-v1.2", "raid6-n5-left-symmetric-c64k-v1.2", "raid4-n4-c64k-v1.2"] {
        let members = dirty(name, 1);
        for options in [READ_ONLY, READ_WRITE] {
            let error = decide(&members.candidates(), options).unwrap_err();
            assert!(
                matches!(&error, AssembleError::DirtyDegraded { missing, .. } if missing == &[1])
            );
            assert!(error.can_force());
        }
        let assembly = decide(&members.candidates(), FORCE).unwrap();
        assert_eq!((assembly.resynced_bytes, assembly.warnings.len()), (Some(0), 1));
    }
    for (name, missing) in
        [("raid1-n2-v1.2", 0), ("raid10-n4-n2-c64k-v1.2", 1), ("raid4-n4-c64k-v1.2", 3)]
    {
        let members = dirty(name, missing);
        decide(&members.candidates(), READ_WRITE).unwrap();
    }
}

/// FC-11: a copy of a member is refused with both named, stale or not, whoever else is there.
#[test]
fn copies() {
    let image = images::named("raid5-n4-c64k-v1.2");
    for lag in [0, 10] {
        let mut members = Members::of(&image);
        let mut copy = members.0[1].clone();
        copy.0 = "copy".into();
        copy.2.as_mut().unwrap().events -= lag;
        members.0.push(copy);
        for options in [READ_WRITE, FORCE] {
            let error = decide(&members.candidates(), options).unwrap_err();
            assert!(matches!(error, AssembleError::DuplicateDevice { .. }), "{error:?}");
            assert!(error.to_string().contains("member1") && error.to_string().contains("copy"));
        }
    }
    // Two current members with different identities in one slot.
    let mut members = Members::of(&image);
    let superblock = members.superblock(3);
    (superblock.dev_number, superblock.events) = (1, 17);
    let error = decide(&members.candidates(), READ_WRITE).unwrap_err();
    assert!(matches!(error, AssembleError::DuplicateSlot { slot: 1, .. }), "{error:?}");
}

/// Members of two arrays are not mixed, and both uuids are named.
#[test]
fn two_arrays() {
    let mut members = Members::of(&images::named("raid5-n4-c64k-v1.2"));
    members.0.extend(Members::of(&images::named("raid1-n2-v1.2")).0);
    let error = decide(&members.candidates(), FORCE).unwrap_err();
    assert!(matches!(error, AssembleError::DifferentArrays { .. }), "{error:?}");
    assert!(error.to_string().contains("62f693b1:8dff9239:f6ab7a70:323bb629"), "{error}");
}

/// Two halves of a mirror (of a RAID 6) that were written apart: refused, whichever is ahead; by
/// force the newer half wins, and with equal event counts nothing can.
#[test]
fn split_brain() {
    for lag in [0, 1, 7] {
        let mut members = lagging("raid1-n2-v1.2", &[0, lag]);
        members.superblock(0).set_role(1, Role::Faulty).unwrap();
        members.superblock(1).set_role(0, Role::Faulty).unwrap();
        let error = decide(&members.candidates(), READ_WRITE).unwrap_err();
        if lag == 0 {
            assert!(matches!(error, AssembleError::Disagreement { .. }), "{error:?}");
            assert!(!decide(&members.candidates(), FORCE).unwrap_err().can_force());
            continue;
        }
        assert!(matches!(error, AssembleError::SplitBrain { .. }), "{error:?}");
        let assembly = decide(&members.candidates(), FORCE).unwrap();
        assert_eq!(slots(&assembly), "0 -");
    }
    // Both halves without --fail: each kernel has dropped the others from its table.
    let mut members = lagging("raid6-n5-left-symmetric-c64k-v1.2", &[0, 0, 0, 5, 5]);
    for (index, gone) in [(0, [3, 4]), (1, [3, 4]), (2, [3, 4]), (3, [0, 1]), (4, [0, 1])] {
        for number in gone {
            members.superblock(index).set_role(number, Role::Spare).unwrap();
        }
    }
    // Member 2 was seen by both, so the older half is merely stale.
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(slots(&assembly), "0 1 2 - -");
    for index in [3, 4] {
        members.superblock(index).set_role(2, Role::Spare).unwrap();
    }
    let error = decide(&members.candidates(), READ_WRITE).unwrap_err();
    assert!(matches!(error, AssembleError::SplitBrain { .. }), "{error:?}");
}

/// A number that a newer member has taken over does not let the old one back in, even when the
/// newer tables list that number as active one event later.
#[test]
fn reused_number() {
    let mut members = Members::of(&images::named("raid1-n2-midrecovery-v1.2"));
    let newest = members.superblock(0).events;
    for index in [0, 2] {
        members.superblock(index).set_role(1, Role::Active(1)).unwrap();
        members.superblock(index).set_role(2, Role::Spare).unwrap();
    }
    members.superblock(2).dev_number = 1;
    members.superblock(1).events = newest - 1;
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!((slots(&assembly).as_str(), rejected(&assembly).as_slice()), ("0 2+", &[1][..]));
}

/// Superblocks of one generation that describe different arrays are refused.
#[test]
fn disagreement() {
    let cases: [fn(&mut raid_core::md::Superblock); 5] = [
        |superblock| superblock.layout = 0,
        |superblock| superblock.chunk_sectors *= 2,
        |superblock| superblock.size_sectors -= 128,
        |superblock| superblock.resync_offset_sectors = 0,
        |superblock| superblock.set_role(0, Role::Faulty).unwrap(),
    ];
    for change in cases {
        let mut members = Members::of(&images::named("raid5-n4-c64k-v1.2"));
        change(members.superblock(2));
        let error = decide(&members.candidates(), READ_WRITE).unwrap_err();
        assert!(matches!(error, AssembleError::Disagreement { .. }), "{error:?}");
    }
}

/// A replacement stands back for the original, and steps in when that is gone.
#[test]
fn replacement() {
    let mut members = Members::of(&images::named("raid5-n3-spare-v1.2"));
    for index in 0..4 {
        members.superblock(index).set_role(3, Role::Active(1)).unwrap();
    }
    let superblock = members.superblock(3);
    superblock.features.0 |= Features::REPLACEMENT | Features::RECOVERY_OFFSET;
    superblock.recovery_offset_sectors = 8;
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(slots(&assembly), "0 1 2");
    assert_eq!(assembly.rejected[0].reason, RejectReason::Replacement { slot: 1 });
    drop(members.0.remove(1));
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(slots(&assembly), "0 2+ 1");
}

/// Members whose superblocks are damaged, absent or too long for them are left out with the reason.
#[test]
fn bad_members() {
    let mut members = Members::of(&images::named("raid6-n5-left-symmetric-c64k-v1.2"));
    members.0[1].2 = Err(SuperblockError::Magic { magic: 0 });
    members.0[3].2 = Err(SuperblockError::MemberShort { end_sectors: 6144, member_sectors: 4027 });
    let assembly = decide(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!(
        (slots(&assembly).as_str(), rejected(&assembly).as_slice()),
        ("0 - 2 - 4", &[1, 3][..])
    );
    assert!(assembly.rejected[1].reason.to_string().contains("2117 sectors short"));
    members.0[0].2 = Err(SuperblockError::Magic { magic: 0 });
    let error = decide(&members.candidates(), FORCE).unwrap_err();
    assert!(!error.can_force());
    assert!(error.to_string().contains("slots 0, 1 and 3 of 5 are missing"), "{error}");
    members.0.truncate(2);
    let error = decide(&members.candidates(), FORCE).unwrap_err();
    assert!(matches!(&error, AssembleError::NoSuperblock { reasons } if reasons.len() == 2));
    assert!(matches!(assemble(&[], FORCE), Err(AssembleError::NoSuperblock { .. })));
}
