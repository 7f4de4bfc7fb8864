//! Tables of one run: its hooks with their attempts, and what people decided. Bounded: a run can have thousands of pods.

use std::collections::BTreeMap;

use interlock_core::{
    api::{
        hook::{Hook, Phase},
        run::{Decision, Step, StepOutcome},
    },
    time::Time,
    world::Run,
};

use crate::cli::output::{self, age, duration, word};

/// Pods that are shown of one hook.
const MOST_PODS: usize = 10;
/// Decisions that are shown, the latest.
const MOST_DECISIONS: usize = 20;

/// The tables of hooks and decisions; empty without any.
pub fn of(run: &Run, now: Time) -> String {
    hooks(run, now) + &decisions(&[run])
}

/// What was decided about these runs.
pub fn decisions_of_all(runs: &[Run]) -> String {
    decisions(&runs.iter().collect::<Vec<_>>())
}

/// One decision in a few words: `Approve hook/ok of pod web-1, attempt 2, by ann`.
pub fn in_words(decision: &Decision) -> String {
    let Decision { action, target, pod, attempt, by, .. } = decision;
    let target = target.as_ref().map(|target| format!(" {target}")).unwrap_or_default();
    let pod = pod.as_ref().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
    let attempt = attempt.map(|attempt| format!(", attempt {attempt},")).unwrap_or_default();
    format!("{}{target}{pod}{attempt} by {by}", word(action))
}

fn hooks(run: &Run, now: Time) -> String {
    let all = &run.spec.settings.hooks;
    let mut rows: Vec<Vec<String>> = all.iter().flat_map(|hook| attempts(run, hook, now)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut head = vec!["HOOK", "PHASE", "POD", "ATTEMPT", "OUTCOME", "STARTED", "TOOK"];
    // A column of its own only where a hook runs for each pod.
    if !all.iter().any(|hook| hook.phase.of_pod()) {
        head.remove(2);
        for row in &mut rows {
            row.remove(2);
        }
    }
    format!("\n{}", output::table(&head, &rows))
}

fn attempts(run: &Run, hook: &Hook, now: Time) -> Vec<Vec<String>> {
    let steps: Vec<&Step> = run.status.steps.iter().filter(|s| s.hook == hook.name).collect();
    let row = |phase: Phase, pod: &str, cells: [String; 4]| {
        let mut row = vec![hook.name.clone(), phase.as_str().to_owned(), pod.to_owned()];
        row.extend(cells);
        row
    };
    let empty = String::new;
    if steps.is_empty() {
        // Nothing is called for a birth, nor after the end.
        let over = run.status.ended.is_some() || run.spec.old_template.is_none();
        let outcome = if over { "NotCalled" } else { "Pending" };
        return vec![row(hook.phase, "", [empty(), outcome.to_owned(), empty(), empty()])];
    }
    let shown = |step: &Step| {
        let outcome = outcome(step);
        let reason = &step.reason;
        let outcome = if reason.is_empty() || *reason == outcome { outcome } else { format!("{outcome} ({reason})") };
        let took = duration(step.finished_at.unwrap_or(now).millis_since(step.started_at));
        // Attempts of OnFailure are counted anew with each failure of the run.
        let attempt = match step.failure {
            Some(failure) => format!("{} (failure {failure})", step.attempt),
            None => step.attempt.to_string(),
        };
        row(
            step.phase,
            step.pod.as_deref().unwrap_or_default(),
            [attempt, outcome, age(step.started_at, now) + " ago", took],
        )
    };
    if !hook.phase.of_pod() {
        return steps.into_iter().map(shown).collect();
    }
    // The latest attempt of each pod, those first that somebody may have to look at.
    // A gate stands before and after the update of its pod.
    let mut latest: BTreeMap<(&Option<String>, Phase), &Step> = BTreeMap::new();
    for step in steps {
        latest.insert((&step.pod_uid, step.phase), step);
    }
    let mut latest: Vec<&Step> = latest.into_values().collect();
    latest.sort_by_key(|step| (rank(step), &step.pod, step.phase));
    let rest = latest.split_off(latest.len().min(MOST_PODS));
    let mut rows: Vec<Vec<String>> = latest.into_iter().map(shown).collect();
    if !rest.is_empty() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for step in &rest {
            *counts.entry(outcome(step)).or_default() += 1;
        }
        let counts: Vec<String> = counts.into_iter().map(|(outcome, n)| format!("{n} {outcome}")).collect();
        rows.push(row(hook.phase, &format!("{} more", rest.len()), [empty(), counts.join(", "), empty(), empty()]));
    }
    rows
}

fn outcome(step: &Step) -> String {
    step.outcome.as_ref().map_or_else(|| "Running".to_owned(), word)
}

fn rank(step: &Step) -> u8 {
    match step.outcome {
        Some(StepOutcome::Failed | StepOutcome::TimedOut) => 0,
        None => 1,
        Some(StepOutcome::Cancelled | StepOutcome::Superseded) => 2,
        Some(StepOutcome::Succeeded | StepOutcome::Skipped) => 3,
    }
}

