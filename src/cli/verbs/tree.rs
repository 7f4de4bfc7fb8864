//! `tree`: the order as a graph, with the state of each component and what it waits for.

use std::collections::{BTreeMap, BTreeSet};

use interlock_core::{
    api::reference::Reference,
    order::{Terms, graph::cycle_through, met},
    select,
    time::Time,
    world::{Deployment, Policy, Run},
};
use serde::Serialize;

use super::state;
use crate::{
    cli::{
        connect::Connection,
        exit::{Exit, Failure},
        output::{self, Format},
    },
    controller::Clock,
    observe::{LiveError, Observe},
};

/// One component of an order, or something that one waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// As `after` names it.
    pub name: String,
    /// `Settled`, `Missing`, `NotSettled`, or the state of its update.
    pub state: String,
    /// What is wrong or awaited, in words. May be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What it waits for by its order, settled or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Those of them that hold it up now. Empty while it is not at its gate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<String>,
}

/// What is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// All nodes, by name.
    pub nodes: Vec<Node>,
    /// Circles: components that wait for each other, each path ends where it began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cycles: Vec<Vec<String>>,
}

/// Carries out the verb.
pub async fn run(connection: &Connection, format: Format) -> Result<Exit, Failure> {
    let observe =
        Observe::namespace_once(&connection.client, &connection.namespace).await.map_err(|error| match error {
            LiveError::Api(error) => Failure::request("read the namespace", &error),
            slow @ LiveError::Slow => Failure::error(slow.to_string()),
        })?;
    let tree = tree(&observe, &connection.namespace, Clock::System.now());
    output::print(&match output::structured(format, &tree)? {
        Some(text) => text,
        None => text(&tree, &connection.namespace),
    });
    Ok(Exit::Ok)
}

/// The order of a namespace.
fn tree(observe: &Observe, namespace: &str, now: Time) -> Tree {
    let deployments = observe.deployments(namespace);
    let policies: Vec<Policy> = observe.policies(namespace).iter().map(|p| p.fact.clone()).collect();
    let runs = observe.runs(namespace);
    let mut after: BTreeMap<Reference, BTreeSet<Reference>> = BTreeMap::new();
    let mut terms: BTreeMap<Reference, Terms> = BTreeMap::new();
    for name in names(&deployments, &policies) {
        let reference = Reference::deployment(&name);
        let deployment = deployments.iter().find(|d| d.name == name);
        let (waits, own) = awaited(&name, deployment.map(|d| &**d), namespace, &policies);
        if deployment.is_none() || !waits.is_empty() || policies.iter().any(|p| orders(p, &name)) {
            after.entry(reference.clone()).or_default().extend(waits);
            terms.insert(reference, own);
        }
    }
    let all: BTreeSet<Reference> = after.iter().flat_map(|(node, after)| after.iter().chain([node])).cloned().collect();
    let mut nodes = Vec::new();
    for reference in &all {
        let mut node = node(observe, namespace, reference, &deployments, &runs, now);
        let empty = BTreeSet::new();
        let waits = after.get(reference).unwrap_or(&empty);
        node.after = waits.iter().map(ToString::to_string).collect();
        if node.state == "Predecessor" || node.state == "Missing" || node.state == "Stalled/GateTimeout" {
            let terms = terms.get(reference).cloned().unwrap_or_default();
            let open = waits.iter().filter(|r| met(observe.predecessor(namespace, r).as_ref(), &terms, now).is_err());
            node.blocked_by = open.map(ToString::to_string).collect();
        }
        nodes.push(node);
    }
    let mut cycles: Vec<Vec<String>> = Vec::new();
    for reference in after.keys() {
        let Some(name) = reference.as_deployment() else { continue };
        if cycles.iter().any(|path| path.iter().any(|member| member == name)) {
            continue;
        }
        let next = |name: &str| -> Vec<Reference> {
            after.get(&Reference::deployment(name)).into_iter().flatten().cloned().collect()
        };
        cycles.extend(cycle_through(name, next));
    }
    Tree { nodes, cycles }
}

