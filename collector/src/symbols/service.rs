//! The calls: Upload and List.

use super::{FILE_BYTES_MAX, INCOMING, Symbols, TableError, TakeError};
use crate::access::{Caller, event};
use crate::audit::{DONE, Event};
use crate::ingest::stopped;
use profile::NameSource;
use proto::collector::symbol_service_server::SymbolService;
use proto::collector::{
    ListSymbolsRequest, ListSymbolsResponse, SymbolFile, UploadSymbolsRequest,
    UploadSymbolsResponse,
};
use std::cmp::Reverse;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

/// Largest message of an upload. Unit: bytes.
pub const MESSAGE_BYTES_MAX: usize = (1 << 20) + 4096;

/// Time without a message of an upload.
const MESSAGE_MAX: Duration = Duration::from_secs(30);

/// Time for one upload. 4 GiB in this time are 3.5 MiB/s.
const UPLOAD_MAX: Duration = Duration::from_secs(1200);

/// Bytes that come in a second, at least, once an upload has gone on for [`MESSAGE_MAX`]: whoever
/// is slower keeps others waiting.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Time an upload waits for others that come, or are read.
const PLACE_MAX: Duration = Duration::from_secs(60);

/// Bytes between looks at how much room is left.
const LOOK_BYTES: u64 = 16 << 20;

/// Longest name of a file in the log. Unit: bytes.
const NAME_BYTES_MAX: usize = 256;

const LIST_DEFAULT: usize = 1000;
const LIST_MAX: usize = 10_000;

/// A file that is removed when it is dropped.
struct Incoming(PathBuf);

impl Drop for Incoming {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tonic::async_trait]
impl SymbolService for Symbols {
    async fn upload(
        &self,
        request: Request<Streaming<UploadSymbolsRequest>>,
    ) -> Result<Response<UploadSymbolsResponse>, Status> {
        // Names are in everybody's answers.
        Caller::of(request.extensions())?.sees_all("upload symbols")?;
        let peer = request.remote_addr();
        let event = event(&request, "symbols-upload")?;
        let mut shutdown = self.0.shutdown.clone();
        let uploaded = tokio::select! {
            uploaded = timeout(UPLOAD_MAX, self.upload_one(request.into_inner())) => uploaded,
            () = stopped(&mut shutdown) => {
                Ok(Err(Status::unavailable("the collector is shutting down")))
            }
        };
        let uploaded = uploaded.unwrap_or_else(|_| {
            let seconds = UPLOAD_MAX.as_secs();
            let text = format!("the file did not arrive within {seconds} s");
            Err(Status::deadline_exceeded(text))
        });
        let metrics = &self.0.metrics;
        match uploaded {
            Ok((name, answer)) => {
                metrics.symbol_uploads.inc();
                let (build, functions) = (&*answer.build_id, answer.functions);
                tracing::info!(?peer, name, build, functions, "symbols uploaded");
                let event = event.with("name", name.as_str()).with("build", build);
                self.note(event.with("functions", functions).ended(DONE));
                Ok(Response::new(answer))
            }
            Err(status) => {
                metrics.symbol_uploads_refused.inc();
                self.note(event.ended(&format!("failed: {}", status.message())));
                Err(status)
            }
        }
    }

    async fn list(
        &self,
        request: Request<ListSymbolsRequest>,
    ) -> Result<Response<ListSymbolsResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("list the symbols")?;
        let limit = match request.into_inner().limit {
            0 => LIST_DEFAULT,
            limit => (limit as usize).min(LIST_MAX),
        };
        let table = self.0.table().map_err(refused)?;
        let (stored_bytes, stored_bytes_max) = table.bytes();
        let (builds_wanted, builds_absent) =
            self.0.wanted().map_or((0, 0), |wanted| wanted.counts());
        let mut files: Vec<SymbolFile> = table
            .builds()
            .iter()
            .map(|(build_id, build)| SymbolFile {
                build_id: build_id.clone(),
                name: build.name.clone(),
                source: build.source.word().to_owned(),
                functions: build.functions,
                stored_bytes: build.bytes,
                added_unix_ns: build.added,
                used_unix_ns: build.used(),
            })
            .collect();
        files.sort_by_key(|file| (Reverse(file.used_unix_ns), file.build_id.clone()));
        let files_left_out = files.len().saturating_sub(limit) as u64;
        files.truncate(limit);
        Ok(Response::new(ListSymbolsResponse {
            files,
            files_left_out,
            stored_bytes,
            stored_bytes_max,
            builds_wanted,
            builds_absent,
        }))
    }
}

