//! Memory for requests: owned, page-aligned buffers, and the slab that a queue registers once.
//!
//! ```text
//! slab of one queue:  | zeroes | scratch: the engine's reads, parity | pool: lent buffers |
//! ```
//!
//! Invariants:
//! - Every byte is initialised from the start (anonymous maps and zeroed allocations), so no read
//!   of a buffer is ever undefined; a failed read leaves old bytes, which callers do not hand on.
//! - A page of the pool belongs to one [`Buffer`] exactly while its bit in `pages` is set.
//! - A `Buffer` keeps its slab alive, so its address is good as long as it exists.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::Error;

/// The alignment of every buffer: satisfies `O_DIRECT` on every device there is.
pub(crate) const PAGE: usize = 4096;
/// Pages in one word of the pool's map.
const WORD_PAGES: usize = u64::BITS as usize;

/// Owned memory for one request, aligned to 4096 bytes.
///
/// A queue takes it with an [`Operation`](crate::Operation) and gives it back with the
/// [`Completion`](crate::Completion). The length of a read is the buffer's length. A buffer from
/// [`Queue::buffer`](crate::Queue::buffer) is registered with the kernel and costs less per
/// request.
///
/// ```
/// let mut buffer = raid_io::Buffer::zeroed(8192);
/// buffer[..5].copy_from_slice(b"hello");
/// buffer.truncate(512);
/// assert_eq!(buffer.len(), 512);
/// assert_eq!(buffer.capacity(), 8192);
/// ```
pub struct Buffer {
    pointer: NonNull<u8>,
    len: usize,
    capacity: usize,
    home: Home,
}

/// Where a buffer's memory goes back to.
enum Home {
    /// The allocator.
    Alone,
    /// The pool of this slab.
    Pool(Arc<Slab>),
}

// SAFETY: a `Buffer` owns its bytes alone, like a `Box<[u8]>`; the pool's map is atomic.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` allows reads only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns `len` zero bytes from the allocator.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).next_multiple_of(PAGE);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is at least one page, never zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Self { pointer, len, capacity, home: Home::Alone }
    }

    /// Returns a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Returns how long the buffer may become without moving.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer to `len`; a longer `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Sets the length. Bytes that appear hold what was there before.
    ///
    /// # Panics
    /// Panics if `len` is more than [`capacity`](Self::capacity).
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} is more than capacity {}", self.capacity);
        self.len = len;
    }

    /// Returns a copy of the same length, while the kernel may be filling parts of this one. What
    /// these parts hold in the copy is arbitrary.
    pub(crate) fn copy_while_used(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        for (index, byte) in copy.iter_mut().enumerate() {
            // SAFETY: `index` is below the length.
            let place = unsafe { self.pointer.as_ptr().add(index) };
            // SAFETY: initialised memory of this buffer. The kernel may write the byte meanwhile; a
            // volatile read gives its old or its new value.
            *byte = unsafe { place.read_volatile() };
        }
        copy
    }

    /// Returns the first byte's address, for the memory tables of this crate.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Every capacity was allocated before, or is a page multiple of a length that fits memory.
    fn layout(capacity: usize) -> Layout {
        match Layout::from_size_align(capacity, PAGE) {
            Ok(layout) => layout,
            // The allocator answers a size that no memory can hold.
            Err(_) => handle_alloc_error(Layout::new::<[u8; PAGE]>()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: `zeroed` allocated this pointer with the layout of this capacity.
            Home::Alone => unsafe {
                dealloc(self.pointer.as_ptr(), Self::layout(self.capacity));
            },
            Home::Pool(slab) => slab.give_back(self.pointer, self.capacity),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialised bytes at `pointer` belong to this buffer.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    /// Never prints contents: they are somebody's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity)
    }
}

/// One queue's memory: mapped once, registered once.
pub(crate) struct Slab {
    map: MmapRaw,
    /// Where the scratch arena starts, behind the zeroes.
    scratch_start: usize,
    /// Where the pool starts, behind the scratch arena.
    pool_start: usize,
    /// One bit for each page of the pool, set while it is lent.
    pages: Box<[AtomicU64]>,
}

#[allow(dead_code, reason = "the ring and the engine will use it")]
impl Slab {
    /// Maps the three parts. Lengths are rounded up: to pages, the pool to words of its map.
    pub(crate) fn new(zero: usize, scratch: usize, pool: usize) -> Result<Arc<Self>, Error> {
        let scratch_start = zero.next_multiple_of(PAGE);
        let pool_start = scratch_start + scratch.next_multiple_of(PAGE);
        let words = pool.div_ceil(PAGE * WORD_PAGES);
        let len = (pool_start + words * WORD_PAGES * PAGE).max(PAGE);
        let map = MmapMut::map_anon(len)
            .map_err(|source| Error::System { action: "map buffer memory", source })?;
        // Data stays out of core dumps; huge pages save TLB misses. Both are wishes.
        let _ = map.advise(Advice::DontDump);
        let _ = map.advise(Advice::HugePage);
        let pages = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Self { map: MmapRaw::from(map), scratch_start, pool_start, pages }))
    }

    /// Returns the whole map, for registration.
    pub(crate) fn range(&self) -> (NonNull<u8>, usize) {
        (self.at(0), self.map.len())
    }

    /// Returns the zeroes and their length.
    pub(crate) fn zeroes(&self) -> (NonNull<u8>, usize) {
        (self.at(0), self.scratch_start)
    }

    /// Returns the scratch arena and its length.
    pub(crate) fn scratch(&self) -> (NonNull<u8>, usize) {
        (self.at(self.scratch_start), self.pool_start - self.scratch_start)
    }

    /// Lends a buffer out of the pool, or `None` when it has no run of free pages that long.
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let pages = len.max(1).div_ceil(PAGE);
        let page =
            if pages <= WORD_PAGES { self.take_run(pages)? } else { self.take_words(pages)? };
        let pointer = self.at(self.pool_start + page * PAGE);
        let home = Home::Pool(Arc::clone(self));
        Some(Buffer { pointer, len, capacity: pages * PAGE, home })
    }

    /// Takes up to 64 pages in one word.
    fn take_run(&self, pages: usize) -> Option<usize> {
        for (index, word) in self.pages.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while let Some(shift) = free_run(seen, pages) {
                let mask = run_mask(pages) << shift;
                // Acquire pairs with the Release in `give_back`: the last owner's accesses are
                // over.
                match word.compare_exchange_weak(
                    seen,
                    seen | mask,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(index * WORD_PAGES + shift),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Takes more than 64 pages: whole words, the last in part.
    fn take_words(&self, pages: usize) -> Option<usize> {
        let words = pages.div_ceil(WORD_PAGES);
        let mut start = 0;
        'start: while start + words <= self.pages.len() {
            for taken in 0..words {
                let mask = run_mask((pages - taken * WORD_PAGES).min(WORD_PAGES));
                let word = &self.pages[start + taken];
                let seen = word.fetch_or(mask, Ordering::Acquire);
                if seen & mask != 0 {
                    word.fetch_and(!(mask & !seen), Ordering::Release);
                    for undone in 0..taken {
                        self.pages[start + undone].store(0, Ordering::Release);
                    }
                    start += taken + 1;
                    continue 'start;
                }
            }
            return Some(start * WORD_PAGES);
        }
        None
    }

    /// Takes a buffer's pages back.
    fn give_back(&self, pointer: NonNull<u8>, capacity: usize) {
        let pool = self.at(self.pool_start);
        let first = (pointer.as_ptr().addr() - pool.as_ptr().addr()) / PAGE;
        let end = first + capacity / PAGE;
        let mut page = first;
        while page < end {
            let (word, shift) = (page / WORD_PAGES, page % WORD_PAGES);
            let run = (end - page).min(WORD_PAGES - shift);
            self.pages[word].fetch_and(!(run_mask(run) << shift), Ordering::Release);
            page += run;
        }
    }

    /// Returns the address `offset` bytes into the map.
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.map.len(), "offset {offset} is outside the slab");
        // SAFETY: all three parts start inside the map, or at its end when they are empty.
        let pointer = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: a map's address is never null.
        unsafe { NonNull::new_unchecked(pointer) }
    }
}

