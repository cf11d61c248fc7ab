//! One HTTP GET over a unix socket. The caller bounds the time, this module the bytes.

use super::socket::Socket;
use super::{ANSWER_BYTES_MAX, Error};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

/// Most bytes of the head of an answer, and of what is read at once.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What came back.
pub struct HttpResponse {
    /// The body, as far as it was read.
    pub body: Vec<u8>,
    /// There was more.
    pub cut: bool,
}

/// Gets a path; None where the server says that nothing is there. `path` is put into the request as
/// it is: of letters, digits and slashes.
pub async fn get(socket: &Socket, path: &str) -> Result<Option<HttpResponse>, Error> {
    let stream = socket.connect().await?;
    let broken = |error: hyper::Error| Error::Broken(error.to_string().into());
    let mut client = http1::Builder::new();
    client.max_buf_size(HEAD_BYTES_MAX);
    let (mut sender, connection) = client
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    // Ends with this call, whatever the server does.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::get(path)
        .header(HOST, "localhost")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|error| Error::Broken(error.to_string().into()))?;
    let response = sender.send_request(request).await.map_err(broken)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        status => return Err(Error::Refused(status.as_str().into())),
    }
    let mut parts = response.into_body();
    let mut answer = HttpResponse {
        body: Vec::new(),
        cut: false,
    };
    while let Some(frame) = parts.frame().await {
        let frame = frame.map_err(broken)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let room = ANSWER_BYTES_MAX - answer.body.len();
        answer.body.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            answer.cut = true;
            break;
        }
    }
    Ok(Some(answer))
}
