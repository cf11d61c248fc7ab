//! sysprof's command: records raw stacks and appends names. Its file is not read here, so its
//! samples are not counted.

use super::{Measured, Outcome, Stage};

/// `sysprof-cli` with everything off but the stacks.
pub fn measure(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let capture = dir.path().join("capture.syscap").display().to_string();
    let line =
        r#"exec sysprof-cli --force --no-battery --no-cpu --no-disk --no-memory --no-network "$1""#;
    let recorded = match stage.record(dir.path(), stage.length, line, &[&capture])? {
        Ok(recorded) if recorded.ended.success => recorded,
        Ok(recorded) => return Ok(Err(recorded.ended.reason())),
        Err(reason) => return Ok(Err(reason)),
    };
    let written_bytes = std::fs::metadata(&capture).map_or(0, |meta| meta.len());
    Ok(Ok(vec![Measured {
        written_bytes,
        ..recorded.row(
            "sysprof-cli",
            "at a rate of its own; its samples are not counted",
            None,
        )
    }]))
}
