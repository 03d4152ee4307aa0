//! Every parity kernel that this CPU has equals the specification, the `naive` kernel.
//!
//! Method: exhaustive over small shapes (all lengths to three vectors and one byte, all
//! misalignments, 1 to 16 sources, all pairs of losses), property tests beyond, 255 sources once.
//! Targets start out as rubbish with a byte of guard on each side; a separate test puts slices
//! against pages without access. `naive` itself is tested against values worked out by hand beside
//! its code.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use proptest::prelude::*;
use raid_core::parity::Kernel;

/// The widest vector of any kernel.
const WIDTH: usize = 64;

/// Source counts of the exhaustive tests.
const COUNTS: std::ops::RangeInclusive<usize> = 1..=16;

// ==== Shapes ====

/// A cheap generator of bytes that differ everywhere (xorshift).
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// A stripe at one length, its parities and the versions after a change, by the specification.
struct Stripe {
    sources: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

fn naive() -> Kernel {
    Kernel::named("naive").unwrap()
}

/// The kernels under test.
fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::available().filter(|kernel| kernel.name() != "naive")
}

impl Stripe {
    fn new(count: usize, len: usize) -> Self {
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ (count << 32 | len) as u64);
        let sources: Vec<_> = (0..count).map(|_| noise.bytes(len)).collect();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        let slices: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        naive().gen_pq(&slices, &mut p, &mut q);
        Self { sources, p, q }
    }

    fn len(&self) -> usize {
        self.p.len()
    }

    fn count(&self) -> usize {
        self.sources.len()
    }
}

/// A slice at a chosen distance from a cache line, with a byte to guard on each side.
struct Placed {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;

impl Placed {
    fn new(len: usize, misalignment: usize) -> Self {
        let mut memory = vec![GUARD; len + 2 * WIDTH + 2];
        let start = 1 + (memory.as_ptr() as usize + 1).wrapping_neg() % WIDTH + misalignment;
        // Rubbish, so that what is not written shows.
        memory[start..start + len].fill(0x5a);
        Self { memory, start, len }
    }

    fn of(bytes: &[u8], misalignment: usize) -> Self {
        let mut placed = Self::new(bytes.len(), misalignment);
        placed.get_mut().copy_from_slice(bytes);
        placed
    }

    fn get(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    #[track_caller]
    fn assert_is(&self, want: &[u8], what: &str) {
        if self.get() != want {
            let at = (0..want.len()).find(|&at| self.get()[at] != want[at]);
            panic!("{what}: wrong from byte {at:?} of {}", self.len);
        }
        assert_eq!(self.memory[self.start - 1], GUARD, "{what}: wrote before the target");
        assert_eq!(self.memory[self.start + self.len], GUARD, "{what}: wrote behind the target");
    }
}

/// Runs operations of one kernel on one stripe, all slices misaligned in their own way.
struct Bench<'a> {
    kernel: Kernel,
    stripe: &'a Stripe,
    sources: Vec<Placed>,
    p: Placed,
    q: Placed,
    misalignment: usize,
}

impl<'a> Bench<'a> {
    /// `spread` is what each slice is further off its alignment than the one before.
    fn new(kernel: Kernel, stripe: &'a Stripe, misalignment: usize, spread: usize) -> Self {
        let place = |(i, source): (usize, &Vec<u8>)| {
            Placed::of(source, (misalignment + i * spread) % WIDTH)
        };
        let sources = stripe.sources.iter().enumerate().map(place).collect();
        let p = Placed::of(&stripe.p, misalignment);
        let q = Placed::of(&stripe.q, (misalignment + spread) % WIDTH);
        Self { kernel, stripe, sources, p, q, misalignment }
    }

    fn what(&self, operation: &str) -> String {
        let (count, len) = (self.stripe.count(), self.stripe.len());
        let Self { kernel, misalignment, .. } = self;
        format!("{} {operation}: {count} sources, length {len}, {misalignment} off", kernel.name())
    }

