//! What may be decided now, and why not: the rules of the planner, told before the write. The planner judges once more
//! when it takes a decision up.

use interlock_core::{
    api::{
        hook::{Hook, Kind, Phase},
        run::{Action, Decision, Step, StepOutcome},
    },
    plan::hook_passed,
    world::Run,
};

use super::{About, Choice, Gate, MOST_DECISIONS, Skip};
use crate::cli::output::word;

/// Targets of decisions.
const ORDER: &str = "gate/order";
const BUDGET: &str = "gate/budget";
/// Names that are listed in a refusal.
const MOST_NAMES: usize = 10;

/// A decision that would be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// What to do.
    pub action: Action,
    /// To what: `hook/NAME`, `gate/order`, `gate/budget`; absent: the run.
    pub target: Option<String>,
    /// For one pod only.
    pub pod: Option<String>,
    /// This attempt only.
    pub attempt: Option<i64>,
}

impl Aim {
    fn run(action: Action) -> Self {
        Self { action, target: None, pod: None, attempt: None }
    }

    fn at(action: Action, target: String) -> Self {
        Self { target: Some(target), ..Self::run(action) }
    }

    fn hook(action: Action, name: &str, about: &About) -> Self {
        Self { action, target: Some(format!("hook/{name}")), pod: about.pod.clone(), attempt: about.attempt }
    }

    /// For people: `hook smoke of pod web-1, attempt 2`.
    pub fn what(&self) -> String {
        let target = self.target.as_ref().map(|target| target.replace('/', " ")).unwrap_or_default();
        let pod = self.pod.as_ref().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
        let attempt = self.attempt.map(|attempt| format!(", attempt {attempt}")).unwrap_or_default();
        target + &pod + &attempt
    }
}

/// May this be decided now? What exactly, or why not.
pub fn allowed(run: Option<&Run>, choice: &Choice) -> Result<Aim, String> {
    let Some(run) = run else { return Err("there is nothing to decide: it has no run".into()) };
    if let Some(ended) = &run.status.ended {
        return Err(format!("there is nothing to decide: run {} has ended ({})", run.name, word(&ended.outcome)));
    }
    if run.spec.decisions.len() >= MOST_DECISIONS {
        return Err(format!(
            "run {} has {MOST_DECISIONS} decisions, which is the most; change the template or undo",
            run.name
        ));
    }
    match choice {
        Choice::Abort => Ok(Aim::run(Action::Abort)),
        Choice::Resume => stalled(run).map(|()| Aim::run(Action::Resume)),
        Choice::Retry(about) => retry(run, about),
        Choice::Approve(about) => approve(run, about),
        Choice::Skip(Skip::Gate(Gate::Order)) => skip_gate(run, ORDER),
        Choice::Skip(Skip::Gate(Gate::Budget)) => skip_gate(run, BUDGET),
        Choice::Skip(Skip::Hook(about)) => skip_hook(run, about),
        Choice::Skip(Skip::Current) => match current(run) {
            Some(Current::Order) => skip_gate(run, ORDER),
            Some(Current::Budget) => skip_gate(run, BUDGET),
            Some(Current::Hook(name)) => skip_hook(run, &About { hook: Some(name), ..About::default() }),
            None => {
                Err(format!("run {} waits for nothing that can be skipped; name it with --hook or --gate", run.name))
            }
        },
    }
}

fn stalled(run: &Run) -> Result<(), String> {
    if run.status.stall.is_some() {
        return Ok(());
    }
    let waits = match &run.status.waiting_for {
        Some(waiting) => format!("it waits: {}", waiting.what),
        None => "it is in progress".into(),
    };
    Err(format!("run {} is not stalled, {waits}", run.name))
}

fn retry(run: &Run, about: &About) -> Result<Aim, String> {
    stalled(run)?;
    if about.is_empty() {
        return Ok(Aim::run(Action::Retry));
    }
    let steps = looked_at(run, about)?;
    if let Some(name) = about.hook.as_deref().filter(|name| reports(run, name)) {
        return Err(format!("hook {name} only reports failures (OnFailure); nothing waits for it"));
    }
    let failed: Vec<&Step> = steps.into_iter().filter(|s| failed(s) && s.failure.is_none()).collect();
    let name = one_hook(run, about, &failed, "failed")?;
    Ok(Aim::hook(Action::Retry, &name, about))
}

