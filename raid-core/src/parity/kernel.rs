//! The table that a kernel is, the list of all of them, and the checked way to call one.

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{naive, portable};
use core::fmt;

/// One implementation of all operations.
///
/// The functions rely on what [`Kernel`] checks: between 1 and 255 sources, all slices of one
/// length but those of lost sources, indexes of lost sources distinct and in range.
#[expect(clippy::type_complexity, reason = "the signatures of the operations, each used once")]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// Tells whether this CPU has all that the functions need.
    pub(super) is_available: fn() -> bool,
    pub(super) gen_p: unsafe fn(&[&[u8]], &mut [u8]),
    pub(super) gen_pq: unsafe fn(&[&[u8]], &mut [u8], &mut [u8]),
    pub(super) update_p: unsafe fn(&[u8], &[u8], &mut [u8]),
    pub(super) update_q: unsafe fn(usize, &[u8], &[u8], &mut [u8]),
    pub(super) update_pq: unsafe fn(usize, &[u8], &[u8], &mut [u8], &mut [u8]),
    pub(super) recover_data: unsafe fn(usize, &[&[u8]], &[u8], &mut [u8]),
    pub(super) recover_data_q: unsafe fn(usize, &[&[u8]], &[u8], &mut [u8]),
    pub(super) recover_data_p: unsafe fn(usize, &[&[u8]], &[u8], &mut [u8], &mut [u8]),
    pub(super) recover_two_data:
        unsafe fn(usize, usize, &[&[u8]], &[u8], &[u8], &mut [u8], &mut [u8]),
    pub(super) check_p: unsafe fn(&[&[u8]], &[u8]) -> Option<usize>,
    pub(super) check_pq: unsafe fn(&[&[u8]], &[u8], &[u8]) -> Option<usize>,
}

