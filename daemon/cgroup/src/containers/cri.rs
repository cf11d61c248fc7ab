//! Queries containerd and CRI-O through the Container Runtime Interface, `runtime.v1` of
//! Kubernetes.
//!
//! Only the message fields that are read are declared here, by the numbers of the published
//! protocol; the others are skipped. The list entry of a container has its pod's id, which its
//! status lacks.

use super::answer::{self, ContainerAnswer};
use super::socket::Socket;
use super::{ANSWER_BYTES_MAX, Chosen, Error, Inspection, Metadata, Runtime, clean};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use profile::key;
use prost::Message;
use std::collections::BTreeMap;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// A container by id.
#[derive(Clone, PartialEq, Message)]
struct ContainerFilter {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ListedContainer>,
}

#[derive(Clone, PartialEq, Message)]
struct ListedContainer {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "8")]
    image: Option<ImageSpec>,
    #[prost(string, tag = "9")]
    image_ref: String,
    #[prost(btree_map = "string, string", tag = "12")]
    labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
    #[prost(string, tag = "18")]
    user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<PodSandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxStatus {
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(btree_map = "string, string", tag = "7")]
    labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ImageStatusResponse {
    #[prost(btree_map = "string, string", tag = "2")]
    info: BTreeMap<String, String>,
}

/// What the bytes of a `ContainerStatusResponse` say.
///
/// # Errors
/// [`Error::Malformed`].
pub fn container_status(bytes: &[u8], chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    let response = ContainerStatusResponse::decode(bytes).map_err(malformed)?;
    Ok(of_container(&response.status.unwrap_or_default(), chosen))
}

/// What the bytes of a `PodSandboxStatusResponse` say.
///
/// # Errors
/// [`Error::Malformed`].
pub fn pod_status(bytes: &[u8], chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    let response = PodSandboxStatusResponse::decode(bytes).map_err(malformed)?;
    Ok(of_pod(&response.status.unwrap_or_default(), chosen))
}

fn malformed(_: prost::DecodeError) -> Error {
    Error::Malformed("it is an unexpected message".into())
}

fn of_container(status: &ContainerStatus, chosen: &[Box<str>]) -> ContainerAnswer {
    let image = status.image.clone().unwrap_or_default();
    let images = [&image.user_specified_image, &image.image, &status.image_ref];
    let name = status.metadata.as_ref().and_then(|of| clean(&of.name));
    let mut found = ContainerAnswer {
        id: clean(&status.id),
        metadata: Metadata {
            container_name: name,
            image: images.into_iter().find_map(|image| clean(image)),
            ..Metadata::default()
        },
        ..ContainerAnswer::default()
    };
    add_labels(&mut found, key::CONTAINER_LABEL, &status.labels, chosen);
    found
}

fn of_pod(status: &PodSandboxStatus, chosen: &[Box<str>]) -> ContainerAnswer {
    let metadata = status.metadata.clone().unwrap_or_default();
    let mut found = ContainerAnswer {
        metadata: Metadata {
            pod: clean(&metadata.name),
            namespace: clean(&metadata.namespace),
            ..Metadata::default()
        },
        ..ContainerAnswer::default()
    };
    add_labels(&mut found, key::POD_LABEL, &status.labels, chosen);
    found
}

fn add_labels(
    found: &mut ContainerAnswer,
    prefix: &str,
    labels: &BTreeMap<String, String>,
    chosen: &[Box<str>],
) {
    for name in chosen {
        if let Some(value) = labels.get(&**name).and_then(|value| clean(value)) {
            let name = [prefix, name].concat().into();
            found.metadata.add_label(name, value);
        }
    }
}

/// containerd or CRI-O.
pub struct Cri {
    socket: Socket,
    chosen: Chosen,
}

impl Cri {
    pub fn new(socket: Socket, chosen: Chosen) -> Cri {
        Cri { socket, chosen }
    }

