//! The table of who may make which call on listeners that authenticate people and hosts. A call
//! that is not in the table is rejected.

use super::Role;
use hyper::Method;
use tonic::Status;

/// The kind of caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Anybody.
    Stranger,
    /// A host with a certificate of the fleet that is no member here, or not any more.
    Removed,
    /// A host of the fleet.
    Host,
    /// Somebody with a token, a session, or a proxy's word.
    Person(Role),
}

/// Who may make the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    /// Everybody.
    Everybody,
    /// Hosts of the fleet.
    Hosts,
    /// People of this role and of those after it.
    People(Role),
    /// Senders of profiles, and admins.
    Senders,
}

use May::{Everybody, Hosts, People, Senders};
use Role::{Admin, Metrics, Operator, Sender, Viewer};

/// Calls by service, each with who may make it.
const CALLS: [(&str, &[(&str, May)]); 20] = [
    (
        "fleetprof.collector.v1.EnrollmentService",
        &[("Enroll", Everybody)],
    ),
    ("fleetprof.collector.v1.IngestService", &[("Push", Hosts)]),
    (
        "fleetprof.collector.v1.ControlService",
        &[("Control", Hosts)],
    ),
    (
        "fleetprof.collector.v1.PinUploadService",
        &[("Upload", Hosts)],
    ),
    (
        "fleetprof.collector.v1.QueryService",
        &[
            ("LabelNames", People(Viewer)),
            ("LabelValues", People(Viewer)),
            ("Series", People(Viewer)),
            ("Profile", People(Viewer)),
            ("Top", People(Viewer)),
            ("Diff", People(Viewer)),
            ("Hosts", People(Viewer)),
            ("Overview", People(Viewer)),
            ("Cgroups", People(Viewer)),
            ("ProfileTypes", People(Viewer)),
            ("Status", People(Viewer)),
        ],
    ),
    (
        "fleetprof.collector.v1.CaptureService",
        &[
            ("Capture", People(Operator)),
            ("Cancel", People(Operator)),
            ("List", People(Viewer)),
            ("Profile", People(Viewer)),
            ("Delete", People(Operator)),
        ],
    ),
    (
        "fleetprof.collector.v1.PinService",
        &[("List", People(Viewer)), ("Profile", People(Viewer))],
    ),
    (
        "fleetprof.collector.v1.AnnotationService",
        &[
            ("Add", People(Operator)),
            ("List", People(Viewer)),
            ("Delete", People(Operator)),
        ],
    ),
    (
        "fleetprof.collector.v1.AlertService",
        &[("List", People(Viewer))],
    ),
    (
        "fleetprof.collector.v1.IncidentService",
        &[
            ("Open", People(Operator)),
            ("List", People(Viewer)),
            ("Get", People(Viewer)),
            ("AddEntry", People(Operator)),
            ("Profile", People(Viewer)),
            ("SetState", People(Operator)),
            ("Delete", People(Admin)),
        ],
    ),
    (
        "fleetprof.collector.v1.ViewService",
        &[
            ("Save", People(Operator)),
            ("List", People(Viewer)),
            // Those of others: admins (`incidents/views.rs`).
            ("Delete", People(Operator)),
        ],
    ),
    (
        "fleetprof.collector.v1.SymbolService",
        &[("Upload", People(Operator)), ("List", People(Viewer))],
    ),
    (
        "fleetprof.collector.v1.FleetService",
        &[
            ("Invite", People(Admin)),
            ("ListMembers", People(Admin)),
            ("RemoveMember", People(Admin)),
            ("ListInvitations", People(Admin)),
            ("RevokeInvitation", People(Admin)),
        ],
    ),
    (
        "fleetprof.collector.v1.AccessService",
        &[
            ("WhoAmI", People(Metrics)),
            ("AddUser", People(Admin)),
            ("ListUsers", People(Admin)),
            ("RemoveUser", People(Admin)),
            ("Audit", People(Admin)),
            ("VerifyAudit", People(Admin)),
            ("OpenPage", People(Viewer)),
        ],
    ),
    (
        "querier.v1.QuerierService",
        &[
            ("ProfileTypes", People(Viewer)),
            ("LabelNames", People(Viewer)),
            ("LabelValues", People(Viewer)),
            ("Series", People(Viewer)),
            ("SelectSeries", People(Viewer)),
            ("SelectMergeStacktraces", People(Viewer)),
            ("SelectMergeSpanProfile", People(Viewer)),
            ("SelectMergeProfile", People(Viewer)),
            ("SelectHeatmap", People(Viewer)),
            ("Diff", People(Viewer)),
            ("GetProfileStats", People(Viewer)),
        ],
    ),
    ("settings.v1.SettingsService", &[("Get", People(Viewer))]),
    ("push.v1.PusherService", &[("Push", Senders)]),
    (
        "parca.profilestore.v1alpha1.ProfileStoreService",
        &[("WriteRaw", Senders)],
    ),
    (
        "opentelemetry.proto.collector.profiles.v1development.ProfilesService",
        &[("Export", Senders)],
    ),
    (
        "grpc.health.v1.Health",
        &[("Check", Everybody), ("Watch", Everybody)],
    ),
];

