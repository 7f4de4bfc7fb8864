//! A namespace on the real node, with the helpers that real containers need.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, OnceLock},
    time::Duration,
};

use devcluster::{Cluster, Options, Registry, can_run_real_node};
use interlock::install::InstallOptions;
use serde_json::{Value, json};
use tally::Tally;
use tokio::sync::{OnceCell, mpsc::UnboundedReceiver};

use crate::{
    harness::{Env, Moment, cluster::prepare, gate::Stopped, objects},
    truth,
};

/// A namespace whose pods run on the real node, in a row of the table.
pub struct Node {
    env: Env,
    /// The repository of this test's images: no other test has pulled them.
    repository: String,
    tally: Tally,
}

impl Deref for Node {
    type Target = Env;

    fn deref(&self) -> &Env {
        &self.env
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Env {
        &mut self.env
    }
}

/// Whether the machine allows it; said once, where everybody looks.
fn allowed() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        let why = format!("{:#}", can_run_real_node().err()?).replace(['\n', '\t'], " ");
        eprintln!("real node: all tests SKIPPED because {why}");
        Tally::new(Box::leak(format!("real node: SKIPPED because {why}").into_boxed_str()));
        Some(why)
    });
    why_not.is_none()
}

/// The cluster of this test program: one real node, nothing simulated.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = async || {
        let options = Options { nodes: 0, kwok: false, real_node: true, ..Options::default() };
        let cluster = Cluster::start(options).await.expect("a development cluster with a real node");
        // Only namespaces that are chosen are concerned.
        prepare(&cluster, &InstallOptions { readiness_gate: true, ..InstallOptions::default() }).await;
        cluster
    };
    CLUSTER.get_or_init(start).await
}

impl Node {
    /// A namespace with this policy, in force, and a running controller; `None`: the test is skipped.
    pub async fn with(name: &'static str, change: impl FnOnce(&mut Value)) -> Option<Self> {
        if !allowed() {
            return None;
        }
        let cluster = cluster().await;
        let tally = Tally::new(Box::leak(format!("real node: {name}").into_boxed_str()));
        let mut env = Env::on(cluster, name).await;
        let mut policy = objects::policy("p", &env.receiver.url);
        change(&mut policy);
        env.policy(policy).await;
        env.start().await;
        Some(Self { env, repository: name.to_owned(), tally })
    }

    /// A namespace with the usual policy; `None`: the test is skipped.
    pub async fn new(name: &'static str) -> Option<Self> {
        Self::with(name, |_| ()).await
    }

