//! A model array: members are vectors, the driver is a loop, faults and order are chosen by the
//! test.
//!
//! The parity and mirror checks here are written from the definitions (byte loops over GF(2^8) and
//! md's slot formulas through `Geometry`), not with the engine's planner or kernels.
#![allow(dead_code, reason = "each test uses another part of the harness")]

use raid_core::geometry::{Geometry, GeometrySpec, Layout, Level};
use raid_core::intent::IntentConfig;
use raid_core::memory::{BufferName, ComputeStep, Memory, Segment, ZERO_BYTES};
use raid_core::parity::Kernel;
use raid_core::plan::{IoKind, Trust};
use raid_core::queue::{MemberError, Queue, QueueConfig};
use raid_core::request::{Completion, Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, MetadataUpdate, OuterConfig, Volume, VolumeConfig};
use std::collections::HashMap;
use std::sync::Arc;

/// Where each member's data starts: something that is not zero.
pub(crate) const DATA_OFFSET: u64 = 8192;

/// A small generator of numbers, seeded (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

pub(crate) fn geometry(
    level: Level,
    layout: Layout,
    slots: usize,
    chunk: u64,
    member: u64,
) -> Geometry {
    let sizes = vec![member; slots];
    let spec = GeometrySpec {
        level,
        layout,
        slot_count: slots,
        chunk_bytes: chunk,
        member_data_bytes: &sizes,
    };
    Geometry::new(spec).expect("a valid geometry")
}

/// The memory behind the names: one vector for each request, the scratch arena, zeroes.
#[derive(Default)]
pub(crate) struct ModelMemory {
    pub(crate) requests: HashMap<u32, Vec<u8>>,
    pub(crate) scratch: Vec<u8>,
}

impl ModelMemory {
    fn get(&self, segment: &Segment) -> Vec<u8> {
        let range = segment.offset as usize..(segment.offset + segment.len) as usize;
        match segment.buffer {
            BufferName::Request(tag) => self.requests[&tag][range].to_vec(),
            BufferName::Scratch => self.scratch[range].to_vec(),
            BufferName::Zero => {
                assert!(segment.offset + segment.len <= ZERO_BYTES);
                vec![0; segment.len as usize]
            }
        }
    }

    pub(crate) fn put(&mut self, segment: &Segment, bytes: &[u8]) {
        let range = segment.offset as usize..(segment.offset + segment.len) as usize;
        match segment.buffer {
            BufferName::Request(tag) => {
                self.requests.get_mut(&tag).expect("a request in flight")[range]
                    .copy_from_slice(bytes);
            }
            BufferName::Scratch => self.scratch[range].copy_from_slice(bytes),
            BufferName::Zero => panic!("constant zeroes are written"),
        }
    }
}

fn overlap(a: &Segment, b: &Segment) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl Memory for ModelMemory {
    fn with(&mut self, sources: &[Segment], targets: &[Segment], f: &mut ComputeStep<'_>) {
        for (index, target) in targets.iter().enumerate() {
            assert!(
                !sources.iter().any(|source| overlap(source, target)),
                "{target:?} is a source"
            );
            assert!(!targets[..index].iter().any(|other| overlap(other, target)));
        }
        let from: Vec<_> = sources.iter().map(|segment| self.get(segment)).collect();
        let mut to: Vec<_> = targets.iter().map(|segment| self.get(segment)).collect();
        {
            let from: Vec<_> = from.iter().map(Vec::as_slice).collect();
            let mut to: Vec<_> = to.iter_mut().map(Vec::as_mut_slice).collect();
            f(&from, &mut to);
        }
        for (segment, bytes) in targets.iter().zip(&to) {
            self.put(segment, bytes);
        }
    }
}

/// An operation that a member has been given.
#[derive(Clone, Debug)]
pub(crate) struct PendingIo {
    pub(crate) queue: usize,
    pub(crate) token: u32,
    pub(crate) member: usize,
    pub(crate) kind: IoKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) segments: Vec<Segment>,
}

