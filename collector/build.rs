//! Lists the files of the built page, so that they are embedded in the program, and compiles the
//! .proto files of the APIs of others.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Most that the page may be. Unit: bytes. More was not meant to be in the program.
const BYTES_MAX: u64 = 32 << 20;

/// Calls by which other senders send.
const TAKES_PROFILES: [&str; 3] = ["Push", "WriteRaw", "Export"];

/// The message that they have in the generated services.
const UNREAD: &str = ".fleetprof.Unread";

fn main() -> Result<(), Box<dyn Error>> {
    let package = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let dist = package.join("ui/dist");
    let mut files = Vec::new();
    if dist.is_dir() {
        println!("cargo::rerun-if-changed=ui/dist");
        collect(&dist, &mut files)?;
        files.sort();
    } else {
        // Looked for again when something appears beside it.
        println!("cargo::rerun-if-changed=.");
    }
    let mut code = String::from("&[\n");
    let mut bytes = 0;
    for file in &files {
        let content = fs::read(file)?;
        bytes += content.len() as u64;
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let name = file.strip_prefix(&dist)?.to_str();
        let name = name.ok_or("a file of the page has a name that is not UTF-8")?;
        let path = file.to_str().ok_or("a path that is not UTF-8")?;
        writeln!(
            code,
            "File {{ name: {name:?}, etag: \"\\\"{:016x}\\\"\", content: include_bytes!({path:?}) }},",
            hasher.finish()
        )?;
    }
    if bytes > BYTES_MAX {
        return Err(format!("the page has {bytes} bytes, more than {BYTES_MAX}").into());
    }
    code.push(']');
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    fs::write(out.join("page.rs"), code)?;
    compile_protocols(&out)
}

/// The APIs of Pyroscope, Parca and OpenTelemetry, which only the collector speaks. pprof's
/// messages are those of `profile`.
fn compile_protocols(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "querier/v1/querier.proto",
        "settings/v1/setting.proto",
        "push/v1/push.proto",
        "parca/profilestore/v1alpha1/profilestore.proto",
        "opentelemetry/v1development/profiles_service.proto",
    ];
    let mut descriptors = protox::compile(files, ["proto"])?;
    let encoded = prost::Message::encode_to_vec(&descriptors);
    fs::write(out.join("pyroscope.bin"), encoded)?;
    // The transport decodes nothing of what senders send.
    for file in &mut descriptors.file {
        for method in file.service.iter_mut().flat_map(|of| &mut of.method) {
            if TAKES_PROFILES.contains(&method.name()) {
                method.input_type = Some(UNREAD.to_owned());
            }
        }
    }
    tonic_prost_build::configure()
        .build_client(false)
        .codec_path("::proto::PieceCodec")
        .bytes(".opentelemetry")
        .message_attribute(
            ".parca.profilestore.v1alpha1.WriteRawRequest",
            "#[expect(dead_code, reason = \"its series are read one by one\")]",
        )
        .extern_path(UNREAD, "crate::senders::Unread")
        .extern_path(".google.v1", "::profile::formats::pprof::messages")
        .compile_fds(descriptors)?;
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