fn approve(run: &Run, about: &About) -> Result<Aim, String> {
    let steps = looked_at(run, about)?;
    let approval = |name: &str| find(run, name).is_some_and(|hook| matches!(hook.kind(), Some(Kind::Approval(_))));
    if let Some(name) = about.hook.as_deref().filter(|name| !approval(name)) {
        return Err(format!("hook {name} is no approval; to go on without it: skip --hook {name}"));
    }
    let waiting: Vec<&Step> =
        steps.iter().copied().filter(|step| approval(&step.hook) && step.outcome.is_none()).collect();
    if waiting.is_empty()
        && let Some(over) = steps.iter().find(|step| approval(&step.hook))
    {
        let how = match over.outcome {
            Some(StepOutcome::Succeeded) => "has been approved".to_owned(),
            Some(outcome) => format!("is over ({})", word(&outcome)),
            None => String::new(),
        };
        return Err(format!("nothing waits for approval in run {}: hook {} {how}", run.name, over.hook));
    }
    let name = one_hook(run, about, &waiting, "waits for approval")?;
    let aim = Aim::hook(Action::Approve, &name, about);
    not_decided(run, &aim, "approve")?;
    Ok(aim)
}

fn skip_hook(run: &Run, about: &About) -> Result<Aim, String> {
    let steps = looked_at(run, about)?;
    let open: Vec<&Step> = steps.iter().copied().filter(|step| !passed(step)).collect();
    let name = match &about.hook {
        Some(name) => name.clone(),
        None => one_hook(run, about, &open, "runs or has failed")?,
    };
    let nothing = |why: String| Err(format!("there is nothing to skip in run {}: {why}", run.name));
    if run.spec.old_template.is_none() {
        return nothing("a first start calls no hooks".to_owned());
    }
    let running = |step: &Step| find(run, &name).is_some_and(|hook| !hook_passed(hook, step));
    if reports(run, &name) && !open.iter().any(|step| running(step)) {
        return nothing(format!("hook {name} only reports failures (OnFailure), and does not now"));
    }
    let of_pods = find(run, &name).is_some_and(|hook| hook.phase.of_pod());
    // A hook of pods has others before it, unless one pod is meant.
    let through = open.is_empty() && (!of_pods || about.pod.is_some());
    if let Some(step) = steps.first().filter(|_| through) {
        let how = if step.outcome == Some(StepOutcome::Skipped) { "has been skipped" } else { "has succeeded" };
        return nothing(format!("{} {how}", Aim::hook(Action::Skip, &name, about).what()));
    }
    let aim = Aim::hook(Action::Skip, &name, about);
    not_decided(run, &aim, "skip")?;
    Ok(aim)
}

fn skip_gate(run: &Run, target: &str) -> Result<Aim, String> {
    let status = &run.status;
    let against = match target {
        ORDER if status.order_passed => Some("the order gate is passed"),
        ORDER if run.spec.settings.after.is_empty() && current(run) != Some(Current::Order) => {
            Some("it waits for no predecessor")
        }
        BUDGET if status.budget_skipped => Some("budgets are no longer waited for"),
        _ => None,
    };
    if let Some(why) = against {
        return Err(format!("there is nothing to skip in run {}: {why}", run.name));
    }
    let aim = Aim::at(Action::Skip, target.to_owned());
    not_decided(run, &aim, "skip")?;
    Ok(aim)
}

/// A decision that has not been taken up yet, about the same or more, stands already.
fn not_decided(run: &Run, aim: &Aim, verb: &str) -> Result<(), String> {
    let covers = |d: &&Decision| {
        d.action == aim.action
            && d.target == aim.target
            && (d.pod.is_none() || d.pod == aim.pod)
            && (d.attempt.is_none() || d.attempt == aim.attempt)
            // An approval is about an attempt; what is skipped stays so.
            && (aim.action == Action::Skip || !run.status.decisions_used.contains(&d.id))
    };
    match run.spec.decisions.iter().find(covers) {
        Some(decision) => {
            Err(format!("run {}: it is already decided to {verb} {} (by {})", run.name, aim.what(), decision.by))
        }
        None => Ok(()),
    }
}

fn find<'a>(run: &'a Run, name: &str) -> Option<&'a Hook> {
    run.spec.settings.hooks.iter().find(|hook| hook.name == name)
}

