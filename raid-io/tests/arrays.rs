//! Arrays through the public API, against a plain vector: every level, in memory and on files,
//! whole and with members missing; stopping, starting, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test ends there")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "options cannot be built outside their crate"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use raid_io::{
    Array, Backend, Buffer, CreateOptions, Error, Level, MemoryOptions, OpenOptions, Operation,
};

/// A small generator; its seed is in the test's name or loop, so a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Level, layout, members, groups, and members that may be lost together.
type Shape = (Level, Option<&'static str>, u32, u32, &'static [u32]);

const SHAPES: [Shape; 14] = [
    (Level::Raid0, None, 3, 1, &[]),
    (Level::Raid1, None, 3, 1, &[0, 2]),
    (Level::Raid4, None, 4, 1, &[3]),
    (Level::Raid5, Some("left-symmetric"), 5, 1, &[1]),
    (Level::Raid5, Some("left-asymmetric"), 3, 1, &[0]),
    (Level::Raid5, Some("right-symmetric"), 4, 1, &[2]),
    (Level::Raid5, Some("right-asymmetric"), 4, 1, &[3]),
    (Level::Raid6, None, 5, 1, &[0, 3]),
    (Level::Raid10, Some("n2"), 4, 1, &[0, 3]),
    (Level::Raid10, Some("f2"), 3, 1, &[1]),
    (Level::Raid10, Some("o2"), 5, 1, &[4]),
    (Level::Raid10, Some("n3"), 5, 1, &[0, 1]),
    (Level::Raid5, None, 6, 2, &[1, 5]),
    (Level::Raid6, None, 8, 2, &[0, 1, 6]),
];

/// Random reads, writes, zeroes and discards of any bytes, many of them at once.
fn churn(array: &Array, model: &mut [u8], random: &mut Random, rounds: usize) {
    let mut queue = array.queue().unwrap();
    let size = model.len() as u64;
    for _ in 0..rounds {
        // What is in flight together may touch the same stripes, but not the same bytes.
        let lanes = 1 + random.below(8);
        let mut expected = Vec::new();
        for lane in 0..lanes {
            let (start, end) = (size * lane / lanes, size * (lane + 1) / lanes);
            let offset = start + random.below(end - start);
            let len = (1 + random.below((end - offset).min(300_000))) as usize;
            let range = offset as usize..offset as usize + len;
            let operation = match random.below(5) {
                0 | 1 => {
                    expected.push(Some(model[range].to_vec()));
                    Operation::Read { offset, buffer: queue.buffer(len) }
                }
                2 if random.below(2) == 0 => {
                    model[range].fill(0);
                    expected.push(None);
                    let unmap = random.below(2) == 0;
                    Operation::WriteZeroes { offset, len: len as u64, unmap, fua: false }
                }
                _ => {
                    let bytes = random.bytes(len);
                    model[range].copy_from_slice(&bytes);
                    expected.push(None);
                    Operation::Write {
                        offset,
                        buffer: Buffer::copy_of(&bytes),
                        fua: random.below(8) == 0,
                    }
                }
            };
            queue.submit(operation, lane).unwrap();
        }
        for _ in 0..lanes {
            let completion = loop {
                match queue.poll() {
                    Some(completion) => break completion,
                    None => queue.wait(Some(Duration::from_secs(20))).unwrap(),
                }
            };
            completion.result.unwrap();
            if let Some(bytes) = &expected[completion.user_data as usize] {
                assert!(
                    completion.buffer.unwrap()[..] == bytes[..],
                    "lane {}",
                    completion.user_data
                );
            }
        }
    }
    queue.submit(Operation::Flush, 99).unwrap();
}

fn reads_back(array: &Array, model: &[u8]) {
    let mut bytes = vec![1; model.len()];
    array.read_at(&mut bytes, 0).unwrap();
    assert!(
        bytes == model,
        "first difference at {:?}",
        bytes.iter().zip(model).position(|(a, b)| a != b)
    );
}

#[test]
fn every_level_in_memory_agrees_with_a_vector() {
    for (index, (level, layout, slot_count, groups, _)) in SHAPES.into_iter().enumerate() {
        for block_bytes in [512, 4096] {
            println!("{level:?} {layout:?} {slot_count} {groups} {block_bytes}");
            let mut options = MemoryOptions::default();
            options.level = level;
            options.layout = layout.map(Into::into);
            options.slot_count = slot_count;
            options.groups = groups;
            options.member_bytes = 1 << 20;
            options.chunk_bytes = 16 << 10;
            options.block_bytes = block_bytes;
            let array = Array::in_memory(options).unwrap();
            let mut model = vec![0; array.limits().size_bytes as usize];
            churn(&array, &mut model, &mut Random(index as u64 + 1), 25);
            reads_back(&array, &model);
            array.stop().unwrap();
        }
    }
}

