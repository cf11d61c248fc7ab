//! The calls about users and the audit log.

use super::sessions::LINK_LASTS;
use super::{AccessError, Caller, LOCAL, NewPerson, People, Person, Role};
use crate::audit::{Audit, BEGUN, DONE, Event};
use crate::listen::hostname;
use profile::text::with_causes;
use proto::collector::access_service_server::AccessService;
use proto::collector::{
    AddUserRequest, AddUserResponse, AuditRequest, AuditResponse, ListUsersRequest,
    ListUsersResponse, OpenPageRequest, OpenPageResponse, RemoveUserRequest, RemoveUserResponse,
    Role as WireRole, User, VerifyAuditRequest, VerifyAuditResponse, WhoAmIRequest, WhoAmIResponse,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Largest request. Unit: bytes.
pub const REQUEST_BYTES_MAX: usize = 32 << 10;

/// Lines of the audit log in one message. Unit: bytes.
const LINES_BYTES: usize = 256 << 10;

/// Readers of the audit log at a time: each takes a thread that queries take too.
const READERS: usize = 1;

/// How long somebody who reads the log may take over a message.
const STALL: Duration = Duration::from_secs(30);

/// Answers those who ask about people.
#[derive(Clone)]
pub struct AccessAdmin {
    people: Option<Fleet>,
    page: PageAddress,
    audit: Audit,
    readers: Arc<Semaphore>,
}

/// Where the page is.
#[derive(Clone, Debug)]
pub struct PageAddress {
    /// As a browser opens it, without a path.
    pub url: String,
    /// Whether it asks for a login.
    pub asks: bool,
}

/// The state where users exist.
#[derive(Clone)]
struct Fleet {
    people: Arc<People>,
    id: String,
    listen: Option<String>,
}

impl AccessAdmin {
    /// Creates it for callers on this machine only.
    pub fn local(audit: Audit, page: PageAddress) -> AccessAdmin {
        AccessAdmin {
            people: None,
            page,
            audit,
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// For people of the fleet with this id, who ask at `listen` and look at `page`.
    pub fn new(
        people: Arc<People>,
        id: &str,
        listen: Option<String>,
        page: PageAddress,
    ) -> AccessAdmin {
        let audit = people.audit().clone();
        AccessAdmin {
            people: Some(Fleet {
                people,
                id: id.to_owned(),
                listen,
            }),
            ..AccessAdmin::local(audit, page)
        }
    }

    fn fleet(&self) -> Result<&Fleet, Status> {
        self.people.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this collector has no logins: it listens only for its own machine\nset \
                 `listen.tls` in its configuration (0.0.0.0:7601) and restart it",
            )
        })
    }

    /// A turn at the log.
    fn turn(&self) -> Result<tokio::sync::OwnedSemaphorePermit, Status> {
        let turn = self.readers.clone().try_acquire_owned();
        turn.map_err(|_| {
            Status::resource_exhausted(
                "another client is reading the audit log; try \
            again later",
            )
        })
    }
}

/// What is on record of somebody's doing.
///
/// # Errors
/// As [`Caller::of`].
pub fn event<T>(request: &Request<T>, action: &'static str) -> Result<Event, Status> {
    let peer = request.remote_addr().map(|peer| peer.to_string());
    let caller = Caller::of(request.extensions())?;
    Ok(caller.event(peer.unwrap_or_default(), action))
}

/// A call of a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Status::internal("the call failed in the collector"))
}

#[tonic::async_trait]
impl AccessService for AccessAdmin {
    type AuditStream = ReceiverStream<Result<AuditResponse, Status>>;

