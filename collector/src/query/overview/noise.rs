//! Pseudo-random numbers that are the same in each run of the tests.

/// Numbers around 0, of about this standard deviation.
pub struct Noise(pub u64);

impl Noise {
    /// The next number.
    pub fn next(&mut self, deviation: f64) -> f64 {
        let mut uniform = || {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        };
        let sum: f64 = (0..12).map(|_| uniform()).sum();
        (sum - 6.0) * deviation
    }

    /// So many of them, around a level.
    pub fn line(&mut self, len: usize, level: f64, deviation: f64) -> Vec<f64> {
        (0..len).map(|_| level + self.next(deviation)).collect()
    }
}
