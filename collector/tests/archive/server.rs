//! The S3 server of the tests: PyPI's `moto` with faults in front of it, one for all tests, a
//! bucket for each.

use collector::store::embedded::BucketOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version that `s3.sh` installs.
const MOTO_VERSION: &str = "5.2.5";

/// The server's process, which ends with this one.
struct Server {
    _process: Child,
    port: u16,
}

/// A bucket of one test.
pub struct TestBucket {
    /// Its name.
    pub name: String,
    port: u16,
}

fn python() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).unwrap_or_default();
    let path = cache.join(format!("fleetprof/moto-{MOTO_VERSION}/bin/python"));
    match path.exists() {
        true => Ok(path),
        false => Err("moto is not installed; collector/tests/s3.sh installs it".to_owned()),
    }
}

fn server() -> Result<&'static Server, String> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3_front.py");
        let mut process = Command::new(python()?)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let port = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        Ok(Server {
            _process: process,
            port,
        })
    });
    server.as_ref().map_err(Clone::clone)
}

impl TestBucket {
    /// A new bucket; `None`, which is said, where the server is not installed.
    pub fn new() -> Option<TestBucket> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let server = match server() {
            Ok(server) => server,
            Err(why) => {
                testkit::skip(&why);
                return None;
            }
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let bucket = TestBucket {
            name: format!("test-{number}"),
            port: server.port,
        };
        bucket.request("PUT", &format!("/{}", bucket.name), "");
        Some(bucket)
    }

    /// Options for a client of it.
    pub fn options(&self) -> BucketOptions {
        BucketOptions {
            bucket: self.name.clone(),
            prefix: "fleet/eu".to_owned(),
            endpoint: Some(self.endpoint()),
            region: Some("eu-central-1".to_owned()),
            path_style: true,
            credentials_file: Some(credentials()),
            ca_file: None,
        }
    }

    /// Address of the server.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Has the server treat requests that match as its script says, in place of what it was told
    /// before: `REGEX\tACTION\tARGUMENT\tTIMES`.
    pub fn rules(&self, lines: &[&str]) {
        let path = format!("/front/rules?bucket={}", self.name);
        self.request("PUT", &path, &lines.join("\n"));
    }

    /// Every request so far: `METHOD PATH?QUERY RANGE`.
    pub fn requests(&self) -> Vec<String> {
        let path = format!("/front/log?bucket={}", self.name);
        let log = self.request("GET", &path, "");
        log.lines().map(str::to_owned).collect()
    }

    /// How many requests so far have this in them.
    pub fn count(&self, text: &str) -> usize {
        let requests = self.requests();
        requests.iter().filter(|of| of.contains(text)).count()
    }

    /// Names of all objects of partitions.
    pub fn objects(&self) -> Vec<String> {
        let path = format!("/{}?list-type=2&prefix=fleet/eu/objects/", self.name);
        let text = self.request("GET", &path, "");
        let keys = text.split("<Key>").skip(1);
        let keys = keys.filter_map(|rest| rest.split("</Key>").next());
        let names = keys.map(|key| key.trim_start_matches("fleet/eu/objects/").to_owned());
        names.filter(|name| !name.ends_with("-hosts")).collect()
    }

    /// Puts an object there, or in place of another.
    pub fn put(&self, name: &str, body: &str) {
        let path = format!("/{}/fleet/eu/{name}", self.name);
        self.request("PUT", &path, body);
    }

    /// Removes an object.
    pub fn delete(&self, name: &str) {
        let path = format!("/{}/fleet/eu/{name}", self.name);
        self.request("DELETE", &path, "");
    }

    /// Uploads in parts that were started and neither completed nor aborted.
    pub fn unfinished_uploads(&self) -> usize {
        let text = self.request("GET", &format!("/{}?uploads", self.name), "");
        text.matches("<UploadId>").count()
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260115/us-east-1/s3/aws4_request\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, answered) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        answered.to_owned()
    }
}

/// A file with a key, which the server takes as any other.
pub fn credentials() -> PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = tempfile::tempdir().unwrap().keep().join("credentials");
        let text = "[default]\naws_access_key_id = test\naws_secret_access_key = test\n";
        std::fs::write(&path, text).unwrap();
        path
    });
    file.clone()
}
