//! Parity layouts of RAID 4, 5 and 6: which slot holds what in a stripe, and the order of data in
//! the Q syndrome.
//!
//! ```text
//! RAID 5 over 4 slots, stripes 0..3; the number is the data chunk k of the stripe
//!
//! left-asymmetric  right-asymmetric  left-symmetric  right-symmetric  parity-first  parity-last
//!    0 1 2 P           P 0 1 2          0 1 2 P          P 0 1 2         P 0 1 2       0 1 2 P
//!    0 1 P 2           0 P 1 2          1 2 P 0          2 P 0 1         P 0 1 2       0 1 2 P
//!    0 P 1 2           0 1 P 2          2 P 0 1          1 2 P 0         P 0 1 2       0 1 2 P
//!    P 0 1 2           0 1 2 P          P 0 1 2          0 1 2 P         P 0 1 2       0 1 2 P
//!
//! RAID 6 over 5 slots, stripes 0..4
//!
//! left-asymmetric  right-asymmetric  left-symmetric  right-symmetric  parity-first  parity-last
//!   Q 0 1 2 P         P Q 0 1 2        Q 0 1 2 P        P Q 0 1 2       P Q 0 1 2     0 1 2 P Q
//!   0 1 2 P Q         0 P Q 1 2        0 1 2 P Q        2 P Q 0 1
//!   0 1 P Q 2         0 1 P Q 2        1 2 P Q 0        1 2 P Q 0
//!   0 P Q 1 2         0 1 2 P Q        2 P Q 0 1        0 1 2 P Q
//!   P Q 0 1 2         Q 0 1 2 P        P Q 0 1 2        Q 0 1 2 P
//!
//! ddf-zero-restart  ddf-N-restart   ddf-N-continue   left-symmetric-6; all "-6" layouts are a
//!                                                    RAID 5 layout with Q on the last slot
//!   P Q 0 1 2         0 1 2 P Q       0 1 2 Q P        0 1 2 P Q
//!   0 P Q 1 2         0 1 P Q 2       1 2 Q P 0        1 2 P 0 Q
//!   0 1 P Q 2         0 P Q 1 2       2 Q P 0 1        2 P 0 1 Q
//!   0 1 2 P Q         P Q 0 1 2       Q P 0 1 2        P 0 1 2 Q
//!   Q 0 1 2 P         Q 0 1 2 P       P 0 1 2 Q        0 1 2 P Q
//! ```
//!
//! Order of the data in Q (the exponent of data k): the plain layouts start at the slot after Q and
//! go round, so it is not `k` where the layout is asymmetric. DDF layouts give every slot its own
//! exponent, P's and Q's included, which count as zeroes. The `-6` layouts have Q last, so they
//! start at slot 0.
//!
//! Facts: md `raid5_compute_sector`, `raid6_d0`, `raid6_idx_to_slot`. Tests:
//! `tests/layout_tables.rs` has these tables, `tests/golden_layout.rs` reads arrays made by md.

use super::Level;
use super::divider::Divider;
use alloc::boxed::Box;

/// Where parity goes in RAID 5 and 6, by md number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ParityLayout {
    /// P moves left; data starts at slot 0 in every stripe.
    LeftAsymmetric = 0,
    /// P moves right; data starts at slot 0 in every stripe.
    RightAsymmetric = 1,
    /// P moves left; data starts after the parity. mdadm's default.
    LeftSymmetric = 2,
    /// P moves right; data starts after the parity.
    RightSymmetric = 3,
    /// P (and Q) on the first slots.
    ParityFirst = 4,
    /// P (and Q) on the last slots.
    ParityLast = 5,
    /// RAID 6: DDF "rotating parity 0 with data restart".
    DdfZeroRestart = 8,
    /// RAID 6: DDF "rotating parity N with data restart".
    DdfNRestart = 9,
    /// RAID 6: DDF "rotating parity N with data continuation".
    DdfNContinue = 10,
    /// RAID 6: RAID 5's left-asymmetric, with Q on the last slot.
    LeftAsymmetric6 = 16,
    /// RAID 6: RAID 5's right-asymmetric, with Q on the last slot.
    RightAsymmetric6 = 17,
    /// RAID 6: RAID 5's left-symmetric, with Q on the last slot.
    LeftSymmetric6 = 18,
    /// RAID 6: RAID 5's right-symmetric, with Q on the last slot.
    RightSymmetric6 = 19,
    /// RAID 6: P on the first slot and Q on the last.
    ParityFirst6 = 20,
}

