//! Both ways of member I/O against a model, then what can go wrong on the way.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::*;
use crate::file::{Access, MemberFile};
use crate::member::MemoryDevice;
use crate::testing::{Fault, FaultyDevice, LoopDevice, Random, skip};
use crate::transfer::JobKind;

const SIZE: u64 = 1 << 20;

/// A channel with its eventfd, and memory that lives as long.
struct Rig {
    channel: Channel,
    eventfd: OwnedFd,
    slab: Arc<Slab>,
}

impl Rig {
    fn new(members: Vec<Member>, uring: bool) -> Self {
        let slab = Slab::new(64 << 10, 4 << 20, 4 << 20).unwrap();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd = rustix::event::eventfd(0, flags).unwrap();
        let channel = Channel::new(members.into(), Arc::clone(&slab), &eventfd, uring).unwrap();
        Self { channel, eventfd, slab }
    }

    /// Waits for one job, by the eventfd only.
    fn next(&mut self) -> Ended {
        let start = Instant::now();
        loop {
            self.channel.turn();
            if let Some(ended) = self.channel.pop() {
                return ended;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "a job was lost");
            let mut fds = [PollFd::new(&self.eventfd, PollFlags::IN)];
            let second = Timespec { tv_sec: 5, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&second)), Ok(1), "no wakeup");
            let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        }
    }

    fn run(&mut self, job: Job, pieces: &[Piece]) -> Result<(), Errno> {
        // SAFETY: the pieces lie in the slab, or in buffers that outlive this call.
        unsafe { self.channel.push(job, pieces) };
        let ended = self.next();
        assert_eq!(ended.token, job.token);
        ended.result
    }

    /// Returns `len` bytes of scratch memory.
    fn piece(&self, offset: usize, len: usize) -> Piece {
        let (pointer, size) = self.slab.scratch();
        assert!(offset + len <= size);
        // SAFETY: the sum is inside the scratch arena.
        Piece { pointer: unsafe { pointer.add(offset) }, len }
    }

    fn bytes(&mut self, piece: Piece) -> &mut [u8] {
        // SAFETY: scratch memory, and no job is in flight when tests look at it.
        unsafe { std::slice::from_raw_parts_mut(piece.pointer.as_ptr(), piece.len) }
    }
}

fn job(kind: JobKind, offset: u64, len: u64) -> Job {
    Job { token: 7, member: 0, kind, offset, len }
}

fn file(folder: &Path, direct: bool) -> Member {
    let path = folder.join(format!("member-{direct}"));
    let _ = std::fs::remove_file(&path);
    Member::file(MemberFile::create(&path, SIZE, direct).unwrap())
}

/// Random reads, writes and zeroes, in one or several pieces at odd addresses.
fn agree_with_a_model(member: Member, uring: bool, seed: u64) {
    println!("{member:?}, uring {uring}, seed {seed}");
    let block = u64::from(member.device().block_bytes());
    let mut rig = Rig::new(vec![member], uring);
    let mut random = Random::new(seed);
    let mut model = vec![0_u8; SIZE as usize];
    for _ in 0..150 {
        let blocks = SIZE / block;
        let first = random.below(blocks);
        let len = (1 + random.below((blocks - first).min(48))) * block;
        let (offset, range) =
            (first * block, (first * block) as usize..(first * block + len) as usize);
        let odd = if random.below(2) == 0 { 0 } else { random.below(5000) as usize };
        let cut = if random.below(2) == 0 { len } else { random.below(len) } as usize;
        let pieces = [rig.piece(odd, cut), rig.piece(odd + cut, len as usize - cut)];
        let whole = rig.piece(odd, len as usize);
        match random.below(4) {
            0 => {
                rig.bytes(whole).fill(0xee);
                rig.run(job(JobKind::Read, offset, len), &pieces).unwrap();
                assert!(rig.bytes(whole) == &model[range], "read {offset}+{len}");
            }
            1 => {
                let kind = JobKind::Zeroes { unmap: random.below(2) == 0, durable: false };
                rig.run(job(kind, offset, len), &[]).unwrap();
                model[range].fill(0);
            }
            other => {
                random.fill(rig.bytes(whole));
                model[range].copy_from_slice(rig.bytes(whole));
                let kind = JobKind::Write { durable: other == 2 };
                rig.run(job(kind, offset, len), &pieces).unwrap();
            }
        }
    }
    rig.run(job(JobKind::Flush, 0, 0), &[]).unwrap();
    let whole = rig.piece(0, SIZE as usize);
    rig.run(job(JobKind::Read, 0, SIZE), &[whole]).unwrap();
    assert!(rig.bytes(whole) == model);
}

