//! Calls on stored captures: the list, the profile of one, and its deletion.

use super::Control;
use super::kept::{KeptCaptures, shown};
use super::limits::{LIST_BYTES_MAX, LIST_DEFAULT, LIST_MAX};
use crate::access::Caller;
use crate::evidence::{KeptQuery, ProfileKind, ReadError, in_part, refused, send};
use crate::query::{ANSWER_TIMEOUT, Failed, profile_bytes};
use crate::store::Limits;
use profile::Profile;
use prost::Message;
use proto::Chunks;
use proto::collector::fleet_capture_profile_response::Body;
use proto::collector::{
    FleetCaptureInfo, FleetCaptureProfileRequest, FleetCaptureProfileResponse, KeptCapture,
    ListFleetCapturesRequest, ListFleetCapturesResponse,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;

/// Parts of a kept capture, for a client.
type Parts = mpsc::Receiver<Result<FleetCaptureProfileResponse, Status>>;

/// Kept captures that `caller` may see, and how many more there are. Blocks.
fn kept_for(
    kept: &KeptCaptures,
    caller: &Caller,
    wanted: impl Fn(u64) -> bool,
) -> (Vec<FleetCaptureInfo>, u64) {
    let Ok(files) = kept.files() else {
        return Default::default();
    };
    let visible = |kept: &KeptCapture| {
        let id = kept.info.as_ref().map_or(0, |info| info.id);
        // Without a scope all is shown, and nothing is to be copied.
        wanted(id) && (caller.scope.is_none() || shown(kept.clone(), caller).is_some())
    };
    let (kept, more) = files.list(LIST_MAX, visible);
    let kept = kept
        .into_iter()
        .filter_map(|kept| shown(kept, caller)?.info);
    (kept.collect(), more)
}

impl Control {
    /// Running, past and stored captures, newest first, as many as fit an answer.
    pub(super) async fn listed(
        &self,
        asked: &ListFleetCapturesRequest,
        caller: &Arc<Caller>,
    ) -> ListFleetCapturesResponse {
        let wanted = |id: u64| asked.id == 0 || asked.id == id;
        let limit = match asked.limit {
            0 => LIST_DEFAULT,
            limit => (limit as usize).min(LIST_MAX),
        };
        let mut all: BTreeMap<u64, FleetCaptureInfo> = BTreeMap::new();
        let mut left_out = 0;
        // The log says why there are none, and so does every capture.
        if self.open_kept().await.is_ok() {
            let (kept, caller, id) = (self.0.kept.clone(), caller.clone(), asked.id);
            // With a scope, each is looked at.
            let listing = move || kept_for(&kept, &caller, |one| id == 0 || id == one);
            let (kept, more) = spawn_blocking(listing).await.unwrap_or_default();
            left_out = more;
            all.extend(kept.into_iter().map(|info| (info.id, info)));
        }
        for info in self.0.fanouts.list(caller) {
            if wanted(info.id) {
                all.entry(info.id).or_insert(info);
            }
        }
        // Those that run have the first claim: without their ids nobody could end them.
        let mut newest: Vec<FleetCaptureInfo> = all.into_values().rev().collect();
        newest.sort_by_key(|info| !info.running);
        let whole = newest.len();
        let mut room = LIST_BYTES_MAX;
        let mut captures: Vec<FleetCaptureInfo> = newest
            .into_iter()
            .take(limit)
            .map_while(|info| {
                room = room.checked_sub(info.encoded_len() + 8)?;
                Some(info)
            })
            .collect();
        left_out += (whole - captures.len()) as u64;
        captures.sort_by_key(|info| std::cmp::Reverse(info.id));
        ListFleetCapturesResponse { captures, left_out }
    }

    /// What `make` makes of a kept capture and one of its profiles, in a query's place.
    ///
    /// # Errors
    /// NOT_FOUND where there is none that `caller` may see, and those of reading it.
    pub(crate) async fn kept<T: Send + 'static>(
        &self,
        (id, kind): (u64, ProfileKind),
        caller: Arc<Caller>,
        make: impl FnOnce(KeptCapture, Profile, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        self.open_kept().await?;
        let kept = self.0.kept.clone();
        let work = move |limits: &Limits| {
            let files = kept.files()?;
            let about = files.about(id).map_err(refused)?;
            let listed = files.get(id).and_then(|kept| kept.info).unwrap_or_default();
            let unknown = || refused(ReadError::unknown::<KeptCapture>(id));
            let mut about = shown(about, &caller).ok_or_else(unknown)?;
            let info = about.info.get_or_insert_default();
            (info.kept, info.has_past, info.bytes) = (true, listed.has_past, listed.bytes);
            let gone = || limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
            let read = files.read(id, kind, limits.memory_bytes, gone);
            let mut profile = read.map_err(refused)?;
            if caller.sees_parts_of_hosts() {
                profile = in_part(profile);
            }
            make(about, profile, limits)
        };
        self.0.queries.work(work).await
    }

    /// A kept capture in parts.
    pub(super) async fn replay(
        &self,
        asked: FleetCaptureProfileRequest,
        caller: Arc<Caller>,
    ) -> Result<Parts, Status> {
        let id = asked.id;
        let kind = match asked.past {
            true => ProfileKind::Minutes,
            false => ProfileKind::Captured,
        };
        // Scopes are no matter of its samples: all of them are in it, or it is not shown.
        let (matchers, filters) = (asked.matchers, asked.frame_filters);
        let query = KeptQuery::new((matchers, None), filters, &asked.group_by, asked.times)?;
        let mut place = self.0.queries.response_slot()?;
        let made = self.kept((id, kind), caller, move |kept, profile, _| {
            let info = kept.info.unwrap_or_default();
            let answer = query.answer(&profile);
            drop(profile);
            place.hold(profile_bytes(&answer) + info.encoded_len())?;
            Ok((info, Chunks::new(answer), place))
        });
        let (info, chunks, place) = made.await?;
        let (tx, parts) = mpsc::channel(1);
        let queries = self.0.queries.clone();
        tokio::spawn(async move {
            let bodies = std::iter::once(Body::Info(info)).chain(chunks.map(Body::Chunk));
            let parts = bodies.map(|body| FleetCaptureProfileResponse { body: Some(body) });
            if !matches!(timeout(ANSWER_TIMEOUT, send(parts, tx)).await, Ok(true)) {
                queries.count_stalled();
            }
            drop(place);
        });
        Ok(parts)
    }

    /// Removes a kept capture. Somebody with a scope removes their own alone.
    pub(super) async fn remove(&self, id: u64, caller: &Caller) -> Result<(), Status> {
        let unknown = || Status::not_found(format!("no capture with ID {id} is kept"));
        let files = self.open_kept().await?;
        let found = files.get(id).ok_or_else(unknown)?;
        let owner = found.owner.clone();
        if shown(found, caller).is_none() {
            return Err(unknown());
        }
        if caller.scope.is_some() && owner != caller.name {
            return Err(Status::permission_denied(format!(
                "failed to remove capture `{id}`: somebody else asked for it, and your login is for a \
                 part of the fleet\nask somebody whose login has no scope"
            )));
        }
        let kept = self.0.kept.clone();
        let removed = tokio::task::spawn_blocking(move || kept.remove(id)).await;
        match removed.map_err(|_| Status::internal("the capture could not be removed"))?? {
            true => Ok(()),
            false => Err(unknown()),
        }
    }
}
