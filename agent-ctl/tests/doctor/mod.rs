//! Tests what `agent-ctl doctor` says about an agent, and what the status says about generated
//! code.

use super::*;

#[test]
fn doctor_finds_its_own_samples() {
    let ended = ask(&sound(), &["doctor", "--burn", "100ms"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended
            .out
            .contains("samples arrive: 1000 from this process in 0."),
        "{}",
        ended.all()
    );
    assert!(ended.out.contains("broken_chain"), "{}", ended.all());
    assert!(ended.out.contains("no_symbols"), "{}", ended.all());
}

#[test]
fn doctor_refuses_to_burn_for_no_time_or_too_long() {
    for burn in ["0s", "9ms", "31s", "10h"] {
        let ended = ask(&sound(), &["doctor", "--burn", burn]);
        assert_eq!(ended.code, 2, "{burn}: {}", ended.all());
        assert!(
            ended.all().contains("expected 10ms to 30s"),
            "{}",
            ended.all()
        );
    }
}

#[test]
fn doctor_names_what_is_degraded() {
    let running = FakeAgent::start(Behaviour {
        degraded: true,
        ..Behaviour::default()
    });
    let ended = ask(&running, &["doctor", "--burn", "50ms"]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    assert!(
        ended.out.contains("fix: sysctl -w kernel.kptr_restrict=1"),
        "{}",
        ended.all()
    );
}

#[test]
fn doctor_does_not_say_that_nothing_is_degraded_below_a_line_that_says_so() {
    let ended = ask(&sound(), &["doctor", "--burn", "50ms"]);
    assert!(
        ended.out.contains("\nnothing is degraded"),
        "{}",
        ended.all()
    );
    let running = FakeAgent::start(Behaviour {
        noted: true,
        ..Behaviour::default()
    });
    let ended = ask(&running, &["doctor", "--burn", "50ms"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        !ended.out.contains("\nnothing is degraded"),
        "{}",
        ended.all()
    );
    assert!(
        ended.out.contains("nothing else is degraded"),
        "{}",
        ended.all()
    );
}

#[test]
fn doctor_tells_that_the_collector_is_away() {
    let running = FakeAgent::start(Behaviour {
        noted: true,
        ..Behaviour::default()
    });
    let ended = ask(&running, &["doctor", "--burn", "50ms"]);
    let expected = "the collector at 127.0.0.1:9096 is unreachable (failed to connect: ";
    assert!(ended.out.contains(expected), "{}", ended.all());
    assert!(ended.out.contains("4 windows wait for it"));
}

fn generated() -> FakeAgent {
    FakeAgent::start(Behaviour {
        generated: true,
        ..Behaviour::default()
    })
}

#[test]
fn doctor_says_which_switch_gives_generated_code_names() {
    let ended = ask(&generated(), &["doctor", "--burn", "50ms"]);
    assert_eq!(ended.code, 0, "advice is no failure: {}", ended.all());
    for expected in [
        "(pid 4711): this JVM keeps no frame pointers",
        "fix: start it with -XX:+PreserveFramePointer",
        "\nGenerated code\n",
        "jit_no_map",
        "100.0 %",
    ] {
        assert!(
            ended.out.contains(expected),
            "no {expected:?}: {}",
            ended.all()
        );
    }
    assert!(!ended.out.contains('\x1b'), "{:?}", ended.out);
}

#[test]
fn generated_code_is_in_json_and_in_a_line_of_the_status() {
    let agent = generated();
    let ended = ask(&agent, &["doctor", "--burn", "50ms", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["runtimes"][0]["runtime"], "hotspot");
    assert_eq!(json["runtimes"][0]["complete_share"], 0.05);
    assert_eq!(json["runtimes"][1]["named_share"], 1.0);
    assert_eq!(
        json["runtimes"][0]["advice"][1]["remedy"],
        "start it with -XX:+PreserveFramePointer"
    );
    let ended = ask(&agent, &["status"]);
    let line = "generated  Java (HotSpot): 1 process, 0.0 % named; Node: 1 process, 100.0 % named";
    assert!(ended.out.contains(line), "{}", ended.all());
    let ended = ask(&agent, &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["runtimes"][1]["source"], "perf-map");
}

#[test]
fn doctor_does_not_believe_an_agent_without_samples() {
    let ended = ask(&empty(), &["doctor", "--burn", "50ms", "--json"]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["proof"]["passed"], false);
    assert_eq!(json["degradations"][0]["id"], "samples");
    assert_eq!(json["degradations"][0]["severity"], "error");
}

#[test]
fn doctor_works_without_an_agent() {
    let ended = run(command("unix:/nonexistent/agent.sock", &["doctor"]));
    assert_eq!(ended.code, 5, "{}", ended.all());
    assert!(
        ended
            .out
            .contains("start it: systemctl enable --now fleetprofd"),
        "{}",
        ended.all()
    );
    assert!(
        ended
            .out
            .contains("What the agent would find on this machine"),
        "{}",
        ended.all()
    );
}
