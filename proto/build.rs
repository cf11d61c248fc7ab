//! Compiles the .proto files with protox, so that no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

const FILES: &[&str] = &[
    "fleetprof/profile/v1/profile.proto",
    "fleetprof/agent/v1/agent.proto",
    "fleetprof/collector/v1/ingest.proto",
    "fleetprof/collector/v1/control.proto",
    "fleetprof/collector/v1/query.proto",
    "fleetprof/collector/v1/pins.proto",
    "fleetprof/collector/v1/annotations.proto",
    "fleetprof/collector/v1/alerts.proto",
    "fleetprof/collector/v1/incidents.proto",
    "fleetprof/collector/v1/views.proto",
    "fleetprof/collector/v1/symbols.proto",
    "fleetprof/collector/v1/fleet.proto",
    "fleetprof/collector/v1/access.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=fleetprof");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("descriptors.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure()
        .codec_path("crate::PieceCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
