//! Suggests the known name that an unknown name probably meant.

/// Least likeness (0 to 1, Jaro-Winkler) of a name worth suggesting. Below it suggestions are
/// noise.
const LIKENESS_MIN: f64 = 0.75;

/// The index of the candidate most like `name`, when one is like enough.
pub fn nearest(candidates: impl Iterator<Item = String>, name: &str) -> Option<usize> {
    // The work grows with both lengths: names from outside are cut.
    let name: String = name.chars().take(64).collect();
    candidates
        .map(|candidate| strsim::jaro_winkler(&candidate, &name))
        .enumerate()
        .filter(|(_, likeness)| *likeness >= LIKENESS_MIN)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(index, _)| index)
}

/// The word most like `name`, when one is like enough.
pub fn nearest_word<'w>(words: &[&'w str], name: &str) -> Option<&'w str> {
    let known = words.iter().map(|word| (*word).to_owned());
    nearest(known, name).map(|at| words[at])
}