/// Decides how a member operation ends.
pub(crate) type Fault = Box<dyn FnMut(&PendingIo) -> Result<(), MemberError>>;

/// A whole array on vectors, driven by one or more queues.
pub(crate) struct Rig {
    pub(crate) volume: Arc<Volume>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) memories: Vec<ModelMemory>,
    pub(crate) members: Vec<Vec<u8>>,
    /// Members that are gone: touching one is a violation.
    pub(crate) absent: SlotSet,
    pub(crate) pending: Vec<PendingIo>,
    pub(crate) fault: Option<Fault>,
    pub(crate) metadata_writes: usize,
    /// Leave metadata updates to the test, one at a time.
    pub(crate) hold_metadata: bool,
    pub(crate) held_metadata: Option<MetadataUpdate>,
    /// The bitmap as it stands on the members, of a single group.
    pub(crate) bitmap: Option<(u64, Vec<u64>)>,
    pub(crate) completions: Vec<(usize, Completion)>,
    /// Operations sent, by kind: reads and writes.
    pub(crate) sent: (usize, usize),
}

/// What a rig is made with besides its geometry.
#[derive(Clone, Copy)]
pub(crate) struct RigOptions {
    pub(crate) queues: usize,
    pub(crate) block: u32,
    pub(crate) trust: Trust,
    pub(crate) absent: SlotSet,
    /// Keep a write-intent bitmap of this granule.
    pub(crate) granule: Option<u64>,
}

impl Default for RigOptions {
    fn default() -> Self {
        Self { queues: 1, block: 512, trust: Trust::InSync, absent: SlotSet::new(), granule: None }
    }
}

impl Rig {
    pub(crate) fn new(geometry: &Geometry, members: Vec<Vec<u8>>, options: RigOptions) -> Self {
        Self::nested(std::slice::from_ref(geometry), None, members, options)
    }

    pub(crate) fn nested(
        groups: &[Geometry],
        outer: Option<OuterConfig>,
        members: Vec<Vec<u8>>,
        options: RigOptions,
    ) -> Self {
        let mut base = 0;
        let mut configs = Vec::new();
        for geometry in groups {
            let slots = geometry.slot_count();
            let here = (0..slots).filter(|slot| !options.absent.contains(base + slot));
            configs.push(GroupConfig {
                geometry: geometry.clone(),
                data_offsets: vec![DATA_OFFSET; slots],
                in_sync: here.collect(),
                trust: options.trust,
                dirty: false,
                intent: options.granule.map(|granule| intent_config(geometry, granule)),
                recovering: Vec::new(),
                doubtful: false,
            });
            base += slots;
        }
        let config =
            VolumeConfig { groups: configs, outer, block_bytes: options.block, read_only: false };
        let volume = Arc::new(Volume::new(config).expect("a valid volume"));
        let scratch_bytes = volume.scratch_bytes_min();
        let kernel = Kernel::named("portable").expect("always there");
        let config = QueueConfig { request_count_max: 64, scratch_bytes, kernel };
        let queues = (0..options.queues)
            .map(|_| Queue::new(Arc::clone(&volume), config).expect("a queue"))
            .collect();
        let poison = || ModelMemory {
            scratch: vec![0xa5; scratch_bytes as usize],
            ..ModelMemory::default()
        };
        Self {
            volume,
            queues,
            memories: (0..options.queues).map(|_| poison()).collect(),
            members,
            absent: options.absent,
            pending: Vec::new(),
            fault: None,
            metadata_writes: 0,
            hold_metadata: false,
            held_metadata: None,
            bitmap: options
                .granule
                .map(|granule| (granule, intent_config(&groups[0], granule).words)),
            completions: Vec::new(),
            sent: (0, 0),
        }
    }