/// Paths of the page's listener that are no calls, each with the method and who may, where that
/// listener asks who it is. Whoever may get something may ask for its head alone.
static PATHS: [(Method, &str, May); 24] = [
    (Method::GET, "/healthz", Everybody),
    (Method::GET, "/login", Everybody),
    (Method::GET, "/login.js", Everybody),
    (Method::GET, "/login.css", Everybody),
    (Method::GET, "/login/oidc", Everybody),
    (Method::GET, "/login/oidc/callback", Everybody),
    (Method::GET, "/api/login", Everybody),
    (Method::POST, "/api/login", Everybody),
    (Method::POST, "/api/logout", Everybody),
    (Method::GET, "/api/session", People(Metrics)),
    (Method::GET, "/api/annotations", People(Viewer)),
    (Method::POST, "/api/annotations", People(Operator)),
    (Method::GET, "/api/alerts", People(Viewer)),
    (Method::GET, "/metrics", People(Metrics)),
    (Method::GET, "/api/profile.", People(Viewer)),
    (Method::GET, "/api/capture.", People(Viewer)),
    (Method::GET, "/api/pin.", People(Viewer)),
    (Method::GET, "/api/evidence.", People(Viewer)),
    (Method::GET, "/api/incident.", People(Viewer)),
    (Method::GET, "/pyroscope/render", People(Viewer)),
    (Method::GET, "/pyroscope/render-diff", People(Viewer)),
    (Method::POST, "/ingest", Senders),
    (Method::POST, "/pyroscope/ingest", Senders),
    (Method::POST, "/v1development/profiles", Senders),
];

/// Who may get the page, and the files that the program carries for it.
const PAGE: May = People(Viewer);

/// How calls start that read what is stored, for `audit.queries`.
pub const READS: [&str; 10] = [
    "/fleetprof.collector.v1.QueryService/",
    "/fleetprof.collector.v1.PinService/",
    "/fleetprof.collector.v1.CaptureService/Profile",
    "/fleetprof.collector.v1.AnnotationService/List",
    "/fleetprof.collector.v1.AlertService/List",
    "/fleetprof.collector.v1.IncidentService/Get",
    "/fleetprof.collector.v1.IncidentService/List",
    "/fleetprof.collector.v1.IncidentService/Profile",
    "/fleetprof.collector.v1.ViewService/List",
    "/querier.v1.QuerierService/",
];

/// How paths of Pyroscope's calls start, also of those that are not answered here: whoever makes
/// them hears so in the protocol they speak.
const PYROSCOPE: [&str; 7] = [
    "/querier.v1.",
    "/types.v1.",
    "/settings.v1.",
    "/vcs.v1.",
    "/adhocprofiles.v1.",
    "/capabilities.v1.",
    "/push.v1.",
];

/// True for the path of a call of Pyroscope's API, whether or not it is answered.
pub fn is_pyroscope_call(path: &str) -> bool {
    PYROSCOPE.iter().any(|start| path.starts_with(start))
}

/// True where a row of [`PATHS`] is of this path. One that ends in a dot is of files with any
/// ending.
fn is_of(row: &str, path: &str) -> bool {
    match row.strip_suffix('.') {
        Some(_) => path
            .strip_prefix(row)
            .is_some_and(|ending| !ending.contains('/')),
        None => row == path,
    }
}

/// Who may do what a request over HTTP asks for; none: nobody may. `is_page`: the program carries a
/// file of the page for this path.
fn web_may(method: &Method, path: &str, is_page: bool) -> Option<May> {
    let method = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let mut rows = PATHS.iter();
    if let Some((_, _, may)) = rows.find(|(own, row, _)| own == method && is_of(row, path)) {
        return Some(*may);
    }
    (method == Method::GET && is_page).then_some(PAGE)
}