/// Makes a [`Table`] out of the operations over one [`Simd`](super::simd::Simd) token.
///
/// `#[features]` switches the instructions on in each leaf function; the token's `assume` is sound
/// there, since a leaf is only reached through a [`Kernel`], which exists only where
/// `is_available` has said yes.
macro_rules! kernel_table {
    ($(#[$features:meta])* $table:ident, $name:literal, $simd:ty) => {
        pub(in crate::parity) static $table: $crate::parity::kernel::Table = {
            use $crate::parity::operations;
            $crate::parity::kernel::kernel_table!(@leaves $simd, [$(#[$features])*],
                gen_p(sources: &[&[u8]], p: &mut [u8]);
                gen_pq(sources: &[&[u8]], p: &mut [u8], q: &mut [u8]);
                update_p(old: &[u8], new: &[u8], p: &mut [u8]);
                update_q(index: usize, old: &[u8], new: &[u8], q: &mut [u8]);
                update_pq(index: usize, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]);
                recover_data(lost: usize, sources: &[&[u8]], p: &[u8], out: &mut [u8]);
                recover_data_q(lost: usize, sources: &[&[u8]], q: &[u8], out: &mut [u8]);
                recover_data_p(lost: usize, sources: &[&[u8]], q: &[u8],
                    out_data: &mut [u8], out_p: &mut [u8]);
                recover_two_data(a: usize, b: usize, sources: &[&[u8]], p: &[u8], q: &[u8],
                    out_a: &mut [u8], out_b: &mut [u8]);
                check_p(sources: &[&[u8]], p: &[u8]) -> Option<usize>;
                check_pq(sources: &[&[u8]], p: &[u8], q: &[u8]) -> Option<usize>;
            );
            $crate::parity::kernel::Table {
                name: $name,
                is_available: <$simd>::is_available,
                gen_p,
                gen_pq,
                update_p,
                update_q,
                update_pq,
                recover_data,
                recover_data_q,
                recover_data_p,
                recover_two_data,
                check_p,
                check_pq,
            }
        };
    };
    (@leaves $simd:ty, $features:tt,
        $($leaf:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $($crate::parity::kernel::kernel_table!(
            @leaf $simd, $features, $leaf($($argument: $type),*) $(-> $result)?);)*
    };
    (@leaf $simd:ty, [$(#[$features:meta])*],
        $leaf:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        $(#[$features])*
        fn $leaf($($argument: $type),*) $(-> $result)? {
            // SAFETY: this function runs only where its target features, which are those that the
            // token stands for, exist.
            let simd = unsafe { <$simd>::assume() };
            operations::$leaf(simd, $($argument),*)
        }
    };
}
pub(super) use kernel_table;

/// All kernels of this architecture, the best first.
static TABLES: &[&Table] = &[
    #[cfg(target_arch = "x86_64")]
    &x86::avx512_gfni::TABLE,
    #[cfg(target_arch = "x86_64")]
    &x86::avx512::TABLE,
    #[cfg(target_arch = "x86_64")]
    &x86::avx2_gfni::TABLE,
    #[cfg(target_arch = "x86_64")]
    &x86::avx2::TABLE,
    #[cfg(target_arch = "x86_64")]
    &x86::ssse3::TABLE,
    #[cfg(target_arch = "x86_64")]
    &x86::sse2::TABLE,
    #[cfg(target_arch = "aarch64")]
    &neon::TABLE,
    &portable::TABLE,
    &naive::TABLE,
];

/// A parity kernel that this CPU can run.
///
/// It is chosen once and then copied about; each operation is one indirect call. Operations never
/// allocate, read every source once and write every target once.
///
/// `sources` are the data of a stripe in syndrome order: source `i` has the coefficient `g^i` in
/// Q. An array has 1 to 255 of them. All slices of a call have one length, which may be any, at any
/// alignment.
///
/// ```
/// use raid_core::parity::Kernel;
///
/// let kernel = Kernel::best();
/// let (mut p, mut q) = ([0; 4], [0; 4]);
/// kernel.gen_pq(&[b"lost", b"kept", b"gone"], &mut p, &mut q);
///
/// let (mut first, mut last) = ([0; 4], [0; 4]);
/// kernel.recover_two_data(0, 2, &[b"", b"kept", b""], &p, &q, &mut first, &mut last);
/// assert_eq!((&first, &last), (b"lost", b"gone"));
/// ```
///
/// # Panics
///
/// Each operation panics when there are no sources or more than 255, when two slices differ in
/// length (those of lost sources aside, which must be empty), or when an index is out of range.
#[derive(Copy, Clone)]
pub struct Kernel(
    /// Invariant: this CPU has what the table needs.
    &'static Table,
);

impl Kernel {
    /// Returns the fastest kernel of this CPU.
    pub fn best() -> Self {
        // The portable kernel is always there.
        Self::available().next().unwrap_or(Self(&naive::TABLE))
    }

    /// Iterates the kernels that this CPU can run, the best first. The last is `naive`, the
    /// specification.
    pub fn available() -> impl Iterator<Item = Self> {
        TABLES.iter().filter(|table| (table.is_available)()).map(|table| Self(table))
    }

    /// Returns the kernel of this name, if this CPU can run it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().find(|kernel| kernel.name() == name)
    }

    /// Returns the name that [`Kernel::named`] takes, for example `avx2`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Computes P of `sources`.
    pub fn gen_p(self, sources: &[&[u8]], p: &mut [u8]) {
        check_sources(sources, &[], p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.gen_p)(sources, p) }
    }

    /// Computes P and Q of `sources`.
    pub fn gen_pq(self, sources: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        check_sources(sources, &[], p.len());
        check_len("Q", q.len(), p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.gen_pq)(sources, p, q) }
    }

    /// Brings `p` up to date when a source changes from `old` to `new`.
    pub fn update_p(self, old: &[u8], new: &[u8], p: &mut [u8]) {
        check_len("new data", new.len(), old.len());
        check_len("P", p.len(), old.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.update_p)(old, new, p) }
    }

    /// Brings `q` up to date when source `index` changes from `old` to `new`.
    pub fn update_q(self, index: usize, old: &[u8], new: &[u8], q: &mut [u8]) {
        check_index(index, SOURCE_COUNT_MAX);
        check_len("new data", new.len(), old.len());
        check_len("Q", q.len(), old.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.update_q)(index, old, new, q) }
    }

    /// Brings `p` and `q` up to date when source `index` changes from `old` to `new`.
    pub fn update_pq(self, index: usize, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]) {
        check_index(index, SOURCE_COUNT_MAX);
        check_len("new data", new.len(), old.len());
        check_len("P", p.len(), old.len());
        check_len("Q", q.len(), old.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.update_pq)(index, old, new, p, q) }
    }

    /// Recovers the lost source from P and the others. `sources[lost]` is empty.
    pub fn recover_data(self, lost: usize, sources: &[&[u8]], p: &[u8], out: &mut [u8]) {
        check_sources(sources, &[lost], p.len());
        check_len("target", out.len(), p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.recover_data)(lost, sources, p, out) }
    }

    /// Recovers the lost source from Q and the others, without P. `sources[lost]` is empty.
    pub fn recover_data_q(self, lost: usize, sources: &[&[u8]], q: &[u8], out: &mut [u8]) {
        check_sources(sources, &[lost], q.len());
        check_len("target", out.len(), q.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.recover_data_q)(lost, sources, q, out) }
    }

    /// Recovers the lost source and P from Q and the others. `sources[lost]` is empty.
    pub fn recover_data_p(
        self,
        lost: usize,
        sources: &[&[u8]],
        q: &[u8],
        out_data: &mut [u8],
        out_p: &mut [u8],
    ) {
        check_sources(sources, &[lost], q.len());
        check_len("target", out_data.len(), q.len());
        check_len("P", out_p.len(), q.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.recover_data_p)(lost, sources, q, out_data, out_p) }
    }

    /// Recovers the lost sources `a` and `b`, in any order, from P, Q and the others.
    /// `sources[a]` and `sources[b]` are empty.
    #[expect(clippy::too_many_arguments, reason = "two losses, two parities, two targets")]
    pub fn recover_two_data(
        self,
        a: usize,
        b: usize,
        sources: &[&[u8]],
        p: &[u8],
        q: &[u8],
        out_a: &mut [u8],
        out_b: &mut [u8],
    ) {
        assert_ne!(a, b, "the two lost sources are one");
        check_sources(sources, &[a, b], p.len());
        check_len("Q", q.len(), p.len());
        check_len("first target", out_a.len(), p.len());
        check_len("second target", out_b.len(), p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.recover_two_data)(a, b, sources, p, q, out_a, out_b) }
    }

    /// Compares `p` with P of `sources`; returns the offset of the first byte that differs.
    pub fn check_p(self, sources: &[&[u8]], p: &[u8]) -> Option<usize> {
        check_sources(sources, &[], p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.check_p)(sources, p) }
    }

    /// Compares `p` and `q` with P and Q of `sources`; returns the offset of the first byte at
    /// which one of the two differs.
    pub fn check_pq(self, sources: &[&[u8]], p: &[u8], q: &[u8]) -> Option<usize> {
        check_sources(sources, &[], p.len());
        check_len("Q", q.len(), p.len());
        // SAFETY: by the invariant of `Kernel`; the arguments have been checked.
        unsafe { (self.0.check_pq)(sources, p, q) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name()).finish()
    }
}

// ==== Checks of arguments: kernels rely on them for soundness ====

/// One less than the size of the field: there are no more powers of `g`.
const SOURCE_COUNT_MAX: usize = 255;

#[track_caller]
fn check_sources(sources: &[&[u8]], lost: &[usize], len: usize) {
    let count = sources.len();
    assert!((1..=SOURCE_COUNT_MAX).contains(&count), "{count} sources, not 1 to 255");
    for &index in lost {
        check_index(index, count);
    }
    for (index, source) in sources.iter().enumerate() {
        let want = if lost.contains(&index) { 0 } else { len };
        assert!(source.len() == want, "source {index} has {} bytes, not {want}", source.len());
    }
}

#[track_caller]
fn check_index(index: usize, count: usize) {
    assert!(index < count, "no source {index} among {count}");
}

#[track_caller]
fn check_len(what: &str, len: usize, want: usize) {
    assert!(len == want, "{what} has {len} bytes, not {want}");
}