    /// The same array as found after a crash, with these bits set on the members.
    pub(crate) fn reload_bitmap(
        &mut self,
        geometry: &Geometry,
        words: Vec<u64>,
        options: RigOptions,
    ) {
        let granule = options.granule.expect("a bitmap");
        let members = std::mem::take(&mut self.members);
        let config = GroupConfig {
            geometry: geometry.clone(),
            data_offsets: vec![DATA_OFFSET; geometry.slot_count()],
            in_sync: geometry.slots(),
            trust: options.trust,
            dirty: true,
            intent: Some(IntentConfig { granule_bytes: granule, words: words.clone() }),
            recovering: Vec::new(),
            doubtful: false,
        };
        *self = Self::new(geometry, members, options);
        self.bitmap = Some((granule, words));
        let config = VolumeConfig {
            groups: vec![config],
            outer: None,
            block_bytes: options.block,
            read_only: false,
        };
        self.volume = Arc::new(Volume::new(config).expect("a valid volume"));
        let kernel = Kernel::named("portable").expect("always there");
        let scratch_bytes = self.volume.scratch_bytes_min();
        let config = QueueConfig { request_count_max: 64, scratch_bytes, kernel };
        for queue in &mut self.queues {
            *queue = Queue::new(Arc::clone(&self.volume), config).expect("a queue");
        }
    }

    /// Moves everything forward that does not need a member to answer.
    pub(crate) fn drive(&mut self) {
        loop {
            let mut progress = false;
            for index in 0..self.queues.len() {
                let queue = &mut self.queues[index];
                if queue.has_computes() {
                    queue.run_computes(&mut self.memories[index]);
                    progress = true;
                }
                while let Some(io) = queue.poll_io() {
                    assert!(!self.absent.contains(io.member), "an absent member is used: {io:?}");
                    let total: u64 = io.segments.iter().map(|s| u64::from(s.len)).sum();
                    if matches!(io.kind, IoKind::Read | IoKind::Write) {
                        assert_eq!(total, io.len);
                    }
                    if matches!(io.kind, IoKind::Write | IoKind::WriteZeroes { .. }) {
                        check_intent(&self.volume, &self.bitmap, io.member, io.offset, io.len);
                    }
                    match io.kind {
                        IoKind::Read => self.sent.0 += 1,
                        IoKind::Write | IoKind::WriteZeroes { .. } => self.sent.1 += 1,
                        IoKind::Flush => {}
                    }
                    self.pending.push(PendingIo {
                        queue: index,
                        token: io.token,
                        member: io.member,
                        kind: io.kind,
                        offset: io.offset,
                        len: io.len,
                        segments: io.segments.to_vec(),
                    });
                    progress = true;
                }
                if let Some(update) = queue.poll_metadata() {
                    if self.hold_metadata {
                        self.held_metadata = Some(update);
                        return;
                    }
                    self.metadata_writes += 1;
                    if let (Some(image), Some((_, words))) = (&update.intent, &mut self.bitmap) {
                        for &index in &image.changed {
                            words[index] = image.words[index];
                        }
                    }
                    queue.handle_metadata(&update, &SlotSet::new());
                    progress = true;
                }
                let mut wake = 0u64;
                while let Some(other) = self.queues[index].poll_wakeup() {
                    wake |= 1 << other;
                    progress = true;
                }
                for (other, queue) in self.queues.iter_mut().enumerate() {
                    if wake & 1 << other != 0 {
                        queue.handle_wakeup();
                    }
                }
                while let Some(completion) = self.queues[index].poll_completion() {
                    self.completions.push((index, completion));
                    progress = true;
                }
            }
            if !progress {
                return;
            }
        }
    }

    /// Executes the `index`-th pending operation on the model and answers it.
    pub(crate) fn answer(&mut self, index: usize) {
        let io = self.pending.swap_remove(index);
        let result = self.fault.as_mut().map_or(Ok(()), |fault| fault(&io));
        if result.is_ok() {
            let member = &mut self.members[io.member];
            let memory = &mut self.memories[io.queue];
            let mut at = io.offset as usize;
            match io.kind {
                IoKind::Read => {
                    for segment in &io.segments {
                        let end = at + segment.len as usize;
                        memory.put(segment, &member[at..end]);
                        at = end;
                    }
                }
                IoKind::Write => {
                    for segment in &io.segments {
                        let end = at + segment.len as usize;
                        member[at..end].copy_from_slice(&memory.get(segment));
                        at = end;
                    }
                }
                IoKind::WriteZeroes { .. } => member[at..at + io.len as usize].fill(0),
                IoKind::Flush => {}
            }
        }
        self.queues[io.queue].handle_io(io.token, result);
    }

