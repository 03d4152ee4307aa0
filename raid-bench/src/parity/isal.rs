//! ISA-L, when it is installed: loaded at run time, never linked.
//!
//! The only unsafe code of this crate.

use std::ffi::{c_int, c_void};

use libloading::Library;

use super::Failure;
use super::operation::SOURCE_COUNT_MAX;

/// The library's file, and what brings it.
const FILE: &str = "libisal.so.2";

/// Alignment and granularity that `pq_gen` documents; `xor_gen` wants less.
const ALIGN: usize = 32;

/// `int xor_gen(int vects, int len, void **array)` and `int pq_gen(...)` of the same signature.
type Generate = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;

/// ISA-L's generators of parity.
pub(super) struct Isal {
    xor_gen: Generate,
    pq_gen: Generate,
    /// Keeps the code mapped.
    _library: Library,
}

impl Isal {
    /// Loads the library.
    pub(super) fn load() -> Result<Self, Failure> {
        // SAFETY: loading runs the library's constructors: ISA-L, by the name of its interface's
        // version, has none that ask anything of its users.
        let library = unsafe { Library::new(FILE) }.map_err(|_| Failure::NoIsal)?;
        // SAFETY: version 2 of the interface has this function with this signature (raid.h).
        let xor_gen =
            *unsafe { library.get::<Generate>(c"xor_gen") }.map_err(|_| Failure::NoIsal)?;
        // SAFETY: see above.
        let pq_gen = *unsafe { library.get::<Generate>(c"pq_gen") }.map_err(|_| Failure::NoIsal)?;
        Ok(Self { xor_gen, pq_gen, _library: library })
    }

    /// Computes P of `sources` into the first target and, unless the second is empty, Q into that.
    ///
    /// # Panics
    ///
    /// If slices differ in length, are not aligned to 32 bytes or not a multiple of that long, or
    /// if there are fewer than 2 sources or more than 16.
    pub(super) fn generate(&self, sources: &[&[u8]], targets: &mut [&mut [u8]; 2]) {
        let mut vectors = [std::ptr::null_mut(); SOURCE_COUNT_MAX + 2];
        let count = sources.len();
        assert!((2..=SOURCE_COUNT_MAX).contains(&count), "{count} sources");
        let len = targets[0].len();
        let is_fit = |slice: &[u8]| {
            let is_aligned = slice.as_ptr().addr().is_multiple_of(ALIGN);
            slice.len() == len && len.is_multiple_of(ALIGN) && is_aligned
        };
        for (vector, source) in vectors.iter_mut().zip(sources) {
            assert!(is_fit(source), "a source's length or alignment");
            *vector = source.as_ptr().cast_mut().cast::<c_void>();
        }
        let is_pq = !targets[1].is_empty();
        for (vector, target) in vectors[count..].iter_mut().zip(&mut *targets) {
            assert!(is_fit(target) || target.is_empty(), "a target's length or alignment");
            *vector = target.as_mut_ptr().cast::<c_void>();
        }
        let (function, target_count) = if is_pq { (self.pq_gen, 2) } else { (self.xor_gen, 1) };
        let vector_count = c_int::try_from(count + target_count).unwrap_or(0);
        let len = c_int::try_from(len).unwrap_or(0);
        // SAFETY: `vectors` starts with `vector_count` pointers to `len` bytes each, aligned as
        // the library wants it, checked above. It only reads the sources, which are all but the
        // last one (xor_gen) or two (pq_gen); those are slices held as `&mut`. It keeps nothing.
        let status = unsafe { function(vector_count, len, vectors.as_mut_ptr()) };
        assert_eq!(status, 0, "ISA-L refused its arguments");
    }
}

#[cfg(test)]
mod tests {
    use raid_core::parity::Kernel;

    use super::*;
    use crate::parity::operation::{Operation, Shape};

    /// The peer computes what the kernels do, so that the comparison is of the same work.
    #[test]
    fn the_peer_computes_the_same() {
        let Ok(isal) = Isal::load() else {
            assert!(std::env::var_os("CI").is_none(), "CI needs {FILE} (libisal2)");
            eprintln!("skipped: needs {FILE} (Debian: libisal2)");
            return;
        };
        for operation in [Operation::GenP, Operation::GenPq] {
            for source_count in [2, 5, 16] {
                let shape = Shape { operation, source_count, strip_bytes: 4096 };
                let mut memory: Vec<u128> = (0..shape.set_bytes() as u128 / 16 + 256)
                    .map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
                    .collect();
                let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
                let start = memory.as_ptr().align_offset(4096);
                let mut set = shape.carve(&mut memory[start..][..shape.set_bytes()]);
                assert!(set.run(Kernel::best()));
                let want = [set.targets[0].to_vec(), set.targets[1].to_vec()];
                set.targets.iter_mut().for_each(|target| target.fill(0));
                isal.generate(&set.sources, &mut set.targets);
                assert_eq!(set.targets.each_ref().map(|target| target.to_vec()), want);
            }
        }
    }
}
