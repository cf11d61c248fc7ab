//! Decides whether a line differs from its baseline, in which part of the time, and how certain
//! that is.
//!
//! Every part of the range is compared with the mean of the baseline. The error of a mean comes
//! from how much the line varies from step to step, pooled over both sides, and is larger if means
//! of several steps vary more than steps that have nothing to do with each other explain: load
//! comes in waves, and a wave is no change. No error is smaller than `DRIFT` of the level. The
//! chosen part is the one with a level of its own that explains most (least squares), and its
//! p-value is multiplied by the number of independent parts.
//!
//! What that is worth is measured by `benches overview`: without the drift, half of the trials in
//! which nothing but traffic changed had an alarm.

use crate::query::chance::two_sided;

/// Fewest steps of a stretch, and of a baseline.
const STEPS_MIN: usize = 3;

/// How far load drifts from one time to another even where nothing changed and no side shows it:
/// people come and go. Standard deviation, as a share of the level.
const DRIFT: f64 = 0.02;

/// Fewest parts of a length, of both sides together, that say how much means of that length move.
const BLOCKS_MIN: usize = 6;

/// Steps spread at least this far around their mean: below it what differs is how the kernel's
/// counters were read. Share of the mean, and cores.
const SPREAD_MIN: (f64, f64) = (0.01, 0.002);

/// A stretch of a range that differs most from the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Mean of the stretch less that of the baseline.
    pub change: f64,
    /// Standard error of it.
    pub error: f64,
    /// How likely chance alone makes some stretch of the range differ as much.
    pub chance: f64,
    /// The first step of it, and the first after it.
    pub steps: (usize, usize),
}

/// Running sums of values.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// The difference to `before`.
    fn since(self, before: Sums) -> Sums {
        Sums {
            count: self.count - before.count,
            sum: self.sum - before.sum,
            squares: self.squares - before.squares,
        }
    }

    fn mean(self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    /// Sum of squares around the mean.
    fn scatter(self) -> f64 {
        (self.squares - self.sum * self.mean()).max(0.0)
    }
}

/// Holds a line against its baseline; steps without data are not finite. `None`: too few steps.
pub fn shift(baseline: &[f64], now: &[f64]) -> Option<Shift> {
    let before: Vec<f64> = finite(baseline).map(|(_, value)| value).collect();
    let (places, values): (Vec<usize>, Vec<f64>) = finite(now).unzip();
    if before.len() < STEPS_MIN || values.len() < STEPS_MIN {
        return None;
    }
    let mut base = Sums::default();
    before.iter().for_each(|&value| base.add(value));
    let mut sums = vec![Sums::default()];
    for &value in &values {
        let mut next = sums[sums.len() - 1];
        next.add(value);
        sums.push(next);
    }
    let mut best: Option<(f64, usize, usize)> = None;
    for from in 0..=values.len() - STEPS_MIN {
        for to in from + STEPS_MIN..=values.len() {
            let stretch = sums[to].since(sums[from]);
            // By how much the squares that are left shrink when the stretch has its own level.
            let gain = stretch.count * (stretch.mean() - base.mean()).powi(2);
            if best.is_none_or(|(most, ..)| gain > most) {
                best = Some((gain, from, to));
            }
        }
    }
    let (_, from, to) = best?;
    let (from, to) = widened(base.mean(), &sums, from, to);
    let stretch = sums[to].since(sums[from]);
    let rests = rests(&before, &values, base.mean(), (from, to, stretch.mean()));
    let Compared {
        change,
        error,
        freedom,
        wider,
    } = compare(base, stretch, &rests);
    // Stretches overlap, and steps that are alike are as one: about so many are independent.
    let steps = (values.len() as f64 / wider).max(STEPS_MIN as f64);
    let independent = (steps * steps / 2.0).sqrt() * steps.log2();
    Some(Shift {
        change,
        error,
        chance: (two_sided(change / error, freedom) * independent).min(1.0),
        steps: (places[from], end(&places, to)),
    })
}

/// The first step after a stretch. What is too short behind it to be told from it is no end: the
/// last step may be under way.
fn end(places: &[usize], to: usize) -> usize {
    let last = match places.len() - to < STEPS_MIN {
        true => places.len(),
        false => to,
    };
    places[last - 1] + 1
}

fn finite(line: &[f64]) -> impl Iterator<Item = (usize, f64)> + '_ {
    let all = line.iter().copied().enumerate();
    all.filter(|(_, value)| value.is_finite())
}

