//! The bucket: what the archive asks an S3 server for, each request bounded in time and size.
//!
//! Calls block, on threads of the caller; the requests run on a runtime of their own
//! (`fp-archive`). Nothing here is called on the way of a window.

use super::http::Transport;
use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, Error as ClientError, MultipartUpload, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt as _;

/// Longest time of a request with its retries: eight mebibytes at 140 kB/s. Afterwards it has
/// failed, and is tried again later.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// Requests at a time, those of queries and of the upload together. More wait.
const REQUESTS_MAX: usize = 12;

/// Retries of one request, before whoever asked is told.
const RETRIES_MAX: usize = 2;

/// Most of an error that is told. Unit: characters.
const TOLD_CHARS_MAX: usize = 500;

/// Largest object that is read as one: a manifest. Unit: bytes. One of 20,000 partitions has eight
/// mebibytes.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// Where an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketOptions {
    /// Name of the bucket.
    pub bucket: String,
    /// What the names of all objects start with; empty: nothing.
    pub prefix: String,
    /// URL of the server, if it is not that of AWS.
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: Option<String>,
    /// The bucket's name is in the path of URLs, not in the host.
    pub path_style: bool,
    /// File with the key, as AWS's tools have it. Without it the environment has the key, or says
    /// where to get one.
    pub credentials_file: Option<PathBuf>,
    /// Authorities that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// There is no such object, or no such bucket.
    #[error("`{0}` does not exist")]
    Missing(String),
    /// The object is not what the condition says.
    #[error("somebody else wrote `{0}`")]
    Conflict(String),
    /// The server does not accept the key, or the key's rights.
    #[error("access is denied: {0}")]
    Denied(String),
    /// No answer, or one that says that it may work later.
    #[error("{0}")]
    Unavailable(String),
}

/// A condition that has to hold for an object to be written.
pub enum Condition<'e> {
    /// There is none.
    IsNew,
    /// It is the one with this tag.
    Is(&'e str),
}

/// See the module.
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    /// Until it is dropped.
    runtime: Option<Runtime>,
    requests: Arc<Semaphore>,
    shown: String,
}

