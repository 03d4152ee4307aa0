//! The planner reads as little as is possible at all.
//!
//! The oracle knows nothing of methods. Reading a slot yields one known linear combination, over
//! GF(2^8), of the stripe's old data; a write needs the combinations that make up the new parities,
//! a read those of the wanted chunks. The least number of reads is the size of the smallest set of
//! readable slots whose combinations span what is needed (found by trying all sets).

mod common;

use common::*;
use raid_core::geometry::{Geometry, Layout, Level, Stripe};
use raid_core::memory::{BufferName, Segment};
use raid_core::plan::{ComputeOp, Extent, Method, Plan, Planner, StripeView, Trust};
use raid_core::slots::SlotSet;

const BLOCK: u32 = 4096;

fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| gf_mul(a, b) == 1).expect("a is not zero")
}

/// The combination of old data that a slot holds.
fn held(stripe: &Stripe, data: usize, slot: usize) -> Vec<u8> {
    (0..data)
        .map(|k| {
            if stripe.data_slot(k) == slot || stripe.p == Some(slot) {
                1
            } else if stripe.q == Some(slot) {
                gf_power(stripe.syndrome_index(k))
            } else {
                0
            }
        })
        .collect()
}

/// Brings rows into echelon form; returns the rank.
fn rank(mut rows: Vec<Vec<u8>>) -> usize {
    let width = rows.first().map_or(0, Vec::len);
    let mut rank = 0;
    for column in 0..width {
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let scale = inverse(rows[rank][column]);
        let row: Vec<u8> = rows[rank].iter().map(|&x| gf_mul(x, scale)).collect();
        for (index, other) in rows.iter_mut().enumerate() {
            let factor = other[column];
            if index != rank && factor != 0 {
                for (x, &y) in other.iter_mut().zip(&row) {
                    *x ^= gf_mul(factor, y);
                }
            }
        }
        rows[rank] = row;
        rank += 1;
    }
    rank
}

/// The size of the smallest set of `readable` slots that spans all of `needed`.
fn least(stripe: &Stripe, data: usize, readable: &SlotSet, needed: &[Vec<u8>]) -> Option<usize> {
    let slots: Vec<usize> = readable.iter().collect();
    (0..1usize << slots.len())
        .filter(|mask| {
            let chosen = slots.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 != 0);
            let rows: Vec<_> = chosen.map(|(_, &slot)| held(stripe, data, slot)).collect();
            let all = rows.iter().cloned().chain(needed.iter().cloned()).collect();
            rank(rows) == rank(all)
        })
        .map(usize::count_ones)
        .min()
        .map(|count| count as usize)
}

fn extents(mask: usize, data: usize) -> Vec<Extent> {
    let buffer = BufferName::Request(0);
    (0..data)
        .filter(|k| mask >> k & 1 != 0)
        .map(|k| {
            let segment = Segment { buffer, offset: k as u32 * BLOCK, len: BLOCK };
            Extent { chunk: k, row: 0, segment }
        })
        .collect()
}

fn parity_geometries() -> impl Iterator<Item = (String, Geometry)> {
    // Six and seven slots: wide enough for read-modify-write to win where nothing is missing.
    let wide = [(Level::Raid5, 6), (Level::Raid6, 7)].map(|(level, slots)| {
        let layout = Layout::default_for(level);
        (format!("{level:?} {slots}"), geometry(level, layout, slots, 4096, 12 * 4096))
    });
    let small = small_geometries(4096, 12).into_iter();
    small.filter(|(_, geometry)| geometry.parity_count() > 0).chain(wide)
}

