//! Tests who becomes a member, who stays one, and who does not.

use super::*;

const NOW: i64 = 1_790_000_000;
const AUTHORITY: KeyHash = [9; 32];

struct Case {
    _dir: tempfile::TempDir,
    registry: Registry,
}

fn case() -> Case {
    let dir = tempfile::tempdir().expect("a directory");
    let registry = Registry::open(&dir.path().join("members.sqlite"), NOW).expect("opens");
    Case {
        _dir: dir,
        registry,
    }
}

impl Case {
    fn invite(&self, invitation: &Invitation) -> Credential {
        let made = self.registry.invite(invitation, AUTHORITY, NOW);
        made.expect("an invitation").0
    }

    fn enroll(
        &self,
        (host_id, hostname, key): (&str, &str, u8),
        credential: Option<&Credential>,
        now: i64,
    ) -> Result<(Arc<Member>, Enrolled), Refused> {
        let applicant = Applicant {
            host_id,
            hostname,
            key: [key; 32],
            credential,
        };
        self.registry.enroll(&applicant, now)
    }
}

#[test]
fn an_invited_host_becomes_a_member_under_the_name_it_says() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    let (member, outcome) = case
        .enroll(("a", "web-1", 1), Some(&credential), NOW)
        .expect("let in");
    assert_eq!(outcome, Enrolled::New);
    assert_eq!((member.name.as_str(), member.enrolled), ("web-1", NOW));
    assert!(case.registry.member("a", &[1; 32]).is_some());
    assert!(case.registry.member("a", &[2; 32]).is_none());
}

#[test]
fn an_invitation_gives_name_and_labels() {
    let case = case();
    let credential = case.invite(&Invitation {
        name: "db-7".to_owned(),
        labels: [("cluster".to_owned(), "eu".to_owned())].into(),
        ..Invitation::default()
    });
    let (member, _) = case
        .enroll(("a", "web-1", 1), Some(&credential), NOW)
        .expect("let in");
    assert_eq!(member.name, "db-7");
    assert_eq!(member.labels["cluster"], "eu");
}

#[test]
fn an_invitation_lets_one_host_in() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    case.enroll(("a", "a", 1), Some(&credential), NOW)
        .expect("let in");
    let second = case.enroll(("b", "b", 2), Some(&credential), NOW);
    assert!(matches!(second, Err(Refused::UsedUp)));
}

#[test]
fn a_reusable_invitation_lets_in_as_many_as_it_says() {
    let case = case();
    let credential = case.invite(&Invitation {
        hosts_max: 2,
        ..Invitation::default()
    });
    for (id, key) in [("a", 1), ("b", 2)] {
        case.enroll((id, id, key), Some(&credential), NOW)
            .expect("let in");
    }
    let third = case.enroll(("c", "c", 3), Some(&credential), NOW);
    assert!(matches!(third, Err(Refused::UsedUp)));
}

#[test]
fn an_invitation_ends() {
    let case = case();
    let credential = case.invite(&Invitation {
        lifetime_s: 60,
        ..Invitation::default()
    });
    let late = case.enroll(("a", "a", 1), Some(&credential), NOW + 60);
    assert!(matches!(late, Err(Refused::Expired)));
}

#[test]
fn a_wrong_secret_is_told_no_more_than_an_unknown_number() {
    let case = case();
    let mut credential = case.invite(&Invitation::default());
    credential.secret[0] ^= 1;
    let wrong = case.enroll(("a", "a", 1), Some(&credential), NOW);
    assert!(matches!(wrong, Err(Refused::Unknown)));
    credential.id[0] ^= 1;
    let unknown = case.enroll(("a", "a", 1), Some(&credential), NOW);
    assert!(matches!(unknown, Err(Refused::Unknown)));
    assert!(matches!(
        case.enroll(("a", "a", 1), None, NOW),
        Err(Refused::Unknown)
    ));
}

#[test]
fn a_known_key_renews_without_an_invitation_however_late() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    case.enroll(("a", "a", 1), Some(&credential), NOW)
        .expect("let in");
    let later = NOW + 400 * 86_400;
    let (_, outcome) = case.enroll(("a", "other", 1), None, later).expect("renews");
    assert_eq!(outcome, Enrolled::Renewed);
    assert_eq!(case.registry.members()[0].name, "a");
}