/// The change of a stretch, its standard error, and the degrees of freedom of that.
fn compare(base: Sums, stretch: Sums, rests: &[Vec<f64>; 2]) -> Compared {
    let change = stretch.mean() - base.mean();
    let freedom = base.count + stretch.count - 2.0;
    let pooled = (base.scatter() + stretch.scatter()) / freedom;
    let least = least_spread(base.mean().max(stretch.mean())).powi(2);
    let spread = pooled.max(least);
    // The mean of the baseline is of a longer time, in which slower waves count.
    let part = |count: f64| {
        let (wider, scale) = widening(rests, spread, count as usize);
        // Parts of that length overlap, which makes half as many more of them.
        let parts = (1.5 * freedom / scale).min(freedom).max(2.0) - 1.0;
        (spread * wider / count, parts, wider)
    };
    let (of_base, of_stretch) = (part(base.count), part(stretch.count));
    let drift = (DRIFT * base.mean().max(stretch.mean())).powi(2);
    // Welch and Satterthwaite: the freedom of a sum of variances, of which the drift's is known.
    let variance = of_base.0 + of_stretch.0 + drift;
    let freedom =
        variance.powi(2) / (of_base.0.powi(2) / of_base.1 + of_stretch.0.powi(2) / of_stretch.1);
    Compared {
        change,
        error: variance.sqrt(),
        freedom: freedom.max(1.0),
        wider: of_stretch.2,
    }
}

/// A stretch and the baseline.
struct Compared {
    change: f64,
    error: f64,
    freedom: f64,
    /// How many steps of the stretch count as one.
    wider: f64,
}

/// How far steps of this level spread at least.
fn least_spread(level: f64) -> f64 {
    let (share, cores) = SPREAD_MIN;
    (share * level).max(cores)
}

/// A stretch up to the ends of the range where what lies between is nearer to it than to the
/// baseline: noise at an edge is no end.
fn widened(base: f64, sums: &[Sums], from: usize, to: usize) -> (usize, usize) {
    let level = sums[to].since(sums[from]).mean();
    let is_alike = |part: Sums| {
        let mean = part.mean();
        part.count > 0.0 && (mean - level).abs() < (mean - base).abs()
    };
    let last = sums.len() - 1;
    let to = match is_alike(sums[last].since(sums[to])) {
        true => last,
        false => to,
    };
    match is_alike(sums[from].since(sums[0])) {
        true => (0, to),
        false => (from, to),
    }
}

/// What is left of the steps of both sides when the level of their stretch is taken off.
fn rests(
    before: &[f64],
    values: &[f64],
    base: f64,
    (from, to, level): (usize, usize, f64),
) -> [Vec<f64>; 2] {
    let rest = before.iter().map(|value| value - base).collect();
    let of_range = values.iter().enumerate().map(|(at, value)| {
        let is_inside = (from..to).contains(&at);
        value - if is_inside { level } else { base }
    });
    [rest, of_range.collect()]
}

