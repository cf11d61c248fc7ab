//! Saved views and snapshots: who sees and deletes them, and that a snapshot outlives its data.

use crate::incidents::{in_dir, profile, restarted, selection};
use crate::rig::{Options, Rig};
use crate::web::get;
use collector::access::{Caller, Role, Scope};
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::save_view_request::Snapshot;
use proto::collector::view_service_client::ViewServiceClient;
use proto::collector::view_service_server::ViewService;
use proto::collector::{self as wire, SavedView};
use std::sync::Arc;
use tonic::transport::Channel;
use tonic::{Code, Request};

const ADDRESS: &str = "#view=profile&query=unit%3D%22web.service%22";

async fn client(rig: &Rig) -> ViewServiceClient<Channel> {
    ViewServiceClient::new(rig.channel().await)
}

fn view(name: &str, snapshot: Option<Snapshot>) -> wire::SaveViewRequest {
    wire::SaveViewRequest {
        name: name.to_owned(),
        address: ADDRESS.to_owned(),
        snapshot,
    }
}

async fn listed(client: &mut ViewServiceClient<Channel>) -> Vec<SavedView> {
    let answer = client.list(wire::ListViewsRequest {}).await;
    answer.expect("a list").into_inner().views
}

/// Somebody with a role, and a scope unless that is empty.
fn somebody(name: &str, role: Role, scope: &str) -> Arc<Caller> {
    Arc::new(Caller {
        name: name.to_owned(),
        role,
        scope: (!scope.is_empty()).then(|| Scope::parse(scope).expect("a scope")),
    })
}