#[test]
fn files_and_memory_agree_with_a_model_both_ways() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for uring in [true, false] {
        for direct in [true, false] {
            agree_with_a_model(file(folder.path(), direct), uring, 1);
        }
        for block in [512, 4096] {
            let device = Arc::new(MemoryDevice::new(SIZE, block));
            agree_with_a_model(Member::other("memory", device), uring, 2);
        }
    }
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        let folder = tempfile::tempdir_in(shm).unwrap();
        agree_with_a_model(file(folder.path(), true), true, 3);
    }
}

/// A device that interrupts, tells to try again and moves parts of blocks: the same bytes.
#[test]
fn short_and_interrupted_calls_are_continued() {
    let device = FaultyDevice::new(SIZE, Fault::Awkward);
    agree_with_a_model(Member::other("awkward", device), false, 4);
}

#[test]
fn block_devices_agree_with_a_model_both_ways() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for sector in [512, 4096] {
        for uring in [true, false] {
            let Some(device) = LoopDevice::new(folder.path(), SIZE, sector) else { return };
            let file = MemberFile::open(&device.path, Access::Exclusive, true).unwrap();
            agree_with_a_model(Member::file(file), uring, 5);
        }
    }
}

#[test]
fn errors_come_back_as_they_are() {
    for errno in [Errno::NOSPC, Errno::NODEV, Errno::IO, Errno::TIMEDOUT] {
        let device = FaultyDevice::new(SIZE, Fault::Errno(errno.raw_os_error()));
        let mut rig = Rig::new(vec![Member::other("bad", device)], true);
        let piece = rig.piece(0, 4096);
        for kind in [JobKind::Read, JobKind::Write { durable: true }] {
            assert_eq!(rig.run(job(kind, 0, 4096), &[piece]), Err(errno));
        }
        assert_eq!(rig.run(job(JobKind::Flush, 0, 0), &[]), Err(errno));
    }
}

/// A device that never gets on is an error in the end, not a loop.
#[test]
fn a_device_that_never_moves_fails() {
    let device = FaultyDevice::new(SIZE, Fault::Errno(Errno::AGAIN.raw_os_error()));
    let mut rig = Rig::new(vec![Member::other("stuck", device)], false);
    let piece = rig.piece(0, 4096);
    assert_eq!(rig.run(job(JobKind::Read, 0, 4096), &[piece]), Err(Errno::AGAIN));
}

#[test]
fn a_file_that_lost_its_end_is_an_error_both_ways() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for uring in [true, false] {
        let member = file(folder.path(), true);
        std::fs::File::options().write(true).open(member.name()).unwrap().set_len(8192).unwrap();
        let mut rig = Rig::new(vec![member], uring);
        let piece = rig.piece(0, 8192);
        assert_eq!(rig.run(job(JobKind::Read, 4096, 8192), &[piece]), Err(Errno::IO));
        assert_eq!(rig.run(job(JobKind::Read, 0, 8192), &[piece]), Ok(()));
    }
}