fn decisions(runs: &[&Run]) -> String {
    let all: Vec<(&Run, &Decision)> =
        runs.iter().flat_map(|run| run.spec.decisions.iter().map(move |decision| (*run, decision))).collect();
    let rows: Vec<[String; 7]> = all
        .iter()
        .skip(all.len().saturating_sub(MOST_DECISIONS))
        .map(|(run, decision)| {
            let Decision { id, action, target, pod, attempt, reason, by } = decision;
            let used = run.status.decisions_used.contains(id);
            [
                run.name.clone(),
                word(action),
                target.clone().unwrap_or_default(),
                match (pod, attempt) {
                    (Some(pod), Some(attempt)) => format!("{pod}, attempt {attempt}"),
                    (Some(pod), None) => pod.clone(),
                    (None, Some(attempt)) => format!("attempt {attempt}"),
                    (None, None) => String::new(),
                },
                by.clone(),
                if used { "taken up" } else { "not yet" }.to_owned(),
                reason.clone().unwrap_or_default().lines().next().unwrap_or_default().to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["RUN", "DECISION", "TARGET", "ONLY", "BY", "STATE", "WHY"];
    format!("\n{}", output::table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::fixture::{now, run},
        *,
    };

    fn of_pods(steps: &[Value]) -> Run {
        let mut run = run(1, "web:1", &json!({"steps": steps, "decisionsUsed": ["a"]}));
        run.spec.settings.hooks =
            vec![serde_json::from_value(json!({"name": "each", "phase": "PostPod", "wait": {"seconds": 1}})).unwrap()];
        run
    }

    fn step(pod: usize, attempt: i64, outcome: &str) -> Value {
        let mut step = json!({
            "hook": "each", "phase": "PostPod", "pod": format!("web-{pod:03}"), "podUID": format!("u{pod}"), "attempt": attempt,
            "startedAt": "2026-01-01T00:09:50Z",
        });
        if !outcome.is_empty() {
            step["outcome"] = json!(outcome);
        }
        step
    }

    #[test]
    fn hooks_of_many_pods_are_counted_and_the_troubled_ones_shown() {
        let mut steps: Vec<Value> = (0..300).map(|i| step(i, 1, "Succeeded")).collect();
        steps.extend([step(7, 2, "Failed"), step(300, 1, "")]);
        let text = of(&of_pods(&steps), now());
        let lines: Vec<&str> = text.trim().lines().collect();
        assert_eq!(lines.len(), 1 + MOST_PODS + 1, "{text}");
        let cells = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(cells(1)[2..5], ["web-007", "2", "Failed"]);
        assert_eq!(cells(2)[2..5], ["web-300", "1", "Running"]);
        assert!(lines[11].contains("291 more") && lines[11].contains("291 Succeeded"), "{text}");
    }

    #[test]
    fn attempts_of_on_failure_say_which_failure() {
        let mut steps = [step(0, 1, "Succeeded"), step(0, 1, "Failed")];
        for (step, failure) in steps.iter_mut().zip(1..) {
            let more = json!({"phase": "OnFailure", "pod": null, "podUID": null, "failure": failure});
            json_patch::merge(step, &more);
        }
        let mut run = of_pods(&steps);
        let hook = json!({"name": "each", "phase": "OnFailure", "wait": {"seconds": 1}});
        run.spec.settings.hooks = vec![serde_json::from_value(hook).unwrap()];
        let text = of(&run, now());
        assert!(text.contains("1 (failure 1)") && text.contains("1 (failure 2)"), "{text}");
    }

    /// It blocks the start and, as a second step, the end of the same pod.
    #[test]
    fn both_halves_of_a_gate_are_shown() {
        let mut steps = [step(1, 1, "Succeeded"), step(1, 1, "")];
        steps[0]["phase"] = json!("PrePod");
        let mut run = of_pods(&steps);
        let gate = json!({"name": "each", "phase": "PrePod", "podGate": {"labels": {"a": "b"}}});
        run.spec.settings.hooks = vec![serde_json::from_value(gate).unwrap()];
        let text = of(&run, now());
        let lines: Vec<Vec<&str>> = text.trim().lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..5], ["each", "PostPod", "web-001", "1", "Running"], "{text}");
        assert_eq!(lines[2][..5], ["each", "PrePod", "web-001", "1", "Succeeded"], "{text}");
    }

    #[test]
    fn decisions_are_told_with_their_authors_and_whether_they_were_used() {
        let mut run = of_pods(&[step(1, 1, "Failed")]);
        run.spec.decisions = serde_json::from_value(json!([
            {"id": "a", "action": "Skip", "target": "hook/each", "pod": "web-001", "attempt": 1, "by": "ann", "reason": "known\nmore"},
            {"id": "b", "action": "Abort", "by": "bob"},
        ]))
        .unwrap();
        let text = decisions(&[&run]);
        assert_eq!(
            text,
            "
RUN     DECISION   TARGET      ONLY                 BY    STATE      WHY
web-1   Skip       hook/each   web-001, attempt 1   ann   taken up   known
web-1   Abort      -           -                    bob   not yet    -
"
        );
        assert_eq!(in_words(&run.spec.decisions[0]), "Skip hook/each of pod web-001, attempt 1, by ann");
        run.spec.decisions = (0..64)
            .map(|i| serde_json::from_value(json!({"id": i.to_string(), "action": "Retry", "by": "x"})).unwrap())
            .collect();
        assert_eq!(decisions(&[&run]).trim().lines().count(), 1 + MOST_DECISIONS);
    }
}
