//! The program with an archive: its configuration, its sandbox, and `archive take-over`.

use super::server::{TestBucket, credentials};
use std::path::Path;
use std::process::{Command, Output};

fn collector(dir: &Path, bucket: &TestBucket, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetprof-collector"));
    command.args(arguments);
    for set in [
        format!("data_dir={}", dir.display()),
        "listen.grpc=127.0.0.1:0".to_owned(),
        "listen.http=127.0.0.1:0".to_owned(),
        format!("archive.url=s3://{}/fleet/eu", bucket.name),
        format!("archive.endpoint={}", bucket.endpoint()),
        "archive.path_style=true".to_owned(),
        format!("archive.credentials_file={}", credentials().display()),
    ] {
        command.arg("--set").arg(set);
    }
    command
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(errors)
}

/// Starts a collector and ends it once it uploaded its first manifest.
fn serve(dir: &Path, bucket: &TestBucket) -> String {
    let written = bucket.count("PUT /test");
    let mut command = collector(dir, bucket, &[]);
    command.stderr(std::process::Stdio::piped());
    let mut process = command.spawn().unwrap();
    let manifest = format!("PUT /{}/fleet/eu/manifest.json", bucket.name);
    let wrote = || {
        bucket
            .requests()
            .iter()
            .filter(|of| of.starts_with(&manifest))
            .count()
    };
    let before = wrote();
    while wrote() == before && process.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let _ = Command::new("kill").arg(process.id().to_string()).status();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(bucket.count("PUT /test") > written);
    text(&output)
}

#[test]
fn a_new_machine_takes_over_with_one_command() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let (lost, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    serve(lost.path(), &bucket);
    let refused = collector(new.path(), &bucket, &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("fleetprof-collector archive take-over"));
    let taken = collector(new.path(), &bucket, &["archive", "take-over"]);
    let taken = { taken }.output().unwrap();
    assert!(taken.status.success(), "{}", text(&taken));
    assert!(
        text(&taken).contains("belongs to this one now"),
        "{}",
        text(&taken)
    );
    serve(new.path(), &bucket);
    let refused = collector(lost.path(), &bucket, &["archive", "take-over"]);
    assert!({ refused }.output().unwrap().status.success());
}

#[test]
fn nothing_can_be_taken_over_where_nothing_is() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = collector(folder.path(), &bucket, &["archive", "take-over"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("has no manifest"),
        "{}",
        text(&output)
    );
}
