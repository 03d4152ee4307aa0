//! What is measured, and jobs of several threads.

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use raid_io::{Array, Members};
use raid_nbd::{Listen, Server, ServerOptions};

use crate::failure::Failure;
use crate::job::{self, Job, Order, Sample};
use crate::nbd::NbdPort;
use crate::port::{ArrayPort, Port, RawMap, RawPort};
use crate::scratch::Scratch;

/// Something that answers reads and writes.
pub(crate) enum Target {
    /// Our array in this process.
    Array(Array),
    /// Members by themselves.
    Raw { members: Members, map: RawMap },
    /// Our array behind its NBD server, in this process as well.
    Nbd { array: Array, server: Server, socket: PathBuf, _folder: Scratch },
}

/// How long a server may take to let its clients go.
const PATIENCE: Duration = Duration::from_secs(10);

impl Target {
    /// Serves an array over NBD on a socket of its own.
    pub(crate) fn nbd(array: Array) -> Result<Self, Failure> {
        let folder = Scratch::new(&std::env::temp_dir())?;
        let socket = folder.path().join("nbd");
        let listeners = vec![Listen::Unix(socket.clone())];
        let options = ServerOptions { listeners, ..ServerOptions::default() };
        let server = Server::start(array.clone(), options)?;
        Ok(Self::Nbd { array, server, socket, _folder: folder })
    }

    /// Bytes that can be addressed.
    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            Self::Array(array) | Self::Nbd { array, .. } => array.limits().size_bytes,
            Self::Raw { map, .. } => map.size_bytes(),
        }
    }

    /// A thread's way in.
    pub(crate) fn port(&self) -> Result<Box<dyn Port>, Failure> {
        Ok(match self {
            Self::Array(array) => Box::new(ArrayPort::new(array)?),
            Self::Raw { members, map } => Box::new(RawPort::new(members, map.clone())?),
            Self::Nbd { socket, .. } => Box::new(NbdPort::connect(socket)?),
        })
    }

    /// Carries out a job with so many threads, which share its depth.
    pub(crate) fn run(&self, job: &Job, queues: u32) -> Result<Sample, Failure> {
        if queues <= 1 {
            return job::run(self.port()?.as_mut(), job);
        }
        let barrier = Barrier::new(queues as usize);
        let one = |index: u32| {
            let job = share(job, index, queues);
            // Made by the thread that uses it; all wait for each other, even for one that fails.
            let port = self.port();
            barrier.wait();
            job::run(port?.as_mut(), &job)
        };
        let samples = thread::scope(|scope| {
            let spawn = |index| scope.spawn(move || one_of(&one, index));
            fn one_of<T>(one: &impl Fn(u32) -> T, index: u32) -> T {
                one(index)
            }
            let threads: Vec<_> = (0..queues).map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<Sample, Failure>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        })?;
        let mut samples = samples.into_iter();
        let Some(first) = samples.next() else { unreachable!("there are two threads at least") };
        Ok(samples.fold(first, |all, one| all.beside(&one)))
    }

    /// Ends what was opened for this target.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        match self {
            Self::Array(array) => Ok(array.stop()?),
            Self::Raw { .. } => Ok(()),
            Self::Nbd { array, server, .. } => {
                server.stop(PATIENCE);
                Ok(array.stop()?)
            }
        }
    }
}

/// What one thread of several does of a job.
fn share(job: &Job, index: u32, queues: u32) -> Job {
    let mut own = job.clone();
    own.depth = (job.depth / queues).max(1);
    own.seed = job.seed.wrapping_mul(0x1_0000).wrapping_add(u64::from(index));
    if job.bytes_max != u64::MAX {
        own.bytes_max = job.bytes_max / u64::from(queues);
    }
    if job.order == Order::Sequential {
        // Each has a stream of its own.
        let part = job.region.1 / u64::from(queues) / job.bytes.1 * job.bytes.1;
        own.region = (job.region.0 + u64::from(index) * part, part);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_depth_and_region() {
        let job = Job::new("job", Order::Sequential, 4096, 32, 100 * 4096);
        let shares: Vec<Job> = (0..3).map(|index| share(&job, index, 3)).collect();
        assert!(shares.iter().all(|share| share.depth == 10));
        let regions: Vec<_> = shares.iter().map(|share| share.region).collect();
        let part = 33 * 4096;
        assert_eq!(regions, [(0, part), (part, part), (2 * part, part)]);
        let job = Job::new("job", Order::Random, 4096, 2, 100 * 4096);
        let shares: Vec<Job> = (0..3).map(|index| share(&job, index, 3)).collect();
        assert!(shares.iter().all(|one| one.region == job.region && one.depth == 1));
        assert_ne!(shares[0].seed, shares[1].seed);
    }
}
