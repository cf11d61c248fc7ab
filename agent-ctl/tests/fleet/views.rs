//! Tests saved views of a collector's page: what is saved, and how they are listed.

use super::{empty, json, refused, sound};

#[test]
fn views_are_listed_for_people_and_scripts() {
    let running = sound();
    let ended = running.ask(&["views"]);
    assert!(ended.out.contains("api\\x1b[2J"), "{}", ended.all());
    let found = json(&running.ask(&["views", "--json"]));
    assert_eq!(found["views"][0]["address"], "#view=profile");
    let none = empty().ask(&["views"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""), "{}", none.all());
    assert!(none.err.contains("no saved views"), "{}", none.all());
}

#[test]
fn an_address_is_saved_from_its_hash_on() {
    let running = sound();
    let page = "https://profiles.example.net/#view=profile&by=host";
    let ended = running.ask(&["views", "save", "by host", page]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(ended.err.contains("view 3 saved"), "{}", ended.all());
    let saved = running.calls("save_view");
    assert_eq!(saved, ["`by host` #view=profile&by=host nothing"]);
}

#[test]
fn a_snapshot_has_its_profiles_and_an_address_with_fixed_times() {
    let running = sound();
    let keep = |more: &[&str]| {
        let args = [
            "views",
            "snapshot",
            "noon",
            "--selector",
            "unit=\"a\"",
            "--since",
            "30m",
        ];
        let ended = running.ask(&[&args, more].concat());
        assert_eq!(ended.out, "#view=views&saved=3\n", "{}", ended.all());
        running.calls("save_view").pop().expect("a call")
    };
    assert_eq!(
        keep(&[]),
        "`noon` #view=profile&from=2026-11-21T13:30:00Z&to=2026-11-21T14:00:00Z\
         &query=unit%3D%22a%22 view `unit=\"a\"` 1800..0"
    );
    let both = keep(&["--baseline", "previous"]);
    assert!(both.starts_with("`noon` #view=compare&"), "{both}");
    assert!(
        both.contains("&bfrom=2026-11-21T13:00:00Z&bto=2026-11-21T13:30:00Z"),
        "{both}"
    );
    assert!(
        both.ends_with("diff `unit=\"a\"` 3600..1800 `unit=\"a\"` 1800..0"),
        "{both}"
    );
}

#[test]
fn each_view_to_delete_is_named() {
    let running = sound();
    assert_eq!(running.ask(&["views", "delete", "3", "5"]).code, 0);
    assert_eq!(running.calls("delete_view"), ["3", "5"]);
    refused(&running.ask(&["views", "delete"]), 2, "NUMBER");
}
