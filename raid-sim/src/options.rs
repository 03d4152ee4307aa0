//! Everything that one seed decides: the array, the story that happens to it, and how it is shrunk.
//!
//! Options are drawn as a swarm: each seed leaves some kinds of operation and fault out altogether,
//! so that what is left happens often and meets itself (Groce et al. 2012).

use std::fmt;

use raid_core::geometry::{Geometry, GeometrySpec, Layout, Level};

use crate::disk::Lie;
use crate::random::{Random, mix};

/// The data offset on every member: superblock, bitmap, then data.
pub(crate) const DATA_OFFSET: u64 = 16384;
/// Where the outer array's data starts within each group of a nested level.
pub(crate) const OUTER_OFFSET: u64 = 8192;

/// The arrays that are simulated: level, layout, slots, groups.
const SHAPES: &[(Level, &str, usize, usize)] = &[
    (Level::Raid0, "original", 3, 1),
    (Level::Raid1, "", 2, 1),
    (Level::Raid1, "", 3, 1),
    (Level::Raid4, "", 4, 1),
    (Level::Raid5, "left-symmetric", 3, 1),
    (Level::Raid5, "left-symmetric", 4, 1),
    (Level::Raid5, "left-symmetric", 6, 1),
    (Level::Raid5, "left-asymmetric", 4, 1),
    (Level::Raid5, "right-symmetric", 5, 1),
    (Level::Raid5, "right-asymmetric", 4, 1),
    (Level::Raid5, "parity-first", 3, 1),
    (Level::Raid5, "parity-last", 4, 1),
    (Level::Raid6, "left-symmetric", 4, 1),
    (Level::Raid6, "left-symmetric", 5, 1),
    (Level::Raid6, "left-symmetric", 7, 1),
    (Level::Raid6, "left-asymmetric", 5, 1),
    (Level::Raid6, "right-symmetric", 6, 1),
    (Level::Raid6, "right-asymmetric", 5, 1),
    (Level::Raid10, "near=2", 4, 1),
    (Level::Raid10, "near=2", 3, 1),
    (Level::Raid10, "near=2", 5, 1),
    (Level::Raid10, "far=2", 3, 1),
    (Level::Raid10, "far=2", 4, 1),
    (Level::Raid10, "offset=2", 3, 1),
    (Level::Raid10, "offset=2", 4, 1),
    (Level::Raid10, "near=3", 5, 1),
    (Level::Raid5, "left-symmetric", 3, 2),
];

/// One array.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) layout: Layout,
    pub(crate) layout_name: &'static str,
    /// Of each group.
    pub(crate) slots: usize,
    pub(crate) groups: usize,
    pub(crate) chunk: u64,
    /// Data bytes of each member.
    pub(crate) component: u64,
}

impl Shape {
    /// Geometry of each group.
    pub(crate) fn geometry(&self) -> Geometry {
        let sizes = vec![self.component; self.slots];
        let spec = GeometrySpec {
            level: self.level,
            layout: self.layout,
            slot_count: self.slots,
            chunk_bytes: self.chunk,
            member_data_bytes: &sizes,
        };
        Geometry::new(spec).expect("shapes are valid")
    }

    /// Geometry of the stripes over the groups.
    pub(crate) fn outer(&self) -> Option<Geometry> {
        let size = self.geometry().array_bytes() - OUTER_OFFSET;
        let sizes = vec![size; self.groups];
        let spec = GeometrySpec {
            level: Level::Raid0,
            layout: Layout::default_for(Level::Raid0),
            slot_count: self.groups,
            chunk_bytes: self.chunk,
            member_data_bytes: &sizes,
        };
        (self.groups > 1).then(|| Geometry::new(spec).expect("shapes are valid"))
    }

    pub(crate) fn array_bytes(&self) -> u64 {
        self.outer().map_or_else(|| self.geometry().array_bytes(), |outer| outer.array_bytes())
    }

    pub(crate) fn member_count(&self) -> usize {
        self.slots * self.groups
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nested =
            if self.groups > 1 { format!("{} times ", self.groups) } else { String::new() };
        write!(
            f,
            "{nested}{:?} {} of {} members, chunk {}, {} bytes each",
            self.level, self.layout_name, self.slots, self.chunk, self.component
        )
    }
}

/// What does not change in a story.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) block: u32,
    pub(crate) queues: usize,
    pub(crate) depth: usize,
    /// Bytes of a region of the write-intent bitmap.
    pub(crate) granule: Option<u64>,
    /// Members start with different bytes of their own, and have to be resynced; else zeroes.
    pub(crate) garbage: bool,
    pub(crate) kernel: u64,
    /// One member lies: the oracle must notice.
    pub(crate) lie: Option<Lie>,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Virtual nanoseconds after the boot.
    pub(crate) at: u64,
    pub(crate) queue: usize,
    pub(crate) kind: OpKind,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) fua: bool,
}

/// Kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Discard,
    Flush,
    Read,
    Write,
    Zeroes,
}

/// Something that happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: u64,
    pub(crate) member: usize,
    pub(crate) kind: FaultKind,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Sectors of the data area become unreadable until written.
    Latent { sector: u64, count: u64 },
    /// The next write finds no room.
    NoSpace,
    /// It comes back, with what it had.
    Return,
    /// Its operations take a thousand times as long from now on.
    Slow,
    /// The next operation is not answered in time; it may have been executed or not.
    Timeout,
    /// It is not there any more.
    Vanish,
    /// The next write fails.
    WriteError,
}

/// How a boot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed: members keep what they were given.
    Kill { at: u64 },
    /// The power fails: members keep `percent` of what was not flushed.
    PowerCut { at: u64, percent: u64 },
    /// All requests end, recovery ends, everything is checked; then the power fails and nothing
    /// that was not flushed survives.
    Rest,
    /// An orderly stop, recovery finished or not.
    Stop,
}

/// From one assembly to the next crash or stop.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) seed: u64,
    /// Members that are not offered at the assembly.
    pub(crate) absent: Vec<usize>,
    /// Read the whole array before anything else.
    pub(crate) reads_first: bool,
    /// Finish recovery and check everything before the first request.
    pub(crate) settles_first: bool,
    pub(crate) ops: Vec<Op>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) end: End,
}

/// A whole story: what [`crate::story`] plays.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) options: Options,
    pub(crate) boots: Vec<Boot>,
}

/// What may happen in a story at all.
struct Swarm {
    kinds: Vec<OpKind>,
    faults: Vec<u64>,
    fua_percent: u64,
    hot_percent: u64,
    op_count: u64,
    pace: u64,
    kill_percent: u64,
    loss_percent: u64,
}

impl Script {
    /// The story of a seed.
    pub(crate) fn of_seed(seed: u64, lie: Option<Lie>) -> Self {
        Self::drawn(seed, lie, Random::new(seed))
    }

    /// The story that a tape of bytes tells: any bytes tell one. What the tape is too short for
    /// follows from its hash.
    pub(crate) fn of_tape(tape: &[u8]) -> Self {
        let seed = tape.iter().fold(1, |seed, byte| mix(seed ^ u64::from(*byte)));
        Self::drawn(seed, None, Random::with_tape(seed, tape))
    }

    fn drawn(seed: u64, lie: Option<Lie>, mut random: Random) -> Self {
        let shape = shape(&mut random);
        let options = Options {
            seed,
            block: if random.chance(30) { 4096 } else { 512 },
            queues: random.between(1, 3) as usize,
            depth: random.pick(&[1, 2, 4, 8, 16]),
            granule: (shape.level.is_redundant() && random.chance(45))
                .then(|| random.pick(&[4096, 8192, 16384])),
            garbage: shape.level.is_redundant() && random.chance(35),
            kernel: random.next(),
            lie,
            shape,
        };
        let swarm = Swarm::draw(&mut random);
        let boots = boots(&options, &swarm, &mut random);
        Self { options, boots }
    }
}

fn shape(random: &mut Random) -> Shape {
    let (level, name, slots, groups) = random.pick(SHAPES);
    let layout = match name {
        "" => Layout::default_for(level),
        name => Layout::parse(level, name).expect("shapes are valid"),
    };
    let chunk = random.pick(&[4096, 8192]);
    let component = match level {
        // Now and then more than one run of balanced copies, or lock unit of 256 KiB.
        Level::Raid1 if random.chance(35) => 192 * 1024,
        Level::Raid0 | Level::Raid10 if random.chance(12) => 192 * 1024,
        _ => chunk * random.between(3, 8),
    };
    Shape { level, layout, layout_name: name, slots, groups, chunk, component }
}

impl Swarm {
    fn draw(random: &mut Random) -> Self {
        let mut kinds = vec![OpKind::Write, OpKind::Write, OpKind::Write, OpKind::Read];
        for kind in [OpKind::Flush, OpKind::Read, OpKind::Zeroes, OpKind::Discard] {
            if random.chance(60) {
                kinds.push(kind);
            }
        }
        Self {
            kinds,
            faults: (0..7).filter(|_| random.chance(45)).collect(),
            fua_percent: random.pick(&[0, 0, 10, 50]),
            hot_percent: random.pick(&[0, 30, 80]),
            op_count: random.between(4, 40),
            pace: random.pick(&[2_000, 20_000, 150_000]),
            kill_percent: random.pick(&[0, 20, 50]),
            loss_percent: random.pick(&[0, 0, 15, 40]),
        }
    }

