//! The ways on from where an update is: one list, for `explain` and for decisions that are refused. A verb stands in it
//! only if it would be taken now.

use interlock_core::{
    api::run::Outcome,
    reason::Reason,
    world::{Deployment, Run},
};

use super::{
    decide::{About, Aim, Choice, Skip, allowed},
    state,
};

/// What a person can do, one way per line; empty where nothing has to be done.
pub fn exits(deployment: &Deployment, runs: &[Run]) -> Vec<String> {
    let Some(run) = state::current(deployment, runs) else { return Vec::new() };
    let command =
        |verb: &str| format!("kubectl interlock {verb} deploy/{} -n {}", deployment.name, deployment.namespace);
    let mut ways = Vec::new();
    match run.status.ended.as_ref().map(|ended| ended.outcome) {
        None => {
            let stall = run.status.stall.as_ref().and_then(|stall| Reason::parse(&stall.reason));
            if let Ok(Aim { target: Some(target), .. }) = allowed(Some(run), &Choice::Approve(About::default()))
                && let Some((_, name)) = target.split_once('/')
            {
                ways.push(format!("{} --hook {name}", command("approve")));
            }
            if allowed(Some(run), &Choice::Retry(About::default())).is_ok() {
                ways.push(match (stall, &run.spec.policy) {
                    (Some(Reason::NotInPlace), Some(policy)) => format!(
                        "allow new pods in HookPolicy {} (spec.update.strategy: InPlaceIfPossible), then: {}",
                        policy.name,
                        command("retry")
                    ),
                    _ => command("retry"),
                });
            }
            if allowed(Some(run), &Choice::Resume).is_ok() {
                ways.push(command("resume"));
            }
            if let Ok(Aim { target: Some(target), .. }) = allowed(Some(run), &Choice::Skip(Skip::Current))
                && let Some((kind, name)) = target.split_once('/')
            {
                ways.push(format!("{} --{kind} {name}", command("skip")));
            }
            if allowed(Some(run), &Choice::Abort).is_ok() {
                ways.push(command("abort"));
            }
        }
        Some(Outcome::Aborted) if deployment.held() => {}
        Some(Outcome::Aborted | Outcome::Succeeded | Outcome::Superseded | Outcome::Returned | Outcome::Audited) => {
            return Vec::new();
        }
    }
    // What is born has nothing to go back to.
    if run.spec.old_template.is_some() {
        ways.push(command("undo"));
    }
    let first = if ways.is_empty() { "change the template" } else { "change the template, or:" };
    ways.insert(0, first.to_owned());
    ways
}

