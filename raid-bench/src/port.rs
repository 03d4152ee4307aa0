//! One thread's way to what is measured: requests in, completions out.
//!
//! The generator knows nothing but this trait, so that an array, its members, a client of an NBD
//! server and a model in a test are all asked by the same code.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use raid_io::{Buffer, Error, MemberQueue, Operation, Queue};

use crate::failure::Failure;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Makes durable what has been acknowledged.
    Flush,
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// The number that it was submitted with.
    pub(crate) tag: u64,
    /// How it went.
    pub(crate) result: Result<(), Error>,
    /// Its buffer.
    pub(crate) buffer: Option<Buffer>,
}

/// One thread's way to a target.
pub(crate) trait Port {
    /// Bytes that can be addressed.
    fn size_bytes(&self) -> u64;

    /// The longest request that is taken.
    fn request_bytes_max(&self) -> usize;

    /// Memory for requests.
    fn buffer(&self, len: usize) -> Buffer {
        Buffer::zeroed(len)
    }

    /// Takes a request; flushes have no buffer.
    fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        offset: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), Failure>;

    /// Returns a completion if there is one, and sends off what waits.
    fn poll(&mut self) -> Result<Option<Done>, Failure>;

    /// Sleeps until there may be a completion.
    fn wait(&mut self) -> Result<(), Failure>;

    /// The time since some moment, which never goes back.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// How long a port sleeps before it looks again by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// An array in this process.
pub(crate) struct ArrayPort {
    queue: Queue,
    size: u64,
    request_max: usize,
}

impl ArrayPort {
    pub(crate) fn new(array: &raid_io::Array) -> Result<Self, Failure> {
        let limits = array.limits();
        let request_max = limits.request_bytes_max as usize;
        Ok(Self { queue: array.queue()?, size: limits.size_bytes, request_max })
    }
}

/// An operation of raid-io; a transfer without a buffer moves no byte.
fn operation(kind: Kind, offset: u64, buffer: Option<Buffer>) -> Operation {
    match (kind, buffer) {
        (Kind::Read, Some(buffer)) => Operation::Read { offset, buffer },
        (Kind::Write, Some(buffer)) => Operation::Write { offset, buffer, fua: false },
        _ => Operation::Flush,
    }
}

fn done(completion: raid_io::Completion) -> Done {
    Done { tag: completion.user_data, result: completion.result, buffer: completion.buffer }
}

impl Port for ArrayPort {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn request_bytes_max(&self) -> usize {
        self.request_max
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.queue.buffer(len)
    }

    fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        offset: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), Failure> {
        let submitted = self.queue.submit(operation(kind, offset, buffer), tag);
        submitted.map_err(|refused| refused.error.into())
    }

    fn poll(&mut self) -> Result<Option<Done>, Failure> {
        Ok(self.queue.poll().map(done))
    }

    fn wait(&mut self) -> Result<(), Failure> {
        Ok(self.queue.wait(Some(PATIENCE))?)
    }
}

/// How the addresses of a raw target lie on its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawMap {
    /// The members that take part, by their index.
    pub(crate) members: Vec<usize>,
    /// Where the part of each member begins that may be written over.
    pub(crate) base: u64,
    /// How much of each member that is.
    pub(crate) len: u64,
    /// Bytes on one member before the next one's turn: the size of a request.
    pub(crate) unit: u64,
    /// A member that is written whatever is asked for, while the others are read: what a rebuild
    /// does.
    pub(crate) written: Option<usize>,
}

impl RawMap {
    /// Bytes that can be addressed.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.len / self.unit * self.unit * self.members.len() as u64
    }

    /// The member and its offset of an address; a request that begins at a unit stays on it.
    pub(crate) fn place(&self, address: u64) -> (usize, u64) {
        let count = self.members.len() as u64;
        let (unit, within) = (address / self.unit, address % self.unit);
        let member = self.members[(unit % count) as usize];
        (member, self.base + unit / count * self.unit + within)
    }
}

/// Members by themselves.
pub(crate) struct RawPort {
    queue: MemberQueue,
    map: RawMap,
    /// Flushes under way: so many members have not answered, and the first error.
    flushing: Option<(u64, usize, Option<Error>)>,
}

impl RawPort {
    pub(crate) fn new(members: &raid_io::Members, map: RawMap) -> Result<Self, Failure> {
        Ok(Self { queue: members.queue()?, map, flushing: None })
    }
}

/// The tag of a member's flush.
const FLUSH: u64 = u64::MAX;

impl Port for RawPort {
    fn size_bytes(&self) -> u64 {
        self.map.size_bytes()
    }

    fn request_bytes_max(&self) -> usize {
        usize::try_from(self.map.unit).unwrap_or(usize::MAX)
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.queue.buffer(len)
    }

    fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        offset: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), Failure> {
        if kind == Kind::Flush {
            for &member in &self.map.members {
                let submitted = self.queue.submit(member, Operation::Flush, FLUSH);
                submitted.map_err(|refused| refused.error)?;
            }
            self.flushing = Some((tag, self.map.members.len(), None));
            return Ok(());
        }
        let (member, offset) = self.map.place(offset);
        let kind = match self.map.written {
            Some(written) if written == member => Kind::Write,
            Some(_) => Kind::Read,
            None => kind,
        };
        let submitted = self.queue.submit(member, operation(kind, offset, buffer), tag);
        submitted.map_err(|refused| refused.error.into())
    }

    fn poll(&mut self) -> Result<Option<Done>, Failure> {
        while let Some(completion) = self.queue.poll() {
            if completion.user_data != FLUSH {
                return Ok(Some(done(completion)));
            }
            let Some((tag, mut left, mut first)) = self.flushing.take() else { continue };
            left -= 1;
            first = first.or(completion.result.err());
            if left == 0 {
                let result = first.map_or(Ok(()), Err);
                return Ok(Some(Done { tag, result, buffer: None }));
            }
            self.flushing = Some((tag, left, first));
        }
        Ok(None)
    }

    fn wait(&mut self) -> Result<(), Failure> {
        Ok(self.queue.wait(Some(PATIENCE))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams over all members together are a stream on each one.
    #[test]
    fn raw_addresses_go_round_the_members() {
        let map = RawMap { members: vec![0, 2, 3], base: 1000, len: 100, unit: 32, written: None };
        assert_eq!(map.size_bytes(), 3 * 96);
        let places: Vec<_> = (0..6).map(|n| map.place(n * 32)).collect();
        assert_eq!(places, [(0, 1000), (2, 1000), (3, 1000), (0, 1032), (2, 1032), (3, 1032)]);
        assert_eq!(map.place(40), (2, 1008));
    }
}