/// Returns `pages` set bits at the low end.
fn run_mask(pages: usize) -> u64 {
    u64::MAX >> (WORD_PAGES - pages)
}

/// Returns the lowest place of `pages` clear bits in a row.
fn free_run(word: u64, pages: usize) -> Option<usize> {
    // `starts` keeps the bits that begin a run of `have` clear bits; each turn at most doubles
    // `have`.
    let mut starts = !word;
    let mut have = 1;
    while have < pages {
        let more = have.min(pages - have);
        starts &= starts >> more;
        have += more;
    }
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_lends_disjoint_runs_and_takes_them_back() {
        let slab = Slab::new(0, 0, 64 * PAGE * 4).unwrap();
        let sizes = [1, PAGE, 3 * PAGE, 65 * PAGE, 60 * PAGE, 64 * PAGE];
        let mut buffers: Vec<Buffer> = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            if let Some(mut buffer) = slab.lend(*size) {
                buffer.fill(u8::try_from(index).unwrap() + 1);
                buffers.push(buffer);
            }
        }
        assert!(buffers.len() >= 5);
        for buffer in &buffers {
            assert!(buffer.iter().all(|byte| *byte == buffer[0]));
            assert_eq!(buffer.pointer().as_ptr().addr() % PAGE, 0);
        }
        buffers.clear();
        assert!(slab.pages.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert!(slab.lend(256 * PAGE).is_some());
        assert!(slab.lend(257 * PAGE).is_none());
    }

    #[test]
    fn a_failed_long_run_leaves_the_map_as_it_was() {
        let slab = Slab::new(0, 0, 64 * PAGE * 2).unwrap();
        let _high = (slab.lend(60 * PAGE).unwrap(), slab.lend(60 * PAGE).unwrap());
        let before: Vec<u64> = slab.pages.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert!(slab.lend(100 * PAGE).is_none());
        let after: Vec<u64> = slab.pages.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn free_run_agrees_with_a_bit_loop() {
        let mut word = 0x0123_4567_89ab_cdef_u64;
        for _ in 0..200 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) & (word >> 1);
            word ^= word << 13;
            for pages in 1..=WORD_PAGES {
                let slow =
                    (0..=WORD_PAGES - pages).find(|shift| (word >> shift) & run_mask(pages) == 0);
                assert_eq!(free_run(word, pages), slow, "{word:#x} {pages}");
            }
        }
    }
}
