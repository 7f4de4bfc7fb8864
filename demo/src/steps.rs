//! What is shown, step by step.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::{
    Api,
    api::{ListParams, ObjectMeta},
};

use crate::{
    facts::{self, Fact},
    manifests::{self, Component, Stack},
    observer::Observer,
    parts::Parts,
    programs::{Ended, Show},
    receiver::{Call, Receiver},
    runs,
    say::Say,
    setup::{NAMESPACE, Shared},
    sight,
};

/// How long a command may take that only reads or writes.
const COMMAND: Duration = Duration::from_secs(30);
/// How long an update of the stack may take.
const UPDATE_SECONDS: u64 = 90;
/// Who the controller is in the audit log.
const CONTROLLER: &str = "system:serviceaccount:interlock-system:interlock";

/// Where the records stood when something began.
#[derive(Clone, Copy)]
struct Mark {
    sights: usize,
    calls: usize,
}

/// The steps and what they need.
pub(crate) struct Steps<'a> {
    say: Say,
    on: Shared<'a>,
    receiver: Receiver,
    observer: Observer,
    stack: Stack,
}

impl<'a> Steps<'a> {
    /// # Errors
    /// When the examples are not what this program expects.
    pub(crate) fn new(say: Say, on: Shared<'a>, receiver: Receiver, observer: Observer) -> Result<Self> {
        Ok(Self { say, on, receiver, observer, stack: manifests::stack()? })
    }

    /// All steps in order; facts are added as they are found.
    ///
    /// # Errors
    /// The first step that does not come to its end.
    pub(crate) async fn all(&self, parts: &mut Parts, facts: &mut Vec<Fact>) -> Result<()> {
        parts.begin("ordered start: etcd -> mds -> chunkserver -> snapshotclone, applied in the opposite order");
        self.ordered_start(facts).await?;
        parts.begin("new images for all: in place, one component after the other, hooks before and after");
        self.new_images(facts).await?;
        parts.begin("kubectl rollout undo deploy/mds: back in place");
        self.undo(facts).await?;
        parts.begin("a bad image: freezes with one pod in doubt, a new template is the cure");
        self.bad_image(facts).await?;
        parts.begin("a change of environment: new pods, after the same hooks, and why");
        self.environment(facts).await?;
        parts.begin("at rest");
        self.rest(facts).await
    }

    async fn ordered_start(&self, facts: &mut Vec<Fact>) -> Result<()> {
        self.kubectl(&format!("create namespace {NAMESPACE}"), Show::All).await?;
        self.say.line("examples/storage/policy.yaml, with its hooks sent to the receiver:");
        self.on.programs.apply(&manifests::policy(self.receiver.authority())?, Show::All).await?;
        self.kubectl("wait hookpolicy/storage --for=condition=Ready --timeout=30s", Show::All).await?;
        self.say.line("examples/storage/deployments.yaml, the last component first:");
        self.on.programs.apply(&self.stack.reversed, Show::All).await?;
        self.kubectl("interlock status", Show::All).await?;
        self.kubectl("interlock explain deploy/snapshotclone", Show::All).await?;
        self.settle(&self.stack.components).await?;
        facts.extend(facts::start(&self.stack.components, &self.observer.sights().await?, self.receiver.calls().len()));
        Ok(())
    }

    async fn new_images(&self, facts: &mut Vec<Fact>) -> Result<()> {
        const PART: &str = "update";
        let all = &self.stack.components;
        let mark = self.mark().await?;
        let audit = self.on.cluster.audit().ok();
        let audit_mark = if audit.is_some() { Some(self.on.cluster.audit_mark().await?) } else { None };
        let mut warned = 0;
        for component in all {
            let ended = self.set_image(component, "v2").await?;
            warned += usize::from(warns(&ended, &component.name));
        }
        self.settle(all).await?;
        let (sights, calls) = self.since(mark).await?;
        facts.push(Fact::exactly(PART, "writes that were held with a warning by kubectl", all.len(), warned));
        facts.extend(facts::in_place(PART, all, &sights, mark.sights, "v2"));
        facts.extend(facts::order(PART, all, &sights, mark.sights, "v2", &calls));
        facts.extend(facts::hooks(PART, all, &calls, 1, 1));
        if let Some((audit, audit_mark)) = audit.zip(audit_mark) {
            let writes = audit.writes_since(audit_mark)?;
            let of_pods = writes.iter().filter(|event| event.acting_user() == CONTROLLER && event.is_about("pods"));
            let pods: usize = all.iter().map(|component| component.replicas).sum();
            facts.push(Fact::exactly(PART, "writes to pods by Interlock (audit log)", pods, of_pods.count()));
        }
        Ok(())
    }

