//! Links that log a browser in: what they do where somebody is logged in already.

use crate::login::{Reply, Site, with_https};
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{OpenPageRequest, Role};

/// What a browser sends that opens a link of whoever has this token.
async fn link(site: &Site, token: &str) -> String {
    let mut asking = AccessServiceClient::new(site.running.as_(token).await);
    let page = asking.open_page(OpenPageRequest {}).await;
    let url = page.expect("a link").into_inner().url;
    let (_, link) = url.split_once("#once=").expect("behind the fragment");
    format!("link {link}")
}

async fn log_in(site: &Site, session: &str, body: &str) -> Reply {
    site.ask("POST", "/api/login", session, body).await
}

async fn name(site: &Site, session: &str) -> String {
    let reply = site.get("/api/session", session).await;
    let who: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    who["name"].as_str().expect("a name").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_of_somebody_else_does_not_change_who_is_logged_in() {
    let site = Site::with(with_https).await;
    let anna = site.running.token("anna", Role::Viewer).await;
    let mallory = site.running.token("mallory", Role::Viewer).await;
    let own = link(&site, &anna).await;
    let session = log_in(&site, "", &own).await.cookie();
    let refused = log_in(&site, &session, &link(&site, &mallory).await).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.header("set-cookie").is_none(), "{refused:?}");
    let why = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(why.contains("`anna` is logged in here: log out"), "{why}");
    assert!(
        !why.contains("mallory"),
        "whose the link is stays unsaid: {why}"
    );
    assert_eq!(name(&site, &session).await, "anna");
    // One's own leaves everything as it is.
    let again = log_in(&site, &session, &link(&site, &anna).await).await;
    assert_eq!((again.status, again.header("set-cookie")), (204, None));
    assert_eq!(name(&site, &session).await, "anna");
    // Nobody is logged in after that.
    site.ask("POST", "/api/logout", &session, "").await;
    let session = log_in(&site, &session, &link(&site, &mallory).await).await;
    assert_eq!(name(&site, &session.cookie()).await, "mallory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_sees_whose_token_has_sessions() {
    let site = Site::with(with_https).await;
    let anna = site.running.token("anna", Role::Viewer).await;
    for _ in 0..2 {
        let reply = log_in(&site, "", &format!("token {anna}")).await;
        assert_eq!(reply.status, 204, "{reply:?}");
    }
    let users = site.running.users().await;
    let anna = users.iter().find(|user| user.name == "anna").expect("anna");
    assert_eq!((anna.sessions, anna.signed_in), (2, false));
}