/// The text with the namespace in every command that names this Deployment.
pub fn qualified(text: &str, deployment: &Deployment) -> String {
    let name = format!("deploy/{}", deployment.name);
    let mut parts = text.split(&name);
    let mut all = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        let command = all.lines().next_back().is_some_and(|line| line.contains("kubectl "));
        let mut next = rest.chars();
        let longer = match next.next() {
            Some('.') => next.next().is_some_and(|c| c.is_ascii_alphanumeric()),
            Some(c) => c.is_ascii_alphanumeric() || c == '-',
            None => false,
        };
        all += &name;
        if command && !longer && !rest.starts_with(" -n ") {
            all.extend([" -n ", &deployment.namespace]);
        }
        all += rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{
        super::fixture::{deployment, ended, fact, held, run, stalled, waits},
        *,
    };

    fn verbs(deployment: &serde_json::Value, status: &serde_json::Value) -> String {
        let ways = exits(&fact(deployment), &[run(1, "web:1", status)]);
        let of = " deploy/web -n shop";
        ways.iter().map(|way| way.replace("kubectl interlock ", "").replace(of, "")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn only_what_would_be_taken() {
        let all = "change the template, or:; ";
        for (status, ways) in [
            (stalled("HookFailed"), "retry; resume; skip --hook smoke; abort; undo"),
            (stalled("BudgetImpossible"), "retry; resume; skip --gate budget; abort; undo"),
            (stalled("HoldTooLong"), "retry; resume; abort; undo"),
            (stalled("GateTimeout"), "retry; resume; skip --gate order; abort; undo"),
            (
                stalled("NotInPlace"),
                "allow new pods in HookPolicy order (spec.update.strategy: InPlaceIfPossible), then: retry; resume; abort; undo",
            ),
            (waits("Predecessor", "x"), "skip --gate order; abort; undo"),
            (waits("Updating", "x"), "abort; undo"),
        ] {
            assert_eq!(verbs(&held("web:1"), &status), format!("{all}{ways}"), "{status}");
        }
        assert_eq!(verbs(&held("web:1"), &ended("Aborted")), format!("{all}undo"));
    }

    /// Whatever a run stands still for: a new template, another attempt, going on, the end, and the way back are always
    /// there; going on without something exactly where there is something to go on without.
    #[test]
    fn every_reason_of_a_stall_lists_its_exits() {
        for reason in Reason::ALL {
            let ways = verbs(&held("web:1"), &stalled(reason.as_str()));
            for exit in ["change the template", "retry", "resume", "abort", "undo"] {
                assert!(ways.contains(exit), "{reason:?}: {ways}");
            }
            let skip = match reason.as_str() {
                "HookFailed" | "HookRunning" | "HookBackoff" | "Approval" => Some("skip --hook smoke"),
                "Budget" | "BudgetImpossible" => Some("skip --gate budget"),
                "Predecessor" | "OrderCycle" | "GateTimeout" => Some("skip --gate order"),
                _ => None,
            };
            assert_eq!(ways.split("; ").find(|way| way.starts_with("skip")), skip, "{reason:?}: {ways}");
        }
    }

    #[test]
    fn an_approval_is_the_first_exit() {
        let mut status = waits("Approval", "x");
        status["steps"] = serde_json::json!([{"hook": "smoke", "phase": "PreUpdate", "attempt": 1, "startedAt": "2026-01-01T00:09:50Z"}]);
        let mut run = run(1, "web:1", &status);
        run.spec.settings.hooks[0] =
            serde_json::from_value(serde_json::json!({"name": "smoke", "phase": "PreUpdate", "approval": {}})).unwrap();
        let ways = exits(&fact(&held("web:1")), &[run]);
        assert_eq!(ways[1], "kubectl interlock approve deploy/web -n shop --hook smoke");
        assert!(ways.contains(&"kubectl interlock skip deploy/web -n shop --hook smoke".to_owned()), "{ways:?}");
    }

    #[test]
    fn nothing_after_the_end() {
        assert_eq!(verbs(&deployment("web:1"), &ended("Aborted")), "");
        assert_eq!(verbs(&deployment("web:1"), &ended("Succeeded")), "");
        // Undone: another template is wanted, the run is that of the one before.
        assert_eq!(verbs(&held("web:0"), &stalled("HookFailed")), "");
    }

    #[test]
    fn what_is_born_cannot_be_undone() {
        let mut birth = run(1, "web:1", &waits("Predecessor", "x"));
        birth.spec.old_template = None;
        let ways = exits(&fact(&held("web:1")), &[birth]);
        assert!(!ways.iter().any(|way| way.contains("undo")), "{ways:?}");
    }

    #[test]
    fn commands_carry_the_namespace_once() {
        let web = fact(&deployment("web:1"));
        for (text, expected) in [
            (
                "kubectl interlock skip deploy/web --gate order",
                "kubectl interlock skip deploy/web -n shop --gate order",
            ),
            ("kubectl rollout resume deploy/web, or so", "kubectl rollout resume deploy/web -n shop, or so"),
            ("kubectl x deploy/web -n shop", "kubectl x deploy/web -n shop"),
            ("kubectl x deploy/web-2 deploy/web.", "kubectl x deploy/web-2 deploy/web -n shop."),
            ("waits for deploy/web", "waits for deploy/web"),
        ] {
            assert_eq!(qualified(text, &web), expected);
        }
    }
}