    async fn undo(&self, facts: &mut Vec<Fact>) -> Result<()> {
        const PART: &str = "undo";
        let mds = self.component("mds")?;
        let only = std::slice::from_ref(mds);
        let mark = self.mark().await?;
        self.kubectl(&format!("rollout undo {}", mds.target()), Show::All).await?;
        self.settle(only).await?;
        let history = self.kubectl(&format!("rollout history {}", mds.target()), Show::All).await?;
        let (sights, calls) = self.since(mark).await?;
        facts.extend(facts::in_place(PART, only, &sights, mark.sights, "v1"));
        facts.extend(facts::hooks(PART, only, &calls, 1, 1));
        // v1 was revision 1, v2 revision 2; going back makes v1 revision 3.
        facts.push(Fact::exactly(PART, "revisions in kubectl rollout history", "2 3", revisions(&history.stdout)));
        Ok(())
    }

    async fn bad_image(&self, facts: &mut Vec<Fact>) -> Result<()> {
        const PART: &str = "bad image";
        let server = self.component("chunkserver")?;
        let only = std::slice::from_ref(server);
        let bad = "bad-pull1";
        let mark = self.mark().await?;
        self.set_image(server, bad).await?;
        let wait = format!("interlock wait {} --timeout={UPDATE_SECONDS}s", server.target());
        let within = Duration::from_secs(UPDATE_SECONDS + 15);
        let ended = self.on.programs.try_kubectl(&wait, Show::All, within).await?;
        facts.push(Fact::exactly(PART, "exit code of kubectl interlock wait (1: stalled)", 1, ended.code));
        self.kubectl(&format!("interlock explain {}", server.target()), Show::All).await?;
        let (sights, calls) = self.since(mark).await?;
        let pods = sight::picture(&sights, &server.name);
        let others = sight::ready(&pods, Some(&server.image("v2")));
        facts.push(Fact::exactly(PART, "pods of v2 that are still ready", server.replicas.saturating_sub(1), others));
        facts.extend(facts::hooks(PART, only, &calls, 1, 0));

        self.say.line("the cure is a new template:");
        let cure = self.mark().await?;
        self.set_image(server, "v3").await?;
        self.settle(only).await?;
        let (sights, calls) = self.since(cure).await?;
        let doubt = sight::most_in_doubt(&sights, &server.name, mark.sights, &server.image(bad));
        facts.push(Fact::judged(PART, "most pods in doubt at any event", "at most 1", doubt, doubt <= 1));
        let kept = sight::kept(&sights, &server.name, mark.sights);
        facts.push(Fact::exactly(PART, "pods with the same UID after the cure", server.replicas, kept));
        let cured = sight::ready(&sight::picture(&sights, &server.name), Some(&server.image("v3")));
        facts.push(Fact::exactly(PART, "ready pods that run v3 at the end", server.replicas, cured));
        facts.extend(facts::hooks("cure", only, &calls, 1, 1));
        Ok(())
    }

    async fn environment(&self, facts: &mut Vec<Fact>) -> Result<()> {
        const PART: &str = "native";
        let etcd = self.component("etcd")?;
        let only = std::slice::from_ref(etcd);
        let mark = self.mark().await?;
        self.kubectl(&format!("set env {} ETCD_AUTO_COMPACTION_RETENTION=1", etcd.target()), Show::All).await?;
        self.settle(only).await?;
        let (way, because) = runs::way(self.on.client.clone(), NAMESPACE, &etcd.name).await?;
        self.say.line(format_args!("the HookRun says: {way}, because"));
        for line in &because {
            self.say.quote(line);
        }
        let (sights, calls) = self.since(mark).await?;
        let (born, gone) = sight::born_and_gone(&sights, &etcd.name, mark.sights);
        facts.push(Fact::exactly(PART, "the way that the HookRun reports", "Native", way));
        let names_it = because.iter().any(|line| line.contains("env"));
        let seen = if names_it { "yes" } else { "no" };
        facts.push(Fact::judged(PART, "its reason names the environment", "yes", seen, names_it));
        facts.push(Fact::exactly(PART, "pods created", etcd.replicas, born));
        facts.push(Fact::exactly(PART, "pods deleted", etcd.replicas, gone));
        let ready = sight::ready(&sight::picture(&sights, &etcd.name), Some(&etcd.image("v2")));
        facts.push(Fact::exactly(PART, "ready pods at the end", etcd.replicas, ready));
        facts.extend(facts::hooks(PART, only, &calls, 1, 1));
        Ok(())
    }

