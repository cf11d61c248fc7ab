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
//! One line says little about its own noise, and among many lines the one that looks steadier than
//! it is looks changed. So no line counts as steadier than its peers, the other hosts of a service,
//! are on average. Bursts and restarts are rarer and larger than normal numbers allow: a mean of
//! few steps has heavy tails as long as theirs are.
//!
//! What that is worth is measured by `benches overview`. Each of the three has to be there: without
//! the drift half of the trials in which nothing but traffic changed had an alarm, without peers
//! and tails one in ten.

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

/// Least level. Unit: cores.
const LEVEL_MIN: f64 = 1e-6;

/// Scales at which waves are looked for: means of up to 32 steps, which is half of what a side has.
const SCALES: usize = 6;

/// No peer counts as more than so many times as unsteady as most: one that runs wild does not hide
/// what happens on the others.
const PEER_MAX: f64 = 8.0;

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
}

impl Sums {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
    }

    /// The difference to `before`.
    fn since(self, before: Sums) -> Sums {
        Sums {
            count: self.count - before.count,
            sum: self.sum - before.sum,
        }
    }

    fn mean(self) -> f64 {
        self.sum / self.count.max(1.0)
    }
}

/// By how much steps, and means of several, move around their level, as a share of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    /// Of means of 1, 2, 4, … steps: their variance, times the number of steps. It grows with the
    /// number if load comes in waves. 0: too few steps to say.
    variances: [f64; SCALES],
    /// By how much the tails of single steps are heavier than those of normal numbers (excess
    /// kurtosis).
    tails: f64,
    /// Degrees of freedom of the variance of single steps.
    freedom: f64,
}

impl Spread {
    /// Around which the rests of both sides are.
    fn of(rests: &[Vec<f64>; 2], level: f64) -> Spread {
        let steps: usize = rests.iter().map(Vec::len).sum();
        let all = || rests.iter().flatten().map(|rest| rest / level);
        let power = |of: i32| all().map(|rest| rest.powi(of)).sum::<f64>();
        // Two levels were taken off.
        let freedom = steps as f64 - 2.0;
        let mut spread = Spread {
            freedom,
            ..Spread::default()
        };
        spread.variances[0] = power(2) / freedom;
        let square = power(2).powi(2) / steps as f64;
        if square > 0.0 {
            spread.tails = (power(4) / square - 3.0).max(0.0);
        }
        for (at, variance) in spread.variances.iter_mut().enumerate().skip(1) {
            let scale = 1 << at;
            if scale * BLOCKS_MIN <= steps {
                *variance = of_means(rests, scale) / level.powi(2);
            }
        }
        spread
    }

    /// What lines that are alike have on average. `None`: there are none.
    pub fn pooled(lines: &[Spread]) -> Option<Spread> {
        let count = lines.len() as f64;
        let mut pooled = Spread {
            freedom: lines.iter().map(|line| line.freedom).sum(),
            tails: lines.iter().map(|line| line.tails).sum::<f64>() / count,
            ..Spread::default()
        };
        for (at, variance) in pooled.variances.iter_mut().enumerate() {
            let mut all: Vec<f64> = lines.iter().map(|line| line.variances[at]).collect();
            all.sort_by(f64::total_cmp);
            let most = PEER_MAX * all.get(all.len() / 2)?;
            *variance = all.iter().map(|one| one.min(most)).sum::<f64>() / count;
        }
        Some(pooled)
    }

    /// The variance of the mean of so many steps, times their number, and its degrees of freedom.
    /// The largest of all scales up to the length counts: a wave that is slow and small is lost
    /// among quick ones at each single step.
    fn of_mean(&self, length: f64) -> (f64, f64) {
        let (mut most, mut at) = (self.variances[0], 1.0);
        for (power, &variance) in self.variances.iter().enumerate().skip(1) {
            let scale = f64::from(1u32 << power);
            if scale / 2.0 < length && variance > most {
                (most, at) = (variance, scale);
            }
        }
        // Parts of that length overlap, which makes half as many more of them.
        let parts = (1.5 * self.freedom / at).min(self.freedom);
        (most, parts.max(2.0) - 1.0)
    }
}

/// The variance of means of `scale` neighbours, times their number.
fn of_means(rests: &[Vec<f64>; 2], scale: usize) -> f64 {
    let (mut squares, mut count) = (0.0, 0.0);
    for rest in rests.iter().filter(|rest| rest.len() >= 2 * scale) {
        // The level that was taken off is their own, so they vary less around it.
        let own = 1.0 - scale as f64 / rest.len() as f64;
        let mut sum: f64 = rest[..scale].iter().sum();
        squares += sum.powi(2) / own;
        for (next, last) in rest[scale..].iter().zip(rest) {
            sum += next - last;
            squares += sum.powi(2) / own;
        }
        count += (rest.len() - scale + 1) as f64;
    }
    squares / f64::max(count, 1.0) / scale as f64
}

/// A line next to its baseline, and the stretch of it that differs most.
pub struct Line {
    base: Sums,
    stretch: Sums,
    /// The first step of the stretch, and the first after it.
    steps: (usize, usize),
    /// Steps of the range with data.
    count: usize,
    spread: Spread,
}

