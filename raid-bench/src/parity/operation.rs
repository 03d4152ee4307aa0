//! The operations, and the memory that a call of one works on.

use raid_core::parity::Kernel;

/// A page of the system: what neighbouring strips are shifted by against each other.
const PAGE_BYTES: usize = 4096;

/// The most sources of a case.
pub(super) const SOURCE_COUNT_MAX: usize = 16;

/// An operation on a stripe, as the kernel's method of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    GenP,
    GenPq,
    UpdateP,
    UpdatePq,
    RecoverData,
    RecoverDataP,
    RecoverTwoData,
    CheckP,
    CheckPq,
}

pub(super) const OPERATIONS: [Operation; 9] = [
    Operation::GenP,
    Operation::GenPq,
    Operation::UpdateP,
    Operation::UpdatePq,
    Operation::RecoverData,
    Operation::RecoverDataP,
    Operation::RecoverTwoData,
    Operation::CheckP,
    Operation::CheckPq,
];

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GenP => "gen_p",
            Self::GenPq => "gen_pq",
            Self::UpdateP => "update_p",
            Self::UpdatePq => "update_pq",
            Self::RecoverData => "recover_data",
            Self::RecoverDataP => "recover_data_p",
            Self::RecoverTwoData => "recover_two_data",
            Self::CheckP => "check_p",
            Self::CheckPq => "check_pq",
        }
    }

    /// An update has two sources, the old and the new data, and changes its targets in place.
    pub(super) fn is_update(self) -> bool {
        matches!(self, Self::UpdateP | Self::UpdatePq)
    }

    pub(super) fn is_check(self) -> bool {
        matches!(self, Self::CheckP | Self::CheckPq)
    }

    /// The operation that makes the parity which this one reads.
    pub(super) fn generator(self) -> Self {
        if self == Self::CheckP { Self::GenP } else { Self::GenPq }
    }

    fn reads_p(self) -> bool {
        matches!(self, Self::RecoverData | Self::RecoverTwoData | Self::CheckP | Self::CheckPq)
    }

    fn reads_q(self) -> bool {
        matches!(self, Self::RecoverDataP | Self::RecoverTwoData | Self::CheckPq)
    }

    fn target_count(self) -> usize {
        match self {
            Self::CheckP | Self::CheckPq => 0,
            Self::GenP | Self::UpdateP | Self::RecoverData => 1,
            _ => 2,
        }
    }

    fn is_lost(self, index: usize, source_count: usize) -> bool {
        match self {
            Self::RecoverData | Self::RecoverDataP => index == source_count / 2,
            Self::RecoverTwoData => index == 0 || index == source_count - 1,
            _ => false,
        }
    }
}

/// An operation at one number of sources and one length of strips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operation: Operation,
    pub(super) source_count: usize,
    pub(super) strip_bytes: usize,
}

impl Shape {
    /// Bytes of source data that a call is counted with, those of lost sources among them.
    pub(super) fn source_bytes(self) -> usize {
        self.source_count * self.strip_bytes
    }

    /// Memory for one call: only the strips that it touches, so that no gap makes a rotation look
    /// larger than it is.
    pub(super) fn set_bytes(self) -> usize {
        let operation = self.operation;
        let lost = (0..self.source_count).filter(|&i| operation.is_lost(i, self.source_count));
        let sources = self.source_count - lost.count();
        let parity = usize::from(operation.reads_p()) + usize::from(operation.reads_q());
        (sources + parity + operation.target_count()) * self.stride()
    }

    /// From one strip to the next. An odd number of pages: equal offsets in strips whose distance
    /// is a power of two fall into the same few sets of a cache.
    fn stride(self) -> usize {
        ((self.strip_bytes / PAGE_BYTES) | 1) * PAGE_BYTES
    }

