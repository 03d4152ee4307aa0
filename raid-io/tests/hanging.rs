//! Members that do not answer: requests go on without them, memory that they may still use is not
//! used again, and nothing waits for them at the end.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "options cannot be built outside their crate"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use raid_io::{
    Array, Buffer, Error, Level, MemberDevice, MemoryDevice, MemoryOptions, Operation, Queue,
};

const MEMBER_BYTES: u64 = 2 << 20;
const TIMEOUT: Duration = Duration::from_millis(200);
/// Far more than anything here takes, on a machine that does ten other things.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory that answers no call while it is held. Reads that were held fill their memory with
/// rubbish when they go on, as a disk does that comes back after hours.
struct Gate {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: bool,
    waiting: usize,
}

impl Gate {
    fn new() -> Arc<Self> {
        let inner = MemoryDevice::new(MEMBER_BYTES, 512);
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    fn hold(&self, held: bool) {
        self.state.lock().unwrap().held = held;
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    /// Waits while the gate is held; true if it was.
    fn pass(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let was_held = state.held;
        state.waiting += 1;
        state = self.changed.wait_while(state, |state| state.held).unwrap();
        state.waiting -= 1;
        was_held
    }
}

impl MemberDevice for Gate {
    fn size_bytes(&self) -> u64 {
        MEMBER_BYTES
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        if self.pass() {
            buffers.iter_mut().for_each(|buffer| buffer.fill(0xEE));
            return Ok(buffers.iter().map(|buffer| buffer.len()).sum());
        }
        self.inner.read_at(buffers, offset)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.pass();
        self.inner.write_at(buffers, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass();
        self.inner.flush()
    }
}

struct Rig {
    gates: Vec<Arc<Gate>>,
    array: Array,
    model: Vec<u8>,
    seed: u64,
}

impl Rig {
    fn new(level: Level, count: usize) -> Self {
        let gates: Vec<Arc<Gate>> = (0..count).map(|_| Gate::new()).collect();
        let devices =
            gates.iter().map(|gate| Some(Arc::clone(gate) as Arc<dyn MemberDevice>)).collect();
        let mut options = MemoryOptions::default();
        options.level = level;
        options.chunk_bytes = 16 << 10;
        options.open.io_timeout = TIMEOUT;
        options.open.pool_bytes = 256 << 10;
        options.open.scratch_bytes = 1 << 20;
        let array = Array::over_devices(devices, &options).unwrap();
        let size = array.limits().size_bytes as usize;
        let mut rig = Self { gates, array, model: Vec::new(), seed: 88_172_645_463_325_252 };
        rig.model = (0..size).map(|_| rig.below(256) as u8).collect();
        rig.array.write_at(&rig.model, 0).unwrap();
        rig
    }

    fn below(&mut self, end: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % end
    }

    /// Reads and writes in 24 lanes at once; returns the errors. What failed to be written is
    /// taken over from the array afterwards by nobody: lanes that failed are not compared again.
    fn churn(&mut self, queue: &mut Queue) -> Vec<Error> {
        let lanes = 24;
        let lane_bytes = self.model.len() as u64 / lanes;
        let mut reads = vec![None; lanes as usize];
        for lane in 0..lanes {
            let start = lane * lane_bytes + self.below(lane_bytes / 2);
            let len = 1 + self.below((lane_bytes / 2).min(100_000));
            let range = start as usize..(start + len) as usize;
            let operation = if self.below(2) == 0 {
                reads[lane as usize] = Some(range);
                Operation::Read { offset: start, buffer: queue.buffer(len as usize) }
            } else {
                let fill = self.below(255) as u8;
                self.model[range.clone()].fill(fill);
                let buffer = Buffer::copy_of(&self.model[range]);
                Operation::Write { offset: start, buffer, fua: false }
            };
            queue.submit(operation, lane).unwrap();
        }
        let begun = Instant::now();
        let mut errors = Vec::new();
        let mut left = lanes;
        while left > 0 {
            assert!(begun.elapsed() < LIMIT, "{left} requests do not end");
            let Some(completion) = queue.poll() else {
                queue.wait(Some(Duration::from_millis(500))).unwrap();
                continue;
            };
            left -= 1;
            let lane = completion.user_data as usize;
            match (completion.result, &reads[lane]) {
                (Err(error), _) => errors.push(error),
                (Ok(()), Some(range)) => {
                    let buffer = completion.buffer.unwrap();
                    assert!(buffer[..] == self.model[range.clone()], "lane {lane}: {range:?}");
                }
                (Ok(()), None) => {}
            }
        }
        errors
    }

    fn read_all(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.model.len()];
        self.array.read_at(&mut bytes, 0).unwrap();
        bytes
    }
}

/// Requests under way and later ones are answered with the right bytes, whichever of the level's
/// members hang; when they come back, what they still write lands where nobody looks.
#[test]
fn hanging_members_hold_nothing_up() {
    let cases: [(Level, usize, &[usize]); 5] = [
        (Level::Raid1, 2, &[1]),
        (Level::Raid1, 3, &[0, 2]),
        (Level::Raid5, 4, &[2]),
        (Level::Raid6, 5, &[0, 3]),
        (Level::Raid10, 4, &[3]),
    ];
    for (level, count, hung) in cases {
        println!("{level:?} of {count}, {hung:?} hang");
        let mut rig = Rig::new(level, count);
        let mut queue = rig.array.queue().unwrap();
        assert!(rig.churn(&mut queue).is_empty());
        hung.iter().for_each(|member| rig.gates[*member].hold(true));
        for _ in 0..4 {
            assert!(rig.churn(&mut queue).is_empty());
        }
        let stuck: usize = hung.iter().map(|member| rig.gates[*member].waiting()).sum();
        assert!(stuck >= hung.len(), "nothing hangs");
        let status = rig.array.status();
        assert_eq!(status.degraded, hung.len() as u32);
        hung.iter()
            .for_each(|member| assert_eq!(status.groups[0].members[*member].state, "faulty"));
        hung.iter().for_each(|member| rig.gates[*member].hold(false));
        for _ in 0..4 {
            assert!(rig.churn(&mut queue).is_empty());
        }
        assert!(rig.read_all() == rig.model);
        drop(queue);
        rig.array.stop().unwrap();
    }
}

/// An array and its queues end while a member hangs.
#[test]
fn the_end_does_not_wait_for_a_member_that_hangs() {
    for level in [Level::Raid1, Level::Raid5] {
        let mut rig = Rig::new(level, 3);
        let mut queue = rig.array.queue().unwrap();
        rig.gates[0].hold(true);
        assert!(rig.churn(&mut queue).is_empty());
        assert!(rig.gates[0].waiting() > 0);
        let begun = Instant::now();
        drop(queue);
        rig.array.stop().unwrap();
        assert!(begun.elapsed() < LIMIT);
        // Calls that were given up end here, and must find their memory.
        rig.gates[0].hold(false);
        while rig.gates[0].waiting() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A queue that is dropped in the middle ends its requests without the member.
#[test]
fn a_queue_is_dropped_while_requests_wait_for_a_member_that_hangs() {
    let rig = Rig::new(Level::Raid5, 3);
    let mut queue = rig.array.queue().unwrap();
    rig.gates[1].hold(true);
    for turn in 0..16 {
        let operation = Operation::Read { offset: turn * 65536, buffer: queue.buffer(65536) };
        queue.submit(operation, turn).unwrap();
    }
    queue.run();
    let begun = Instant::now();
    drop(queue);
    assert!(begun.elapsed() < LIMIT);
    assert!(rig.read_all() == rig.model);
    rig.gates[1].hold(false);
}

/// Without redundancy, requests that need the member fail in time, the others do not; when it
/// answers again, it is asked again.
#[test]
fn without_redundancy_requests_fail_until_the_member_answers() {
    let mut rig = Rig::new(Level::Raid0, 2);
    let mut queue = rig.array.queue().unwrap();
    rig.gates[1].hold(true);
    let run = |queue: &mut Queue, offset: u64| {
        let operation = Operation::Read { offset, buffer: queue.buffer(4096) };
        queue.submit(operation, offset).unwrap();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "the read at {offset} does not end");
            if let Some(completion) = queue.poll() {
                return completion.result.map(|()| completion.buffer.unwrap()[..].to_vec());
            }
            queue.wait(Some(Duration::from_millis(500))).unwrap();
        }
    };
    let chunk = 16 << 10;
    for turn in 0..3 {
        assert_eq!(run(&mut queue, 0).unwrap(), rig.model[..4096]);
        let error = run(&mut queue, chunk).unwrap_err();
        assert!(matches!(error, Error::Io { offset } if offset == chunk), "{turn}: {error}");
    }
    // The first call alone hangs: the member was not asked again.
    assert_eq!(rig.gates[1].waiting(), 1);
    rig.gates[1].hold(false);
    let begun = Instant::now();
    while run(&mut queue, chunk).is_err() {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(rig.read_all() == rig.model);
    assert!(rig.churn(&mut queue).is_empty());
}
