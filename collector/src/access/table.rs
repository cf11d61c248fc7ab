//! The table of who may make which call on listeners that authenticate people and hosts. A call
//! that is not in the table is rejected.

use super::Role;
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
}

use May::{Everybody, Hosts, People};
use Role::{Admin, Metrics, Operator, Viewer};

/// Calls by service, each with who may make it.
const CALLS: [(&str, &[(&str, May)]); 12] = [
    (
        "fleetprof.collector.v1.EnrollmentService",
        &[("Enroll", Everybody)],
    ),
    ("fleetprof.collector.v1.IngestService", &[("Push", Hosts)]),
    (
        "fleetprof.collector.v1.ControlService",
        &[("Control", Hosts)],
    ),
    ("fleetprof.collector.v1.EvidenceService", &[("Keep", Hosts)]),
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
        "grpc.health.v1.Health",
        &[("Check", Everybody), ("Watch", Everybody)],
    ),
];

/// Paths of the page's listener, where that asks who it is, that are no calls.
const PATHS: [(&str, May); 13] = [
    ("/healthz", Everybody),
    ("/login", Everybody),
    ("/login.js", Everybody),
    ("/login.css", Everybody),
    ("/login/oidc", Everybody),
    ("/login/oidc/callback", Everybody),
    ("/api/login", Everybody),
    ("/api/logout", Everybody),
    ("/api/session", People(Metrics)),
    // To read them; whoever adds one is asked for more (`web/annotations.rs`).
    ("/api/annotations", People(Viewer)),
    ("/metrics", People(Metrics)),
    ("/", People(Viewer)),
    ("/index.html", People(Viewer)),
];

/// How calls start that read what is stored, for `audit.queries`.
pub const READS: [&str; 4] = [
    "/fleetprof.collector.v1.QueryService/",
    "/fleetprof.collector.v1.PinService/",
    "/fleetprof.collector.v1.CaptureService/Profile",
    "/fleetprof.collector.v1.AnnotationService/List",
];

/// Starts of paths: downloads, and the page's own files.
const FOLDERS: [(&str, May); 4] = [
    ("/api/capture.", People(Viewer)),
    ("/api/profile.", People(Viewer)),
    ("/api/pin.", People(Viewer)),
    ("/assets/", People(Viewer)),
];

/// Why a request over HTTP is refused: unknown callers may log in, known ones may not. None when it
/// is not.
pub fn web_refusal(path: &str, who: Who) -> Option<Status> {
    if path.starts_with("/fleetprof.") {
        return refusal(path, who);
    }
    let row = PATHS.iter().find(|(own, _)| *own == path);
    let row = row.or_else(|| FOLDERS.iter().find(|(own, _)| path.starts_with(own)));
    // Anything else is a file of the page, or does not exist.
    let may = row.map_or(People(Viewer), |(_, may)| *may);
    match (may, who) {
        (Everybody, _) => None,
        (People(least), Who::Person(role)) if role >= least => None,
        (People(least), Who::Person(role)) => Some(Status::permission_denied(format!(
            "the role `{}` may not do this; `{}` may",
            role.name(),
            least.name()
        ))),
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
    })
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

    /// Every caller there is.
    const ALL: [Who; 7] = [
        Who::Stranger,
        Who::Removed,
        Who::Host,
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
            .filter(|(service, _)| *service != "grpc.health.v1.Health")
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
        let paths = PATHS.iter().filter(|(path, _)| *path != "/index.html");
        let folders = FOLDERS.iter().filter(|(folder, _)| *folder != "/assets/");
        for (path, _) in paths.chain(folders) {
            let told = [format!(" {path}"), format!("`{path}")];
            assert!(
                told.iter().any(|one| page.contains(one)),
                "{path} is not there"
            );
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
            assert!(!others[2] || !people[3] || open, "{path}");
            assert!(others[2] || people[3], "{path}: nobody may");
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
            ("EvidenceService/Keep", Who::Host),
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
            ("FleetService/ListMembers", Who::Person(Admin)),
            ("FleetService/Invite", Who::Person(Admin)),
            ("AccessService/AddUser", Who::Person(Admin)),
            ("AccessService/Audit", Who::Person(Admin)),
        ] {
            assert_eq!(least(path), expected, "{path}");
        }
    }

    #[test]
    fn paths_of_the_page_are_for_viewers_but_for_the_login_and_health() {
        let may = |path, who| web_refusal(path, who).is_none();
        for path in [
            "/healthz",
            "/login",
            "/login.js",
            "/login.css",
            "/api/login",
        ] {
            assert!(may(path, Who::Stranger), "{path}");
        }
        for path in ["/metrics", "/api/session"] {
            assert!(
                !may(path, Who::Stranger) && may(path, Who::Person(Metrics)),
                "{path}"
            );
        }
        for path in [
            "/",
            "/index.html",
            "/assets/app-1a2b3c4d.js",
            "/api/profile.folded",
            "/api/capture.folded",
            "/api/pin.folded",
            "/api/annotations",
            "/api/other",
            "/other",
            "//healthz",
            "/healthz/",
            "/login/../metrics",
            "/fleetprof.collector.v1.QueryService/Profile",
        ] {
            assert!(!may(path, Who::Stranger) && !may(path, Who::Host), "{path}");
            assert!(!may(path, Who::Person(Metrics)), "{path}");
            assert!(may(path, Who::Person(Viewer)), "{path}");
        }
        let capture = "/fleetprof.collector.v1.CaptureService/Capture";
        assert!(!may(capture, Who::Person(Viewer)) && may(capture, Who::Person(Operator)));
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