    /// Lays the strips of one call into `memory`, which has [`Shape::set_bytes`].
    ///
    /// The order is sources, P, Q, targets; so a check finds its P and Q where their generator had
    /// its targets.
    pub(super) fn carve(self, memory: &mut [u8]) -> Set<'_> {
        let Self { operation, source_count, strip_bytes } = self;
        let mut strips = memory.chunks_mut(self.stride()).map(|chunk| &mut chunk[..strip_bytes]);
        let mut next = |wanted: bool| {
            let strip = if wanted { strips.next() } else { None };
            strip.unwrap_or_default()
        };
        let is_there = |index| !operation.is_lost(index, source_count);
        let sources: Vec<&[u8]> = (0..source_count).map(|i| &*next(is_there(i))).collect();
        let p = &*next(operation.reads_p());
        let q = &*next(operation.reads_q());
        let count = operation.target_count();
        let targets = [next(count > 0), next(count > 1)];
        let parity = [p, q];
        let all = sources.iter().chain(&parity).filter(|strip| !strip.is_empty());
        let reads = all.map(|strip| bytemuck::cast_slice(strip)).collect();
        Set { operation, sources, p, q, targets, reads }
    }
}

/// The memory of one call.
pub(super) struct Set<'a> {
    operation: Operation,
    /// In syndrome order, the lost ones empty; of an update the old and the new data.
    pub(super) sources: Vec<&'a [u8]>,
    p: &'a [u8],
    q: &'a [u8],
    /// Strips that are written, empty where there is none.
    pub(super) targets: [&'a mut [u8]; 2],
    /// All strips that are read, but those that are updated in place.
    pub(super) reads: Vec<&'a [u64]>,
}

impl Set<'_> {
    /// Whether the targets are read as well.
    pub(super) fn is_in_place(&self) -> bool {
        self.operation.is_update()
    }

    /// Runs the operation; `false` when a check found that the parity is wrong.
    pub(super) fn run(&mut self, kernel: Kernel) -> bool {
        let Self { sources, p, q, targets: [first, second], .. } = self;
        let count = sources.len();
        match self.operation {
            Operation::GenP => kernel.gen_p(sources, first),
            Operation::GenPq => kernel.gen_pq(sources, first, second),
            Operation::UpdateP => kernel.update_p(sources[0], sources[1], first),
            Operation::UpdatePq => kernel.update_pq(1, sources[0], sources[1], first, second),
            Operation::RecoverData => kernel.recover_data(count / 2, sources, p, first),
            Operation::RecoverDataP => kernel.recover_data_p(count / 2, sources, q, first, second),
            Operation::RecoverTwoData => {
                kernel.recover_two_data(0, count - 1, sources, p, q, first, second);
            }
            Operation::CheckP => return kernel.check_p(sources, p).is_none(),
            Operation::CheckPq => return kernel.check_pq(sources, p, q).is_none(),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation gets strips of one length, touches all of its memory's strips, and checks
    /// hold after their generator has run over the same memory.
    #[test]
    fn carved_sets_fit_their_operations() {
        for operation in OPERATIONS {
            let counts: &[usize] = if operation.is_update() { &[2] } else { &[2, 4, 8, 16] };
            for &source_count in counts {
                let shape = Shape { operation, source_count, strip_bytes: 4096 };
                let mut memory: Vec<u64> =
                    (1..=shape.set_bytes() as u64 / 8).map(|i| i.wrapping_mul(i)).collect();
                let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
                if operation.is_check() {
                    let shape = Shape { operation: operation.generator(), ..shape };
                    shape.carve(memory).run(Kernel::best());
                }
                let mut set = shape.carve(memory);
                let written = set.targets.iter().filter(|target| !target.is_empty()).count();
                let strips = set.reads.len() + written;
                assert_eq!(strips * shape.stride(), shape.set_bytes(), "{shape:?}");
                for kernel in Kernel::available() {
                    assert!(set.run(kernel), "{shape:?} {kernel:?}");
                }
            }
        }
    }
}
