//! Facts: what was promised, what was seen. Pure, so that it can be tested.

use std::fmt::{Display, Write as _};

use crate::{
    manifests::Component,
    receiver::{self, Call},
    say::Say,
    sight::{self, Sight},
};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) part: &'static str,
    pub(crate) what: String,
    pub(crate) promised: String,
    pub(crate) seen: String,
    pub(crate) ok: bool,
}

impl Fact {
    /// Exactly this was promised.
    pub(crate) fn exactly(
        part: &'static str,
        what: impl Into<String>,
        promised: impl Display,
        seen: impl Display,
    ) -> Self {
        let (promised, seen) = (promised.to_string(), seen.to_string());
        Self { part, what: what.into(), ok: promised == seen, promised, seen }
    }

    /// Something that was looked at otherwise.
    pub(crate) fn judged(part: &'static str, what: &str, promised: impl Display, seen: impl Display, ok: bool) -> Self {
        Self { part, what: what.to_owned(), promised: promised.to_string(), seen: seen.to_string(), ok }
    }
}

/// The same number of each component, in one text: `3 3 4 2`.
pub(crate) fn each<T: Display>(components: &[Component], number: impl FnMut(&Component) -> T) -> String {
    components.iter().map(number).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

/// The ordered start: when the first pod of a component came, all of its predecessor were ready.
pub(crate) fn start(components: &[Component], sights: &[Sight], calls: usize) -> Vec<Fact> {
    const PART: &str = "start";
    let mut facts = Vec::new();
    for (before, component) in components.iter().zip(components.iter().skip(1)) {
        let born = sights.iter().position(|sight| sight.app == component.name);
        let ready = born
            .and_then(|at| sights.get(..at))
            .map(|sights| sight::ready(&sight::picture(sights, &before.name), None));
        facts.push(Fact::exactly(
            PART,
            format!("ready {} pods when the first {} pod came", before.name, component.name),
            before.replicas,
            ready.map_or_else(|| "no pod came".to_owned(), |ready| ready.to_string()),
        ));
    }
    let born = each(components, |component| sight::born_and_gone(sights, &component.name, 0).0);
    facts.push(Fact::exactly(PART, "pods created", each(components, |component| component.replicas), born));
    let gone: usize = components.iter().map(|component| sight::born_and_gone(sights, &component.name, 0).1).sum();
    facts.push(Fact::exactly(PART, "pods deleted", 0, gone));
    facts.push(Fact::exactly(PART, "hook calls (they are for updates)", 0, calls));
    facts
}

/// An update in place to `tag` of these components: nothing is recreated, each container restarts `restarts` times.
pub(crate) fn in_place(
    part: &'static str,
    components: &[Component],
    sights: &[Sight],
    mark: usize,
    tag: &str,
) -> Vec<Fact> {
    let replicas = each(components, |component| component.replicas);
    let kept = each(components, |component| sight::kept(sights, &component.name, mark));
    let moved: Vec<(usize, usize)> =
        components.iter().map(|component| sight::born_and_gone(sights, &component.name, mark)).collect();
    let restarts: Vec<i64> =
        components.iter().flat_map(|component| sight::restarts(sights, &component.name, mark)).collect();
    let once = restarts.iter().filter(|restarts| **restarts == 1).count();
    let total: usize = components.iter().map(|component| component.replicas).sum();
    let new = each(components, |component| {
        sight::ready(&sight::picture(sights, &component.name), Some(&component.image(tag)))
    });
    let fewest = each(components, |component| sight::fewest_ready(sights, &component.name, mark));
    let enough = components
        .iter()
        .all(|component| sight::fewest_ready(sights, &component.name, mark) >= component.replicas.saturating_sub(1));
    let floor = each(components, |component| component.replicas.saturating_sub(1));
    vec![
        Fact::exactly(part, "pods with the same UID", &replicas, kept),
        Fact::exactly(part, "pods created", 0, moved.iter().map(|(born, _)| born).sum::<usize>()),
        Fact::exactly(part, "pods deleted", 0, moved.iter().map(|(_, gone)| gone).sum::<usize>()),
        Fact::exactly(
            part,
            "containers that restarted exactly once",
            format_args!("{total} of {total}"),
            format_args!("{once} of {}", restarts.len()),
        ),
        Fact::exactly(part, format!("ready pods that run {tag} at the end"), &replicas, new),
        Fact::judged(part, "fewest ready pods at any event", format_args!("at least {floor}"), fewest, enough),
    ]
}

/// The order of an update to `tag`: each component's first change came after the calls and the end of the one before.
pub(crate) fn order(
    part: &'static str,
    components: &[Component],
    sights: &[Sight],
    mark: usize,
    tag: &str,
    calls: &[Call],
) -> Vec<Fact> {
    let first = |component: &Component| sight::first(sights, &component.name, mark, &component.image(tag));
    let called = |hook: &str, component: &Component| {
        calls.iter().filter(|call| call.hook == hook && call.deployment == component.name).map(|call| call.at).max()
    };
    let announced = components.iter().filter(|component| {
        let change = first(component).and_then(|index| sights.get(index)).map(|sight| sight.at);
        change.zip(called("announce", component)).is_some_and(|(change, call)| call <= change)
    });
    let announced = announced.count();
    let ordered = components.iter().zip(components.iter().skip(1)).filter(|(before, component)| {
        let Some(index) = first(component) else { return false };
        let (Some(sights), Some(change)) = (sights.get(..index), sights.get(index)) else { return false };
        sight::ready(&sight::picture(sights, &before.name), Some(&before.image(tag))) == before.replicas
            && called("verify", before).is_some_and(|call| call <= change.at)
    });
    let ordered = ordered.count();
    let (all, pairs) = (components.len(), components.len().saturating_sub(1));
    vec![
        Fact::exactly(part, "components whose hook announce came before the first change", all, announced),
        Fact::exactly(part, "components that began after the one before was ready and verified", pairs, ordered),
    ]
}

/// Hook calls: so many of each for each of these components, with keys that never repeat.
pub(crate) fn hooks(
    part: &'static str,
    components: &[Component],
    calls: &[Call],
    announce: usize,
    verify: usize,
) -> Vec<Fact> {
    let mut facts: Vec<Fact> = [("announce", announce), ("verify", verify)]
        .into_iter()
        .map(|(hook, promised)| {
            let seen = each(components, |component| receiver::count(calls, hook, &component.name));
            Fact::exactly(part, format!("calls of hook {hook}"), each(components, |_| promised), seen)
        })
        .collect();
    let total = components.len() * (announce + verify);
    facts.push(Fact::exactly(part, "calls of any hook, each with a key of its own", total, receiver::keys(calls)));
    if calls.len() != total {
        facts.push(Fact::exactly(part, "calls of any hook", total, calls.len()));
    }
    facts
}

/// The table.
pub(crate) fn table(facts: &[Fact], say: Say) -> String {
    let width = |column: fn(&Fact) -> &str, head: &str| {
        facts.iter().map(|fact| column(fact).chars().count()).chain([head.len()]).max().unwrap_or_default()
    };
    let (part, what) = (width(|fact| fact.part, "part"), width(|fact| &fact.what, "fact"));
    let (promised, seen) = (width(|fact| &fact.promised, "promised"), width(|fact| &fact.seen, "seen"));
    let head = format!("{:part$}  {:what$}  {:promised$}  {:seen$}", "part", "fact", "promised", "seen");
    let mut text = format!("{}\n", say.bold(&head));
    for fact in facts {
        let verdict = if fact.ok { "ok".to_owned() } else { say.red("FAILED") };
        let Fact { part: p, what: w, promised: pr, seen: s, ok: _ } = fact;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{p:part$}  {w:what$}  {pr:promised$}  {s:seen$}  {verdict}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sight::tests::{gone, pod};

    fn component(name: &str, replicas: usize) -> Component {
        Component { name: name.into(), replicas, container: name.into(), repository: format!("r/{name}") }
    }

    fn call(hook: &str, deployment: &str, key: &str) -> Call {
        Call { at: Instant::now(), hook: hook.into(), deployment: deployment.into(), key: key.into() }
    }

    fn failed(facts: &[Fact]) -> Vec<&str> {
        facts.iter().filter(|fact| !fact.ok).map(|fact| fact.what.as_str()).collect()
    }

    #[test]
    fn an_ordered_start_is_told_from_one_that_was_too_early() {
        let stack = [component("a", 2), component("b", 1)];
        let good = [
            pod("a", "1", "v1", true, 0),
            pod("a", "2", "v1", false, 0),
            pod("a", "2", "v1", true, 0),
            pod("b", "3", "v1", true, 0),
        ];
        assert_eq!(failed(&start(&stack, &good, 0)), [""; 0]);
        let mut early = good.clone();
        early.swap(2, 3);
        assert_eq!(failed(&start(&stack, &early, 0)), ["ready a pods when the first b pod came"]);
        assert_eq!(failed(&start(&stack, &good, 1)), ["hook calls (they are for updates)"]);
        assert_eq!(failed(&start(&stack, &good[..3], 0)).len(), 2);
    }

    #[test]
    fn an_update_in_place_is_told_from_one_that_recreates_or_restarts_twice() {
        let stack = [component("a", 1)];
        let good = [pod("a", "1", "v1", true, 0), pod("a", "1", "v2", false, 1), pod("a", "1", "v2", true, 1)];
        assert_eq!(failed(&in_place("u", &stack, &good, 1, "v2")), [""; 0]);
        let twice = [pod("a", "1", "v1", true, 0), pod("a", "1", "v2", true, 2)];
        assert_eq!(failed(&in_place("u", &stack, &twice, 1, "v2")), ["containers that restarted exactly once"]);
        let recreated = [pod("a", "1", "v1", true, 0), gone("a", "1"), pod("a", "2", "v2", true, 0)];
        let facts = in_place("u", &stack, &recreated, 1, "v2");
        assert_eq!(
            failed(&facts),
            ["pods with the same UID", "pods created", "pods deleted", "containers that restarted exactly once"]
        );
        let stack = [component("a", 2)];
        let both = [
            pod("a", "1", "v1", true, 0),
            pod("a", "2", "v1", true, 0),
            pod("a", "1", "v2", false, 1),
            pod("a", "2", "v2", false, 1),
            pod("a", "1", "v2", true, 1),
            pod("a", "2", "v2", true, 1),
        ];
        assert_eq!(failed(&in_place("u", &stack, &both, 2, "v2")), ["fewest ready pods at any event"]);
    }

    #[test]
    fn hooks_have_to_be_called_once_each_and_before_the_change() {
        let stack = [component("a", 1), component("b", 1)];
        let mut calls = vec![call("announce", "a", "1")];
        let mut sights = vec![pod("a", "1", "v1", true, 0), pod("b", "2", "v1", true, 0), pod("a", "1", "v2", true, 1)];
        calls.push(call("verify", "a", "2"));
        calls.push(call("announce", "b", "3"));
        sights.push(pod("b", "2", "v2", true, 1));
        calls.push(call("verify", "b", "4"));
        assert_eq!(failed(&hooks("u", &stack, &calls, 1, 1)), [""; 0]);
        assert_eq!(failed(&order("u", &stack, &sights, 2, "v2", &calls)), [""; 0]);
        let mut early = sights.clone();
        early.swap(2, 3);
        assert_eq!(failed(&order("u", &stack, &early, 2, "v2", &calls)).len(), 1);
        calls.push(call("verify", "b", "4"));
        assert_eq!(failed(&hooks("u", &stack, &calls, 1, 1)), ["calls of hook verify", "calls of any hook"]);
        calls.remove(0);
        calls.push(call("announce", "a", "9"));
        assert_eq!(failed(&order("u", &stack, &sights, 2, "v2", &calls)).len(), 1);
    }

    #[test]
    fn the_table_says_which_fact_failed() {
        let facts = [Fact::exactly("p", "x", 1, 1), Fact::exactly("part", "longer", 1, 22)];
        let text = table(&facts, Say::new());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("ok") && lines[2].contains("FAILED"), "{text}");
        assert_eq!(
            lines[1].find("ok"),
            lines[2].find("FAILED").map(|at| at - if lines[2].contains('\x1b') { 5 } else { 0 })
        );
    }
}
