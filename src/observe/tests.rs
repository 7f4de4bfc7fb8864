use std::sync::{Arc, Mutex};

use interlock_core::{
    api::reference::{Reference, WorkloadKind},
    time::Time,
    world::{Predecessor, RunState, Standing},
};
use serde_json::{Value, json};

use super::{
    object::{BudgetKind, DeploymentKind, Object, PodKind, PolicyKind, ReplicaSetKind, RunKind, StatefulSetKind},
    *,
};

/// A cache, and what it asked to be looked at.
struct Fixture {
    observe: Observe,
    told: Arc<Mutex<Vec<Item>>>,
}

impl Fixture {
    fn new() -> Self {
        let told: Arc<Mutex<Vec<Item>>> = Arc::default();
        let tell = Arc::clone(&told);
        Self { observe: Observe::new(move |item| tell.lock().unwrap().push(item)), told }
    }

    fn watch<K: Watched>(&self, json: Value) -> Vec<String> {
        self.told.lock().unwrap().clear();
        self.observe.take(&Object::<K>::new(json), Source::Watch, None);
        self.told()
    }

    fn told(&self) -> Vec<String> {
        let mut names: Vec<String> = std::mem::take(&mut *self.told.lock().unwrap())
            .into_iter()
            .map(|item| match item {
                Item::Deployment(key) => key.name.to_string(),
                Item::Policy(key) => format!("policy {}", key.name),
                Item::Restart(key) => format!("restart {}", key.name),
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn world(&self, name: &str) -> World {
        self.observe.world(&Key::new("ns", name), Time(0), None).unwrap()
    }
}

fn metadata(name: &str, version: u64, owner: Option<(&str, &str)>) -> Value {
    let owners: Vec<Value> = owner
        .iter()
        .map(|(kind, name)| json!({"kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true}))
        .collect();
    json!({"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(), "ownerReferences": owners})
}

fn deployment(name: &str, version: u64, image: &str, held: bool) -> Value {
    let mut metadata = metadata(name, version, None);
    if held {
        metadata["annotations"] = json!({"interlock.dev/held-by": "p"});
    }
    json!({"metadata": metadata, "spec": {"replicas": 2, "paused": held, "selector": {"matchLabels": {"app": name}}, "template": template(image)}})
}

fn template(image: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": image}]}})
}

fn replica_set(name: &str, of: &str, version: u64, image: &str) -> Value {
    json!({"metadata": metadata(name, version, Some(("Deployment", of))), "spec": {"replicas": 2, "template": template(image)}})
}

fn pod(name: &str, of: &str, version: u64) -> Value {
    let mut metadata = metadata(name, version, Some(("ReplicaSet", of)));
    metadata["labels"] = json!({"app": "web"});
    json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]}})
}

#[allow(clippy::needless_pass_by_value, reason = "literals read better this way")]
fn run(name: &str, of: &str, version: u64, sequence: i64, status: Value) -> Value {
    json!({"metadata": metadata(name, version, Some(("Deployment", of))), "status": status, "spec": {
        "deployment": {"name": of, "uid": format!("uid-{of}")}, "policy": {"name": "p", "uid": "uid-p", "generation": 1},
        "sequence": sequence, "target": "t", "newTemplate": template("v2"),
        "settings": {"settleSeconds": 0, "maxConcurrentUpdates": 1, "maxHoldSeconds": 0, "onDelete": "Hold", "historyLimit": 1}}})
}

fn updating() -> Value {
    json!({"conditions": [{"type": "Updated", "status": "False", "reason": "Updating", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

#[tokio::test(start_paused = true)]
async fn pods_and_replica_sets_lead_to_their_deployment_in_whatever_order_they_arrive() {
    let f = Fixture::new();
    assert_eq!(f.watch::<PodKind>(pod("web-1-a", "web-1", 3)), [""; 0]);
    assert_eq!(f.watch::<ReplicaSetKind>(replica_set("web-1", "web", 2, "v1")), [""; 0]);
    assert_eq!(f.watch::<DeploymentKind>(deployment("web", 1, "v1", false)), ["web"]);
    let world = f.world("web");
    assert_eq!((world.replica_sets.len(), world.pods.len()), (1, 1));
    let labelled = |version: u64| {
        let mut pod = pod("web-1-a", "web-1", version);
        pod["metadata"]["labels"]["x"] = json!("y");
        pod
    };
    assert_eq!(f.watch::<PodKind>(labelled(4)), ["web"]);
    assert_eq!(f.watch::<PodKind>(labelled(4)), [""; 0], "nothing new");
    assert_eq!(f.watch::<PodKind>(pod("other", "unknown", 5)), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_world_made_from_the_last_one_is_the_same_as_one_made_anew() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", false));
    for set in ["web-1", "web-2"] {
        f.watch::<ReplicaSetKind>(replica_set(set, "web", 2, "v1"));
        for name in ["b", "d", "f"] {
            f.watch::<PodKind>(pod(&format!("{set}-{name}"), set, 3));
        }
    }
    let mut last = f.world("web");
    assert_eq!(last.pods.len(), 6);
    let gone = |name: &str| Version { uid: format!("uid-{name}").as_str().into(), resource_version: "9".into() };
    let changes: [&dyn Fn(); 5] = [
        &|| drop(f.watch::<PodKind>(pod("web-1-d", "web-1", 4))),
        &|| drop(f.watch::<PodKind>(pod("web-1-a", "web-1", 5))),
        &|| f.observe.forget::<PodKind>(&Key::new("ns", "web-1-f"), &gone("web-1-f"), None),
        &|| drop(f.watch::<PodKind>(pod("web-2-z", "web-2", 6))),
        &|| f.observe.forget::<ReplicaSetKind>(&Key::new("ns", "web-1"), &gone("web-1"), None),
    ];
    for change in changes {
        change();
        let reused = f.observe.world(&Key::new("ns", "web"), Time(0), Some(last)).unwrap();
        assert_eq!(reused, f.world("web"));
        last = reused;
    }
    last.pods[0].resource_version.clear();
    assert_eq!(
        f.observe.world(&Key::new("ns", "web"), Time(0), Some(last)).unwrap(),
        f.world("web"),
        "what was foreseen"
    );
}

/// A pod of `web-1` under way to `target`: what its spec shows, and what its kubelet reports of its container.
fn moving_pod(version: u64, image: &str, target: Option<&str>, observed: i64, status: &Value) -> Value {
    let mut metadata = metadata("web-1-a", version, Some(("ReplicaSet", "web-1")));
    metadata["generation"] = json!(if target.is_some() { 2 } else { 1 });
    if let Some(target) = target {
        let was = json!({"c": {"spec": "v1", "id": "c://1", "image": "v1", "imageID": "sha1", "restarts": 0}});
        let record =
            json!({"target": target, "gen": 1, "at": "2026-01-01T00:00:00Z", "quiet": true, "was": was}).to_string();
        metadata["annotations"] = json!({"interlock.dev/update": record});
    }
    let ready = if status["ready"] == true { "True" } else { "False" };
    json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": image}]},
        "status": {"phase": "Running", "observedGeneration": observed, "containerStatuses": [status],
            "conditions": [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": ready}]}})
}

/// Of the changes of a pod that is updated only those are told to its Deployment that can let anything happen; whoever waits for
/// the Deployment is told of all.
#[tokio::test(start_paused = true)]
async fn of_the_changes_of_a_pod_that_is_updated_only_its_end_is_news() {
    let f = Fixture::new();
    f.watch::<PolicyKind>(
        json!({"metadata": metadata("p", 1, None), "spec": {"order": [{"name": "after", "after": ["web"]}]}}),
    );
    f.watch::<DeploymentKind>(deployment("after", 1, "v1", true));
    f.world("after");
    f.watch::<DeploymentKind>(deployment("web", 1, "v2", true));
    f.watch::<ReplicaSetKind>(replica_set("web-1", "web", 1, "v1"));
    let target = f.world("web").deployment.template.hash().to_owned();
    let run = |version: u64, status: Value| {
        let mut run = run("web-1", "web", version, 1, status);
        run["spec"]["target"] = json!(target);
        run
    };
    f.watch::<RunKind>(run(1, updating()));
    let status = |id: &str, image: &str, ready: bool, state: Value| json!({"name": "c", "containerID": id, "image": image, "imageID": "sha", "ready": ready, "state": state});
    let running = || json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": ""}});
    let old = |ready: bool| status("c://1", "v1", ready, running());
    let to = Some(target.as_str());
    let both = ["after", "web"];
    let others = ["after"];
    let mut version = 10;
    let mut see = |image: &str, target: Option<&str>, observed: i64, status: Value| {
        version += 1;
        f.watch::<PodKind>(moving_pod(version, image, target, observed, &status))
    };
    assert_eq!(see("v1", None, 1, old(true)), both, "it is new");
    assert_eq!(see("v1", None, 1, old(true)), others, "only its version changed");
    assert_eq!(see("v2", to, 1, old(true)), both, "it is written to");
    assert_eq!(see("v2", to, 2, old(true)), others, "its kubelet has seen it");
    assert_eq!(
        see("v2", to, 2, status("c://1", "v1", false, json!({"terminated": {"containerID": "c://1"}}))),
        others,
        "stopped"
    );
    assert_eq!(see("v2", to, 2, status("c://1", "v1", false, waiting("ContainerCreating"))), others, "pulled");
    assert_eq!(see("v2", to, 2, status("c://2", "v2", false, running())), others, "started");
    assert_eq!(see("v2", to, 2, status("c://2", "v2", true, running())), both, "done");
    assert_eq!(see("v2", to, 2, status("c://2", "v2", false, running())), both, "ready no more");
    assert_eq!(see("v2", to, 2, status("c://1", "v1", false, waiting("ImagePullBackOff"))), both, "it fails");
    assert_eq!(see("v2", to, 2, status("c://1", "v1", false, waiting("ErrImagePull"))), both, "it fails otherwise");
    assert_eq!(see("v2", to, 2, old(false)), both, "it does not fail");
    assert_eq!(see("v2", to, 2, old(true)), others, "whether it serves meanwhile does not count");
    assert_eq!(see("v1", to, 2, old(true)), both, "somebody has changed it back");
    assert_eq!(see("v1", to, 2, old(false)), both, "now it counts");
    assert_eq!(see("v2", to, 2, old(false)), both);
    let stall =
        json!({"stall": {"since": "2026-01-01T00:00:00Z", "reason": "PodFailing", "message": "", "reverting": true}});
    f.watch::<RunKind>(run(30, stall));
    assert_eq!(see("v2", to, 2, old(true)), both, "it may be changed once more");
}

#[tokio::test(start_paused = true)]
async fn counts_of_a_held_deployment_are_no_news_for_it() {
    let f = Fixture::new();
    let web = |version: u64, held: bool, status: Value| {
        let mut web = deployment("web", version, "v2", held);
        web["status"] = status;
        web
    };
    let set = |version: u64, available: i64, observed: i64| {
        let mut set = replica_set("web-1", "web", version, "v1");
        set["status"] = json!({"replicas": 2, "availableReplicas": available, "observedGeneration": observed});
        set
    };
    let counts = |available: i64, observed: i64| json!({"observedGeneration": observed, "replicas": 2, "availableReplicas": available});
    f.watch::<DeploymentKind>(web(1, true, counts(2, 1)));
    assert_eq!(f.watch::<ReplicaSetKind>(set(2, 2, 1)), ["web"]);
    assert_eq!(f.watch::<ReplicaSetKind>(set(3, 1, 1)), [""; 0]);
    assert_eq!(f.watch::<ReplicaSetKind>(set(4, 0, 1)), ["web"], "whether any is available counts");
    assert_eq!(f.watch::<ReplicaSetKind>(set(5, 0, 2)), ["web"]);
    assert_eq!(f.watch::<DeploymentKind>(web(6, true, counts(1, 1))), [""; 0]);
    assert_eq!(f.watch::<DeploymentKind>(web(7, true, counts(1, 2))), ["web"]);
    assert_eq!(f.watch::<DeploymentKind>(web(8, false, counts(1, 2))), ["web"]);
    assert_eq!(f.watch::<DeploymentKind>(web(9, false, counts(2, 2))), ["web"]);
    assert_eq!(f.watch::<ReplicaSetKind>(set(10, 2, 2)), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn equal_templates_are_kept_once() {
    let f = Fixture::new();
    f.watch::<ReplicaSetKind>(replica_set("web-1", "web", 2, "v1"));
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", false));
    let world = f.world("web");
    assert!(std::ptr::eq(world.deployment.template.json(), world.replica_sets[0].template.json()));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_told_of_its_predecessor() {
    let f = Fixture::new();
    f.watch::<PolicyKind>(json!({"metadata": metadata("p", 1, None), "spec": {"order": [{"name": "etcd"}, {"name": "web", "after": ["etcd", "statefulset/x"]}]}}));
    f.watch::<DeploymentKind>(deployment("web", 2, "v1", true));
    let world = f.world("web");
    let names: Vec<String> = world.components.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["etcd", "statefulset/x"]);
    let etcd: Reference = "etcd".parse().unwrap();
    assert!(world.components[&etcd].is_none());
    assert_eq!(f.watch::<DeploymentKind>(deployment("etcd", 3, "v1", false)), ["etcd", "policy p", "web"]);
    assert_eq!(f.watch::<ReplicaSetKind>(replica_set("etcd-1", "etcd", 4, "v0")), ["etcd", "web"]);
    assert_eq!(f.watch::<PodKind>(pod("etcd-1-a", "etcd-1", 5)), ["etcd", "web"]);
    let etcd = f.world("web").components[&etcd].clone().unwrap();
    let Standing::Deployment(etcd) = etcd.standing else { panic!() };
    assert_eq!((etcd.old_pods, etcd.run), (1, None));
    assert_eq!(etcd.changed, Some("2026-01-01T00:00:05Z".parse().unwrap()));
    // At rest it waits for nothing any more.
    f.watch::<DeploymentKind>(deployment("web", 6, "v1", false));
    assert!(f.world("web").components.is_empty());
    let gone = Version { uid: "uid-etcd-1-a".into(), resource_version: "7".into() };
    f.observe.forget::<PodKind>(&Key::new("ns", "etcd-1-a"), &gone, None);
    assert_eq!(f.told(), ["etcd"]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_seen_by_others_and_its_end_is_told_to_all_that_are_held() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("a", 1, "v1", true));
    f.watch::<DeploymentKind>(deployment("b", 2, "v1", true));
    f.watch::<DeploymentKind>(deployment("c", 3, "v1", false));
    assert_eq!(f.watch::<RunKind>(run("a-1", "a", 4, 1, updating())), ["a", "policy p"]);
    assert_eq!(f.world("a").busy.len(), 0);
    assert_eq!(f.world("b").busy["p"], 1);
    let ended = json!({"ended": {"at": "2026-01-01T00:00:09Z", "outcome": "Aborted"}});
    assert_eq!(f.watch::<RunKind>(run("a-1", "a", 5, 1, ended)), ["a", "b", "policy p"]);
    assert!(f.world("b").busy.is_empty());
    assert_eq!(f.world("a").runs.len(), 1);
    let component = f.observe.with(|cache| gather::component(cache, &Key::new("ns", "a"))).unwrap();
    assert_eq!(component.run, Some(RunState::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_still_to_be_put_back_counts_as_old() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("a", 1, "v1", false));
    f.watch::<ReplicaSetKind>(replica_set("a-1", "a", 2, "v1"));
    let own = f.world("a").deployment.template.hash().to_owned();
    for (version, image, target, old) in [(3, "v2", "other", 1), (4, "v1", "other", 0), (5, "mirror.test/v1", &own, 0)]
    {
        let mut pod = pod("a-1-a", "a-1", version);
        let record = json!({"target": target, "gen": 1, "at": "2026-01-01T00:00:00Z"}).to_string();
        pod["metadata"]["annotations"] = json!({"interlock.dev/update": record});
        pod["spec"]["containers"][0]["image"] = json!(image);
        f.watch::<PodKind>(pod);
        let component = f.observe.with(|cache| gather::component(cache, &Key::new("ns", "a"))).unwrap();
        assert_eq!(component.old_pods, old, "{image} {target}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_be_read_is_left_out() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", false));
    f.watch::<RunKind>(
        json!({"metadata": metadata("bad", 2, Some(("Deployment", "web"))), "spec": {"sequence": "\u{0}"}}),
    );
    f.watch::<RunKind>(run("good", "web", 3, 1, json!({})));
    assert_eq!(f.world("web").runs.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["good"]);
}

#[tokio::test(start_paused = true)]
async fn our_own_write_is_seen_at_once_and_tells_everybody_but_us() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", false));
    let us = Item::Deployment(Key::new("ns", "web"));
    f.told();
    f.observe.learn(&Object::<DeploymentKind>::new(deployment("web", 9, "v2", false)), Some(&us));
    assert_eq!(f.told(), [""; 0]);
    assert_eq!(f.world("web").deployment.resource_version, "9");
    assert_eq!(f.watch::<DeploymentKind>(deployment("web", 5, "v1", false)), [""; 0], "the watch lags");
    assert_eq!(f.world("web").deployment.resource_version, "9");
}

#[tokio::test(start_paused = true)]
async fn budgets_know_which_pods_are_ours_and_who_else_is_ready() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", true));
    f.watch::<ReplicaSetKind>(replica_set("web-1", "web", 2, "v1"));
    f.watch::<PodKind>(pod("web-1-a", "web-1", 3));
    f.watch::<PodKind>(pod("alone", "nobody", 4));
    let pdb = |version: u64, allowed: i64| json!({"metadata": metadata("pdb", version, None), "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": allowed}});
    assert_eq!(f.watch::<BudgetKind>(pdb(5, 0)), ["web"]);
    let world = f.world("web");
    let [budget] = &world.budgets[..] else { panic!("{:?}", world.budgets) };
    assert_eq!((budget.pods.len(), budget.others_ready, budget.allowed), (1, 1, 0));
    assert_eq!(f.watch::<BudgetKind>(pdb(6, 0)), [""; 0], "only its version changed");
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_policy_triggers_nothing() {
    let f = Fixture::new();
    f.watch::<DeploymentKind>(deployment("web", 1, "v1", false));
    let policy =
        |version: u64, status: Value| json!({"metadata": metadata("p", version, None), "spec": {}, "status": status});
    assert_eq!(f.watch::<PolicyKind>(policy(2, json!({}))), ["policy p", "web"]);
    assert_eq!(f.watch::<PolicyKind>(policy(3, json!({"selected": 3}))), [""; 0]);
    assert_eq!(f.observe.policy(&Key::new("ns", "p")).unwrap().status.selected, 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_arrives_makes_the_cache_panic() {
    let f = Fixture::new();
    for odd in [
        json!(null),
        json!([]),
        json!({"metadata": 1}),
        json!({"metadata": {"name": "x"}}),
        json!({"metadata": {"name": "\u{0}", "namespace": 7, "uid": [], "ownerReferences": {"a": 1}}, "spec": "x", "status": 1e300}),
    ] {
        f.watch::<DeploymentKind>(odd.clone());
        f.watch::<ReplicaSetKind>(odd.clone());
        f.watch::<PodKind>(odd.clone());
        f.watch::<PolicyKind>(odd.clone());
        f.watch::<RunKind>(odd.clone());
        f.watch::<BudgetKind>(odd);
    }
    assert!(f.observe.everything().len() <= 4);
}

fn owned(kind: &str, name: &str, version: u64, owner: &str, ready: bool) -> Value {
    let mut pod = pod(name, "none", version);
    pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "name": owner, "uid": "o", "controller": true}]);
    pod["metadata"]["labels"] = json!({"app": owner});
    let status = if ready { "True" } else { "False" };
    pod["status"]["conditions"] =
        json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:07Z"}]);
    pod
}

fn waiting_for(f: &Fixture, after: &str) -> Option<Predecessor> {
    f.watch::<PolicyKind>(
        json!({"metadata": metadata("p", 1, None), "spec": {"order": [{"name": "web", "after": [after]}]}}),
    );
    f.watch::<DeploymentKind>(deployment("web", 2, "v1", true));
    f.world("web").components[&after.parse::<Reference>().unwrap()].clone()
}

fn pods_found(predecessor: Option<Predecessor>) -> (i64, i64, i64) {
    let Some(Predecessor { standing: Standing::Pods(pods), leaving, .. }) = predecessor else { panic!() };
    (pods.total, pods.ready, leaving)
}

/// Regressions 29 (jobset#1021: terminating or finished pods counted as current) and 30 (kubectl#1628: "done" while old pods
/// still terminate).
#[tokio::test(start_paused = true)]
async fn regression_29_30_pods_by_label_or_owner_count_while_they_are_neither_terminating_nor_finished() {
    for after in ["pods/app=main", "pods/owner=etcdcluster/main"] {
        let f = Fixture::new();
        let f = &f;
        let again = || f.world("web").components.values().next().unwrap().clone();
        assert_eq!(pods_found(waiting_for(f, after)), (0, 0, 0));
        assert_eq!(f.watch::<PodKind>(owned("EtcdCluster", "x-1", 3, "main", true)), ["web"]);
        assert_eq!(f.watch::<PodKind>(owned("EtcdCluster", "y", 4, "main", false)), ["web"]);
        assert!(f.watch::<PodKind>(owned("EtcdCluster", "z", 5, "other", false)).is_empty());
        assert_eq!(pods_found(again()), (2, 1, 0));
        let mut leaving = owned("EtcdCluster", "y", 6, "main", false);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:09Z");
        assert_eq!(f.watch::<PodKind>(leaving.clone()), ["web"]);
        assert_eq!(pods_found(again()), (1, 1, 1));
        // A finished one is neither a pod nor one that is waited for.
        leaving["status"]["phase"] = json!("Failed");
        leaving["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(f.watch::<PodKind>(leaving.clone()), ["web"]);
        assert_eq!(pods_found(again()), (1, 1, 0));
        leaving["status"]["phase"] = json!("Running");
        leaving["metadata"]["resourceVersion"] = json!("8");
        f.watch::<PodKind>(leaving);
        assert_eq!(pods_found(again()), (1, 1, 1));
        let gone = Version { uid: "uid-y".into(), resource_version: "9".into() };
        f.observe.forget::<PodKind>(&Key::new("ns", "y"), &gone, None);
        assert_eq!(f.told(), ["web"]);
        assert_eq!(pods_found(again()), (1, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deployment_belong_to_its_own_owner_too() {
    let f = Fixture::new();
    let mut etcd = deployment("whatever", 3, "v1", false);
    etcd["metadata"]["ownerReferences"] =
        json!([{"kind": "EtcdCluster", "name": "main", "uid": "o", "controller": true}]);
    f.watch::<DeploymentKind>(etcd);
    f.watch::<ReplicaSetKind>(replica_set("whatever-1", "whatever", 4, "v1"));
    f.watch::<PodKind>(pod("whatever-1-a", "whatever-1", 5));
    let (total, _, _) = pods_found(waiting_for(&f, "pods/owner=etcdcluster/main"));
    assert_eq!(total, 1);
}

#[tokio::test(start_paused = true)]
async fn other_kinds_are_unread_until_their_list_has_come_and_tell_what_waits() {
    let f = Fixture::new();
    assert!(f.observe.wanted.borrow().is_empty());
    assert_eq!(waiting_for(&f, "statefulset/db").unwrap().standing, Standing::Unread);
    assert!(f.observe.wanted.borrow().contains(&WorkloadKind::StatefulSet));
    f.observe.with_mut(StatefulSetKind::begin);
    let items = f.observe.with_mut(StatefulSetKind::finish);
    assert_eq!(items, [Item::Deployment(Key::new("ns", "web"))]);
    let now = || f.world("web").components.values().next().unwrap().clone();
    assert!(now().is_none());
    let set = json!({"metadata": metadata("db", 5, None), "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}}, "status": {"readyReplicas": 1}});
    assert_eq!(f.watch::<StatefulSetKind>(set), ["web"]);
    f.watch::<PodKind>(owned("StatefulSet", "db-0", 6, "db", true));
    let Standing::StatefulSet(found) = now().unwrap().standing else { panic!() };
    assert_eq!((found.ready, found.changed), (1, Some("2026-01-01T00:00:07Z".parse().unwrap())));
    let gone = Version { uid: "uid-db".into(), resource_version: "9".into() };
    f.observe.forget::<StatefulSetKind>(&Key::new("ns", "db"), &gone, None);
    assert_eq!(f.told(), ["web"]);
    assert!(now().is_none());
}

/// Regression 27 (fluxcd, documentation): circular dependencies are never reported. Here through annotations and an order.
#[tokio::test(start_paused = true)]
async fn regression_27_a_circle_through_annotations_is_seen_and_its_end_is_told() {
    let f = Fixture::new();
    let with_after = |name: &str, version: u64, after: &str, held: bool| {
        let mut d = deployment(name, version, "v1", held);
        d["metadata"]["annotations"]["interlock.dev/after"] = json!(after);
        d
    };
    f.watch::<PolicyKind>(
        json!({"metadata": metadata("p", 1, None), "spec": {"order": [{"name": "web", "after": ["b"]}]}}),
    );
    f.watch::<DeploymentKind>(deployment("web", 2, "v1", true));
    f.watch::<DeploymentKind>(with_after("b", 3, "c", true));
    assert!(f.world("web").cycle.is_empty());
    f.watch::<DeploymentKind>(with_after("c", 4, "deployment/web", false));
    assert_eq!(f.world("web").cycle, ["web", "b", "c", "web"]);
    assert_eq!(f.world("b").cycle, ["b", "c", "web", "b"]);
    // web does not wait for c, but what c says has a say in its circle.
    assert!(f.watch::<DeploymentKind>(with_after("c", 5, "", false)).contains(&"web".to_owned()));
    assert!(f.world("web").cycle.is_empty());
}