impl ParityLayout {
    /// Every layout, by md number.
    pub const ALL: [Self; 14] = [
        Self::LeftAsymmetric,
        Self::RightAsymmetric,
        Self::LeftSymmetric,
        Self::RightSymmetric,
        Self::ParityFirst,
        Self::ParityLast,
        Self::DdfZeroRestart,
        Self::DdfNRestart,
        Self::DdfNContinue,
        Self::LeftAsymmetric6,
        Self::RightAsymmetric6,
        Self::LeftSymmetric6,
        Self::RightSymmetric6,
        Self::ParityFirst6,
    ];

    /// The number in an md superblock.
    #[must_use]
    pub const fn to_md(self) -> u32 {
        self as u32
    }

    /// Whether `level` has this layout: RAID 5 has the first six, RAID 6 all.
    #[must_use]
    pub const fn fits(self, level: Level) -> bool {
        match level {
            Level::Raid5 => self.to_md() <= Self::ParityLast.to_md(),
            Level::Raid6 => true,
            _ => false,
        }
    }

    const fn is_ddf(self) -> bool {
        matches!(self, Self::DdfZeroRestart | Self::DdfNRestart | Self::DdfNContinue)
    }

    /// The rule for P and data alone, and whether Q stands apart on the last slot.
    const fn base(self) -> (Self, QPlace) {
        match self {
            Self::LeftAsymmetric6 => (Self::LeftAsymmetric, QPlace::LastSlot),
            Self::RightAsymmetric6 => (Self::RightAsymmetric, QPlace::LastSlot),
            Self::LeftSymmetric6 => (Self::LeftSymmetric, QPlace::LastSlot),
            Self::RightSymmetric6 => (Self::RightSymmetric, QPlace::LastSlot),
            Self::ParityFirst6 => (Self::ParityFirst, QPlace::LastSlot),
            other => (other, QPlace::BesideP),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QPlace {
    BesideP,
    LastSlot,
}

/// What a slot holds in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// Data chunk `k` of the stripe, counted in the order of array addresses.
    Data(usize),
    /// XOR parity.
    P,
    /// The second parity.
    Q,
}

/// How the exponent of a data chunk in Q follows from its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyndromeOrder {
    /// As the data is numbered.
    Data,
    /// The second run of data first: where the syndrome and the data do not start at the same slot.
    SecondRunFirst,
    /// The slot itself.
    Slot,
}

/// One stripe: who holds P, Q and each data chunk. Made by [`crate::geometry::Geometry::stripe`];
/// costs nothing to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The stripe's index in the array.
    pub index: u64,
    /// The slot of P; always there on parity levels.
    pub p: Option<usize>,
    /// The slot of Q; RAID 6 only.
    pub q: Option<usize>,
    run: DataRun,
    slot_count: u8,
    data_count: u8,
    order: SyndromeOrder,
}

/// Data chunks lie in two runs: `k < split` on slot `k + before`, the others on slot `k + after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DataRun {
    split: u8,
    before: i16,
    after: i16,
}

impl DataRun {
    /// Data starts at slot 0 and jumps over `parity` slots once `split` chunks are placed.
    const fn restart(split: u8, parity: u8) -> Self {
        Self { split, before: 0, after: parity as i16 }
    }

    /// Data starts at slot `start` and goes round at slot `wrap`.
    const fn continued(start: u8, wrap: u8, data_count: u8) -> Self {
        let room = wrap - start;
        let split = if room < data_count { room } else { data_count };
        Self { split, before: start as i16, after: start as i16 - wrap as i16 }
    }

    /// Without a branch: which run a random chunk is in cannot be predicted, and a wrong guess
    /// costs more than the rest of the mapping.
    #[inline]
    const fn slot(self, k: usize) -> usize {
        let is_second = (k >= self.split as usize) as isize;
        let shift = self.before as isize + (self.after as isize - self.before as isize) * is_second;
        k.wrapping_add_signed(shift)
    }

