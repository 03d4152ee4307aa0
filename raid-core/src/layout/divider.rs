//! Division of a 64-bit number by a divisor that is known when the array is opened.
//!
//! Every request is divided by the number of slots at least once. A 64-bit division takes 20 to 40
//! cycles on many machines; a multiplication by the reciprocal and one correction take about 5.

/// A divisor `1..=u64::MAX` with its reciprocal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divider {
    divisor: u64,
    /// `floor((2^64 - 1) / divisor)`: the estimate from it is the quotient or one less, for every
    /// 64-bit number, since the error is `x * (1 + r) / (divisor * 2^64)` with `r < divisor`, so
    /// less than or equal to 1.
    reciprocal: u64,
}

impl Divider {
    /// Makes the reciprocal; zero is taken as one.
    pub(crate) const fn new(divisor: u64) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    pub(crate) const fn divisor(self) -> u64 {
        self.divisor
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) const fn div_rem(self, x: u64) -> (u64, u64) {
        let estimate = ((x as u128 * self.reciprocal as u128) >> 64) as u64;
        let remainder = x - estimate * self.divisor;
        // Without a branch, which random offsets would mispredict.
        let is_short = (remainder >= self.divisor) as u64;
        (estimate + is_short, remainder - self.divisor * is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Small numbers exhaustively, then the neighbourhood of every power of two, where estimates go
    // wrong first.
    #[test]
    fn agrees_with_the_machine_division() {
        let divisors =
            (1..=300u64).chain((9..64).flat_map(|b| [(1 << b) - 1, 1 << b, (1 << b) + 1]));
        for divisor in divisors.chain([u64::MAX - 1, u64::MAX]) {
            let divider = Divider::new(divisor);
            assert_eq!(divider.divisor(), divisor);
            let powers = (0..64)
                .flat_map(|b| (0..7u64).map(move |o| (1u64 << b).wrapping_add(o).wrapping_sub(3)));
            let multiples = [
                divisor,
                divisor - 1,
                u64::MAX / divisor * divisor,
                u64::MAX / divisor * divisor - 1,
            ];
            for x in (0..600).chain(powers).chain(multiples).chain([u64::MAX, u64::MAX - 1]) {
                assert_eq!(divider.div_rem(x), (x / divisor, x % divisor), "{x} / {divisor}");
            }
        }
        assert_eq!(Divider::new(0), Divider::new(1));
    }
}
