//! Tests windows of a host that withholds stacks.

use super::*;
use profile::Withholding;
use std::sync::atomic::Ordering;

#[test]
fn a_window_tells_of_what_is_withheld_its_cgroup_and_its_weight_alone() {
    let dir = tempfile::tempdir().unwrap();
    let withhold = Withholding::parse(&["cgroup=/c1"]).unwrap();
    let mut run = Run::new(
        dir.path(),
        Settings {
            withhold: Arc::new(withhold),
            ..settings()
        },
    );
    let samples = [
        (1, 19, vec![1, 2], 2),
        (1, 28, vec![1, 3], 1),
        (2, 10, vec![1, 4], 5),
    ];
    run.record(&samples);
    // A reload takes it back, from the next window on.
    *lock(&run.shared.settings) = settings();
    run.shared.settings_version.fetch_add(1, Ordering::AcqRel);
    run.record(&samples);
    let windows = run.read_all();
    let total = |at: usize| -> u64 { windows[at].1.iter().map(|row| row.3.count).sum() };
    assert_eq!((total(0), total(1)), (8, 8));
    let (_, rows) = &windows[0];
    let hidden: Vec<_> = rows.iter().filter(|row| row.0["cgroup"] == "/c1").collect();
    assert_eq!(hidden.len(), 1, "{hidden:?}");
    assert_eq!(hidden[0].1, ["[withheld]"]);
    assert_eq!((hidden[0].2, hidden[0].3.count), (StackEnd::Complete, 3));
    assert_eq!(windows[1].1, expected(&samples));
    assert_eq!(lock(&run.shared.progress).withheld_samples, 3);
}