    pub fn registry(&self) -> &'static Registry {
        self.cluster.registry().unwrap()
    }

    pub fn image(&self, tag: &str) -> String {
        self.registry().image(&self.repository, tag)
    }

    pub fn digest(&self, tag: &str) -> String {
        self.registry().digest(&self.repository, tag).unwrap()
    }

    /// A Deployment with one container `c` and a readiness probe.
    pub fn deployment(&self, name: &str, replicas: i64, image: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "labels": {"stack": "test"}},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "strategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "dnsPolicy": "Default",
                        "terminationGracePeriodSeconds": 3,
                        "containers": [{
                            "name": "c", "image": image,
                            // Without a request a container gets next to no CPU while a build runs beside the test. Small: the
                            // pods of all tests stay until the end and share what the node has.
                            "resources": {"requests": {"cpu": "20m"}},
                            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
                        }],
                    },
                },
            },
        })
    }

    /// The same without a probe.
    pub fn without_probe(&self, name: &str, replicas: i64, image: &str) -> Value {
        let mut deployment = self.deployment(name, replicas, image);
        deployment["spec"]["template"]["spec"]["containers"][0].as_object_mut().unwrap().remove("readinessProbe");
        deployment
    }

    /// Changes the image as the user and waits until it is done and everything is as it should be: the same pods at
    /// the same addresses and with the same sandbox, each answering with `version`, and "done" never said before that.
    /// A pod is asked at the first moment at which it has to be done: before the write that comes after it.
    pub async fn updates(&self, name: &str, image: &str, version: &str) {
        let (before, mark) = (self.identities(name).await, self.observer.mark());
        let pods = before.len();
        let done = self.gate.count("PATCH pods");
        let next: Vec<_> = (2..=pods).map(|nth| self.gate.stop_at(Moment::Before, "PATCH pods", nth)).collect();
        let commit = self.gate.stop_at(Moment::Before, "PATCH replicasets", 1);
        self.patch(name, set_image(image)).await;
        for mut stop in next.into_iter().chain([commit]) {
            let stopped = stopped(&mut stop).await;
            self.written_pods_answer(name, image, version).await;
            stopped.go_on();
        }
        self.ended(name, "Succeeded").await;
        self.all_well(name).await;
        assert_eq!(self.gate.count("PATCH pods") - done, pods, "one write per pod");
        self.same_pods(name, mark, &before).await;
        self.answer(name, version).await;
        self.tally.points(pods);
        self.true_to(name).await;
    }

    /// UID, address and sandbox of each pod, in order.
    pub async fn identities(&self, name: &str) -> Vec<(String, String)> {
        let pods = self.pods(name).await;
        let mut all: Vec<_> = pods
            .iter()
            .map(|p| (text(&p["metadata"]["uid"]), text(&p["status"]["podIP"])))
            .inspect(|(_, ip)| assert!(!ip.is_empty(), "a pod without an address"))
            .collect();
        all.sort();
        all
    }

    /// The pods are those from before, and none was made or deleted meanwhile.
    pub async fn same_pods(&self, name: &str, mark: usize, before: &[(String, String)]) {
        assert_eq!(self.identities(name).await, before, "{name}: other pods, or other addresses");
        let (born, gone) = self.observer.born_and_gone(name, mark);
        assert_eq!((born.len(), gone.len()), (0, 0), "{name}: pods were created or deleted");
        self.tally.checks(2);
    }

    /// Every pod answers with this version.
    pub async fn answer(&self, name: &str, version: &str) {
        for pod in self.pods(name).await {
            assert_eq!(served(&pod, 8080).await.as_deref(), Some(version), "{name}: {}", pod["metadata"]["name"]);
            self.tally.checks(1);
        }
    }

    /// Every pod that was written answers with the new version now.
    async fn written_pods_answer(&self, name: &str, image: &str, version: &str) {
        let pods = self.pods(name).await;
        let written: Vec<_> = pods.iter().filter(|p| p["spec"]["containers"][0]["image"] == image).collect();
        assert!(!written.is_empty(), "{name}: nothing was written before the second write");
        for pod in written {
            let status = &pod["status"]["containerStatuses"][0];
            assert!(status["state"]["running"].is_object(), "{name}: done was said while nothing runs: {status}");
            // Without a readiness probe a process that has just begun need not listen yet; the old one would answer.
            let answer = Mutex::new(None);
            self.until("an answer", 20, || async {
                let served = served(pod, 8080).await;
                served.is_some_and(|text| answer.lock().unwrap().replace(text).is_none())
            })
            .await;
            let answer = answer.into_inner().unwrap();
            assert_eq!(answer.as_deref(), Some(version), "{name}: done was said too early: {status}");
            self.tally.checks(2);
        }
    }

    /// Over all that was seen of the app's pods, the done rule says done at exactly the event that shows the truth.
    pub async fn true_to(&self, name: &str) {
        let updates = || truth::updates(&self.observer.all(), name, self.registry());
        self.until("the observer has seen the end of it", 20, || async {
            updates().last().is_none_or(|update| update.true_at.is_some())
        })
        .await;
        for update in updates() {
            assert_eq!(update.said_at, update.true_at, "{name}: the done rule is early or late: {:#?}", update.events);
            self.tally.checks(update.events.len());
        }
    }

    /// So many more things were looked at.
    pub fn checked(&self, more: usize) {
        self.tally.checks(more);
    }

    /// Waits until the run is stalled for this reason, and returns its message.
    pub async fn stalled(&self, name: &str, reason: &str) -> String {
        self.until(&format!("stalled: {reason}"), 90, || async {
            self.run(name).await["status"]["stall"]["reason"] == reason
        })
        .await;
        text(&self.run(name).await["status"]["stall"]["message"])
    }
}

/// Waits until the controller stands before the write of a trap.
pub async fn stopped(stop: &mut UnboundedReceiver<Stopped>) -> Stopped {
    tokio::time::timeout(Duration::from_secs(450), stop.recv()).await.expect("the write is made in time").unwrap()
}

/// Strategic merge patch of the image of container `c`.
pub fn set_image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The image of the first container as the kubelet tells it.
pub fn shown(pod: &Value) -> String {
    text(&pod["status"]["containerStatuses"][0]["image"])
}

/// What a pod answers; `None`: nothing.
pub async fn served(pod: &Value, port: u16) -> Option<String> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(25)).build().unwrap();
    let answer = client.get(format!("http://{}:{port}/", text(&pod["status"]["podIP"]))).send().await.ok()?;
    Some(answer.text().await.ok()?.trim().to_owned())
}