/// Is it a hook that tells of failures and that nothing waits for?
fn reports(run: &Run, name: &str) -> bool {
    find(run, name).is_some_and(|hook| hook.phase == Phase::OnFailure)
}

/// The latest attempts that are meant, the newest first; or why there is no such hook, pod or attempt.
fn looked_at<'a>(run: &'a Run, about: &About) -> Result<Vec<&'a Step>, String> {
    let About { hook, pod, attempt } = about;
    if let Some(name) = hook {
        let Some(found) = find(run, name) else {
            let names = list(run.spec.settings.hooks.iter().map(|hook| hook.name.as_str()));
            return Err(format!("run {} has no hook {name}; its hooks: {names}", run.name));
        };
        if pod.is_some() && !found.phase.of_pod() {
            return Err(format!("hook {name} ({}) runs once and for no pod; leave --pod away", found.phase.as_str()));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    let latest = run.status.steps.iter().rev().filter(|s| seen.insert((&s.hook, s.phase, &s.pod_uid)));
    let of_hook: Vec<&Step> = latest.filter(|s| hook.as_ref().is_none_or(|name| *name == s.hook)).collect();
    let of_pod: Vec<&Step> =
        of_hook.iter().copied().filter(|s| pod.is_none() || s.pod.as_ref() == pod.as_ref()).collect();
    if let Some(pod) = pod.as_ref().filter(|_| of_pod.is_empty()) {
        let pods = list(of_hook.iter().filter_map(|step| step.pod.as_deref()));
        let of = hook.as_ref().map(|name| format!(" of hook {name}")).unwrap_or_default();
        return Err(format!("run {} has no attempt{of} for pod {pod}; pods with one: {pods}", run.name));
    }
    if let Some(wanted) = *attempt
        && !of_pod.iter().any(|step| step.attempt == wanted && !passed(step))
    {
        return Err(match of_pod.iter().map(|step| step.attempt).max() {
            Some(now) if now > wanted => format!("attempt {wanted} is over, the latest is {now}"),
            Some(now) if now == wanted => format!("attempt {wanted} is over"),
            Some(now) => format!("attempt {wanted} has not begun, the latest is {now}"),
            None => format!("attempt {wanted} has not begun"),
        });
    }
    Ok(of_pod)
}

/// The one hook that these attempts belong to.
fn one_hook(run: &Run, about: &About, steps: &[&Step], state: &str) -> Result<String, String> {
    let mut names: Vec<&str> = steps.iter().map(|step| step.hook.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match (names.as_slice(), &about.hook) {
        ([name], _) => Ok((*name).to_owned()),
        ([], Some(name)) => Err(format!("run {}: hook {name}: no attempt of it {state}", run.name)),
        ([], None) => Err(format!("run {}: no hook {state}", run.name)),
        (several, _) => {
            Err(format!("run {}: more than one hook {state}: {}; name one with --hook", run.name, several.join(", ")))
        }
    }
}

/// Names, at most so many.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    match (names.as_slice(), more) {
        ([], _) => "none".to_owned(),
        (names, 0) => names.join(", "),
        (names, more) => format!("{} and {more} more", names.join(", ")),
    }
}

fn passed(step: &Step) -> bool {
    matches!(step.outcome, Some(StepOutcome::Succeeded | StepOutcome::Skipped))
}

fn failed(step: &Step) -> bool {
    matches!(step.outcome, Some(StepOutcome::Failed | StepOutcome::TimedOut))
}

/// What the run waits for or has failed at.
#[derive(Debug, PartialEq, Eq)]
enum Current {
    Order,
    Budget,
    Hook(String),
}

fn current(run: &Run) -> Option<Current> {
    let status = &run.status;
    let reason = match (&status.stall, &status.waiting_for) {
        (Some(stall), _) => &stall.reason,
        (None, Some(waiting)) => &waiting.reason,
        (None, None) => return None,
    };
    match reason.as_str() {
        "Predecessor" | "OrderCycle" | "GateTimeout" => Some(Current::Order),
        "Budget" | "BudgetImpossible" => Some(Current::Budget),
        "HookRunning" | "HookBackoff" | "HookFailed" | "Approval" => {
            let open = status.steps.iter().rev().find(|step| step.failure.is_none() && !passed(step));
            open.map(|step| Current::Hook(step.hook.clone()))
        }
        _ => None,
    }
}