impl Bucket {
    /// A client of the bucket; nothing is asked yet.
    ///
    /// # Errors
    /// A sentence, if the options cannot be used.
    pub fn new(options: &BucketOptions) -> Result<Bucket, String> {
        let transport = Transport::new(options.ca_file.as_deref())?;
        let mut builder = AmazonS3Builder::from_env()
            .with_http_connector(transport)
            .with_bucket_name(&options.bucket)
            .with_virtual_hosted_style_request(!options.path_style)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // Without it the tags of objects would need one more right.
            .with_disable_tagging(true)
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(100),
                    max_backoff: Duration::from_secs(2),
                    base: 2.0,
                },
                max_retries: RETRIES_MAX,
                retry_timeout: REQUEST_MAX,
            });
        if let Some(endpoint) = &options.endpoint {
            builder = builder
                .with_endpoint(endpoint)
                .with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(region) = &options.region {
            builder = builder.with_region(region);
        }
        if let Some(path) = &options.credentials_file {
            let read = std::fs::read_to_string(path).map_err(|error| error.to_string());
            let key = read.and_then(|text| Credentials::parse(&text));
            let key = key.map_err(|why| {
                let path = path.display();
                format!("failed to use `{path}` (`archive.credentials_file`): {why}")
            })?;
            builder = builder
                .with_access_key_id(key.id)
                .with_secret_access_key(key.secret);
            if let Some(token) = key.token {
                builder = builder.with_token(token);
            }
        }
        let store = builder.build().map_err(|error| told(&error))?;
        let prefix = Key::parse(options.prefix.trim_matches('/'));
        let prefix = prefix.map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(2)
            .thread_name("fp-archive")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Bucket {
            store: Arc::new(store),
            shown: format!("s3://{}/{prefix}", options.bucket),
            prefix,
            runtime: Some(runtime),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
        })
    }

    /// Its address, for people.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn key(&self, name: &str) -> Key {
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned());
        Key::from_iter(parts.chain(name.split('/').map(str::to_owned)))
    }

    fn wait<T>(
        &self,
        request: impl Future<Output = Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        self.runtime().block_on(limited(&self.requests, request))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it ends with the bucket")
    }

    /// Reads an object with its tag.
    pub fn get(&self, name: &str) -> Result<(Bytes, String), BucketError> {
        self.wait(async {
            let found = self.store.get(&self.key(name)).await;
            let found = found.map_err(|error| reason(name, &error))?;
            let tag = found.meta.e_tag.clone().unwrap_or_default();
            if found.meta.size > WHOLE_BYTES_MAX {
                let text = format!("`{name}` has more than {WHOLE_BYTES_MAX} bytes");
                return Err(BucketError::Unavailable(text));
            }
            let bytes = found.bytes().await.map_err(|error| reason(name, &error))?;
            Ok((bytes, tag))
        })
    }

    /// Reads a part of an object.
    pub fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.wait(read_range(Arc::clone(&self.store), self.key(name), range))
    }

    /// Reads a part of an object without waiting: `done` gets it, on a thread of the bucket, unless
    /// what is returned is aborted before.
    pub fn fetch(
        &self,
        name: &str,
        range: Range<u64>,
        done: impl FnOnce(Result<Bytes, BucketError>) + Send + 'static,
    ) -> tokio::task::AbortHandle {
        let request = read_range(Arc::clone(&self.store), self.key(name), range);
        let requests = Arc::clone(&self.requests);
        let fetching = self.runtime().spawn(async move {
            let found = limited(&requests, request).await;
            // It checks and writes a mebibyte.
            let _ = tokio::task::spawn_blocking(move || done(found)).await;
        });
        fetching.abort_handle()
    }

    /// Writes an object if a condition holds; returns its tag.
    pub fn put(
        &self,
        name: &str,
        bytes: Bytes,
        condition: &Condition<'_>,
    ) -> Result<String, BucketError> {
        let mode = match condition {
            Condition::IsNew => PutMode::Create,
            Condition::Is(tag) => PutMode::Update(UpdateVersion {
                e_tag: Some((*tag).to_owned()),
                version: None,
            }),
        };
        self.wait(async {
            let options = PutOptions::from(mode);
            let payload = PutPayload::from_bytes(bytes);
            let written = self.store.put_opts(&self.key(name), payload, options).await;
            let written = written.map_err(|error| reason(name, &error))?;
            Ok(written.e_tag.unwrap_or_default())
        })
    }

    /// Starts an object that is written in parts.
    pub fn put_parts(&self, name: &str, part_bytes: usize) -> Parts<'_> {
        Parts {
            bucket: self,
            name: name.to_owned(),
            part_bytes,
            buffer: Vec::new(),
            upload: None,
        }
    }

    /// Removes an object; one that does not exist is removed.
    pub fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.wait(async {
            match self.store.delete(&self.key(name)).await {
                Err(ClientError::NotFound { .. }) | Ok(()) => Ok(()),
                Err(error) => Err(reason(name, &error)),
            }
        })
    }

    /// Names of all objects that start with `folder`, at most `most` of them.
    pub fn list(&self, folder: &str, most: usize) -> Result<Vec<String>, BucketError> {
        self.wait(async {
            let under = self.key(folder);
            let mut found = self.store.list(Some(&under));
            let mut names = Vec::new();
            while let Some(object) = found.next().await {
                let object = object.map_err(|error| reason(folder, &error))?;
                let parts = object.location.prefix_match(&self.prefix);
                let parts = parts.into_iter().flatten();
                let parts: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
                names.push(parts.join("/"));
                if names.len() >= most {
                    break;
                }
            }
            Ok(names)
        })
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Without waiting: it may be dropped where nothing may block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn limited<T>(
    requests: &Semaphore,
    request: impl Future<Output = Result<T, BucketError>>,
) -> Result<T, BucketError> {
    let _place = requests.acquire().await;
    match tokio::time::timeout(REQUEST_MAX, request).await {
        Ok(done) => done,
        Err(_) => Err(BucketError::Unavailable(format!(
            "no answer within {} s",
            REQUEST_MAX.as_secs()
        ))),
    }
}

async fn read_range(
    store: Arc<dyn ObjectStore>,
    key: Key,
    range: Range<u64>,
) -> Result<Bytes, BucketError> {
    let read = store.get_range(&key, range).await;
    read.map_err(|error| reason(key.as_ref(), &error))
}

/// An object that is written in parts. It exists once [`Parts::end`] returned, and not before.
pub struct Parts<'b> {
    bucket: &'b Bucket,
    name: String,
    part_bytes: usize,
    buffer: Vec<u8>,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl Parts<'_> {
    /// Adds bytes. Waits for the server whenever a part is complete: one part is in memory.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), BucketError> {
        while self.buffer.len() + bytes.len() >= self.part_bytes {
            let (now, later) = bytes.split_at(self.part_bytes - self.buffer.len());
            self.buffer.extend_from_slice(now);
            bytes = later;
            self.send()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn send(&mut self) -> Result<(), BucketError> {
        let part = Bytes::from(std::mem::take(&mut self.buffer));
        let (bucket, name) = (self.bucket, &self.name);
        let failed = |error| reason(name, &error);
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => {
                let key = bucket.key(name);
                let started = bucket.wait(async {
                    let started = bucket.store.put_multipart(&key).await;
                    started.map_err(failed)
                });
                self.upload.insert(started?)
            }
        };
        bucket.wait(async {
            let sent = upload.put_part(PutPayload::from_bytes(part)).await;
            sent.map_err(failed)
        })
    }

    /// Makes the object visible. What is smaller than a part is written as one.
    pub fn end(mut self) -> Result<(), BucketError> {
        if self.upload.is_none() {
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            return match self.bucket.put(&self.name, bytes, &Condition::IsNew) {
                // Its name was never given before: this is a retry of what had succeeded.
                Ok(_) | Err(BucketError::Conflict(_)) => Ok(()),
                Err(error) => Err(error),
            };
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        let Some(mut upload) = self.upload.take() else {
            return Ok(());
        };
        let name = &self.name;
        let done = self.bucket.wait(async {
            let done = upload.complete().await;
            done.map(|_| ()).map_err(|error| reason(name, &error))
        });
        if done.is_err() {
            self.upload = Some(upload);
        }
        done
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        // Parts of an object that is never completed would be paid for.
        if let Some(mut upload) = self.upload.take() {
            let name = &self.name;
            let aborted = self.bucket.wait(async {
                let aborted = upload.abort().await;
                aborted.map_err(|error| reason(name, &error))
            });
            if let Err(error) = aborted {
                tracing::warn!("failed to remove the parts of an upload: {error}");
            }
        }
    }
}

/// An error with its causes, in one line.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // Some of it is the server's.
    let text = profile::text::printable(&text).into_owned();
    text.chars().take(TOLD_CHARS_MAX).collect()
}