impl Line {
    /// Holds a line against its baseline; steps without data are not finite. `None`: too few steps.
    pub fn of(baseline: &[f64], now: &[f64]) -> Option<Line> {
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
        Some(Line {
            base,
            stretch,
            steps: (places[from], end(&places, to)),
            count: values.len(),
            spread: Spread::of(&rests, level(base, stretch)),
        })
    }

    /// The larger level of both. Unit: cores.
    pub fn level(&self) -> f64 {
        level(self.base, self.stretch)
    }

    /// By how much it moves.
    pub fn spread(&self) -> Spread {
        self.spread
    }

    /// Judges the stretch; `peers` is what lines like it have on average.
    pub fn shift(&self, peers: Option<&Spread>) -> Shift {
        let level = self.level();
        let (share, cores) = SPREAD_MIN;
        let least = share.max(cores / level).powi(2);
        // The mean of the baseline is of a longer time, in which slower waves count.
        let part = |count: f64| {
            let own = self.spread.of_mean(count);
            let (most, freedom) = match peers.map(|peers| peers.of_mean(count)) {
                Some(peers) if peers.0 > own.0 => peers,
                _ => own,
            };
            (most.max(least), freedom)
        };
        let (of_base, of_stretch) = (part(self.base.count), part(self.stretch.count));
        let terms = [
            (of_base.0 / self.base.count, of_base.1),
            (of_stretch.0 / self.stretch.count, of_stretch.1),
        ];
        // Welch and Satterthwaite: the freedom of a sum of variances, of which the drift's is
        // known.
        let variance = terms[0].0 + terms[1].0 + DRIFT.powi(2);
        let apart = terms.map(|(variance, freedom)| variance.powi(2) / freedom);
        let freedom = variance.powi(2) / (apart[0] + apart[1]);
        // Student's distribution of n degrees has an excess of 6 / (n - 4), and a mean has that of
        // its steps divided by their number.
        let tails = peers
            .map_or(0.0, |peers| peers.tails)
            .max(self.spread.tails);
        let freedom = freedom.min(4.0 + 6.0 * self.stretch.count / tails);
        let change = self.stretch.mean() - self.base.mean();
        let error = level * variance.sqrt();
        // Stretches overlap, and steps that are alike are as one: about so many are independent.
        let wider = of_stretch.0 / self.spread.variances[0].max(least);
        let steps = (self.count as f64 / wider.max(1.0)).max(STEPS_MIN as f64);
        let independent = (steps * steps / 2.0).sqrt() * steps.log2();
        Shift {
            change,
            error,
            chance: (two_sided(change / error, freedom.max(1.0)) * independent).min(1.0),
            steps: self.steps,
        }
    }
}

/// The larger level of a baseline and a stretch; what never ran has one all the same, as others are
/// shares of it.
fn level(base: Sums, stretch: Sums) -> f64 {
    base.mean().max(stretch.mean()).max(LEVEL_MIN)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::overview::noise::Noise;

    /// Of a line without peers.
    fn shift(baseline: &[f64], now: &[f64]) -> Option<Shift> {
        Line::of(baseline, now).map(|line| line.shift(None))
    }

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
    fn bursts_that_meet_are_no_change() {
        // One step in sixty is half as much again, now and then two of three.
        let bursts = |noise: &mut Noise, len| {
            let next = |_| {
                let burst = if noise.next(1.0) > 2.1 { 0.5 } else { 0.0 };
                1.0 + burst + noise.next(0.05)
            };
            (0..len).map(next).collect()
        };
        assert!(alarms(bursts) <= 1);
    }

    #[test]
    fn a_line_that_looks_steadier_than_its_peers_is_judged_as_they_are() {
        let mut noise = Noise(6);
        let mut line = |deviation| {
            let (baseline, now) = (
                noise.line(60, 1.0, deviation),
                noise.line(60, 1.1, deviation),
            );
            Line::of(&baseline, &now).expect("enough steps")
        };
        let steady = line(0.01);
        let peers: Vec<Spread> = (0..10).map(|_| line(0.3).spread()).collect();
        let alone = steady.shift(None);
        let among = steady.shift(Spread::pooled(&peers).as_ref());
        assert!(
            alone.chance < 0.01 && among.chance > 0.1,
            "{alone:?} {among:?}"
        );
        assert_eq!(alone.change, among.change);
    }

    #[test]
    fn one_peer_that_runs_wild_does_not_count_for_the_others() {
        let mut noise = Noise(7);
        let mut line = |deviation| {
            let (baseline, now) = (
                noise.line(60, 1.0, deviation),
                noise.line(60, 1.15, deviation),
            );
            Line::of(&baseline, &now).expect("enough steps")
        };
        let changed = line(0.05);
        let mut peers: Vec<Spread> = (0..10).map(|_| line(0.05).spread()).collect();
        peers.push(line(2.0).spread());
        let found = changed.shift(Spread::pooled(&peers).as_ref());
        assert!(found.chance < 0.001, "{found:?}");
    }

    #[test]
    fn without_peers_there_is_nothing_to_pool() {
        assert!(Spread::pooled(&[]).is_none());
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