    /// Runs until nothing is under way, answering in random order.
    pub(crate) fn settle(&mut self, random: &mut Random) {
        loop {
            self.drive();
            if self.pending.is_empty() {
                break;
            }
            let index = random.below(self.pending.len() as u64) as usize;
            self.answer(index);
        }
        assert!(self.queues.iter().all(Queue::is_idle), "a request never ends");
    }

    /// One request from start to end on queue 0; returns its buffer.
    pub(crate) fn request(
        &mut self,
        kind: RequestKind,
        offset: u64,
        len: u64,
        buffer: Vec<u8>,
    ) -> (Completion, Vec<u8>) {
        self.memories[0].requests.insert(0, buffer);
        self.queues[0]
            .submit(Request { tag: 0, kind, offset, len, fua: false })
            .expect("an acceptable request");
        self.settle(&mut Random::new(1));
        let (_, completion) = self.completions.pop().expect("one completion");
        assert!(self.completions.is_empty() && completion.tag == 0);
        let buffer = self.memories[0].requests.remove(&0).expect("its buffer");
        (completion, buffer)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Completion {
        self.request(RequestKind::Write, offset, bytes.len() as u64, bytes.to_vec()).0
    }

    pub(crate) fn read(&mut self, offset: u64, len: u64) -> (Completion, Vec<u8>) {
        self.request(RequestKind::Read, offset, len, vec![0x5a; len as usize])
    }
}

/// An empty bitmap for a geometry.
pub(crate) fn intent_config(geometry: &Geometry, granule_bytes: u64) -> IntentConfig {
    let bits = intent_bytes(geometry).div_ceil(granule_bytes);
    IntentConfig { granule_bytes, words: vec![0; bits.div_ceil(64) as usize] }
}

/// Bitmap addresses of a geometry: bytes of a member, but of the array on RAID 10.
fn intent_bytes(geometry: &Geometry) -> u64 {
    if geometry.level() == Level::Raid10 {
        geometry.array_bytes()
    } else {
        geometry.component_bytes()
    }
}

/// Asserts that the members' bitmap says where a write goes before it goes (oracle O9).
fn check_intent(
    volume: &Volume,
    bitmap: &Option<(u64, Vec<u64>)>,
    member: usize,
    offset: u64,
    len: u64,
) {
    let Some((granule, words)) = bitmap else { return };
    let geometry = volume.geometry(0);
    for at in (offset - DATA_OFFSET..offset - DATA_OFFSET + len).step_by(512) {
        let address = match geometry.level() {
            Level::Raid10 => geometry.logical_of(member, at).expect("in use").offset,
            _ => at,
        };
        let bit = address / granule;
        let set = words[(bit / 64) as usize] >> (bit % 64) & 1 != 0;
        assert!(set, "member {member} byte {at} is written before bit {bit} is durable");
    }
}

/// Product in GF(2^8) over 0x11d, by shifting: the definition.
pub(crate) fn gf_mul(mut a: u8, mut b: u8) -> u8 {
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

/// g^exponent.
pub(crate) fn gf_power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| gf_mul(power, 2))
}

