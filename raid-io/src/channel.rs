//! One queue's way to the members: the ring where there is one, blocking calls for the rest.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::Error;
use crate::blocking::{Blocking, duplicate};
use crate::buffer::Slab;
use crate::member::Member;
use crate::ring::Ring;
use crate::transfer::{Ended, Job, JobKind, Piece};

/// Jobs in, ends out; never blocks.
pub(crate) struct Channel {
    members: Arc<[Member]>,
    slab: Arc<Slab>,
    eventfd: OwnedFd,
    /// Rings are wanted.
    uring: bool,
    /// Made by the thread that uses it first, which a ring belongs to.
    ring: Option<Ring>,
    blocking: Blocking,
    ended: Vec<Ended>,
    /// Writes under way over ranges that are listed as lost: token, member, range.
    healing: Vec<(u32, usize, Range<u64>)>,
    /// Jobs taken and not yet handed back.
    out: usize,
}

impl Channel {
    pub(crate) fn new(
        members: Arc<[Member]>,
        slab: Arc<Slab>,
        eventfd: &OwnedFd,
        uring: bool,
    ) -> Result<Self, Error> {
        let blocking = Blocking::new(Arc::clone(&members), Arc::clone(&slab), duplicate(eventfd)?);
        let eventfd = duplicate(eventfd)?;
        Ok(Self {
            members,
            slab,
            eventfd,
            uring,
            ring: None,
            blocking,
            ended: Vec::new(),
            healing: Vec::new(),
            out: 0,
        })
    }

    /// Members that are known.
    pub(crate) fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Takes over a table of members: some have been added at its end, some have been let go.
    pub(crate) fn renew(&mut self, members: &Arc<[Member]>) {
        self.members = Arc::clone(members);
        self.blocking.renew(members);
        if let Some(ring) = &mut self.ring {
            ring.renew(members);
        }
    }

    /// Takes a job. It starts with the next [`turn`](Self::turn) at the latest.
    ///
    /// # Panics
    /// Panics if the calling thread is not the one that jobs in flight were started by.
    ///
    /// # Safety
    /// `pieces` must be valid for the job, and untouched by others, until the job comes out of
    /// [`pop`](Self::pop) or this value has been dropped.
    pub(crate) unsafe fn push(&mut self, job: Job, pieces: &[Piece]) {
        self.out += 1;
        if self.is_lost(job) {
            self.ended.push(Ended { token: job.token, result: Err(Errno::IO) });
            return;
        }
        let is_file = self.members.get(job.member).is_some_and(|m| m.as_file().is_some());
        match self.ring_here().filter(|_| is_file) {
            // SAFETY: the caller's promise is the same.
            Some(ring) => unsafe { ring.push(job, pieces) },
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.blocking.push(job, pieces) },
        }
    }

    /// Says whether a job reads what is listed as lost, and remembers it if it heals that.
    fn is_lost(&mut self, job: Job) -> bool {
        let bad = self.members.get(job.member).and_then(Member::bad_ranges);
        let range = job.offset..job.offset.saturating_add(job.len);
        let Some(bad) = bad.filter(|bad| bad.touches(range.clone())) else { return false };
        match job.kind {
            JobKind::Read => {
                bad.refuse();
                true
            }
            JobKind::Flush => false,
            JobKind::Write { .. } | JobKind::Zeroes { .. } => {
                self.healing.push((job.token, job.member, range));
                false
            }
        }
    }

    /// Takes back a job that has not begun; true if it had not. Its memory is free then, and it
    /// does not come out of [`pop`](Self::pop).
    pub(crate) fn recall(&mut self, token: u32) -> bool {
        let in_ring = self.ring.as_mut().is_some_and(|ring| ring.recall(token));
        let recalled = in_ring || self.blocking.recall(token);
        if recalled {
            self.out -= 1;
            self.healing.retain(|(healing, ..)| *healing != token);
        }
        recalled
    }

    /// Notes that nobody waits for a job any more. Its memory stays its own until it comes out of
    /// [`pop`](Self::pop), which the end of this value does not wait for.
    pub(crate) fn give_up(&mut self, token: u32) {
        self.healing.retain(|(healing, ..)| *healing != token);
        match &mut self.ring {
            Some(ring) if ring.has(token) => ring.give_up(token),
            _ => self.blocking.give_up(token),
        }
    }

    /// Submits what waits and collects what has ended.
    pub(crate) fn turn(&mut self) {
        if let Some(ring) = &mut self.ring
            && !ring.is_idle()
        {
            assert!(ring.is_mine(), "a queue with member I/O in flight changed its thread");
            ring.turn(&mut self.ended);
        }
        self.blocking.reap(&mut self.ended);
    }

    /// Returns a job that has ended.
    pub(crate) fn pop(&mut self) -> Option<Ended> {
        let ended = self.ended.pop()?;
        self.out -= 1;
        let healing = self.healing.iter().position(|(token, ..)| *token == ended.token);
        if let Some((_, member, range)) = healing.map(|index| self.healing.swap_remove(index))
            && ended.result.is_ok()
            && let Some(bad) = self.members.get(member).and_then(Member::bad_ranges)
        {
            bad.heal(range);
        }
        Some(ended)
    }

    /// Returns how many jobs have been taken and not handed back.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.out
    }

    /// Returns this thread's ring, made now if need be.
    fn ring_here(&mut self) -> Option<&mut Ring> {
        if !self.uring {
            return None;
        }
        if let Some(ring) = &self.ring
            && !ring.is_mine()
        {
            assert!(ring.is_idle(), "a queue with member I/O in flight changed its thread");
            self.ring = None;
        }
        if self.ring.is_none() {
            let made = Ring::new(Arc::clone(&self.members), Arc::clone(&self.slab), &self.eventfd);
            match made {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    tracing::warn!("no io_uring for this queue, using blocking calls: {error}");
                    self.uring = false;
                }
            }
        }
        self.ring.as_mut()
    }
}

#[cfg(test)]
mod tests;