/// How many steps count as one in the mean of `length` steps, because load comes in waves, and at
/// which scale that was seen: by how much means of that many neighbours move more than those of as
/// many steps that have nothing to do with each other would. The largest of all scales up to the
/// length counts, for a wave that is slow and small is lost among quick ones at each single step.
fn widening(rests: &[Vec<f64>; 2], spread: f64, length: usize) -> (f64, f64) {
    let steps: usize = rests.iter().map(Vec::len).sum();
    let (mut most, mut at) = (1.0, 1.0);
    let mut scale = 2;
    while scale / 2 < length && scale * BLOCKS_MIN <= steps {
        let (mut squares, mut count) = (0.0, 0.0);
        for rest in rests.iter().filter(|rest| rest.len() >= 2 * scale) {
            // The level that was taken off is their own, so they vary less around it.
            let own = 1.0 - scale as f64 / rest.len() as f64;
            for part in rest.windows(scale) {
                squares += part.iter().sum::<f64>().powi(2) / own;
                count += 1.0;
            }
        }
        let wider = squares / f64::max(count, 1.0) / scale as f64 / spread;
        if wider > most {
            (most, at) = (wider, scale as f64);
        }
        scale *= 2;
    }
    (most, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::overview::noise::Noise;

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut noise = Noise(1);
        let baseline = noise.line(60, 2.0, 0.05);
        let mut now = noise.line(60, 2.0, 0.05);
        for value in &mut now[37..] {
            *value += 0.3;
        }
        let found = shift(&baseline, &now).expect("enough steps");
        assert!((36..=38).contains(&found.steps.0), "{found:?}");
        assert_eq!(found.steps.1, 60);
        assert!((found.change - 0.3).abs() < 4.0 * found.error, "{found:?}");
        assert!(found.chance < 1e-6, "{found:?}");
    }

    #[test]
    fn what_came_and_went_has_an_end() {
        let mut noise = Noise(2);
        let baseline = noise.line(60, 2.0, 0.05);
        let mut now = noise.line(60, 2.0, 0.05);
        for value in &mut now[20..30] {
            *value += 0.5;
        }
        let found = shift(&baseline, &now).expect("enough steps");
        assert!((19..=21).contains(&found.steps.0), "{found:?}");
        assert!((29..=31).contains(&found.steps.1), "{found:?}");
    }

    #[test]
    fn a_change_does_not_end_in_the_last_steps() {
        let mut noise = Noise(5);
        let baseline = noise.line(60, 2.0, 0.05);
        let mut now = noise.line(60, 2.0, 0.05);
        for value in &mut now[30..58] {
            *value += 0.5;
        }
        let found = shift(&baseline, &now).expect("enough steps");
        assert_eq!(found.steps.1, 60, "{found:?}");
    }

    #[test]
    fn a_change_from_before_the_range_is_all_of_it() {
        let mut noise = Noise(3);
        let baseline = noise.line(60, 2.0, 0.1);
        let now = noise.line(60, 1.0, 0.1);
        let found = shift(&baseline, &now).expect("enough steps");
        assert_eq!(found.steps, (0, 60));
        assert!(found.change < -0.9);
    }

    /// How many of 200 lines without a change have a chance below one in a thousand.
    fn alarms(mut line: impl FnMut(&mut Noise, usize) -> Vec<f64>) -> usize {
        let mut noise = Noise(4);
        let trials = (0..200).map(|_| {
            let (baseline, now) = (line(&mut noise, 60), line(&mut noise, 60));
            shift(&baseline, &now).expect("enough steps").chance
        });
        trials.filter(|chance| *chance < 0.001).count()
    }

    #[test]
    fn noise_is_no_change() {
        assert_eq!(alarms(|noise, len| noise.line(len, 1.0, 0.1)), 0);
    }

    #[test]
    fn waves_are_no_change() {
        // Each step keeps three fifths of what the one before was off.
        let waves = |noise: &mut Noise, len| {
            let mut off = 0.0;
            let next = |_| {
                off = 0.6 * off + noise.next(0.1);
                1.0 + off
            };
            (0..len).map(next).collect()
        };
        assert!(alarms(waves) <= 1);
    }

    #[test]
    fn traffic_that_drifts_is_no_change() {
        // It fades within eight minutes, below noise of each minute that is larger.
        let drifting = |noise: &mut Noise, len| {
            let mut off = 0.0;
            let next = |_| {
                off = 0.88 * off + noise.next(0.03 * 0.475);
                1.0 + off + noise.next(0.05)
            };
            (0..len).map(next).collect()
        };
        assert!(alarms(drifting) <= 1);
    }

    #[test]
    fn a_change_of_a_few_percent_of_steady_load_may_be_its_traffic() {
        let found = shift(&[1.0; 60], &[1.05; 60]).expect("enough steps");
        assert!(found.chance > 0.01, "{found:?}");
    }

    #[test]
    fn lines_that_never_move_differ_by_more_than_how_they_are_read() {
        let found = shift(&[1.0; 60], &[1.002; 60]).expect("enough steps");
        assert!(found.chance > 0.01, "{found:?}");
        let found = shift(&[1.0; 60], &[1.2; 60]).expect("enough steps");
        assert!(found.chance < 1e-6, "{found:?}");
    }

    #[test]
    fn steps_without_data_are_passed_over() {
        let gap = f64::NAN;
        assert_eq!(shift(&[1.0, gap, 1.0], &[1.0; 9]), None);
        assert_eq!(shift(&[1.0; 9], &[gap; 9]), None);
        let now = [gap, 1.0, 1.0, 1.0, gap, 3.0, 3.0, 3.0, gap];
        let found = shift(&[1.0; 9], &now).expect("enough steps");
        assert_eq!(found.steps, (5, 8));
    }
}
