//! How far a sampled share may be from the true one.

/// Width of every bound in the suites, in standard deviations: a fair sampler is outside of it once
/// in about 150,000 comparisons.
pub const SIGMAS: f64 = 4.5;

/// Largest distance of a share counted over `samples` from the true share `p`: [`SIGMAS`] standard
/// deviations of the binomial distribution, plus half a sample for counting in whole ones.
pub fn share_bound(samples: u64, p: f64) -> f64 {
    let n = samples.max(1) as f64;
    SIGMAS * (p * (1.0 - p) / n).sqrt() + 0.5 / n
}

/// Largest distance between two shares counted independently over `a` and `b` samples.
pub fn difference_bound(a: u64, b: u64, p: f64) -> f64 {
    let (a, b) = (a.max(1) as f64, b.max(1) as f64);
    SIGMAS * (p * (1.0 - p) * (1.0 / a + 1.0 / b)).sqrt() + 0.5 / a + 0.5 / b
}

/// Checks counted shares against true ones, each within [`share_bound`].
///
/// # Panics
/// When one is outside, with the whole table.
pub fn check_shares(what: &str, rows: &[(&str, u64, f64)]) {
    let total: u64 = rows.iter().map(|&(_, count, _)| count).sum();
    let mut table = format!("{what}: {total} samples\n");
    let mut good = total > 0;
    for &(name, count, expected) in rows {
        let share = count as f64 / total.max(1) as f64;
        let bound = share_bound(total, expected);
        good &= (share - expected).abs() <= bound;
        table += &format!("  {name}: {count} = {share:.4}, expected {expected:.4} ± {bound:.4}\n");
    }
    assert!(good, "{table}");
    eprintln!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_shrinks_with_the_root_of_the_samples() {
        assert!((share_bound(900, 0.5) - (4.5 * 0.5 / 30.0 + 0.5 / 900.0)).abs() < 1e-12);
        assert!(share_bound(100, 0.1) > share_bound(10_000, 0.1) * 9.0);
    }

    #[test]
    #[should_panic(expected = "expected 0.7000")]
    fn a_share_outside_fails() {
        check_shares("wrong", &[("a", 500, 0.7), ("b", 500, 0.3)]);
    }
}