    fn target(&self, shift: usize) -> Placed {
        Placed::new(self.stripe.len(), (self.misalignment + shift) % WIDTH)
    }

    fn all(&self) -> Vec<&[u8]> {
        self.sources.iter().map(Placed::get).collect()
    }

    fn without(&self, lost: &[usize]) -> Vec<&[u8]> {
        let mut sources = self.all();
        lost.iter().for_each(|&index| sources[index] = &[]);
        sources
    }

    fn gen_and_check(&self) {
        let sources = self.all();
        let (mut p, mut q) = (self.target(0), self.target(3));
        self.kernel.gen_p(&sources, p.get_mut());
        p.assert_is(&self.stripe.p, &self.what("gen_p"));
        let mut p = self.target(5);
        self.kernel.gen_pq(&sources, p.get_mut(), q.get_mut());
        p.assert_is(&self.stripe.p, &self.what("gen_pq, P"));
        q.assert_is(&self.stripe.q, &self.what("gen_pq, Q"));
        let got = self.kernel.check_p(&sources, self.p.get());
        assert_eq!(got, None, "{}", self.what("check_p"));
        let got = self.kernel.check_pq(&sources, self.p.get(), self.q.get());
        assert_eq!(got, None, "{}", self.what("check_pq"));
    }

    /// Loses `lost`: data by P, data by Q, data and P by Q.
    fn recover_one(&self, lost: usize) {
        let sources = self.without(&[lost]);
        let want = &self.stripe.sources[lost];
        let mut out = self.target(1);
        self.kernel.recover_data(lost, &sources, self.p.get(), out.get_mut());
        out.assert_is(want, &self.what("recover_data"));
        let mut out = self.target(0);
        self.kernel.recover_data_q(lost, &sources, self.q.get(), out.get_mut());
        out.assert_is(want, &self.what("recover_data_q"));
        let (mut out, mut out_p) = (self.target(7), self.target(0));
        self.kernel.recover_data_p(lost, &sources, self.q.get(), out.get_mut(), out_p.get_mut());
        out.assert_is(want, &self.what("recover_data_p, data"));
        out_p.assert_is(&self.stripe.p, &self.what("recover_data_p, P"));
    }

    fn recover_two(&self, a: usize, b: usize) {
        let sources = self.without(&[a, b]);
        let (mut out_a, mut out_b) = (self.target(0), self.target(9));
        self.kernel.recover_two_data(
            a,
            b,
            &sources,
            self.p.get(),
            self.q.get(),
            out_a.get_mut(),
            out_b.get_mut(),
        );
        out_a.assert_is(&self.stripe.sources[a], &self.what(&format!("recover {a} of {a}, {b}")));
        out_b.assert_is(&self.stripe.sources[b], &self.what(&format!("recover {b} of {a}, {b}")));
    }

    /// Changes source `index`; the updated parities equal those of a full computation.
    fn update(&self, index: usize) {
        let len = self.stripe.len();
        let new = Noise(0xd1b5_4a32_d192_ed03 ^ index as u64).bytes(len);
        let placed = Placed::of(&new, (self.misalignment + 13) % WIDTH);
        let (mut want_p, mut want_q) = (vec![0; len], vec![0; len]);
        let mut changed = self.all();
        changed[index] = &new;
        naive().gen_pq(&changed, &mut want_p, &mut want_q);

        let old = self.sources[index].get();
        let (mut p, mut q) = (self.p_again(0), self.q_again(2));
        self.kernel.update_p(old, placed.get(), p.get_mut());
        p.assert_is(&want_p, &self.what("update_p"));
        self.kernel.update_q(index, old, placed.get(), q.get_mut());
        q.assert_is(&want_q, &self.what("update_q"));
        let (mut p, mut q) = (self.p_again(4), self.q_again(0));
        self.kernel.update_pq(index, old, placed.get(), p.get_mut(), q.get_mut());
        p.assert_is(&want_p, &self.what("update_pq, P"));
        q.assert_is(&want_q, &self.what("update_pq, Q"));
    }