fn paths(folder: &Path, count: u32) -> Vec<PathBuf> {
    (0..count).map(|index| folder.join(format!("m{index}"))).collect()
}

fn create_options(level: Level, layout: Option<&str>, groups: u32) -> CreateOptions {
    let mut options = CreateOptions::new(level);
    options.layout = layout.map(Into::into);
    options.groups = groups;
    options.chunk_bytes = 64 << 10;
    options.member_bytes = Some(8 << 20);
    options.name = "test".into();
    options
}

fn open_options(backend: Backend) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.backend = backend;
    options
}

/// Created, written, stopped, started in another order, degraded, read back: the same bytes.
#[test]
fn every_level_on_files_survives_stop_start_and_loss() {
    for (index, (level, layout, count, groups, lost)) in SHAPES.into_iter().enumerate() {
        let backend = if index % 2 == 0 { Backend::IoUring } else { Backend::Blocking };
        println!("{level:?} {layout:?} {count} {groups} {backend:?}");
        let folder = tempfile::tempdir_in(".").unwrap();
        let members = paths(folder.path(), count);
        let mut options = create_options(level, layout, groups);
        options.open = open_options(backend);
        let array = Array::create(&options, &members).unwrap();
        let mut model = vec![0; array.limits().size_bytes as usize];
        let mut random = Random(index as u64 + 100);
        reads_back(&array, &model);
        churn(&array, &mut model, &mut random, 10);
        let status = array.status();
        assert_eq!(status.degraded, 0);
        assert!(status.groups.iter().all(|group| group.in_sync), "new files are in sync");
        array.stop().unwrap();

        let mut reversed = members.clone();
        reversed.reverse();
        let array = Array::open(&reversed, &open_options(backend)).unwrap();
        assert!(array.status().was_clean);
        assert_eq!(array.status().name, "test");
        reads_back(&array, &model);
        array.stop().unwrap();

        if lost.is_empty() {
            continue;
        }
        let rest: Vec<PathBuf> = (0..count)
            .filter(|index| !lost.contains(index))
            .map(|index| members[index as usize].clone())
            .collect();
        let array = Array::open(&rest, &open_options(backend)).unwrap();
        assert_eq!(array.status().degraded, lost.len() as u32);
        reads_back(&array, &model);
        churn(&array, &mut model, &mut random, 6);
        reads_back(&array, &model);
        array.stop().unwrap();

        // Those left out are stale now, and are left out again.
        let array = Array::open(&members, &open_options(backend)).unwrap();
        assert_eq!(array.status().degraded, lost.len() as u32);
        reads_back(&array, &model);
        array.stop().unwrap();
    }
}

fn message(result: Result<Array, Error>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn an_array_that_was_not_stopped_is_known_by_it() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    let mut options = create_options(Level::Raid5, None, 1);
    // However long this takes.
    options.open.idle_after = Duration::ZERO;
    let array = Array::create(&options, &members).unwrap();
    array.write_at(&[7; 100], 0).unwrap();
    assert_eq!(array.status().state, "active");
    drop(array);

    let mut plain = OpenOptions::default();
    plain.resync = false;
    let array = Array::open(&members, &plain).unwrap();
    assert!(!array.status().was_clean);
    assert!(!array.status().groups[0].in_sync);
    array.write_at(&[8; 100], 64 << 10).unwrap();
    assert_eq!((array.status().statistics.rmw, array.status().statistics.rcw), (0, 1));
    array.stop().unwrap();

    // Parity is still not trusted: stopping cleanly does not make it right.
    let refused = message(Array::open(&members[1..], &OpenOptions::default()));
    assert!(refused.contains("not stopped cleanly") && refused.contains("--force"), "{refused}");
    let mut force = OpenOptions::default();
    force.force = true;
    let array = Array::open(&members[1..], &force).unwrap();
    let mut bytes = [0; 100];
    array.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [7; 100]);
    array.stop().unwrap();
}