    async fn who_am_i(
        &self,
        request: Request<WhoAmIRequest>,
    ) -> Result<Response<WhoAmIResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let person = request.extensions().get::<Arc<Person>>();
        Ok(Response::new(WhoAmIResponse {
            name: caller.name.clone(),
            role: wire_role(caller.role).into(),
            scope: scope_text(&caller),
            expires_unix_s: person.map_or(0, |person| person.expires),
            fleet_id: self
                .people
                .as_ref()
                .map(|fleet| fleet.id.clone())
                .unwrap_or_default(),
        }))
    }

    async fn add_user(
        &self,
        request: Request<AddUserRequest>,
    ) -> Result<Response<AddUserResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("add a person")?;
        let fleet = self.fleet()?;
        let event = event(&request, "user-add")?;
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let role = role_of(asked.role())?;
        let new = NewPerson {
            name: asked.name,
            role,
            scope: asked.scope,
            lifetime_s: asked.lifetime_s,
            replace: asked.replace,
        };
        let event = event
            .with("name", new.name.as_str())
            .with("role", role.name())
            .with("scope", new.scope.as_str())
            .with("replace", new.replace);
        self.audit.record(event.clone().ended(BEGUN)).await?;
        let people = fleet.people.clone();
        let added = blocking(move || people.add(&new, &caller.name)).await?;
        let (credential, person) = added.map_err(|error| {
            let status = status(&error);
            self.audit.note(
                event
                    .clone()
                    .ended(&format!("failed: {}", status.message())),
            );
            status
        })?;
        tracing::info!(
            name = person.caller.name,
            role = role.name(),
            by = person.created_by,
            "person added"
        );
        self.audit
            .note(event.with("expires_unix_s", person.expires).ended(DONE));
        Ok(Response::new(AddUserResponse {
            token: credential.reveal_token(),
            user: Some(wire(&person, fleet.people.now())),
            listen: fleet.listen.clone().unwrap_or_default(),
            hostname: hostname(),
        }))
    }

    async fn list_users(
        &self,
        request: Request<ListUsersRequest>,
    ) -> Result<Response<ListUsersResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("list people")?;
        let people = &self.fleet()?.people;
        let now = people.now();
        let sessions = people.sessions_by_token();
        let tokens = people.list().into_iter().map(|person| User {
            sessions: sessions.get(&person.id()).copied().unwrap_or(0),
            ..wire(&person, now)
        });
        let signed_in = people.signed_in().into_iter();
        let signed_in = signed_in.map(|(person, used, sessions)| User {
            used_unix_s: used,
            sessions,
            signed_in: true,
            ..wire(&person, now)
        });
        let mut users: Vec<User> = tokens.chain(signed_in).collect();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Response::new(ListUsersResponse { users }))
    }

    async fn remove_user(
        &self,
        request: Request<RemoveUserRequest>,
    ) -> Result<Response<RemoveUserResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("remove somebody")?;
        let people = self.fleet()?.people.clone();
        let event = event(&request, "user-remove")?;
        let name = request.into_inner().name;
        let event = event.with("name", name.as_str());
        // A disk that takes no record keeps nobody in.
        self.audit.try_record(event.clone().ended(BEGUN)).await;
        let (own, named, now) = (people.clone(), name.clone(), people.now());
        let removed = blocking(move || own.remove(&named)).await?;
        let removed = removed.map_err(|error| {
            self.audit.note(event.clone().ended("failed"));
            status(&error)
        })?;
        match removed {
            Some(person) => {
                tracing::info!(name, "person removed");
                self.audit.note(event.ended(DONE));
                Ok(Response::new(RemoveUserResponse {
                    user: Some(wire(&person, now)),
                }))
            }
            None => {
                let text = format!("there is no person `{name}`");
                self.audit.note(event.ended(&format!("failed: {text}")));
                Err(Status::not_found(text))
            }
        }
    }

    async fn audit(
        &self,
        request: Request<AuditRequest>,
    ) -> Result<Response<Self::AuditStream>, Status> {
        Caller::of(request.extensions())?.sees_all("read the audit log")?;
        let turn = self.turn()?;
        self.audit.note(event(&request, "audit-read")?);
        let asked = request.into_inner();
        let audit = self.audit.clone();
        let (tx, rx) = mpsc::channel(1);
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut piece = Piece {
                lines: Vec::new(),
                bytes: 0,
                to: tx,
                runtime,
            };
            let limit = usize::try_from(asked.limit).unwrap_or(usize::MAX);
            let read = audit.lines(asked.since_unix_ns, limit, &mut |line| piece.add(line));
            match read {
                Ok(()) => {
                    piece.send();
                }
                Err(error) => piece.fail(&format!("failed to read the audit log: {error}")),
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn open_page(
        &self,
        request: Request<OpenPageRequest>,
    ) -> Result<Response<OpenPageResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let url = &self.page.url;
        if !self.page.asks {
            return Ok(Response::new(OpenPageResponse {
                url: format!("{url}/"),
                lifetime_s: 0,
            }));
        }
        let person = request.extensions().get::<Arc<Person>>();
        // One for nobody by name is an admin's: whoever is on this machine, and nobody else.
        if person.is_none() && caller.name != LOCAL {
            return Err(Status::permission_denied(
                "only people with a token can get a link",
            ));
        }
        let link = self.fleet()?.people.link(person)?;
        self.audit.note(event(&request, "page-link")?);
        Ok(Response::new(OpenPageResponse {
            url: format!("{url}/login#once={link}"),
            lifetime_s: u32::try_from(LINK_LASTS.as_secs()).unwrap_or(0),
        }))
    }

    async fn verify_audit(
        &self,
        request: Request<VerifyAuditRequest>,
    ) -> Result<Response<VerifyAuditResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("verify the audit log")?;
        let turn = self.turn()?;
        let audit = self.audit.clone();
        let verified = blocking(move || {
            let _turn = turn;
            audit.verify()
        })
        .await?;
        let found = verified.map_err(|error| {
            Status::unavailable(format!("failed to read the audit log: {error}"))
        })?;
        Ok(Response::new(VerifyAuditResponse {
            lines: found.lines,
            first_seq: found.first_seq,
            last_seq: found.last_seq,
            last_hash: found.last_hash,
            problems: found.problems,
        }))
    }
}

