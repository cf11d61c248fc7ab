//! Who may ask for which path of the page's listener, and make which call there, by token and by
//! session.

use super::roles::{calls, is_pyroscope, least};
use super::{ROLES, may};
use crate::login::{Reply, Site, with_https};
use proto::collector::{AddUserRequest, Role};
use std::path::Path;

/// Every path, with the least role that may ask for it; none: everybody.
const PATHS: [(&str, &str, Option<Role>); 25] = [
    ("GET", "/healthz", None),
    ("GET", "/login", None),
    ("GET", "/login.js", None),
    ("GET", "/login.css", None),
    ("GET", "/login/oidc", None),
    ("GET", "/login/oidc/callback", None),
    ("GET", "/api/login", None),
    ("POST", "/api/login", None),
    ("POST", "/api/logout", None),
    ("GET", "/api/session", Some(Role::Metrics)),
    ("GET", "/metrics", Some(Role::Metrics)),
    ("HEAD", "/metrics", Some(Role::Metrics)),
    ("GET", "/", Some(Role::Viewer)),
    ("GET", "/index.html", Some(Role::Viewer)),
    ("GET", "/api/annotations", Some(Role::Viewer)),
    ("GET", "/api/alerts", Some(Role::Viewer)),
    ("POST", "/api/annotations", Some(Role::Operator)),
    ("GET", "/api/profile.folded", Some(Role::Viewer)),
    ("GET", "/api/capture.folded", Some(Role::Viewer)),
    ("GET", "/api/pin.folded", Some(Role::Viewer)),
    ("GET", "/api/evidence.folded", Some(Role::Viewer)),
    ("GET", "/api/incident.md", Some(Role::Viewer)),
    ("POST", "/ingest", Some(Role::Sender)),
    ("POST", "/pyroscope/ingest", Some(Role::Sender)),
    ("POST", "/v1development/profiles", Some(Role::Sender)),
];

/// What nobody may, whoever asks.
const NOBODYS: [(&str, &str); 10] = [
    ("GET", "/api/other"),
    ("GET", "/api/profile.folded/x"),
    ("GET", "/api/%70rofile.folded"),
    ("GET", "/assets/app-1a2b3c4d.js"),
    ("GET", "/other"),
    ("GET", "//metrics"),
    ("GET", "/login/../metrics"),
    ("POST", "/metrics"),
    ("DELETE", "/api/annotations"),
    ("PUT", "/"),
];

/// Somebody who asks.
struct Asks {
    role: Option<Role>,
    is_scoped: bool,
    /// What their requests carry.
    headers: String,
}

/// Nobody, and each role by token and by session; a viewer and an operator also with a scope.
async fn everybody(site: &Site) -> Vec<Asks> {
    let mut all = vec![Asks {
        role: None,
        is_scoped: false,
        headers: String::new(),
    }];
    let scoped = [(Role::Viewer, true), (Role::Operator, true)];
    for (role, is_scoped) in ROLES.map(|role| (role, false)).into_iter().chain(scoped) {
        let scope = if is_scoped { "team=\"web\"" } else { "" };
        let request = AddUserRequest {
            name: format!("{}-{is_scoped}", role.as_str_name()),
            role: role.into(),
            scope: scope.to_owned(),
            ..AddUserRequest::default()
        };
        let token = site.running.add(request).await;
        let session = site.log_in(&token).await;
        for headers in [
            format!("Authorization: Bearer {token}\r\n"),
            session.cookie(),
        ] {
            all.push(Asks {
                role: Some(role),
                is_scoped,
                headers,
            });
        }
    }
    all
}