fn orders(policy: &Policy, name: &str) -> bool {
    policy.spec.as_ref().is_ok_and(|spec| spec.order.iter().any(|c| c.name == name))
}

fn names(deployments: &[std::sync::Arc<Deployment>], policies: &[Policy]) -> BTreeSet<String> {
    let ordered = policies.iter().filter_map(|p| p.spec.as_ref().ok()).flat_map(|s| &s.order).map(|c| c.name.clone());
    deployments.iter().map(|d| d.name.clone()).chain(ordered).collect()
}

/// What a component waits for, and on which terms: by the policy that governs it and by its annotation.
fn awaited(
    name: &str,
    deployment: Option<&Deployment>,
    namespace: &str,
    policies: &[Policy],
) -> (BTreeSet<Reference>, Terms) {
    let readable = policies.iter().filter_map(|p| Some((p.name.as_str(), p.spec.as_ref().ok()?)));
    let none = BTreeMap::new();
    let meta = match deployment {
        Some(d) => select::Meta { labels: &d.labels, annotations: &d.annotations },
        None => select::Meta { labels: &none, annotations: &none },
    };
    let governor = select::governor(readable.clone(), namespace, name, meta).policy;
    let spec = readable.into_iter().find(|(policy, _)| Some(*policy) == governor).map(|(_, spec)| spec);
    let ordered = spec.into_iter().flat_map(|s| &s.order).filter(|c| c.name == name).flat_map(|c| &c.after);
    let own = deployment.into_iter().flat_map(|d| d.own_after.iter().flatten());
    let template = deployment.map(|d| &d.template);
    let terms = spec.map_or_else(Terms::default, |spec| {
        let key = spec.same_release.as_deref();
        Terms {
            settle_seconds: spec.settle_seconds,
            release: template.zip(key).and_then(|(template, key)| Terms::release_of(template, key)),
            old_pods_gone: spec.old_pods == interlock_core::api::policy::OldPods::Wait,
        }
    });
    (ordered.chain(own).filter_map(|text| text.parse().ok()).collect(), terms)
}

fn node(
    observe: &Observe,
    namespace: &str,
    reference: &Reference,
    deployments: &[std::sync::Arc<Deployment>],
    runs: &[std::sync::Arc<Run>],
    now: Time,
) -> Node {
    let found = observe.predecessor(namespace, reference);
    let verdict = met(found.as_ref(), &Terms::default(), now);
    let name = reference.to_string();
    let deployment = reference.as_deployment().and_then(|name| deployments.iter().find(|d| d.name == name));
    let (state, message) = match (deployment, verdict) {
        (_, Err(unsettled)) if found.is_none() => ("Missing".to_owned(), unsettled.why),
        (_, Ok(())) => ("Settled".to_owned(), String::new()),
        (Some(deployment), Err(unsettled)) => {
            let own: Vec<Run> =
                runs.iter().filter(|r| r.spec.deployment.uid == deployment.uid).map(|r| Run::clone(r)).collect();
            let state = state::of(deployment, &own);
            let message = if state.message.is_empty() { unsettled.why } else { state.message };
            (state.word, message)
        }
        (None, Err(unsettled)) => ("NotSettled".to_owned(), unsettled.why),
    };
    Node { name, state, message, after: Vec::new(), blocked_by: Vec::new() }
}