#[test]
fn ranges_outside_or_inside_blocks_are_refused() {
    let mut rig = Rig::new(vec![Member::other("m", Arc::new(MemoryDevice::new(SIZE, 512)))], true);
    for (offset, len) in
        [(SIZE, 512), (SIZE - 512, 1024), (100, 512), (0, 100), (u64::MAX - 511, 512)]
    {
        let piece = rig.piece(0, len as usize);
        assert_eq!(rig.run(job(JobKind::Read, offset, len), &[piece]), Err(Errno::INVAL));
    }
    let piece = rig.piece(0, 512);
    let nobody = Job { member: 9, ..job(JobKind::Read, 0, 512) };
    assert_eq!(rig.run(nobody, &[piece]), Err(Errno::NODEV));
}

/// A file system without room: the error is told, and the ring goes on.
#[test]
fn no_room_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|out| out.status.success()) {
        return skip("root and mount");
    }
    let results: Vec<_> = [true, false]
        .map(|uring| {
            let mut rig = Rig::new(vec![file(folder.path(), true)], uring);
            let piece = rig.piece(0, 512 << 10);
            let full = rig.run(job(JobKind::Write { durable: false }, 0, 512 << 10), &[piece]);
            let piece = rig.piece(0, 4096);
            (full, rig.run(job(JobKind::Read, 0, 4096), &[piece]))
        })
        .into();
    let unmounted = std::process::Command::new("umount").arg(folder.path()).status();
    assert!(unmounted.unwrap().success(), "a member is still held after its queue is gone");
    assert_eq!(results, [(Err(Errno::NOSPC), Ok(())); 2]);
}

/// More jobs than both queues of the ring hold, pushed in one go: each ends once.
#[test]
fn a_full_ring_holds_jobs_back() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for uring in [true, false] {
        let members = vec![file(folder.path(), true), file(folder.path(), false)];
        let mut rig = Rig::new(members, uring);
        let count = if uring { 10_000 } else { 500 };
        for token in 0..count {
            let piece = rig.piece((token as usize % 512) * 4096, 4096);
            let offset = u64::from(token) % (SIZE / 4096) * 4096;
            let member = token as usize % 2;
            let job = Job { token, member, kind: JobKind::Read, offset, len: 4096 };
            // SAFETY: the slab outlives the channel; nobody looks at the bytes.
            unsafe { rig.channel.push(job, &[piece]) };
        }
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let ended = rig.next();
            assert_eq!(ended.result, Ok(()));
            assert!(!std::mem::replace(&mut seen[ended.token as usize], true), "twice");
        }
        assert_eq!(rig.channel.in_flight(), 0);
    }
}

/// Dropping waits for the kernel: afterwards the memory is nobody's.
#[test]
fn dropping_with_jobs_in_flight_is_safe() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for uring in [true, false] {
        let mut rig = Rig::new(vec![file(folder.path(), true)], uring);
        for token in 0..300 {
            let piece = rig.piece(token as usize * 4096, 4096);
            let kind = JobKind::Write { durable: token % 7 == 0 };
            let offset = u64::from(token) % 256 * 4096;
            // SAFETY: the slab outlives the channel.
            unsafe {
                rig.channel.push(Job { token, member: 0, kind, offset, len: 4096 }, &[piece])
            };
        }
        rig.channel.turn();
        drop(rig);
    }
}

/// An idle channel may go to another thread, which gets a ring of its own.
#[test]
fn an_idle_channel_changes_threads() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut rig = Rig::new(vec![file(folder.path(), true)], true);
    let piece = rig.piece(0, 4096);
    rig.run(job(JobKind::Read, 0, 4096), &[piece]).unwrap();
    let mut rig = std::thread::spawn(move || {
        let piece = rig.piece(0, 4096);
        rig.run(job(JobKind::Read, 0, 4096), &[piece]).unwrap();
        rig
    })
    .join()
    .unwrap();
    let piece = rig.piece(0, 4096);
    rig.run(job(JobKind::Read, 0, 4096), &[piece]).unwrap();
}