fn reason(name: &str, error: &ClientError) -> BucketError {
    match error {
        ClientError::NotFound { .. } => BucketError::Missing(name.to_owned()),
        ClientError::AlreadyExists { .. } | ClientError::Precondition { .. } => {
            BucketError::Conflict(name.to_owned())
        }
        ClientError::PermissionDenied { .. } | ClientError::Unauthenticated { .. } => {
            BucketError::Denied(told(error))
        }
        _ => BucketError::Unavailable(told(error)),
    }
}

/// A key of a file in the form that AWS's tools use.
struct Credentials {
    id: String,
    secret: String,
    token: Option<String>,
}

impl Credentials {
    /// Reads the first section.
    fn parse(text: &str) -> Result<Credentials, String> {
        let (mut id, mut secret, mut token) = (None, None, None);
        let mut sections = 0;
        for line in text.lines().map(str::trim) {
            sections += usize::from(line.starts_with('['));
            if sections > 1 {
                break;
            }
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            let value = Some(value.trim().to_owned());
            match name.trim() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
        match (id, secret) {
            (Some(id), Some(secret)) => Ok(Credentials { id, secret, token }),
            _ => Err("it has no `aws_access_key_id` and `aws_secret_access_key`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_file_is_that_of_its_first_section() {
        let text = "# ours\n[default]\naws_access_key_id = A\naws_secret_access_key=s=/+\n\
                    [other]\naws_access_key_id = B\naws_session_token = t\n";
        let key = Credentials::parse(text).unwrap();
        assert_eq!((key.id.as_str(), key.secret.as_str()), ("A", "s=/+"));
        assert_eq!(key.token, None);
        assert!(Credentials::parse("[default]\naws_access_key_id = A\n").is_err());
    }
}