/// Nothing is changed on any member when an array cannot be made.
#[test]
fn create_refuses_and_changes_nothing() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    let options = create_options(Level::Raid5, None, 1);
    std::fs::write(&members[0], vec![0xaa; 8 << 20]).unwrap();
    let cases: [(&str, CreateOptions, Vec<PathBuf>); 7] = [
        ("holds data that is not zero", options.clone(), members.clone()),
        ("is given twice", options.clone(), vec![members[1].clone(); 3]),
        ("is given twice", options.clone(), vec![members[0].clone(); 3]),
        ("is a directory", options.clone(), vec![folder.path().into(), members[1].clone()]),
        (
            "does not exist",
            CreateOptions::new(Level::Raid5),
            vec![members[1].clone(), members[2].clone()],
        ),
        (
            "chunk",
            {
                let mut options = options.clone();
                options.chunk_bytes = 3000;
                options
            },
            members[1..].to_vec(),
        ),
        (
            "member 0 has 65536 bytes",
            {
                let mut options = options.clone();
                options.member_bytes = Some(64 << 10);
                options
            },
            members[1..].to_vec(),
        ),
    ];
    for (text, options, members) in cases {
        let refused = message(Array::create(&options, &members));
        assert!(refused.contains(text), "{refused:?} has no {text:?}");
        assert_eq!(refused.lines().count(), 1);
    }
    assert!(!members[1].exists() && !members[2].exists());
    assert!(std::fs::read(&members[0]).unwrap().iter().all(|byte| *byte == 0xaa));

    let mut forced = options;
    forced.force = true;
    forced.open.resync = false;
    let array = Array::create(&forced, &members).unwrap();
    assert!(!array.status().groups[0].in_sync, "old data is no parity");
    let again = message(Array::create(&forced, &members));
    assert!(again.contains("is in use by another process"), "{again}");
    array.stop().unwrap();
    let held = message(Array::create(&create_options(Level::Raid5, None, 1), &members));
    assert!(held.contains("md superblock"), "{held}");
}

#[test]
fn open_refuses_in_one_line() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    let other = folder.path().join("other");
    std::fs::write(&other, vec![0; 1 << 20]).unwrap();
    Array::create(&create_options(Level::Raid5, None, 1), &members).unwrap().stop().unwrap();
    let open = |paths: &[PathBuf]| message(Array::open(paths, &OpenOptions::default()));
    let twice = open(&[members[0].clone(), members[0].clone(), members[1].clone()]);
    assert!(twice.contains("is given twice"), "{twice}");
    assert!(open(&members[..1]).contains("missing"));
    assert!(open(std::slice::from_ref(&other)).contains("no md superblock"));
    assert!(open(&[]).contains("no members"));
    assert!(open(&[folder.path().into()]).contains("directory"));
}

/// Reading needs no lock and writes nothing, even beside the one who uses the array.
/// A write to one group of a RAID 50 alone would damage the striped set over the groups.
#[test]
fn a_lone_group_of_a_nested_array_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let members = paths(folder.path(), 6);
    Array::create(&create_options(Level::Raid5, None, 2), &members).unwrap().stop().unwrap();
    let mut options = OpenOptions::default();
    let refusal = message(Array::open(&members[..3], &options));
    assert!(refusal.contains("one of the 2 groups of the nested array"), "{refusal}");
    options.read_only = true;
    Array::open(&members[3..], &options).unwrap().stop().unwrap();
    options.read_only = false;
    options.force = true;
    Array::open(&members[3..], &options).unwrap().stop().unwrap();
    Array::open(&members, &OpenOptions::default()).unwrap().stop().unwrap();
}

#[test]
fn a_read_only_array_is_read_only() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    let mut options = create_options(Level::Raid5, None, 1);
    // The one who uses it does not mark it clean meanwhile.
    options.open.idle_after = Duration::ZERO;
    let array = Array::create(&options, &members).unwrap();
    array.write_at(b"hello", 5).unwrap();
    array.flush().unwrap();
    let before: Vec<_> = members.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut look = OpenOptions::default();
    look.read_only = true;
    let reader = Array::open(&members, &look).unwrap();
    let mut bytes = [0; 5];
    reader.read_at(&mut bytes, 5).unwrap();
    assert_eq!(&bytes, b"hello");
    assert!(matches!(reader.write_at(b"x", 0), Err(Error::ReadOnly)));
    assert!(reader.limits().read_only);
    reader.stop().unwrap();
    let after: Vec<_> = members.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(before == after);
    array.stop().unwrap();
}