    fn p_again(&self, shift: usize) -> Placed {
        Placed::of(&self.stripe.p, (self.misalignment + shift) % WIDTH)
    }

    fn q_again(&self, shift: usize) -> Placed {
        Placed::of(&self.stripe.q, (self.misalignment + shift) % WIDTH)
    }

    /// Every operation, with the losses and the change at a few places only.
    fn everything(&self) {
        self.gen_and_check();
        let last = self.stripe.count() - 1;
        self.update(last);
        self.recover_one(last / 2);
        if last > 0 {
            self.recover_one(0);
            self.recover_one(last);
            self.recover_two(0, last);
            self.recover_two(last, last / 2);
        }
    }
}

// ==== Exhaustive ====

/// Lengths from nothing to three vectors and one byte, for 1 to 16 sources.
#[test]
fn all_small_lengths() {
    for count in COUNTS {
        for len in 0..=3 * WIDTH + 1 {
            let stripe = Stripe::new(count, len);
            for kernel in kernels() {
                Bench::new(kernel, &stripe, (len + count) % WIDTH, 1).everything();
            }
        }
    }
}

/// All misalignments, with all slices off alike and each in its own way, at lengths that take
/// whole vectors and a rest.
#[test]
fn all_misalignments() {
    for count in [1, 2, 5] {
        for len in [1, WIDTH - 1, WIDTH, 2 * WIDTH + 33, 3 * WIDTH + 1] {
            let stripe = Stripe::new(count, len);
            for kernel in kernels() {
                for misalignment in 0..WIDTH {
                    Bench::new(kernel, &stripe, misalignment, 0).everything();
                    Bench::new(kernel, &stripe, misalignment, 7).everything();
                }
            }
        }
    }
}

/// The widest steps of each kernel: lengths around each multiple of a vector, to two such steps.
#[test]
fn all_steps() {
    for count in [1, 2, 3, 8] {
        for vectors in 3..=17 {
            for len in [vectors * WIDTH - 1, vectors * WIDTH, vectors * WIDTH + 1] {
                let stripe = Stripe::new(count, len);
                for kernel in kernels() {
                    Bench::new(kernel, &stripe, vectors, 1).everything();
                }
            }
        }
    }
}

/// All losses that two parities can bear, in stripes of 1 to 16 sources: each source by P, by Q and
/// together with P, and each pair in both orders.
#[test]
fn all_losses() {
    for count in COUNTS {
        for len in [1, 8, 40, 5 * WIDTH + 11] {
            let stripe = Stripe::new(count, len);
            for kernel in kernels() {
                let bench = Bench::new(kernel, &stripe, 0, 0);
                for a in 0..count {
                    bench.recover_one(a);
                    bench.update(a);
                    (0..count).filter(|&b| b != a).for_each(|b| bench.recover_two(a, b));
                }
            }
        }
    }
}

/// The most sources that there can be, with losses at the ends of the range.
#[test]
fn most_sources() {
    let stripe = Stripe::new(255, 2 * WIDTH + 5);
    for kernel in Kernel::available() {
        let bench = Bench::new(kernel, &stripe, 3, 1);
        bench.everything();
        bench.recover_two(253, 254);
        bench.recover_one(254);
        bench.update(254);
    }
}

// ==== Check ====

/// A wrong byte anywhere, in a source, in P or in Q, is reported at its offset; of two, the first.
#[test]
fn first_mismatch() {
    let (count, len) = (3, 9 * WIDTH + 3);
    let stripe = Stripe::new(count, len);
    for kernel in Kernel::available() {
        let mut bench = Bench::new(kernel, &stripe, 0, 5);
        for at in 0..len {
            let bit = 1 << (at % 8);
            bench.p.get_mut()[at] ^= bit;
            assert_eq!(kernel.check_p(&bench.all(), bench.p.get()), Some(at), "{kernel:?}");
            let got = kernel.check_pq(&bench.all(), bench.p.get(), bench.q.get());
            assert_eq!(got, Some(at), "{kernel:?}");
            bench.p.get_mut()[at] ^= bit;

            bench.q.get_mut()[at] ^= bit;
            bench.q.get_mut()[len - 1] ^= 1 << 7;
            let got = kernel.check_pq(&bench.all(), bench.p.get(), bench.q.get());
            assert_eq!(got, if bit == 1 << 7 && at == len - 1 { None } else { Some(at) });
            bench.q.get_mut()[len - 1] ^= 1 << 7;
            bench.q.get_mut()[at] ^= bit;

            bench.sources[at % count].get_mut()[at] ^= bit;
            assert_eq!(kernel.check_p(&bench.all(), bench.p.get()), Some(at), "{kernel:?}");
            bench.sources[at % count].get_mut()[at] ^= bit;
        }
    }
}

// ==== Choice ====

/// The best comes first, the specification last. `URAID_TEST_BEST_KERNEL` tells which must be the
/// best, where the CPU is known: an emulated one.
#[test]
fn choice_of_kernel() {
    let names: Vec<_> = Kernel::available().map(Kernel::name).collect();
    assert_eq!(names.first(), Some(&Kernel::best().name()));
    assert_eq!(names.last(), Some(&"naive"));
    assert!(names.contains(&"portable"));
    for name in names {
        assert_eq!(Kernel::named(name).map(Kernel::name), Some(name));
    }
    assert!(Kernel::named("abacus").is_none());
    if let Ok(best) = std::env::var("URAID_TEST_BEST_KERNEL") {
        assert_eq!(Kernel::best().name(), best);
    }
}

// ==== Arguments ====

/// What each operation refuses, in every kernel by the same check.
#[test]
fn bad_arguments_panic() {
    let kernel = Kernel::best();
    let panics = |call: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    let four = [1u8; 4];
    let many = vec![&four[..]; 256];
    let (mut a, mut b) = ([0; 4], [0; 4]);
    assert!(panics(&mut || kernel.gen_p(&[], &mut a)));
    assert!(panics(&mut || kernel.gen_p(&many, &mut a)));
    assert!(panics(&mut || kernel.gen_p(&[&four, &four[1..]], &mut a)));
    assert!(panics(&mut || kernel.gen_p(&[&four], &mut a[1..])));
    assert!(panics(&mut || kernel.gen_pq(&[&four], &mut a, &mut b[1..])));
    assert!(panics(&mut || kernel.update_p(&four, &four[1..], &mut a)));
    assert!(panics(&mut || kernel.update_p(&four, &four, &mut a[1..])));
    assert!(panics(&mut || kernel.update_q(255, &four, &four, &mut a)));
    assert!(panics(&mut || kernel.update_pq(0, &four, &four, &mut a, &mut b[1..])));
    assert!(panics(&mut || kernel.update_pq(0, &four, &four, &mut [], &mut b)));
    assert!(panics(&mut || kernel.recover_data(1, &[&[]], &four, &mut a)));
    assert!(panics(&mut || kernel.recover_data(0, &[&four], &four, &mut a)));
    assert!(panics(&mut || kernel.recover_data_q(0, &[&[], &[]], &four, &mut a)));
    assert!(panics(&mut || kernel.recover_data_p(0, &[&[], &four], &four, &mut a, &mut [])));
    let lost: &[&[u8]] = &[&[], &[]];
    assert!(panics(&mut || kernel.recover_two_data(1, 1, lost, &four, &four, &mut a, &mut b)));
    assert!(panics(&mut || kernel.recover_two_data(0, 2, lost, &four, &four, &mut a, &mut b)));
    assert!(panics(&mut || kernel.recover_two_data(0, 1, lost, &four, &[], &mut a, &mut b)));
    assert!(panics(&mut || _ = kernel.check_p(&[&four], &four[1..])));
    assert!(panics(&mut || _ = kernel.check_pq(&[&four], &four, &four[1..])));
}

// ==== Beyond ====

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any shape: all operations of all kernels.
    #[test]
    fn any_shape(
        count in 1usize..40,
        len in 0usize..5000,
        misalignment in 0..WIDTH,
        spread in 0..WIDTH,
        losses in any::<(usize, usize)>(),
    ) {
        let stripe = Stripe::new(count, len);
        let (a, b) = (losses.0 % count, losses.1 % count);
        for kernel in kernels() {
            let bench = Bench::new(kernel, &stripe, misalignment, spread);
            bench.gen_and_check();
            bench.recover_one(a);
            bench.update(b);
            if a != b {
                bench.recover_two(a, b);
            }
        }
    }
}

