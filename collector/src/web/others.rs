//! APIs of others on the page's listener: Pyroscope's calls, `GET /pyroscope/render` and
//! `render-diff`, and what other senders post.

use super::{QUERY_BYTES_MAX, Site, http_status, packed, plain, send};
use crate::access::Caller;
use crate::pyroscope::{self, Answer, Held, RENDER_DIFF_PATH, REQUEST_BYTES_MAX, Rendered};
use crate::senders;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use hyper::body::Bytes;
use hyper::http::Extensions;
use hyper::{HeaderMap, StatusCode, Uri};
use std::convert::Infallible;
use tonic::{Code, Status};
use tower::Service;

/// The service of queries.
pub(super) const QUERIER: &str = "querier.v1.QuerierService";

/// That of pushes.
pub(super) const PUSHER: &str = "push.v1.PusherService";

/// That of settings.
pub(super) const SETTINGS: &str = "settings.v1.SettingsService";

/// Piece in which an answer is sent. Unit: bytes.
const PIECE_BYTES: usize = 128 << 10;

pub(super) async fn querier(State(site): State<Site>, request: Request) -> Response {
    match site.pyroscope.clone() {
        Some(pyroscope) => answered(site, pyroscope.servers().0, request, REQUEST_BYTES_MAX).await,
        None => unanswered(request.headers()),
    }
}

pub(super) async fn settings(State(site): State<Site>, request: Request) -> Response {
    match site.pyroscope.clone() {
        Some(pyroscope) => answered(site, pyroscope.servers().1, request, REQUEST_BYTES_MAX).await,
        None => unanswered(request.headers()),
    }
}

async fn answered<S>(site: Site, service: Held<S>, request: Request, most: usize) -> Response
where
    S: Service<
            hyper::Request<tonic::body::Body>,
            Response = hyper::Response<tonic::body::Body>,
            Error = Infallible,
        > + Send
        + 'static,
    S::Future: Send + 'static,
{
    let asked = request.headers().clone();
    match pyroscope::answer(service, request, most).await {
        Answer::Frames(response) => response.map(Body::new),
        Answer::Whole(response, place) => whole(site, &asked, (response, place)).await,
    }
}

/// Takes what others push. Who takes too long for it loses the place.
pub(super) async fn pusher(State(site): State<Site>, request: Request) -> Response {
    let headers = request.headers().clone();
    let Some(senders) = site.senders.clone() else {
        return unanswered(&headers);
    };
    let most = senders.request_bytes();
    let service = Held::new(senders.clone().pusher(), site.queries.clone());
    let request = request.map(|body| Body::new(senders::steady(body)));
    let caller = Caller::of(request.extensions());
    let answering = answered(site, service, request, most);
    let refused = |status: Status| pyroscope::refused(&headers, &status).map(Body::from);
    senders.answered(caller, answering, refused).await
}

/// Takes what older clients send.
pub(super) async fn ingest(
    State(site): State<Site>,
    Query(pairs): Query<Vec<(String, String)>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(senders) = site.senders.clone() else {
        return unanswered(&parts.headers);
    };
    let answering = async {
        let caller = Caller::of(&parts.extensions)?;
        let storing = async {
            let body = senders.body(body).await?;
            senders::ingested(&senders, &caller, pairs, (&parts.headers, body)).await
        };
        senders.in_place(&caller, storing).await?
    };
    match answering.await {
        Ok(()) => Response::new(Body::empty()),
        Err(status) => {
            let mut response = pyroscope::refused(&parts.headers, &status).map(Body::from);
            *response.status_mut() = sent_status(status.code());
            response
        }
    }
}

/// The status of HTTP for a refusal of what a sender posted: what is too large has its own.
pub(super) fn sent_status(code: Code) -> StatusCode {
    match code {
        Code::OutOfRange => StatusCode::PAYLOAD_TOO_LARGE,
        code => http_status(code),
    }
}

/// Says that a call is none that this collector answers.
pub(super) fn unanswered(headers: &HeaderMap) -> Response {
    let status = Status::unimplemented("this collector does not answer this call");
    pyroscope::refused(headers, &status).map(Body::from)
}

pub(super) async fn render(
    State(site): State<Site>,
    extensions: Extensions,
    uri: Uri,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let Some(pyroscope) = site.pyroscope.clone() else {
        return unanswered(&headers);
    };
    if uri
        .query()
        .is_some_and(|query| query.len() > QUERY_BYTES_MAX)
    {
        let text = "the address is too long\n";
        return plain(StatusCode::URI_TOO_LONG, text).map(Body::from);
    }
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return pyroscope::refused(&headers, &status).map(Body::from),
    };
    let rendered = match uri.path() == RENDER_DIFF_PATH {
        true => pyroscope::diff(&pyroscope, &caller, pairs).await,
        false => pyroscope::single(&pyroscope, &caller, pairs).await,
    };
    whole(site, &headers, rendered).await
}

/// Sends an answer, compressed where that is asked for, and keeps its place until it is read.
async fn whole(site: Site, asked: &HeaderMap, (response, place): Rendered) -> Response {
    let (mut parts, mut content) = response.into_parts();
    let Some(place) = place else {
        let (headers, pieces) = packed(asked, parts.headers, vec![content]).await;
        parts.headers = headers;
        return Response::from_parts(parts, Body::from(pieces.concat()));
    };
    let mut pieces: Vec<Bytes> = Vec::new();
    while !content.is_empty() {
        pieces.push(content.split_to(content.len().min(PIECE_BYTES)));
    }
    let (headers, pieces) = packed(asked, parts.headers, pieces).await;
    parts.headers = headers;
    Response::from_parts(parts, send(pieces, place, site.queries))
}
