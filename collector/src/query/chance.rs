//! How likely chance alone explains what is seen.

/// How likely chance alone makes a |t| this large, of Student's distribution. Numerical Recipes
/// 6.4: the incomplete beta function, as a continued fraction.
pub fn two_sided(t: f64, freedom: f64) -> f64 {
    if !t.is_finite() {
        return 0.0;
    }
    // From here on the distribution is normal to four digits, and the fraction converges slowly.
    let freedom = freedom.min(10_000.0);
    let x = freedom / (freedom + t * t);
    incomplete_beta(freedom / 2.0, 0.5, x).clamp(0.0, 1.0)
}

fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

/// Lentz's method.
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let safe = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / safe(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for step in 1..=1000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / safe(1.0 + even * d);
        c = safe(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / safe(1.0 + odd * d);
        c = safe(1.0 + odd / c);
        let by = d * c;
        h *= by;
        if (by - 1.0).abs() < 1e-12 {
            break;
        }
    }
    h
}

/// Logarithm of the gamma function, for positive numbers (Lanczos).
fn ln_gamma(x: f64) -> f64 {
    const OF: [f64; 6] = [
        76.180_091_729_471_46,
        -86.505_320_329_416_77,
        24.014_098_240_830_91,
        -1.231_739_572_450_155,
        0.120_865_097_386_617_9e-2,
        -0.539_523_938_495_3e-5,
    ];
    let base = x + 5.5;
    let base = base - (x + 0.5) * base.ln();
    let mut series = 1.000_000_000_190_015;
    for (at, of) in OF.iter().enumerate() {
        series += of / (x + 1.0 + at as f64);
    }
    -base + (2.506_628_274_631_000_5 * series / x).ln()
}

/// Which of these p-values are discoveries, with at most a share `rate` of them false (Benjamini
/// and Hochberg): the largest rank with a p-value below its part of the rate, and all ranks before
/// it.
pub fn discoveries(chances: &[f64], rate: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|left, right| chances[*left].total_cmp(&chances[*right]));
    let allowed = |rank: usize| rate * (rank + 1) as f64 / chances.len() as f64;
    let passed = (0..order.len())
        .rev()
        .find(|&rank| chances[order[rank]] <= allowed(rank));
    let mut found = vec![false; chances.len()];
    for &at in order.iter().take(passed.map_or(0, |rank| rank + 1)) {
        found[at] = true;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_those_of_tables() {
        // Two-sided 5 % of Student's t.
        for (freedom, t) in [
            (1.0, 12.706),
            (4.0, 2.776),
            (18.0, 2.101),
            (f64::INFINITY, 1.96),
        ] {
            let found = two_sided(t, freedom);
            assert!((found - 0.05).abs() < 2e-4, "{freedom}: {found}");
        }
        assert_eq!(two_sided(0.0, 5.0), 1.0);
        assert!(two_sided(40.0, 18.0) < 1e-15);
    }

    #[test]
    fn what_is_found_is_found_together() {
        // 0.03 is above its own part of 0.05, and found because 0.04 is within that of four.
        assert_eq!(
            discoveries(&[0.04, 0.03, 0.01, 0.02], 0.05),
            [true, true, true, true]
        );
        assert_eq!(discoveries(&[0.5, 0.01, 0.9], 0.05), [false, true, false]);
        assert_eq!(discoveries(&[0.02, 0.5], 0.01), [false, false]);
        assert_eq!(discoveries(&[], 0.05), [false; 0]);
    }
}