/// Several threads write parts of the same stripes: nothing is lost, and parity fits.
#[test]
fn queues_on_several_threads_share_stripes() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 4);
    let array = Array::create(&create_options(Level::Raid5, None, 1), &members).unwrap();
    let size = 2_u64 << 20;
    let threads = 4;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let array = array.clone();
            scope.spawn(move || {
                let mut queue = array.queue().unwrap();
                let mut random = Random(thread + 1);
                let mut in_flight = 0;
                // Each thread owns every fourth piece of 3000 bytes, so neighbours share blocks.
                let mut pieces = (0..size / 3000).filter(|piece| piece % threads == thread);
                loop {
                    while in_flight < 16 {
                        let Some(piece) = pieces.next() else { break };
                        let mut buffer = queue.buffer(3000);
                        buffer.fill(piece as u8);
                        let offset = piece * 3000;
                        let fua = random.below(50) == 0;
                        queue.submit(Operation::Write { offset, buffer, fua }, piece).unwrap();
                        in_flight += 1;
                    }
                    if in_flight == 0 {
                        break;
                    }
                    match queue.poll() {
                        Some(completion) => {
                            completion.result.unwrap();
                            in_flight -= 1;
                        }
                        None => queue.wait(Some(Duration::from_secs(20))).unwrap(),
                    }
                }
            });
        }
    });
    let model: Vec<u8> = (0..size / 3000 * 3000).map(|byte| (byte / 3000) as u8).collect();
    reads_back(&array, &model);
    array.stop().unwrap();
    for lost in 0..4 {
        let rest: Vec<_> = (0..4).filter(|i| *i != lost).map(|i| members[i].clone()).collect();
        let mut look = OpenOptions::default();
        look.read_only = true;
        let array = Array::open(&rest, &look).unwrap();
        reads_back(&array, &model);
        array.stop().unwrap();
    }
}

#[test]
fn a_stopped_array_says_so() {
    let array = Array::in_memory(MemoryOptions::default()).unwrap();
    let mut queue = array.queue().unwrap();
    let clone = array.clone();
    array.stop().unwrap();
    let refused = queue.submit(Operation::Flush, 1).unwrap_err();
    assert!(matches!(refused.error, Error::Stopped));
    assert!(matches!(clone.flush(), Err(Error::Stopped)));
    assert!(matches!(clone.queue().err(), Some(Error::Stopped)));
    assert!(matches!(clone.clone().stop(), Err(Error::Stopped)));
    assert_eq!(clone.status().groups[0].members.len(), 3);
}

/// Stopping waits for requests that another thread has in flight.
#[test]
fn stop_drains() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    let array = Array::create(&create_options(Level::Raid5, None, 1), &members).unwrap();
    let clone = array.clone();
    let thread = std::thread::spawn(move || {
        let mut queue = clone.queue().unwrap();
        let mut done = 0_u64;
        let mut stopped = false;
        let mut next = 0;
        while !stopped || queue.in_flight() > 0 {
            while !stopped && queue.in_flight() < 8 {
                let mut buffer = queue.buffer(4096);
                buffer.fill(1);
                match queue.submit(Operation::Write { offset: next * 4096, buffer, fua: false }, 0)
                {
                    Ok(()) => next = (next + 1) % 1000,
                    Err(refused) => {
                        assert!(matches!(refused.error, Error::Stopped));
                        stopped = true;
                    }
                }
            }
            while let Some(completion) = queue.poll() {
                completion.result.unwrap();
                done += 1;
            }
            queue.wait(Some(Duration::from_millis(100))).unwrap();
        }
        done
    });
    std::thread::sleep(Duration::from_millis(200));
    array.stop().unwrap();
    assert!(thread.join().unwrap() > 0);
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    assert!(array.status().was_clean);
    array.stop().unwrap();
}

#[test]
fn allocation_tells_data_from_holes() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for (level, groups, count) in
        [(Level::Raid5, 1, 3), (Level::Raid5, 2, 6), (Level::Raid10, 1, 4)]
    {
        let members = paths(folder.path(), count);
        let array = Array::create(&create_options(level, None, groups), &members).unwrap();
        let size = array.limits().size_bytes;
        let extents = array.allocation(0, size).unwrap();
        assert_eq!(extents.len(), 1);
        assert!(extents[0].hole_and_zero && extents[0].len == size);
        array.write_at(&[1; 8192], 1 << 20).unwrap();
        array.flush().unwrap();
        let extents = array.allocation(4096, size - 4096).unwrap();
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), size - 4096);
        let mut at = 4096;
        for extent in extents {
            let covers = at < (1 << 20) + 8192 && at + extent.len > 1 << 20;
            assert_eq!(extent.hole_and_zero, !covers, "{extent:?} at {at}");
            at += extent.len;
        }
        assert!(array.allocation(size, 1).is_err());
        array.stop().unwrap();
        members.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

