//! Deliberate mistakes, for raid-sim to find: they test its oracle, and nothing else.
//!
//! With the feature `planted` off (always, but for `cargo xtask planted`) [`is`] is a constant and
//! the mistakes are not compiled. With it, one can be chosen at run time by its number in `LIST`;
//! 0 is none. Each stands where it is made, as `planted::is(NUMBER)`.

#[cfg(feature = "planted")]
mod chosen {
    use core::sync::atomic::{AtomicU32, Ordering};

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    /// The mistakes: number and what is done wrong.
    pub const LIST: &[(u32, &str)] = &[
        (1, "a write does not wait for the dirty mark"),
        (2, "an acknowledgement does not wait for a failure to be recorded"),
        (3, "a dirty mark that was found is believed to be everywhere"),
        (4, "a write does not wait for its bits"),
        (5, "an update that failed is forgotten when the next bitmap image is made"),
        (6, "a flush leaves out the last member"),
        (7, "FUA is dropped"),
        (8, "Q is updated with the coefficient of the first chunk"),
        (9, "P and Q are stored in each other's place"),
        (10, "a chunk is regenerated from Q with its neighbour's coefficient"),
        (11, "parity that is not in sync is a source"),
        (12, "a write of all chunks but one is taken for a full stripe"),
        (14, "a write leaves out the last copy"),
        (15, "a resync writes one copy less"),
        (16, "a resync of parity does nothing"),
        (17, "a write that failed on a member is taken for done"),
        (18, "a member that fails asks for no update"),
        (19, "requests for one stripe do not exclude each other"),
        (20, "a discard takes blocks that it covers in part"),
        (21, "two regenerated chunks change places"),
        (22, "a bit is taken back in the period of its write"),
        (23, "periods end while their writes are under way"),
        (24, "the last block of an unaligned write is not completed"),
        (25, "a member whose superblock cannot be written is taken for told"),
        (26, "a resync clears bits of regions that it covers in part"),
        (27, "a member called faulty one event ago is let back in"),
        (28, "the first member's bitmap alone is believed"),
        (29, "writes of the same blocks are joined"),
        (30, "a read that failed is taken for done"),
        (31, "a failed write leaves parity trusted"),
        (32, "reads of a degraded stripe take no lock"),
        (33, "the position of a resync counts one unit too much"),
        (34, "a regenerating write forgets one of its parities"),
        (35, "a member that fails is still read"),
    ];

    /// Chooses a mistake; 0 is none.
    pub fn plant(number: u32) {
        CHOSEN.store(number, Ordering::Relaxed);
    }

    pub(crate) fn is(number: u32) -> bool {
        CHOSEN.load(Ordering::Relaxed) == number
    }
}

#[cfg(feature = "planted")]
pub(crate) use chosen::is;
#[cfg(feature = "planted")]
pub use chosen::{LIST, plant};

#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_number: u32) -> bool {
    false
}