/// Names of files that the program carries for the page.
fn page_files() -> Vec<String> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/dist");
    let Ok(assets) = std::fs::read_dir(dist.join("assets")) else {
        return Vec::new();
    };
    let names = assets.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| format!("/assets/{}", name.to_str().expect("UTF-8")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_is_open_to_the_roles_that_may_ask_for_it_and_to_nobody_else() {
    let site = Site::with(with_https).await;
    let mut paths = PATHS
        .map(|(method, path, least)| (method, path.to_owned(), least))
        .to_vec();
    let files = page_files().into_iter();
    paths.extend(files.map(|path| ("GET", path, Some(Role::Viewer))));
    for Asks {
        role,
        is_scoped,
        headers,
    } in everybody(&site).await
    {
        for (method, path, least) in &paths {
            // A logout would end the session.
            if path == "/api/logout" && headers.starts_with("Cookie") {
                continue;
            }
            let reply = site.ask(method, path, &headers, "").await;
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            let told = format!("{method} {path} {role:?} {is_scoped} {reply:?} {text}");
            match (least, role) {
                (Some(_), None) if *path == "/" || *path == "/index.html" => {
                    assert_eq!(
                        (reply.status, reply.header("location")),
                        (303, Some("/login"))
                    );
                }
                (Some(_), None) => assert_eq!(reply.status, 401, "{told}"),
                (Some(least), Some(role)) if !may(role, *least) => {
                    assert_eq!(reply.status, 403, "{told}");
                    assert!(*method == "HEAD" || text.contains("the role"), "{told}");
                }
                // The whole collector's, which a part of the fleet says nothing of.
                (Some(_), Some(_)) if is_scoped && path == "/metrics" => {
                    assert_eq!(reply.status, 403, "{told}");
                }
                _ => {
                    assert!(!text.contains("the role"), "{told}");
                    assert!(!text.contains("log in at"), "{told}");
                    let callback = path == "/login/oidc/callback";
                    let guess = (*method, path.as_str()) == ("POST", "/api/login");
                    let is_refusal = [401, 403, 405].contains(&reply.status);
                    assert!(callback || guess || !is_refusal, "{told}");
                }
            }
        }
        for (method, path) in NOBODYS {
            let reply = site.ask(method, path, &headers, "").await;
            let expected = if role.is_none() { 401 } else { 404 };
            assert_eq!(reply.status, expected, "{method} {path} {role:?} {reply:?}");
        }
    }
}

/// The status of a call of gRPC-Web: in the head, or behind the messages.
fn grpc_status(reply: &Reply) -> Option<u32> {
    if let Some(status) = reply.header("grpc-status") {
        return status.parse().ok();
    }
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    let (_, behind) = text.split_once("grpc-status:")?;
    behind.lines().next()?.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_page_is_open_to_the_roles_that_may_make_it_and_to_nobody_else() {
    const SERVED: [&str; 10] = [
        "PusherService",
        "QuerierService",
        "SettingsService",
        "ViewService",
        "QueryService",
        "CaptureService",
        "PinService",
        "AnnotationService",
        "AlertService",
        "IncidentService",
    ];
    let site = Site::with(with_https).await;
    let mut served = 0;
    for Asks {
        role,
        is_scoped,
        headers,
    } in everybody(&site).await
    {
        let headers = format!("{headers}Content-Type: application/grpc-web+proto\r\n");
        for path in calls() {
            // An empty message.
            let reply = site.ask("POST", &path, &headers, "\0\0\0\0\0").await;
            let status = grpc_status(&reply);
            let told = format!("{path} {role:?} {is_scoped} {reply:?}");
            if !path.starts_with("/fleetprof.") && !is_pyroscope(&path) {
                assert!([401, 404].contains(&reply.status), "{told}");
                continue;
            }
            let may = path.contains("EnrollmentService")
                || role.is_some_and(|role| least(&path).is_some_and(|least| may(role, least)));
            let is_served = SERVED.iter().any(|service| path.contains(service));
            match (role, may, is_served) {
                (None, false, _) => assert_eq!(status, Some(16), "{told}"),
                // The collector has no call of an agent.
                (Some(_), false, _) if path.starts_with("/fleetprof.agent.") => {
                    assert_eq!(status, Some(12), "{told}");
                }
                (Some(_), false, _) => assert_eq!(status, Some(7), "{told}"),
                // It is on other listeners alone.
                (_, true, false) => assert!(status.is_none() && reply.status >= 400, "{told}"),
                (_, true, true) => {
                    served += 1;
                    assert_eq!(reply.status, 200, "{told}");
                    assert!(status.is_some_and(|code| code != 16), "{told}");
                    assert!(is_scoped || status != Some(7), "{told}");
                }
            }
        }
    }
    assert!(served > 100, "{served}");
}