/// The graph as text: what a component waits for stands above it. One with several predecessors is drawn under each, its own
/// successors only once.
fn text(tree: &Tree, namespace: &str) -> String {
    if tree.nodes.is_empty() {
        return format!("No component in namespace {namespace} waits for another (spec.order, interlock.dev/after).\n");
    }
    let mut rows: Vec<(String, &Node, bool)> = Vec::new();
    let mut drawn = BTreeSet::new();
    for root in tree.nodes.iter().filter(|node| node.after.is_empty()) {
        draw(tree, root, "", "", &mut drawn, &mut rows);
    }
    // What is left are circles, and what comes after them.
    for node in &tree.nodes {
        if !drawn.contains(node.name.as_str()) {
            draw(tree, node, "", "", &mut drawn, &mut rows);
        }
    }
    let lines: Vec<[String; 3]> = rows
        .iter()
        .map(|(label, node, again)| {
            let mut notes = Vec::new();
            if *again {
                notes.push("drawn above".to_owned());
            } else if !node.blocked_by.is_empty() {
                notes.push(format!("blocked by {}", node.blocked_by.join(", ")));
            }
            if !*again && !node.message.is_empty() {
                notes.push(node.message.clone());
            }
            [label.clone(), node.state.clone(), notes.join(": ")]
        })
        .collect();
    let mut text = output::table(&["COMPONENT", "STATE", "WAITS FOR"], &lines);
    for path in &tree.cycles {
        text.extend(["Circle: ", &path.join(" -> "), "; take one `after` away.\n"]);
    }
    text
}

fn draw<'a>(
    tree: &'a Tree,
    node: &'a Node,
    stem: &str,
    indent: &str,
    drawn: &mut BTreeSet<&'a str>,
    rows: &mut Vec<(String, &'a Node, bool)>,
) {
    let again = !drawn.insert(&node.name);
    rows.push((format!("{stem}{}", node.name), node, again));
    if again {
        return;
    }
    let next: Vec<&Node> = tree.nodes.iter().filter(|n| n.after.contains(&node.name)).collect();
    for (n, successor) in next.iter().enumerate() {
        let last = n + 1 == next.len();
        let stem = format!("{indent}{}", if last { "└─ " } else { "├─ " });
        let deeper = format!("{indent}{}", if last { "   " } else { "│  " });
        draw(tree, successor, &stem, &deeper, drawn, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: &str, after: &[&str], blocked_by: &[&str]) -> Node {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let message = if state == "Settled" { String::new() } else { "why".to_owned() };
        Node {
            name: name.to_owned(),
            state: state.to_owned(),
            message,
            after: texts(after),
            blocked_by: texts(blocked_by),
        }
    }

    #[test]
    fn a_graph_is_drawn_with_joins_once() {
        let nodes = vec![
            node("chunkserver", "Predecessor", &["etcd", "mds"], &["mds"]),
            node("etcd", "Settled", &[], &[]),
            node("mds", "Updating", &["etcd"], &[]),
            node("snapshotclone", "Missing", &["chunkserver"], &["chunkserver"]),
        ];
        let drawn = text(&Tree { nodes, cycles: Vec::new() }, "storage");
        let expected = [
            "COMPONENT             STATE         WAITS FOR",
            "etcd                  Settled       -",
            "├─ chunkserver        Predecessor   blocked by mds: why",
            "│  └─ snapshotclone   Missing       blocked by chunkserver: why",
            "└─ mds                Updating      why",
            "   └─ chunkserver     Predecessor   drawn above",
        ];
        assert_eq!(drawn.lines().collect::<Vec<_>>(), expected, "\n{drawn}");
    }

    /// Regression 27 (fluxcd, documentation): circular dependencies are never reported.
    #[test]
    fn regression_27_a_circle_is_drawn_and_named() {
        let nodes = vec![node("a", "OrderCycle", &["b"], &[]), node("b", "OrderCycle", &["a"], &[])];
        let cycles = vec![vec!["a".to_owned(), "b".to_owned(), "a".to_owned()]];
        let drawn = text(&Tree { nodes, cycles }, "x");
        assert!(drawn.ends_with("Circle: a -> b -> a; take one `after` away.\n"), "{drawn}");
        assert_eq!(drawn.lines().count(), 5, "{drawn}");
    }

    #[test]
    fn nothing_in_order_is_said() {
        assert!(text(&Tree::default(), "x").starts_with("No component in namespace x waits"));
    }
}