/// Asserts that parity and copies of all `present` members of one group agree with its data.
pub(crate) fn check_redundancy(geometry: &Geometry, members: &[Vec<u8>], present: &SlotSet) {
    if geometry.parity_count() == 0 {
        return check_copies(geometry, members, present);
    }
    if present.len() < geometry.slot_count() {
        return;
    }
    let chunk = geometry.chunk_bytes() as usize;
    let powers: Vec<u8> = (0..geometry.slot_count()).map(gf_power).collect();
    for index in 0..geometry.stripe_count() {
        let stripe = geometry.stripe(index);
        let start = DATA_OFFSET as usize + geometry.member_offset_of_stripe(index) as usize;
        let mut p = vec![0u8; chunk];
        let mut q = vec![0u8; chunk];
        for k in 0..geometry.data_slots() {
            let data = &members[stripe.data_slot(k)][start..start + chunk];
            let power = powers[stripe.syndrome_index(k)];
            for (at, &byte) in data.iter().enumerate() {
                p[at] ^= byte;
                if stripe.q.is_some() {
                    q[at] ^= gf_mul(power, byte);
                }
            }
        }
        for (slot, expected) in [(stripe.p, &p), (stripe.q, &q)] {
            if let Some(slot) = slot {
                let found = &members[slot][start..start + chunk];
                assert!(found == &expected[..], "parity of stripe {index} on slot {slot} is wrong");
            }
        }
    }
}

fn check_copies(geometry: &Geometry, members: &[Vec<u8>], present: &SlotSet) {
    let mut offset = 0;
    while offset < geometry.array_bytes() {
        let places: Vec<_> = (0..geometry.copy_count())
            .map(|copy| geometry.copy(offset, copy))
            .filter(|place| present.contains(place.slot))
            .collect();
        let len = places.iter().map(|place| place.contiguous_bytes).min().unwrap_or(4096);
        let len = len.min(geometry.array_bytes() - offset).min(4096);
        let bytes = |place: &raid_core::geometry::Place| {
            let start = (DATA_OFFSET + place.member_offset) as usize;
            &members[place.slot][start..start + len as usize]
        };
        for place in &places[1.min(places.len())..] {
            assert!(bytes(place) == bytes(&places[0]), "copies differ at array byte {offset}");
        }
        offset += len;
    }
}

/// All sets of slots that the geometry tolerates to miss, the empty one included.
pub(crate) fn tolerated_losses(geometry: &Geometry) -> Vec<SlotSet> {
    let slots = geometry.slot_count();
    assert!(slots <= 12, "that would be many sets");
    (0..1u32 << slots)
        .map(|mask| (0..slots).filter(|slot| mask >> slot & 1 != 0).collect::<SlotSet>())
        .filter(|missing| geometry.tolerates(missing))
        .collect()
}

/// The levels and layouts that the exhaustive tests go through: `(name, geometry)`.
pub(crate) fn small_geometries(chunk: u64, stripes: u64) -> Vec<(String, Geometry)> {
    let shapes: &[(Level, &str, usize)] = &[
        (Level::Raid0, "original", 3),
        (Level::Raid1, "", 2),
        (Level::Raid1, "", 3),
        (Level::Raid4, "", 4),
        (Level::Raid5, "left-symmetric", 2),
        (Level::Raid5, "left-symmetric", 3),
        (Level::Raid5, "left-symmetric", 4),
        (Level::Raid5, "left-asymmetric", 4),
        (Level::Raid5, "right-symmetric", 4),
        (Level::Raid5, "right-asymmetric", 4),
        (Level::Raid5, "parity-first", 3),
        (Level::Raid5, "parity-last", 3),
        (Level::Raid6, "left-symmetric", 4),
        (Level::Raid6, "left-symmetric", 5),
        (Level::Raid6, "left-asymmetric", 5),
        (Level::Raid6, "right-symmetric", 5),
        (Level::Raid6, "ddf-N-continue", 5),
        (Level::Raid6, "left-symmetric-6", 5),
        (Level::Raid10, "near=2", 4),
        (Level::Raid10, "near=2", 3),
        (Level::Raid10, "far=2", 3),
        (Level::Raid10, "offset=2", 3),
        (Level::Raid10, "near=3", 5),
    ];
    let make = |&(level, name, slots): &(Level, &str, usize)| {
        let layout = match name {
            "" => Layout::default_for(level),
            name => Layout::parse(level, name).unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        let title = format!("{level:?} {name} {slots}");
        (title, geometry(level, layout, slots, chunk, chunk * stripes))
    };
    shapes.iter().map(make).collect()
}