// ==== Guard pages ====

/// A page with pages without access on both sides.
#[cfg(unix)]
mod guarded {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use std::ptr::null_mut;

    /// At least the page size of any Linux that the tests run on.
    const PAGE: usize = 65536;

    pub(crate) struct Guarded(*mut u8);

    impl Guarded {
        pub(crate) fn new() -> Self {
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            let start = unsafe {
                mmap_anonymous(null_mut(), 3 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE)
            };
            let start = start.unwrap().cast::<u8>();
            let middle = start.wrapping_add(PAGE);
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the middle page is our own and nobody has a reference into it yet.
            unsafe { mprotect(middle.cast(), PAGE, flags) }.unwrap();
            Self(start)
        }

        /// The first or the last `len` bytes of the page, hard against a page without access.
        pub(crate) fn slice(&mut self, len: usize, at_end: bool) -> &mut [u8] {
            assert!(len <= PAGE);
            let start = self.0.wrapping_add(if at_end { 2 * PAGE - len } else { PAGE });
            // SAFETY: `len` bytes from there on are within the middle page, which is mapped
            // zeroed, lives as long as `self` and is borrowed through it.
            unsafe { std::slice::from_raw_parts_mut(start, len) }
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: the mapping is our own and all slices of it have ended.
            unsafe { munmap(self.0.cast(), 3 * PAGE) }.unwrap();
        }
    }
}