    /// The data chunk on `slot`, when it holds one of `data_count` chunks.
    #[inline]
    fn chunk_on(self, slot: usize, data_count: usize) -> Option<usize> {
        let split = usize::from(self.split);
        let undo =
            |shift: i16| slot.checked_add_signed(-isize::from(shift)).filter(|&k| k < data_count);
        undo(self.before)
            .filter(|&k| k < split)
            .or_else(|| undo(self.after).filter(|&k| k >= split))
    }
}

impl Stripe {
    /// Data chunks in the stripe.
    #[must_use]
    #[inline]
    pub const fn data_count(&self) -> usize {
        self.data_count as usize
    }

    /// Slots of the array.
    #[must_use]
    #[inline]
    pub const fn slot_count(&self) -> usize {
        self.slot_count as usize
    }

    /// The slot that holds data chunk `k`.
    ///
    /// # Panics
    /// In debug builds, when `k` is not below [`Stripe::data_count`].
    #[must_use]
    #[inline]
    pub const fn data_slot(&self, k: usize) -> usize {
        debug_assert!(k < self.data_count(), "data chunk beyond the stripe");
        self.run.slot(k)
    }

    /// The exponent of data chunk `k` in Q: its coefficient is `2^exponent`. Below
    /// [`Stripe::syndrome_width`].
    ///
    /// # Panics
    /// In debug builds, when `k` is not below [`Stripe::data_count`].
    #[must_use]
    #[inline]
    pub const fn syndrome_index(&self, k: usize) -> usize {
        debug_assert!(k < self.data_count(), "data chunk beyond the stripe");
        let split = self.run.split as usize;
        match self.order {
            SyndromeOrder::Data => k,
            SyndromeOrder::SecondRunFirst => {
                let is_first = (k < split) as usize;
                k + self.data_count() * is_first - split
            }
            SyndromeOrder::Slot => self.run.slot(k),
        }
    }

    /// The number of sources of the syndrome: the data chunks, or, in a DDF layout, all slots,
    /// where P's and Q's own places count as zeroes.
    #[must_use]
    #[inline]
    pub const fn syndrome_width(&self) -> usize {
        match self.order {
            SyndromeOrder::Slot => self.slot_count(),
            SyndromeOrder::Data | SyndromeOrder::SecondRunFirst => self.data_count(),
        }
    }

    /// What `slot` holds.
    ///
    /// # Panics
    /// When `slot` is not below [`Stripe::slot_count`].
    #[must_use]
    #[inline]
    pub fn kind_of(&self, slot: usize) -> ChunkKind {
        assert!(slot < self.slot_count(), "slot {slot} >= {}", self.slot_count());
        if self.p == Some(slot) {
            return ChunkKind::P;
        }
        match self.run.chunk_on(slot, self.data_count()) {
            Some(k) if self.q != Some(slot) => ChunkKind::Data(k),
            _ => ChunkKind::Q,
        }
    }
}

/// What changes from stripe to stripe, for one turn of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    p: u8,
    /// Says nothing where there is one parity.
    q: u8,
    run: DataRun,
}

/// The rule that makes stripes.
///
/// The pattern repeats after as many stripes as there are slots for P to visit, so it is worked out
/// once: 8 bytes for each turn, a line of cache for a usual array, in place of branches that a
/// random stripe mispredicts (about 5 in place of 13 ns for the place of a random RAID 5 byte).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParityMap {
    slot_count: u8,
    data_count: u8,
    order: SyndromeOrder,
    period: Divider,
    turns: Box<[Turn]>,
}

impl ParityMap {
    /// A map for `slot_count` slots, of which `parity_count` (1 or 2) hold parity in a stripe.
    pub(crate) fn new(layout: ParityLayout, slot_count: u8, parity_count: u8) -> Self {
        let (base, place) = layout.base();
        let is_double = parity_count == 2;
        let is_apart = is_double && place == QPlace::LastSlot;
        // With Q on the last slot, the others are a RAID 5.
        let period = slot_count - u8::from(is_apart);
        let turn = |turn| {
            if is_double && !is_apart {
                let (p, q, run) = double_parity(base, turn, slot_count);
                Turn { p, q, run }
            } else {
                let (p, run) = single_parity(base, turn, period);
                Turn { p, q: period, run }
            }
        };
        Self {
            slot_count,
            data_count: slot_count - parity_count,
            order: if is_double { syndrome_order(layout, is_apart) } else { SyndromeOrder::Data },
            period: Divider::new(u64::from(period)),
            turns: (0..period).map(turn).collect(),
        }
    }