    fn op(&self, options: &Options, at: u64, random: &mut Random) -> Op {
        let sectors = options.shape.array_bytes() / 512;
        let kind = random.pick(&self.kinds);
        let first = if random.chance(self.hot_percent) {
            random.below(sectors.min(16))
        } else {
            random.below(sectors)
        };
        let most = match random.below(8) {
            0..4 => 8,
            4..7 => 32,
            _ => 160,
        };
        let mut count = random.between(1, most).min(sectors - first);
        let mut first = first;
        if random.chance(40) {
            // Whole blocks, and now and then a whole stripe.
            let unit = if random.chance(70) { 8 } else { options.shape.chunk / 512 };
            first = first / unit * unit;
            count = count.next_multiple_of(unit).min(sectors - first);
        }
        let fua = matches!(kind, OpKind::Write | OpKind::Zeroes) && random.chance(self.fua_percent);
        let queue = random.below(options.queues as u64) as usize;
        Op { at, queue, kind, first, count, fua }
    }

    fn fault(&self, options: &Options, at: u64, random: &mut Random) -> Option<Fault> {
        if self.faults.is_empty() {
            return None;
        }
        let member = random.below(options.shape.member_count() as u64) as usize;
        let kind = match random.pick(&self.faults) {
            0 | 1 => FaultKind::Latent {
                sector: random.below(options.shape.component / 512 - 8),
                count: random.between(1, 8),
            },
            2 => FaultKind::Vanish,
            3 => FaultKind::WriteError,
            4 => FaultKind::Timeout,
            5 => FaultKind::Slow,
            _ if random.chance(30) => FaultKind::NoSpace,
            _ => FaultKind::Return,
        };
        Some(Fault { at, member, kind })
    }
}

fn boots(options: &Options, swarm: &Swarm, random: &mut Random) -> Vec<Boot> {
    let count = random.between(4, 9);
    let mut absent: Vec<usize> = Vec::new();
    let mut boots = Vec::new();
    for index in 0..count {
        let op_count = if random.chance(25) { random.below(4) } else { swarm.op_count };
        let mut at = 0;
        let mut ops = Vec::new();
        for _ in 0..op_count {
            at += random.below(swarm.pace);
            ops.push(swarm.op(options, at, random));
        }
        let fault_count = if random.chance(50) { 0 } else { random.between(1, 3) };
        let mut faults: Vec<Fault> = (0..fault_count)
            .filter_map(|_| swarm.fault(options, random.below(at + 1), random))
            .collect();
        faults.sort_by_key(|fault| fault.at);
        // Also a while after the last request, so that flushes and recovery are cut.
        let crash_at = random.below(at + 400_000);
        let end = match random.below(10) {
            0 => End::Stop,
            1 => End::Rest,
            _ if random.chance(swarm.kill_percent) => End::Kill { at: crash_at },
            _ => End::PowerCut { at: crash_at, percent: random.pick(&[0, 10, 50, 90, 100]) },
        };
        boots.push(Boot {
            seed: random.next(),
            absent: absent.clone(),
            reads_first: random.chance(40),
            settles_first: index > 0 && random.chance(60),
            ops,
            faults,
            end,
        });
        // At the next assembly somebody may be missing, or be there again.
        if random.chance(swarm.loss_percent) {
            absent.push(random.below(options.shape.member_count() as u64) as usize);
        } else if random.chance(40) {
            absent.clear();
        }
    }
    let quiet = |absent| Boot {
        seed: 1,
        absent,
        reads_first: true,
        settles_first: true,
        ops: Vec::new(),
        faults: Vec::new(),
        end: End::Rest,
    };
    boots.push(quiet(Vec::new()));
    boots
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {}; block {}, {} queues of depth {}, bitmap {:?}, {}",
            self.seed,
            self.shape,
            self.block,
            self.queues,
            self.depth,
            self.granule,
            if self.garbage { "members full of old bytes" } else { "members zeroed" }
        )
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.options)?;
        for (index, boot) in self.boots.iter().enumerate() {
            let first = if boot.settles_first {
                ", recovers first"
            } else if boot.reads_first {
                ", reads first"
            } else {
                ""
            };
            writeln!(f, "boot {index}: without members {:?}{first}", boot.absent)?;
            for op in &boot.ops {
                let fua = if op.fua { " FUA" } else { "" };
                let end = op.first + op.count;
                match op.kind {
                    OpKind::Flush => writeln!(f, "  at {} queue {} flush", op.at, op.queue)?,
                    kind => writeln!(
                        f,
                        "  at {} queue {} {kind:?} sectors {}..{end}{fua}",
                        op.at, op.queue, op.first
                    )?,
                }
            }
            for fault in &boot.faults {
                writeln!(f, "  at {} member {} {:?}", fault.at, fault.member, fault.kind)?;
            }
            writeln!(f, "  ends: {:?}", boot.end)?;
        }
        Ok(())
    }
}