#[test]
fn an_answer_that_was_lost_costs_no_second_invitation() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    case.enroll(("a", "a", 1), Some(&credential), NOW)
        .expect("let in");
    case.enroll(("a", "a", 1), Some(&credential), NOW + 1)
        .expect("again");
}

#[test]
fn another_key_for_a_known_id_is_a_clone() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    case.enroll(("a", "a", 1), Some(&credential), NOW)
        .expect("let in");
    let second = case.invite(&Invitation::default());
    let clone = case.enroll(("a", "a", 2), Some(&second), NOW + 1000);
    assert!(matches!(clone, Err(Refused::Taken(_))));
    assert!(case.registry.member("a", &[1; 32]).is_some());
}

#[test]
fn an_invitation_may_let_a_host_come_back_with_another_key() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    let (before, _) = case
        .enroll(("a", "a", 1), Some(&credential), NOW)
        .expect("let in");
    let other = case.invite(&Invitation {
        name: "b".to_owned(),
        replaces: true,
        ..Invitation::default()
    });
    let refused = case.enroll(("a", "a", 2), Some(&other), NOW);
    assert!(matches!(refused, Err(Refused::Taken(_))));
    let replacing = case.invite(&Invitation {
        name: "a".to_owned(),
        replaces: true,
        ..Invitation::default()
    });
    case.enroll(("a", "a", 2), Some(&replacing), NOW)
        .expect("let in");
    assert!(*before.ended().borrow());
    assert!(case.registry.member("a", &[1; 32]).is_none());
    assert!(case.registry.member("a", &[2; 32]).is_some());
}

#[test]
fn an_instance_made_again_takes_its_place_when_the_old_one_is_gone() {
    let case = case();
    let credential = case.invite(&Invitation {
        hosts_max: 10,
        ..Invitation::default()
    });
    let again = |now| case.enroll(("node-1", "node-1", 2), Some(&credential), now);
    let (member, _) = case
        .enroll(("node-1", "node-1", 1), Some(&credential), NOW)
        .expect("let in");
    assert!(matches!(again(NOW + 10), Err(Refused::Taken(_))));
    let connection = member.ended();
    assert!(matches!(again(NOW + 1000), Err(Refused::Taken(_))));
    drop(connection);
    // Not by another line, however many hosts it lets in.
    let other = case.invite(&Invitation {
        hosts_max: 10,
        ..Invitation::default()
    });
    let stolen = case.enroll(("node-1", "node-1", 3), Some(&other), NOW + 1000);
    assert!(matches!(stolen, Err(Refused::Taken(_))));
    again(NOW + 1000).expect("let in");
}

#[test]
fn a_removed_host_does_not_come_back_by_a_line_from_before() {
    let case = case();
    let line = case.invite(&Invitation {
        hosts_max: 10,
        ..Invitation::default()
    });
    case.enroll(("a", "web", 1), Some(&line), NOW)
        .expect("let in");
    case.registry.remove("web", NOW + 1).expect("removes");
    for key in [1, 2] {
        let back = case.enroll(("a", "web", key), Some(&line), NOW + 2);
        assert!(matches!(back, Err(Refused::Taken(_))), "{key}");
    }
}

#[test]
fn an_invitation_and_a_removal_of_the_same_second_have_an_order() {
    let case = case();
    let reusable = Invitation {
        hosts_max: 10,
        ..Invitation::default()
    };
    let before = case.invite(&reusable);
    case.enroll(("a", "web", 1), Some(&before), NOW)
        .expect("let in");
    case.registry.remove("web", NOW).expect("removes");
    let back = case.enroll(("a", "web", 1), Some(&before), NOW);
    assert!(matches!(back, Err(Refused::Taken(_))));
    let after = case.invite(&reusable);
    case.enroll(("a", "web", 1), Some(&after), NOW)
        .expect("let in");
}

#[test]
fn neither_names_nor_keys_are_given_twice() {
    let case = case();
    let credential = case.invite(&Invitation {
        hosts_max: 10,
        ..Invitation::default()
    });
    case.enroll(("a", "web", 1), Some(&credential), NOW)
        .expect("let in");
    let name = case.enroll(("b", "web", 2), Some(&credential), NOW);
    assert!(matches!(name, Err(Refused::Taken(_))));
    let key = case.enroll(("b", "other", 1), Some(&credential), NOW);
    assert!(matches!(key, Err(Refused::Taken(_))));
    // Who was refused has used up nothing.
    for id in 2..=10 {
        let name = format!("host-{id}");
        case.enroll((&name, &name, id), Some(&credential), NOW)
            .expect("let in");
    }
}