/// Lines on their way to somebody who reads.
struct Piece {
    lines: Vec<String>,
    bytes: usize,
    to: mpsc::Sender<Result<AuditResponse, Status>>,
    runtime: tokio::runtime::Handle,
}

impl Piece {
    /// False when nobody reads any more.
    fn add(&mut self, line: String) -> bool {
        self.bytes += line.len();
        self.lines.push(line);
        self.bytes < LINES_BYTES || self.send()
    }

    fn send(&mut self) -> bool {
        self.bytes = 0;
        let lines = std::mem::take(&mut self.lines);
        lines.is_empty() || self.put(Ok(AuditResponse { lines }))
    }

    fn fail(&mut self, why: &str) {
        self.put(Err(Status::unavailable(why)));
    }

    fn put(&self, message: Result<AuditResponse, Status>) -> bool {
        let sending = tokio::time::timeout(STALL, self.to.send(message));
        matches!(self.runtime.block_on(sending), Ok(Ok(())))
    }
}

fn role_of(role: WireRole) -> Result<Role, Status> {
    match role {
        WireRole::Sender => Ok(Role::Sender),
        WireRole::Metrics => Ok(Role::Metrics),
        WireRole::Viewer => Ok(Role::Viewer),
        WireRole::Operator => Ok(Role::Operator),
        WireRole::Admin => Ok(Role::Admin),
        WireRole::Unspecified => Err(Status::invalid_argument(
            "the role is missing: give `sender`, `metrics`, `viewer`, `operator` or `admin`",
        )),
    }
}

fn wire_role(role: Role) -> WireRole {
    match role {
        Role::Sender => WireRole::Sender,
        Role::Metrics => WireRole::Metrics,
        Role::Viewer => WireRole::Viewer,
        Role::Operator => WireRole::Operator,
        Role::Admin => WireRole::Admin,
    }
}

fn scope_text(caller: &Caller) -> String {
    let scope = caller.scope.as_ref();
    scope.map(|scope| scope.text.clone()).unwrap_or_default()
}

fn wire(person: &Person, now: i64) -> User {
    User {
        name: person.caller.name.clone(),
        role: wire_role(person.caller.role).into(),
        scope: scope_text(&person.caller),
        created_by: person.created_by.clone(),
        created_unix_s: person.created,
        expires_unix_s: person.expires,
        used_unix_s: person.used(),
        expired: person.expires <= now,
        sessions: 0,
        signed_in: false,
    }
}

fn status(error: &AccessError) -> Status {
    match error {
        AccessError::Taken(_) => Status::already_exists(error.to_string()),
        AccessError::Invalid(_) => Status::invalid_argument(error.to_string()),
        AccessError::Full => Status::resource_exhausted(error.to_string()),
        AccessError::Store(_) | AccessError::Random => {
            // Logs the error, and hides it from the caller.
            tracing::error!("{}", with_causes(error));
            Status::internal("the collector failed to store this; see its log")
        }
    }
}