    async fn connect(&self) -> Result<Client, Error> {
        // Connects before the transport does, because the transport's errors are less specific. The
        // transport uses this first connection, and no other is made: a client lives for one
        // container.
        let mut stream = Some(TokioIo::new(self.socket.connect().await?));
        let connector = service_fn(move |_: Uri| {
            let gone = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            std::future::ready(stream.take().ok_or_else(gone))
        });
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
            .map_err(|error| Error::Broken(error.to_string().into()))?;
        let grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Client(grpc))
    }

    async fn ask(&self, id: &str) -> Result<Option<Metadata>, Error> {
        let mut client = self.connect().await?;
        let filter = Some(ContainerFilter { id: id.to_owned() });
        let listed: Option<ListContainersResponse> = client
            .call(
                "/runtime.v1.RuntimeService/ListContainers",
                ListContainersRequest { filter },
            )
            .await?;
        let listed = listed.unwrap_or_default().containers;
        let Some(listed) = listed.into_iter().find(|of| of.id.starts_with(id)) else {
            // The pod's own container, which holds its namespaces, is listed nowhere.
            return self.pod(&mut client, id).await;
        };
        let status: Option<ContainerStatusResponse> = client
            .call(
                "/runtime.v1.RuntimeService/ContainerStatus",
                ContainerStatusRequest {
                    container_id: listed.id,
                },
            )
            .await?;
        let Some(status) = status.and_then(|answer| answer.status) else {
            return Ok(None);
        };
        let mut metadata = of_container(&status, &self.chosen).metadata;
        if let Some(pod) = self.pod(&mut client, &listed.pod_sandbox_id).await? {
            metadata.complete(pod);
        }
        // Missing labels of the image are not an error: only the verbose part of the answer has
        // them.
        if let Ok(Some(image)) = self.image(&mut client, &status.image_ref).await {
            metadata.complete(image);
        }
        Ok(Some(metadata))
    }

    async fn pod(&self, client: &mut Client, id: &str) -> Result<Option<Metadata>, Error> {
        if id.is_empty() {
            return Ok(None);
        }
        let pod_sandbox_id = id.to_owned();
        let answer: Option<PodSandboxStatusResponse> = client
            .call(
                "/runtime.v1.RuntimeService/PodSandboxStatus",
                PodSandboxStatusRequest { pod_sandbox_id },
            )
            .await?;
        let status = answer.and_then(|answer| answer.status);
        Ok(status.map(|status| of_pod(&status, &self.chosen).metadata))
    }

    async fn image(&self, client: &mut Client, image: &str) -> Result<Option<Metadata>, Error> {
        if self.chosen.is_empty() || image.is_empty() {
            return Ok(None);
        }
        let image = Some(ImageSpec {
            image: image.to_owned(),
            user_specified_image: String::new(),
        });
        let verbose = true;
        let answer: Option<ImageStatusResponse> = client
            .call(
                "/runtime.v1.ImageService/ImageStatus",
                ImageStatusRequest { image, verbose },
            )
            .await?;
        let info = answer.and_then(|mut answer| answer.info.remove("info"));
        let Some(info) = info else { return Ok(None) };
        let found = answer::image_info(info.as_bytes(), &self.chosen)?;
        Ok(Some(found.metadata))
    }
}

impl Runtime for Cri {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("containerd" | "cri-o"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(self.ask(id))
    }
}

/// One connection.
struct Client(Grpc<Channel>);

impl Client {
    /// One call; `None` if the runtime does not know the container, or does not support the
    /// interface at all: Docker's containerd does not.
    async fn call<Q, A>(&mut self, path: &'static str, question: Q) -> Result<Option<A>, Error>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let broken = |error: tonic::transport::Error| Error::Broken(error.to_string().into());
        self.0.ready().await.map_err(broken)?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = self.0.unary(Request::new(question), path, codec).await;
        match answer {
            Ok(answer) => Ok(Some(answer.into_inner())),
            Err(status) => match status.code() {
                Code::NotFound | Code::Unimplemented => Ok(None),
                _ => Err(failed(&status)),
            },
        }
    }
}

fn failed(status: &Status) -> Error {
    match status.code() {
        // What tonic says of messages beyond the bound.
        Code::OutOfRange | Code::ResourceExhausted => Error::TooLong,
        Code::Unavailable | Code::Cancelled => Error::Broken("the connection ended".into()),
        Code::Internal => Error::Broken("it violates the protocol".into()),
        code => Error::Refused(format!("{code:?}").into()),
    }
}