/// The rows of paths that are no calls, each with its method.
pub fn web_rows() -> impl Iterator<Item = (&'static Method, &'static str)> {
    PATHS.iter().map(|(method, path, _)| (method, *path))
}

/// Why a request over HTTP is refused: unknown callers may log in, known ones may not. None when it
/// is not. What has no row is nobody's, but for files of the page (`is_page`).
pub fn web_refusal((method, path): (&Method, &str), is_page: bool, who: Who) -> Option<Status> {
    if path.starts_with("/fleetprof.") || is_pyroscope_call(path) {
        return refusal(path, who);
    }
    match (web_may(method, path, is_page), who) {
        (Some(Everybody), _) => None,
        (Some(People(least)), Who::Person(role)) if role >= least => None,
        (Some(People(least)), Who::Person(role)) => Some(Status::permission_denied(format!(
            "the role `{}` may not do this; `{}` may",
            role.name(),
            least.name()
        ))),
        (Some(Senders), Who::Person(Sender | Admin)) => None,
        (Some(Senders), Who::Person(role)) => Some(may_not_send(role)),
        (_, Who::Person(_)) => Some(Status::not_found("not found: the page is at /")),
        _ => Some(Status::unauthenticated("log in at /login, or send a token")),
    }
}

/// The row of a path; none: nobody may.
fn may(path: &str) -> Option<May> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let (_, methods) = CALLS.iter().find(|(name, _)| *name == service)?;
    let found = methods.iter().find(|(name, _)| *name == method);
    found.map(|(_, may)| *may)
}

/// Who may make the call with this path, as shown in the reference: `everybody`, `hosts`, or the
/// lowest role. `None`: nobody.
pub fn who_may(path: &str) -> Option<&'static str> {
    Some(match may(path)? {
        Everybody => "everybody",
        Hosts => "hosts",
        People(least) => least.name(),
        Senders => Sender.name(),
    })
}

fn may_not_send(role: Role) -> Status {
    Status::permission_denied(format!(
        "the role `{}` may not send profiles; `{}` may\nuse a token of its own for each sender \
         (`agent-ctl users add NAME --role sender`)",
        role.name(),
        Sender.name()
    ))
}