/// No kernel reads or writes a byte before or behind its slices: each of them touches a page
/// without access there, so that one byte too many is a segmentation fault.
#[cfg(unix)]
#[test]
fn nothing_beyond_the_slices() {
    let mut pages: Vec<_> = (0..9).map(|_| guarded::Guarded::new()).collect();
    for len in (1..=3 * WIDTH + 1).chain(8 * WIDTH - 3..=8 * WIDTH + 3) {
        for at_end in [false, true] {
            let stripe = Stripe::new(3, len);
            let [s0, s1, s2, new, p, q, x, y, z] = pages.as_mut_slice() else { unreachable!() };
            let [s0, s1, s2, new] = [s0, s1, s2, new].map(|page| page.slice(len, at_end));
            let [p, q, x, y, z] = [p, q, x, y, z].map(|page| page.slice(len, at_end));
            s0.copy_from_slice(&stripe.sources[0]);
            s1.copy_from_slice(&stripe.sources[1]);
            s2.copy_from_slice(&stripe.sources[2]);
            new.copy_from_slice(&stripe.sources[1]);
            let all: [&[u8]; 3] = [s0, s1, s2];
            for kernel in Kernel::available() {
                kernel.gen_p(&all, p);
                kernel.gen_pq(&all, p, q);
                assert_eq!(kernel.check_p(&all, p), None);
                assert_eq!(kernel.check_pq(&all, p, q), None);
                kernel.update_p(all[1], new, p);
                kernel.update_q(1, all[1], new, q);
                kernel.update_pq(1, all[1], new, p, q);
                kernel.recover_data(1, &[all[0], &[], all[2]], p, x);
                assert_eq!(x, all[1]);
                kernel.recover_data_q(1, &[all[0], &[], all[2]], q, y);
                assert_eq!(y, all[1]);
                kernel.recover_data_p(1, &[all[0], &[], all[2]], q, x, z);
                assert_eq!(z, p);
                kernel.recover_two_data(0, 2, &[&[], all[1], &[]], p, q, x, y);
                assert_eq!((&*x, &*y), (all[0], all[2]));
            }
        }
    }
}
