//! Tests of frame.

use super::*;
use weft_control::{Session, Tenant};

#[test]
fn names_cannot_write_on_the_terminal_and_lines_fit() {
    let name = "\x1b]0;owned\x07<script>".to_owned();
    let tenants = Some(vec![Tenant { name: name.clone(), ..Tenant::default() }]);
    let sessions = vec![Session { client: name, ..Session::default() }];
    let health = "ok".into();
    let overview = Overview {
        leads: true,
        health,
        tenants,
        sessions,
        sessions_total: 1,
        ..Default::default()
    };
    let seen = Seen { overview, from: "m1:7100".into() };
    let lines = frame(&seen, &Style { width: 60, ..Style::default() });
    assert!(lines.iter().skip(1).all(|line| line.chars().count() <= 60), "{lines:#?}");
    let text = lines.join("\n");
    assert!(text.contains("<script>") && !text.contains('\x1b'), "{text}");
}

#[test]
fn problems_come_first_with_the_command_that_helps() {
    let problem = Problem {
        kind: "x".into(),
        severity: Severity::Critical,
        text: "what".into(),
        consequence: "so".into(),
        command: "weft x".into(),
    };
    let overview = Overview { problems: vec![problem], ..Overview::default() };
    let lines =
        frame(&Seen { overview, from: String::new() }, &Style { width: 80, ..Style::default() });
    assert_eq!(lines[1..], ["!! what", "     so", "     > weft x"]);
}

#[test]
fn a_time_that_nobody_can_write_is_shown_all_the_same() {
    for at_ms in [i64::MIN, -1, 0, 253_402_300_800_000, i64::MAX] {
        let overview = Overview { at_ms, ..Overview::default() };
        let lines = frame(&Seen { overview, from: String::new() }, &Style::default());
        assert!(lines[0].contains("health"), "{lines:?}");
    }
}