    /// Data chunks in a stripe.
    #[inline]
    pub(crate) const fn data_count(&self) -> usize {
        self.data_count as usize
    }

    /// The stripe of that index.
    #[inline]
    pub(crate) fn stripe(&self, index: u64) -> Stripe {
        let Turn { p, q, run } = self.turn(index);
        let is_double = self.slot_count - self.data_count == 2;
        Stripe {
            index,
            p: Some(usize::from(p)),
            q: is_double.then_some(usize::from(q)),
            run,
            slot_count: self.slot_count,
            data_count: self.data_count,
            order: self.order,
        }
    }

    /// The slot of data chunk `k` in the stripe of that index: what a read needs, and no more.
    #[inline]
    pub(crate) fn data_slot(&self, index: u64, k: usize) -> usize {
        self.turn(index).run.slot(k)
    }

    #[inline]
    fn turn(&self, index: u64) -> Turn {
        // The remainder is below the period, so the cast keeps everything.
        self.turns[self.period.div_rem(index).1 as usize]
    }
}

const fn syndrome_order(layout: ParityLayout, is_apart: bool) -> SyndromeOrder {
    if layout.is_ddf() {
        return SyndromeOrder::Slot;
    }
    let (base, _) = layout.base();
    let is_second_first = match base {
        // Data starts at slot 0, the syndrome after Q.
        ParityLayout::LeftAsymmetric | ParityLayout::RightAsymmetric => !is_apart,
        // Data starts after P, the syndrome after the last slot.
        ParityLayout::LeftSymmetric | ParityLayout::RightSymmetric => is_apart,
        _ => false,
    };
    if is_second_first { SyndromeOrder::SecondRunFirst } else { SyndromeOrder::Data }
}

/// P's slot and the data of a stripe with one parity over `slots` slots.
fn single_parity(layout: ParityLayout, turn: u8, slots: u8) -> (u8, DataRun) {
    let last = slots - 1;
    match layout {
        ParityLayout::LeftAsymmetric => (last - turn, DataRun::restart(last - turn, 1)),
        ParityLayout::RightAsymmetric => (turn, DataRun::restart(turn, 1)),
        ParityLayout::RightSymmetric => {
            (turn, DataRun::continued(after(turn, 1, slots), slots, last))
        }
        ParityLayout::ParityFirst => (0, DataRun::restart(0, 1)),
        ParityLayout::ParityLast => (last, DataRun::restart(last, 0)),
        // Left-symmetric; the other layouts do not come here.
        _ => (last - turn, DataRun::continued(after(last - turn, 1, slots), slots, last)),
    }
}

/// P's slot, Q's slot and the data of a stripe with P and Q side by side.
fn double_parity(layout: ParityLayout, turn: u8, slots: u8) -> (u8, u8, DataRun) {
    let last = slots - 1;
    let data_count = slots - 2;
    let p = match layout {
        ParityLayout::RightAsymmetric
        | ParityLayout::RightSymmetric
        | ParityLayout::DdfZeroRestart => turn,
        // Left-asymmetric one stripe further.
        ParityLayout::DdfNRestart => last - after(turn, 1, slots),
        ParityLayout::ParityFirst => 0,
        ParityLayout::ParityLast => data_count,
        _ => last - turn,
    };
    let next = after(p, 1, slots);
    match layout {
        ParityLayout::DdfNContinue => {
            let q = if p == 0 { last } else { p - 1 };
            (p, q, DataRun::continued(next, slots, data_count))
        }
        ParityLayout::LeftSymmetric | ParityLayout::RightSymmetric => {
            (p, next, DataRun::continued(after(p, 2, slots), slots, data_count))
        }
        // Q went round to slot 0: the data lies between the two.
        _ if p == last => (p, next, DataRun::restart(0, 1)),
        _ => (p, next, DataRun::restart(p, 2)),
    }
}

/// The slot `steps` after `slot`, going round; `steps <= slots`.
const fn after(slot: u8, steps: u8, slots: u8) -> u8 {
    let to_end = slots - slot;
    if steps < to_end { slot + steps } else { steps - to_end }
}