#[test]
fn a_removed_host_is_out_until_it_is_invited_again() {
    let case = case();
    let credential = case.invite(&Invitation::default());
    let (member, _) = case
        .enroll(("a", "web", 1), Some(&credential), NOW)
        .expect("let in");
    let ended = member.ended();
    let removed = case.registry.remove("web", NOW).expect("removes");
    assert_eq!(removed.expect("was there").host_id, "a");
    assert!(*ended.borrow());
    assert!(case.registry.member("a", &[1; 32]).is_none());
    assert!(matches!(
        case.enroll(("a", "web", 1), None, NOW),
        Err(Refused::Unknown)
    ));
    let again = case.invite(&Invitation::default());
    case.enroll(("a", "web", 1), Some(&again), NOW)
        .expect("let in");
    assert!(case.registry.remove("nobody", NOW).expect("asks").is_none());
}

#[test]
fn members_are_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("members.sqlite");
    let labels: BTreeMap<_, _> = [("cluster".to_owned(), "a=b".to_owned())].into();
    {
        let registry = Registry::open(&path, NOW).expect("opens");
        let invitation = Invitation {
            labels: labels.clone(),
            hosts_max: 2,
            ..Invitation::default()
        };
        let (credential, _) = registry.invite(&invitation, AUTHORITY, NOW).expect("made");
        for (id, key) in [("a", 1), ("b", 2)] {
            let applicant = Applicant {
                host_id: id,
                hostname: id,
                key: [key; 32],
                credential: Some(&credential),
            };
            registry.enroll(&applicant, NOW).expect("let in");
        }
        registry.remove("b", NOW).expect("removes");
    }
    let registry = Registry::open(&path, NOW).expect("opens");
    let members = registry.members();
    assert_eq!(members.len(), 1);
    assert_eq!(
        (members[0].host_id.as_str(), &members[0].labels),
        ("a", &labels)
    );
    assert!(registry.member("a", &[1; 32]).is_some());
}

#[test]
fn what_cannot_be_an_invitation_is_refused() {
    let case = case();
    let refused = |invitation: &Invitation| {
        let made = case.registry.invite(invitation, AUTHORITY, NOW);
        matches!(made, Err(Refused::Invalid(_)))
    };
    let label = |name: &str, value: &str| Invitation {
        labels: [(name.to_owned(), value.to_owned())].into(),
        ..Invitation::default()
    };
    assert!(refused(&label("host", "db-1")));
    // A scope by these is about what runs on hosts.
    for of_samples in ["namespace", "unit", "pod.label/team", "comm", "pid"] {
        assert!(refused(&label(of_samples, "a")), "{of_samples}");
    }
    assert!(refused(&label("a", "")));
    assert!(refused(&label("a", "line\nbreak")));
    // It would turn the order of what is written after it.
    assert!(refused(&label("a", "x\u{202e}y")));
    assert!(refused(&label("a\u{202e}", "x")));
    assert!(refused(&label("__profile_type__", "x")));
    assert!(refused(&label("a", &"x".repeat(200))));
    assert!(refused(&Invitation {
        name: "one".to_owned(),
        hosts_max: 2,
        ..Invitation::default()
    }));
    assert!(refused(&Invitation {
        replaces: true,
        ..Invitation::default()
    }));
    assert!(refused(&Invitation {
        lifetime_s: u32::MAX,
        ..Invitation::default()
    }));
}

#[test]
fn names_of_removed_hosts_are_known_until_somebody_has_them() {
    let case = case();
    let removed = |since| {
        let names = case.registry.removed_since(since).expect("reads");
        names.into_iter().collect::<Vec<_>>()
    };
    for (id, key) in [("a", 1), ("b", 2)] {
        let credential = case.invite(&Invitation::default());
        case.enroll((id, id, key), Some(&credential), NOW)
            .expect("let in");
    }
    assert!(removed(0).is_empty());
    case.registry.remove("a", NOW + 5).expect("removed");
    assert_eq!(removed(NOW + 5), ["a"]);
    assert!(removed(NOW + 6).is_empty());
    // Another machine has its name.
    let credential = case.invite(&Invitation::default());
    case.enroll(("c", "a", 3), Some(&credential), NOW + 6)
        .expect("let in");
    assert!(removed(NOW).is_empty());
}