#[test]
fn spares_stand_by() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 4);
    let mut options = create_options(Level::Raid5, None, 1);
    options.spares = vec![members[3].clone()];
    let array = Array::create(&options, &members[..3]).unwrap();
    array.write_at(b"x", 0).unwrap();
    array.stop().unwrap();
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    let spares: Vec<_> =
        array.status().groups[0].members.iter().filter(|m| m.state == "spare").cloned().collect();
    assert_eq!(spares.len(), 1);
    assert_eq!(array.status().degraded, 0);
    array.stop().unwrap();
}

/// A long sequential write reads nothing: every stripe is written whole.
#[test]
fn sequential_writes_are_full_stripes() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 5);
    let mut options = create_options(Level::Raid5, None, 1);
    options.member_bytes = Some(32 << 20);
    let array = Array::create(&options, &members).unwrap();
    let len = 64 << 20;
    array.write_at(&vec![3; len], 0).unwrap();
    let statistics = array.status().statistics;
    assert_eq!(statistics.full_stripe_writes, len as u64 / (256 << 10));
    assert_eq!((statistics.rmw, statistics.rcw, statistics.member_reads), (0, 0, 0));
    assert_eq!(statistics.written_bytes, len as u64);
    array.stop().unwrap();
}

fn wait_for_resync(array: &Array) {
    let start = std::time::Instant::now();
    while !array.status().groups.iter().all(|group| group.in_sync) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", array.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Old data on the members: the redundancy is made in the background, beside reads and writes, over
/// several starts; afterwards each member can be missed.
#[test]
fn redundancy_is_made_in_the_background() {
    for (index, (level, layout, count, groups, lost)) in SHAPES.into_iter().enumerate() {
        if lost.is_empty() {
            continue;
        }
        println!("{level:?} {layout:?} {count} {groups}");
        let folder = tempfile::tempdir_in(".").unwrap();
        let members = paths(folder.path(), count);
        let mut random = Random(index as u64 + 7);
        for path in &members {
            std::fs::write(path, random.bytes(64 << 10).repeat(64)).unwrap();
        }
        let mut options = create_options(level, layout, groups);
        options.force = true;
        let array = Array::create(&options, &members).unwrap();
        let mut model = vec![0; array.limits().size_bytes as usize];
        array.read_at(&mut model, 0).unwrap();
        churn(&array, &mut model, &mut random, 2);
        array.stop().unwrap();
        let array = Array::open(&members, &OpenOptions::default()).unwrap();
        churn(&array, &mut model, &mut random, 4);
        wait_for_resync(&array);
        assert_eq!(array.status().groups[0].sync_action, "idle");
        array.stop().unwrap();
        let rest: Vec<PathBuf> = (0..count)
            .filter(|index| !lost.contains(index))
            .map(|index| members[index as usize].clone())
            .collect();
        let array = Array::open(&rest, &OpenOptions::default()).unwrap();
        assert!(array.status().was_clean);
        reads_back(&array, &model);
        array.stop().unwrap();
    }
}

/// How far a resync came is kept by an orderly stop; a second start goes on, and ends clean.
#[test]
fn a_resync_goes_on_after_a_stop() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let members = paths(folder.path(), 3);
    for path in &members {
        std::fs::write(path, vec![5; 64 << 20]).unwrap();
    }
    let mut options = create_options(Level::Raid5, None, 1);
    options.force = true;
    let array = Array::create(&options, &members).unwrap();
    let mut seen = 0;
    while seen == 0 {
        seen = array.status().groups[0].sync_done_bytes;
    }
    array.stop().unwrap();
    let mut plain = OpenOptions::default();
    plain.resync = false;
    let array = Array::open(&members, &plain).unwrap();
    let group = array.status().groups[0].clone();
    assert!(group.sync_done_bytes >= seen, "{} < {seen}", group.sync_done_bytes);
    array.stop().unwrap();
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    wait_for_resync(&array);
    array.stop().unwrap();
    let array = Array::open(&members[1..], &OpenOptions::default()).unwrap();
    assert!(array.status().was_clean);
    array.stop().unwrap();
}