impl Symbols {
    fn note(&self, event: Event) {
        if let Some(audit) = self.0.audit.get() {
            audit.note(event);
        }
    }

    async fn upload_one(
        &self,
        mut messages: Streaming<UploadSymbolsRequest>,
    ) -> Result<(String, UploadSymbolsResponse), Status> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.0.table().map_err(refused)?;
        let receiving = timeout(PLACE_MAX, self.0.receiving.acquire()).await;
        let Ok(Ok(_receiving)) = receiving else {
            return Err(Status::unavailable(
                "other files are being uploaded; retry in a moment",
            ));
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let incoming = Incoming(self.0.dir.join(format!("{INCOMING}{number}")));
        let mut file = tokio::fs::File::create(&incoming.0)
            .await
            .map_err(no_disk)?;
        let (mut name, mut bytes, mut first) = (String::new(), 0u64, true);
        let mut looked_at = 0;
        let started = Instant::now();
        loop {
            let message = timeout(MESSAGE_MAX, messages.message()).await;
            let message = message.map_err(|_| {
                let seconds = MESSAGE_MAX.as_secs();
                Status::deadline_exceeded(format!("the client sent nothing for {seconds} s"))
            })?;
            let Some(message) = message? else { break };
            if std::mem::take(&mut first) {
                base_name(&message.name).clone_into(&mut name);
            }
            bytes += message.data.len() as u64;
            if bytes > FILE_BYTES_MAX {
                let gib = FILE_BYTES_MAX >> 30;
                let text = format!("the file has more than {gib} GiB");
                return Err(Status::resource_exhausted(text));
            }
            let seconds = started.elapsed().as_secs();
            if seconds >= MESSAGE_MAX.as_secs() && bytes < seconds * BYTES_PER_SECOND_MIN {
                return Err(Status::deadline_exceeded("the file arrives too slowly"));
            }
            if looked_at == 0 || bytes - looked_at >= LOOK_BYTES {
                looked_at = bytes.max(1);
                if !debuginfod::has_room(&self.0.dir) {
                    return Err(no_disk(io::ErrorKind::StorageFull.into()));
                }
            }
            file.write_all(&message.data).await.map_err(no_disk)?;
        }
        file.flush().await.map_err(no_disk)?;
        drop(file);
        let place = timeout(PLACE_MAX, self.0.reading.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let text = "other files are being read; retry in a moment";
            return Err(Status::unavailable(text));
        };
        let (inner, called) = (self.0.clone(), name.clone());
        let reading = tokio::task::spawn_blocking(move || {
            // Given back when it has ended, whoever waits for it.
            let _place = place;
            inner.take(&incoming.0, (&called, NameSource::Upload), None)
        });
        let taken = reading.await;
        let taken = taken.map_err(|_| Status::internal("the file could not be read"))?;
        let (functions, put) = taken.map_err(refused)?;
        let answer = UploadSymbolsResponse {
            functions: functions.list.len() as u64,
            build_id: functions.build_id,
            stored_bytes: put.bytes,
            replaced: put.replaced,
        };
        Ok((name, answer))
    }
}

fn base_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn no_disk(error: io::Error) -> Status {
    Status::unavailable(format!("failed to store the file temporarily: {error}"))
}

fn refused(error: TakeError) -> Status {
    let text = error.to_string();
    match error {
        TakeError::Extract(super::ExtractError::TooLarge)
        | TakeError::Table(TableError::TooLarge { .. }) => Status::resource_exhausted(text),
        TakeError::Extract(_) | TakeError::Damaged | TakeError::OtherBuild(_) => {
            Status::invalid_argument(text)
        }
        TakeError::Read(_) | TakeError::Table(_) | TakeError::Unavailable => {
            Status::unavailable(text)
        }
    }
}