#[test]
fn reads_and_writes_take_the_fewest_reads() {
    let mut planner = Planner::default();
    let mut seen = [0usize; 5];
    for (name, geometry) in parity_geometries() {
        let data = geometry.data_slots();
        for missing in tolerated_losses(&geometry) {
            let available = geometry.slots().difference(missing);
            for index in 0..geometry.slot_count() as u64 {
                let stripe = geometry.stripe(index);
                let view = StripeView {
                    geometry: &geometry,
                    stripe,
                    readable: available,
                    writable: available,
                    trust: Trust::InSync,
                    block_bytes: BLOCK,
                };
                for mask in 1..1usize << data {
                    let context = format!("{name}, stripe {index}, chunks {mask:b}, {missing:?}");
                    let kept = |power: &dyn Fn(usize) -> u8| -> Vec<u8> {
                        (0..data).map(|k| if mask >> k & 1 == 0 { power(k) } else { 0 }).collect()
                    };
                    let mut needed = Vec::new();
                    if stripe.p.is_some_and(|p| available.contains(p)) {
                        needed.push(kept(&|_| 1));
                    }
                    if stripe.q.is_some_and(|q| available.contains(q)) {
                        needed.push(kept(&|k| gf_power(stripe.syndrome_index(k))));
                    }
                    let mut plan = Plan::default();
                    let writes = extents(mask, data);
                    planner.write_stripe(&view, &writes, false, &mut plan).expect("a plan");
                    plan.check(&available, &available, BLOCK);
                    let fewest = least(&stripe, data, &available, &needed).expect("enough slots");
                    assert_eq!(plan.reads.len(), fewest, "write: {context}");
                    let stored = (0..data)
                        .filter(|&k| mask >> k & 1 != 0 && available.contains(stripe.data_slot(k)));
                    assert_eq!(plan.writes.len(), stored.count() + needed.len(), "{context}");
                    seen[match plan.method.expect("a method") {
                        Method::DataOnly => 0,
                        Method::FullStripe => 1,
                        Method::ReadModifyWrite => 2,
                        Method::ReconstructWrite => 3,
                        Method::Regenerate => 4,
                    }] += 1;

                    let unit = |k: usize| (0..data).map(|j| u8::from(j == k)).collect::<Vec<u8>>();
                    let wanted: Vec<_> =
                        (0..data).filter(|k| mask >> k & 1 != 0).map(unit).collect();
                    let mut plan = Plan::default();
                    planner.read_stripe(&view, &writes, &mut plan).expect("a plan");
                    plan.check(&available, &available, BLOCK);
                    let fewest = least(&stripe, data, &available, &wanted).expect("enough slots");
                    assert_eq!(plan.reads.len(), fewest, "read: {context}");
                }
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "a method was never chosen: {seen:?}");
}

/// Rows of different coverage take different methods, and neighbouring rows are not read twice.
#[test]
fn rows_are_planned_by_their_own_coverage() {
    let (_, geometry) = small_geometries(16384, 4)
        .into_iter()
        .find(|(name, _)| name.ends_with("symmetric 4"))
        .expect("it");
    let view = StripeView {
        geometry: &geometry,
        stripe: geometry.stripe(0),
        readable: geometry.slots(),
        writable: geometry.slots(),
        trust: Trust::InSync,
        block_bytes: 512,
    };
    let segment = |offset, len| Segment { buffer: BufferName::Request(0), offset, len };
    // Rows 0..4096 of all three chunks, and rows 4096..8192 of chunk 1 alone.
    let write = [
        Extent { chunk: 0, row: 0, segment: segment(0, 4096) },
        Extent { chunk: 1, row: 0, segment: segment(4096, 8192) },
        Extent { chunk: 2, row: 0, segment: segment(12288, 4096) },
    ];
    let mut plan = Plan::default();
    Planner::default().write_stripe(&view, &write, false, &mut plan).expect("a plan");
    let rows: Vec<u64> = plan.reads.iter().map(|op| op.offset).collect();
    assert_eq!(rows, [4096, 4096], "only the second row needs reads");
    assert_eq!(plan.method, Some(Method::FullStripe));
}

/// The data of an aligned full-stripe write goes from the request's own buffer to the members: only
/// parity has scratch memory.
#[test]
fn a_full_stripe_write_copies_no_data() {
    for (name, geometry) in parity_geometries() {
        let data = geometry.data_slots();
        let view = StripeView {
            geometry: &geometry,
            stripe: geometry.stripe(1),
            readable: geometry.slots(),
            writable: geometry.slots(),
            trust: Trust::InSync,
            block_bytes: BLOCK,
        };
        let mut plan = Plan::default();
        let all = extents((1 << data) - 1, data);
        Planner::default().write_stripe(&view, &all, false, &mut plan).expect("a plan");
        assert!(plan.reads.is_empty(), "{name}");
        let copies = plan.computes.iter().any(|op| matches!(op, ComputeOp::Copy { .. }));
        assert!(!copies, "{name}");
        let own =
            plan.writes.iter().filter(|op| op.segment.buffer == BufferName::Request(0)).count();
        // With one data chunk, P is the data itself and is written from the same bytes.
        assert!(own >= data, "{name}: {own} of {data} chunks come from the request");
        assert!(plan.scratch_bytes <= 2 * BLOCK, "{name}");
    }
}