/// Why a call is refused; none when it is not.
pub fn refusal(path: &str, who: Who) -> Option<Status> {
    match (may(path), who) {
        (Some(Everybody), _) | (Some(Hosts), Who::Host) => None,
        (Some(People(least)), Who::Person(role)) if role >= least => None,
        (Some(People(least)), Who::Person(role)) => Some(Status::permission_denied(format!(
            "the role `{}` may not do this; `{}` may\nask an administrator of the collector for \
             that role",
            role.name(),
            least.name()
        ))),
        (Some(Senders), Who::Person(Sender | Admin)) => None,
        (Some(Senders), Who::Person(role)) => Some(may_not_send(role)),
        (found, Who::Person(_)) => Some(match found {
            Some(_) => Status::permission_denied(
                "this call is only for hosts of the fleet, with their certificates",
            ),
            None => Status::unimplemented("this collector has no such call"),
        }),
        (_, Who::Host) => Some(Status::permission_denied(
            "a host of the fleet may not call this; people use their own token (`agent-ctl login`)",
        )),
        (_, Who::Removed) => Some(Status::unauthenticated(
            "this host is not a member here: it was removed, or joined another collector of the \
             same authority\ninvite it at this collector (`agent-ctl hosts invite`)",
        )),
        (_, Who::Stranger) => Some(Status::unauthenticated(
            "a certificate or token is needed: hosts join the fleet (`agent-ctl join`), people log \
             in (`agent-ctl login`)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::FileDescriptorSet;
    use proto::DESCRIPTORS;
    use std::collections::BTreeSet;
    use tonic::Code;

    /// Every caller there is.
    const ALL: [Who; 8] = [
        Who::Stranger,
        Who::Removed,
        Who::Host,
        Who::Person(Sender),
        Who::Person(Metrics),
        Who::Person(Viewer),
        Who::Person(Operator),
        Who::Person(Admin),
    ];

    /// Every call of the protocol that a collector answers.
    fn calls() -> BTreeSet<String> {
        let set: FileDescriptorSet = prost::Message::decode(DESCRIPTORS).expect("descriptors");
        let mut calls = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                // The agent's own services, which no collector has.
                if name.starts_with("fleetprof.agent.v1.") {
                    continue;
                }
                let methods = service.method.iter();
                calls.extend(methods.map(|method| format!("/{name}/{}", method.name())));
            }
        }
        calls
    }

    #[test]
    fn every_call_of_the_protocol_has_a_row_and_every_row_a_call() {
        let rows: BTreeSet<String> = CALLS
            .iter()
            .filter(|(service, _)| service.starts_with("fleetprof."))
            .flat_map(|(service, methods)| {
                let name = move |(method, _): &(&str, May)| format!("/{service}/{method}");
                methods.iter().map(name)
            })
            .collect();
        let calls = calls();
        assert!(calls.len() > 25, "{} calls", calls.len());
        assert_eq!(calls, rows, "decide who may make a call before it is there");
    }

    #[test]
    fn the_reference_has_every_path() {
        let page =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/http-api.md");
        let page = std::fs::read_to_string(page).expect("the reference");
        for (_, path, _) in &PATHS {
            let told = [format!(" {path}"), format!("`{path}")];
            assert!(
                told.iter().any(|one| page.contains(one)),
                "{path} is not there"
            );
        }
    }

    #[test]
    fn the_page_is_for_viewers() {
        for (method, is_open) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::POST, false),
        ] {
            let may = |who| web_refusal((&method, "/index.html"), true, who).is_none();
            assert!(!may(Who::Stranger) && !may(Who::Host));
            assert!(!may(Who::Person(Metrics)));
            assert_eq!(may(Who::Person(Viewer)), is_open);
            assert_eq!(may(Who::Person(Admin)), is_open);
        }
    }

    #[test]
    fn each_role_may_what_those_before_it_may_and_no_host_may_what_people_may() {
        for path in calls() {
            let may: Vec<bool> = ALL.map(|who| refusal(&path, who).is_none()).to_vec();
            let (others, people) = may.split_at(3);
            assert!(people.is_sorted(), "{path}: {people:?}");
            let open = path.contains("EnrollmentService");
            assert_eq!(others[0], open, "{path}");
            assert_eq!(others[1], open, "{path}");
            let admins = people[4];
            assert!(!others[2] || !admins || open, "{path}");
            assert!(others[2] || admins, "{path}: nobody may");
        }
    }

    #[test]
    fn a_sender_may_send_and_nothing_else() {
        let sender = Who::Person(Sender);
        for path in calls().iter().filter(|path| !path.contains("Enrollment")) {
            assert!(refusal(path, sender).is_some(), "{path}");
        }
        let push = "/push.v1.PusherService/Push";
        for who in ALL {
            let may = matches!(who, Who::Person(Sender | Admin));
            assert_eq!(refusal(push, who).is_none(), may, "{who:?}");
            for (method, path, row) in &PATHS {
                let may = match row {
                    Everybody => true,
                    Senders => may,
                    _ if who == sender => false,
                    _ => continue,
                };
                let found = web_refusal((method, path), false, who).is_none();
                assert_eq!(found, may, "{who:?} {method} {path}");
            }
        }
    }

    #[test]
    fn who_may_what_is_what_the_guide_says() {
        let least = |path: &str| {
            let who = ALL
                .into_iter()
                .find(|who| refusal(&format!("/fleetprof.collector.v1.{path}"), *who).is_none());
            who.expect("somebody may")
        };
        for (path, expected) in [
            ("EnrollmentService/Enroll", Who::Stranger),
            ("IngestService/Push", Who::Host),
            ("ControlService/Control", Who::Host),
            ("PinUploadService/Upload", Who::Host),
            ("AccessService/WhoAmI", Who::Person(Metrics)),
            ("QueryService/Profile", Who::Person(Viewer)),
            ("CaptureService/List", Who::Person(Viewer)),
            ("CaptureService/Profile", Who::Person(Viewer)),
            ("CaptureService/Delete", Who::Person(Operator)),
            ("CaptureService/Capture", Who::Person(Operator)),
            ("CaptureService/Cancel", Who::Person(Operator)),
            ("PinService/List", Who::Person(Viewer)),
            ("PinService/Profile", Who::Person(Viewer)),
            ("AnnotationService/List", Who::Person(Viewer)),
            ("AnnotationService/Add", Who::Person(Operator)),
            ("AnnotationService/Delete", Who::Person(Operator)),
            ("SymbolService/Upload", Who::Person(Operator)),
            ("IncidentService/Profile", Who::Person(Viewer)),
            ("IncidentService/AddEntry", Who::Person(Operator)),
            ("IncidentService/Delete", Who::Person(Admin)),
            ("ViewService/Save", Who::Person(Operator)),
            ("ViewService/List", Who::Person(Viewer)),
            ("FleetService/ListMembers", Who::Person(Admin)),
            ("FleetService/Invite", Who::Person(Admin)),
            ("AccessService/AddUser", Who::Person(Admin)),
            ("AccessService/Audit", Who::Person(Admin)),
        ] {
            assert_eq!(least(path), expected, "{path}");
        }
    }

    #[test]
    fn paths_are_for_viewers_but_for_the_login_health_and_metrics() {
        let may = |path, who| web_refusal((&Method::GET, path), false, who).is_none();
        for path in ["/healthz", "/login", "/login.js", "/login.css"] {
            assert!(may(path, Who::Stranger), "{path}");
        }
        for path in ["/metrics", "/api/session"] {
            assert!(
                !may(path, Who::Stranger) && may(path, Who::Person(Metrics)),
                "{path}"
            );
        }
        for path in [
            "/api/profile.folded",
            "/api/capture.folded",
            "/api/pin.folded",
            "/api/annotations",
            "/fleetprof.collector.v1.QueryService/Profile",
        ] {
            assert!(!may(path, Who::Stranger) && !may(path, Who::Host), "{path}");
            assert!(!may(path, Who::Person(Metrics)), "{path}");
            assert!(may(path, Who::Person(Viewer)), "{path}");
        }
        let capture = "/fleetprof.collector.v1.CaptureService/Capture";
        assert!(!may(capture, Who::Person(Viewer)) && may(capture, Who::Person(Operator)));
        let adds = |who| web_refusal((&Method::POST, "/api/annotations"), false, who).is_none();
        assert!(!adds(Who::Person(Viewer)) && adds(Who::Person(Operator)));
        let head = |who| web_refusal((&Method::HEAD, "/metrics"), false, who).is_none();
        assert!(!head(Who::Stranger) && head(Who::Person(Metrics)));
    }

    #[test]
    fn a_path_without_a_row_is_for_nobody() {
        for path in [
            "",
            "*",
            "/api",
            "/api/",
            "/api/other",
            "/api/profile",
            "/api/profile.folded/x",
            "/api/%70rofile.folded",
            "/api/annotations/",
            "/assets/",
            "/assets/app-1a2b3c4d.js",
            "/other",
            "//healthz",
            "/healthz/",
            "/HEALTHZ",
            "/login/../metrics",
            "/grpc.health.v1.Health/Check",
        ] {
            for who in ALL {
                let refused = web_refusal((&Method::GET, path), false, who);
                let code = refused.map(|status| status.code());
                let expected = match who {
                    Who::Person(_) => Code::NotFound,
                    _ => Code::Unauthenticated,
                };
                assert_eq!(code, Some(expected), "{path} {who:?}");
            }
        }
    }

    #[test]
    fn a_row_is_of_its_method_alone() {
        let methods = [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];
        for method in methods {
            for (_, path, _) in &PATHS {
                let is_row = |(own, row, _): &(Method, &str, May)| *own == method && row == path;
                if !PATHS.iter().any(is_row) {
                    let refused = web_refusal((&method, path), false, Who::Person(Admin));
                    assert!(refused.is_some(), "{method} {path}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_call_of_ours_is_refused() {
        for path in [
            "/",
            "",
            "/fleetprof.collector.v1.IngestService",
            "/fleetprof.collector.v1.IngestService/",
            "/fleetprof.collector.v1.IngestService/Push/x",
            "//fleetprof.collector.v1.IngestService/Push",
            "/fleetprof.collector.v1.IngestServiceX/Push",
            "/fleetprof.collector.v1.QueryService/profile",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.health.v1.Health/Other",
            "/metrics",
        ] {
            for who in ALL {
                assert!(refusal(path, who).is_some(), "{path} {who:?}");
            }
            // Nobody else may make it either.
            let told = refusal(path, Who::Person(Admin)).expect("refused");
            assert_eq!(told.code(), tonic::Code::Unimplemented, "{path}");
        }
    }
}