fn by<T>(caller: &Arc<Caller>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller.clone());
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_outlives_a_restart_and_the_data_it_was_copied_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(in_dir(dir.path())).await;
    rig.sampled("web-1").await;
    let mut asks = client(&rig).await;
    asks.save(view("api now", None)).await.expect("saved");
    let of = selection("unit=\"web.service\"");
    let diff = wire::IncidentDiff {
        before: Some(of.clone()),
        after: Some(of),
    };
    let saved = asks
        .save(view("api then", Some(Snapshot::Diff(diff))))
        .await;
    saved.expect("a snapshot");
    let before = listed(&mut asks).await;
    let names: Vec<&str> = before.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(names, ["api then", "api now"], "the newest first");
    assert_eq!(
        (before[0].address.as_str(), before[0].by.as_str()),
        (ADDRESS, "local")
    );
    assert_eq!(before[1].snapshot, None);
    rig.stop.send(true).expect("it listens");
    drop(rig);
    // A new store: nothing of the samples is there any more.
    let rig = restarted(Arc::default(), || in_dir(dir.path())).await;
    let mut asks = client(&rig).await;
    assert_eq!(listed(&mut asks).await, before);
    let evidence = before[0].snapshot.as_ref().expect("a snapshot").id;
    let mut incidents = IncidentServiceClient::new(rig.channel().await);
    for baseline in [false, true] {
        let kept = profile(&mut incidents, evidence, baseline).await;
        assert_eq!(kept.expect("kept").total().count, 1);
    }
    let path = format!("/api/evidence.folded?id={evidence}");
    assert!(get(&rig, &path).await.text().contains("main;read"));
    let id = before[0].id;
    let deleted = asks.delete(wire::DeleteViewRequest { id }).await;
    deleted.expect("deleted");
    assert_eq!(listed(&mut asks).await.len(), 1);
    assert_eq!(
        get(&rig, &path).await.status,
        404,
        "its profiles went with it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_whose_view_was_never_saved_is_removed_at_the_next_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(in_dir(dir.path())).await;
    rig.sampled("web-1").await;
    let mut asks = client(&rig).await;
    for name in ["kept", "lost"] {
        let of = Snapshot::View(selection("unit=\"web.service\""));
        asks.save(view(name, Some(of))).await.expect("a snapshot");
    }
    let views = listed(&mut asks).await;
    let evidence = |at: usize| views[at].snapshot.as_ref().expect("a snapshot").id;
    let (lost, kept) = (evidence(0), evidence(1));
    rig.stop.send(true).expect("it listens");
    drop(rig);
    // As if the collector had been killed before it saved the view.
    let path = dir.path().join("incidents.sqlite");
    let database = rusqlite::Connection::open(path).expect("opened");
    let gone = database.execute("DELETE FROM views WHERE name = 'lost'", []);
    assert_eq!(gone, Ok(1));
    drop(database);
    let rig = restarted(Arc::default(), || in_dir(dir.path())).await;
    assert_eq!(listed(&mut client(&rig).await).await.len(), 1);
    let folded = async |id| {
        let path = format!("/api/evidence.folded?id={id}");
        get(&rig, &path).await.status
    };
    assert_eq!((folded(lost).await, folded(kept).await), (404, 200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_whose_file_stays_is_not_said_to_be_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(in_dir(dir.path())).await;
    rig.sampled("web-1").await;
    let mut asks = client(&rig).await;
    let of = Snapshot::View(selection("unit=\"web.service\""));
    asks.save(view("then", Some(of))).await.expect("a snapshot");
    // A directory of that name cannot be removed as a file, whoever asks.
    let files = std::fs::read_dir(dir.path().join("evidence")).expect("a directory");
    let files = files.map(|file| file.expect("a file").path());
    let of_profiles = files.filter(|path| path.metadata().is_ok_and(|of| of.len() > 0));
    for file in of_profiles {
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("a directory");
    }
    let saved = listed(&mut asks).await;
    let id = saved[0].id;
    let refused = asks.delete(wire::DeleteViewRequest { id }).await;
    let refused = refused.expect_err("its file stays");
    let said = refused.message();
    assert!(
        said.starts_with("failed to delete the file of evidence `"),
        "{said}"
    );
    assert!(said.contains("directory"), "the reason: {said}");
    assert_eq!(listed(&mut asks).await.len(), 1);
    assert_eq!(rig.metrics.incidents_failed.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_delete_their_own_views_and_admins_all() {
    let rig = Rig::start().await;
    let anna = somebody("anna", Role::Operator, "");
    let ben = somebody("ben", Role::Operator, "");
    let admin = somebody("root", Role::Admin, "");
    for (deletes, may) in [(&ben, false), (&anna, true), (&admin, true)] {
        let saved = ViewService::save(&rig.incidents, by(&anna, view("mine", None))).await;
        let id = saved.expect("saved").into_inner().view.expect("a view").id;
        let asked = wire::DeleteViewRequest { id };
        let deleted = ViewService::delete(&rig.incidents, by(deletes, asked)).await;
        match may {
            true => _ = deleted.expect("deleted"),
            false => {
                let status = deleted.expect_err("of another");
                assert_eq!(status.code(), Code::PermissionDenied);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_sees_the_views_that_were_saved_with_it_alone() {
    let rig = Rig::start().await;
    let shop = somebody("eve", Role::Operator, "namespace=shop");
    let same = somebody("adam", Role::Operator, "namespace=shop");
    let other = somebody("mallory", Role::Operator, "namespace=pay");
    let saved = ViewService::save(&rig.incidents, by(&shop, view("shop", None))).await;
    let id = saved.expect("saved").into_inner().view.expect("a view").id;
    let all = ViewService::save(&rig.incidents, by(&Caller::local(), view("all", None))).await;
    all.expect("saved");
    for (who, names) in [
        (&same, &["shop"][..]),
        (&other, &[]),
        (&Caller::local(), &["all", "shop"]),
    ] {
        let listed = ViewService::list(&rig.incidents, by(who, wire::ListViewsRequest {})).await;
        let views = listed.expect("a list").into_inner().views;
        let seen: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(seen, names);
    }
    let asked = wire::DeleteViewRequest { id };
    let deleted = ViewService::delete(&rig.incidents, by(&other, asked)).await;
    assert_eq!(
        deleted.expect_err("not theirs to know").code(),
        Code::NotFound
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leads_elsewhere_or_has_no_samples_is_not_saved() {
    let rig = Rig::with(Options::default()).await;
    let mut asks = client(&rig).await;
    let at = |address: &str| wire::SaveViewRequest {
        address: address.to_owned(),
        ..view("x", None)
    };
    for wrong in [
        at("javascript:alert(1)"),
        at("https://evil.example"),
        at(""),
        view("", None),
        view("a\nb", None),
    ] {
        let status = asks.save(wrong).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let none = Snapshot::View(selection("unit=nobody"));
    let status = asks.save(view("x", Some(none))).await.expect_err("empty");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(listed(&mut asks).await, []);
}
