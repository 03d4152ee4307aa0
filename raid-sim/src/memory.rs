//! The memory behind the engine's names: poisoned before use, checked for overlap.

use raid_core::memory::{BufferName, ComputeStep, Memory, Segment, ZERO_BYTES};

use crate::workload::{POISON_BUFFER, POISON_SCRATCH};

/// One queue's memory: a buffer for each request, and a scratch arena that grows as it is used.
#[derive(Debug, Default)]
pub(crate) struct SimMemory {
    requests: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

impl SimMemory {
    /// Lays out a request's buffer, full of poison.
    pub(crate) fn prepare(&mut self, tag: u32, len: usize) -> &mut [u8] {
        let tag = tag as usize;
        if self.requests.len() <= tag {
            self.requests.resize(tag + 1, Vec::new());
        }
        let buffer = &mut self.requests[tag];
        buffer.clear();
        buffer.resize(len, POISON_BUFFER);
        buffer
    }

    /// A request's buffer.
    pub(crate) fn buffer(&self, tag: u32) -> &[u8] {
        &self.requests[tag as usize]
    }

    /// Appends a segment's bytes.
    pub(crate) fn get(&mut self, segment: &Segment, out: &mut Vec<u8>) {
        let range = segment.offset as usize..(segment.offset + segment.len) as usize;
        match segment.buffer {
            BufferName::Request(tag) => out.extend_from_slice(&self.requests[tag as usize][range]),
            BufferName::Scratch => {
                self.reach(range.end);
                out.extend_from_slice(&self.scratch[range]);
            }
            BufferName::Zero => {
                assert!(segment.offset + segment.len <= ZERO_BYTES, "beyond the zeroes");
                out.resize(out.len() + segment.len as usize, 0);
            }
        }
    }

    /// Stores a segment's bytes.
    pub(crate) fn put(&mut self, segment: &Segment, bytes: &[u8]) {
        let range = segment.offset as usize..(segment.offset + segment.len) as usize;
        match segment.buffer {
            BufferName::Request(tag) => {
                self.requests[tag as usize][range].copy_from_slice(bytes);
            }
            BufferName::Scratch => {
                self.reach(range.end);
                self.scratch[range].copy_from_slice(bytes);
            }
            BufferName::Zero => panic!("constant zeroes are written"),
        }
    }

    fn reach(&mut self, end: usize) {
        if self.scratch.len() < end {
            self.scratch.resize(end, POISON_SCRATCH);
        }
    }
}

fn overlap(a: &Segment, b: &Segment) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl Memory for SimMemory {
    fn with(&mut self, sources: &[Segment], targets: &[Segment], f: &mut ComputeStep<'_>) {
        for (index, target) in targets.iter().enumerate() {
            let others = sources.iter().chain(&targets[..index]);
            assert!(others.clone().all(|other| !overlap(other, target)), "{target:?} overlaps");
        }
        let mut copy = |segment: &Segment| {
            let mut bytes = Vec::with_capacity(segment.len as usize);
            self.get(segment, &mut bytes);
            bytes
        };
        let from: Vec<Vec<u8>> = sources.iter().map(&mut copy).collect();
        let mut to: Vec<Vec<u8>> = targets.iter().map(&mut copy).collect();
        let from: Vec<&[u8]> = from.iter().map(Vec::as_slice).collect();
        let mut parts: Vec<&mut [u8]> = to.iter_mut().map(Vec::as_mut_slice).collect();
        f(&from, &mut parts);
        for (segment, bytes) in targets.iter().zip(&to) {
            self.put(segment, bytes);
        }
    }
}