    /// Nothing is held and nothing is left over.
    async fn rest(&self, facts: &mut Vec<Fact>) -> Result<()> {
        const PART: &str = "rest";
        self.kubectl("interlock status", Show::All).await?;
        self.kubectl("get hookruns", Show::All).await?;
        let deployments: Api<Deployment> = Api::namespaced(self.on.client.clone(), NAMESPACE);
        let deployments = deployments.list(&ListParams::default()).await?.items;
        let held = deployments.iter().filter(|deployment| {
            has_annotation(&deployment.metadata, "interlock.dev/held-by") || deployment.spec.paused == Some(true)
        });
        facts.push(Fact::exactly(PART, "Deployments that are held or paused", 0, held.count()));
        let sets: Api<ReplicaSet> = Api::namespaced(self.on.client.clone(), NAMESPACE);
        let sets = sets.list(&ListParams::default()).await?.items;
        let active = sets.iter().filter(|set| set.spec.replicas.unwrap_or(1) > 0);
        facts.push(Fact::exactly(PART, "ReplicaSets with pods", deployments.len(), active.count()));
        Ok(())
    }

    /// Runs kubectl and demands success.
    async fn kubectl(&self, line: &str, show: Show) -> Result<Ended> {
        self.on.programs.kubectl(line, show, COMMAND).await
    }

    async fn set_image(&self, component: &Component, tag: &str) -> Result<Ended> {
        let line = format!("set image {} {}={}", component.target(), component.container, component.image(tag));
        self.kubectl(&line, Show::All).await
    }

    /// Waits as a script would, and demands that all of them settle.
    async fn settle(&self, components: &[Component]) -> Result<()> {
        let targets: Vec<String> = components.iter().map(Component::target).collect();
        let line = format!("interlock wait {} --timeout={UPDATE_SECONDS}s", targets.join(" "));
        let ended = self.on.programs.try_kubectl(&line, Show::All, Duration::from_secs(UPDATE_SECONDS + 15)).await?;
        if ended.code != 0 {
            bail!("`kubectl {line}` ended with code {}: {}", ended.code, ended.stderr.trim());
        }
        Ok(())
    }

    fn component(&self, name: &str) -> Result<&Component> {
        let found = self.stack.components.iter().find(|component| component.name == name);
        found.with_context(|| format!("examples/storage/deployments.yaml has no Deployment {name}"))
    }

    async fn mark(&self) -> Result<Mark> {
        Ok(Mark { sights: self.observer.sights().await?.len(), calls: self.receiver.calls().len() })
    }

    /// All sights, and the calls since the mark.
    async fn since(&self, mark: Mark) -> Result<(Vec<sight::Sight>, Vec<Call>)> {
        let calls = self.receiver.calls().split_off(mark.calls);
        Ok((self.observer.sights().await?, calls))
    }
}

fn has_annotation(meta: &ObjectMeta, key: &str) -> bool {
    meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
}

/// Whether kubectl printed our warning about this Deployment.
fn warns(ended: &Ended, name: &str) -> bool {
    ended.stderr.lines().any(|line| line.starts_with("Warning:") && line.contains("interlock") && line.contains(name))
}

/// The revisions that `kubectl rollout history` lists.
fn revisions(history: &str) -> String {
    let first = history.lines().filter_map(|line| line.split_whitespace().next());
    first.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectls_words_are_understood() {
        let history = "deployment.apps/mds \nREVISION  CHANGE-CAUSE\n2         <none>\n3         <none>\n\n";
        assert_eq!(revisions(history), "2 3");
        let ended = |stderr: &str| Ended { code: 0, stdout: String::new(), stderr: stderr.into() };
        assert!(warns(&ended("Warning: interlock holds deployment mds\n"), "mds"));
        assert!(!warns(&ended("Warning: interlock holds deployment mds\n"), "etcd"));
        assert!(!warns(&ended("Warning: something about mds\n"), "mds"));
    }
}
