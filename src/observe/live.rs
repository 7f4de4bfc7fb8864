//! Live reads: a Deployment first, then its ReplicaSets, then its pods, so that what is read later is at least as new
//! as what it is compared with. All of it goes into the cache.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use interlock_core::{api::reference::WorkloadKind, world::Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Api, Client, Resource as _,
    api::{ListParams, ObjectList, Request},
};

use super::{
    Observe,
    cache::{Item, identity},
    facts,
    object::{
        BudgetKind, DaemonSetKind, DeploymentKind, JobKind, Object, PodKind, PodVersionKind, PolicyKind,
        ReplicaSetKind, RunKind, StatefulSetKind,
    },
    table::{Key, Source, Version},
    watched::Watched,
};

/// How long all reads of one look may take together.
const DEADLINE: Duration = Duration::from_secs(30);
/// Objects per page of a list. A page is converted before the next one is asked for; until then it takes up to 40 KiB of
/// memory per object.
const PAGE: u32 = 50;
/// The same where only versions are read: some two KiB per object.
const PAGE_OF_VERSIONS: u32 = 250;
/// With more pods than this that are older in the cache than in the list, all are read.
const MOST_SINGLE: usize = 100;
/// Reads of single pods under way at the same time.
const SIDE_BY_SIDE: usize = 8;

/// A live read that failed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The API server refused, or could not be reached.
    #[error("live read failed: {0}")]
    Api(#[from] kube::Error),
    /// It took too long.
    #[error("live read did not end within {} s", DEADLINE.as_secs())]
    Slow,
}

impl Observe {
    /// Reads a Deployment, its ReplicaSets, its pods and its runs live, in this order.
    pub async fn read_live(&self, client: &Client, key: &Key) -> Result<(), LiveError> {
        tokio::time::timeout(DEADLINE, self.read_in_order(client, key)).await.map_err(|_| LiveError::Slow)?
    }

    /// Reads what is needed to plan one Deployment without any watch: for commands that look once.
    pub async fn read_once(&self, client: &Client, key: &Key) -> Result<(), LiveError> {
        let read = async {
            let any = ListParams::default();
            self.list::<PolicyKind>(client, &key.namespace, &any, None).await?;
            self.list::<BudgetKind>(client, &key.namespace, &any, None).await?;
            self.list::<DeploymentKind>(client, &key.namespace, &any, None).await?;
            self.list::<ReplicaSetKind>(client, &key.namespace, &any, None).await?;
            self.list::<PodKind>(client, &key.namespace, &any, None).await?;
            self.list::<RunKind>(client, &key.namespace, &any, None).await?;
            Ok(())
        };
        tokio::time::timeout(DEADLINE, read).await.map_err(|_| LiveError::Slow)?
    }

    /// Reads the runs of a Deployment live.
    pub(crate) async fn read_runs(&self, client: &Client, key: &Key) -> Result<(), LiveError> {
        let runs = format!("{}={}", super::DEPLOYMENT_LABEL, super::label_value(&key.name));
        let params = ListParams::default().labels(&runs);
        tokio::time::timeout(DEADLINE, self.list::<RunKind>(client, &key.namespace, &params, None))
            .await
            .map_err(|_| LiveError::Slow)??;
        Ok(())
    }

    /// Lists kinds that something waits for. Without the right to it they stay unread, and the report says so.
    pub(super) async fn read_wanted(&self, client: &Client, namespace: &str, kinds: &BTreeSet<WorkloadKind>) {
        for kind in kinds {
            let read = async {
                match kind {
                    WorkloadKind::Deployment => Ok(()),
                    WorkloadKind::StatefulSet => self.list_all::<StatefulSetKind>(client, namespace).await,
                    WorkloadKind::DaemonSet => self.list_all::<DaemonSetKind>(client, namespace).await,
                    WorkloadKind::Job => self.list_all::<JobKind>(client, namespace).await,
                }
            };
            match tokio::time::timeout(DEADLINE, read).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(kind = kind.word(), %error, "cannot be listed"),
                Err(_) => tracing::debug!(kind = kind.word(), "cannot be listed in time"),
            }
        }
    }

    async fn list_all<K: Watched>(&self, client: &Client, namespace: &str) -> Result<(), LiveError> {
        self.with_mut(K::begin);
        self.list::<K>(client, namespace, &ListParams::default(), None).await?;
        self.with_mut(K::finish);
        Ok(())
    }

    /// Reads Deployments live that a gate names and a narrowed watch may not show.
    pub async fn read_foreign(&self, client: &Client, keys: &[Key]) -> Result<(), LiveError> {
        for key in keys {
            let deployment = self.get_deployment(client, key).await?;
            self.with_mut(|cache| match deployment {
                Some(object) => {
                    cache.foreign.insert(key.clone(), Arc::new(facts::deployment::deployment(&object.json)));
                }
                None => {
                    cache.foreign.remove(key);
                }
            });
        }
        Ok(())
    }

    /// A Deployment as it is now; `None` if there is none of this name.
    pub async fn deployment_live(&self, client: &Client, key: &Key) -> Result<Option<Deployment>, LiveError> {
        let Some(object) = self.get_deployment(client, key).await? else { return Ok(None) };
        self.learn(&object, Some(&Item::Deployment(key.clone())));
        Ok(Some(facts::deployment::deployment(&object.json)))
    }

    async fn get_deployment(&self, client: &Client, key: &Key) -> Result<Option<Object<DeploymentKind>>, LiveError> {
        let api: Api<Object<DeploymentKind>> = Api::namespaced(client.clone(), &key.namespace);
        Ok(tokio::time::timeout(DEADLINE, api.get_opt(&key.name)).await.map_err(|_| LiveError::Slow)??)
    }

    async fn read_in_order(&self, client: &Client, key: &Key) -> Result<(), LiveError> {
        if let Some(deployment) = self.get_deployment(client, key).await? {
            self.learn(&deployment, Some(&Item::Deployment(key.clone())));
        } else if let Some(uid) = self.with(|cache| cache.deployments.get(key).map(|d| d.uid.clone())) {
            let gone = Version { uid: uid.into(), resource_version: "".into() };
            self.forget::<DeploymentKind>(key, &gone, None);
        }
        let Some(deployment) = self.with(|cache| cache.deployments.get(key).cloned()) else { return Ok(()) };
        let item = Item::Deployment(key.clone());
        let by = Some(&item);
        // Expressions of the selector only narrow this down further, and owners are told by UID anyway.
        let labels: Vec<String> = deployment.match_labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let selected =
            if labels.is_empty() { ListParams::default() } else { ListParams::default().labels(&labels.join(",")) };

        let (seen, version) = self.list::<ReplicaSetKind>(client, &key.namespace, &selected, by).await?;
        self.drop_unlisted::<ReplicaSetKind>(&seen, &version, |cache| {
            cache.replica_sets.by(&deployment.uid).map(|(key, _)| key.clone()).collect()
        });
        let (seen, version) = self.verify_pods(client, &key.namespace, &selected, by).await?;
        self.drop_unlisted::<PodKind>(&seen, &version, |cache| {
            let sets = cache.replica_sets.by(&deployment.uid).map(|(_, r)| r.fact.uid.clone());
            sets.flat_map(|uid| cache.pods.by(&uid).map(|(key, _)| key.clone()).collect::<Vec<_>>()).collect()
        });
        // A label is only a help to find runs: what the list does not show is not gone.
        let runs = format!("{}={}", super::DEPLOYMENT_LABEL, super::label_value(&key.name));
        self.list::<RunKind>(client, &key.namespace, &ListParams::default().labels(&runs), by).await?;
        Ok(())
    }

    /// The same as a list of the pods, for less: only their versions are listed, and those pods read of which the watch has
    /// not brought the same one.
    async fn verify_pods(
        &self,
        client: &Client,
        namespace: &str,
        params: &ListParams,
        by: Option<&Item>,
    ) -> Result<(BTreeSet<Key>, String), LiveError> {
        let request = Request::new(Object::<PodVersionKind>::url_path(&(), Some(namespace)));
        let mut params = params.clone().limit(PAGE_OF_VERSIONS);
        let (mut seen, mut behind) = (BTreeSet::new(), Vec::new());
        let version = loop {
            let ask = request.list_metadata(&params).map_err(kube::Error::BuildRequest)?;
            let page: ObjectList<Object<PodVersionKind>> = client.request(ask).await?;
            let listed: Vec<_> = page.items.iter().filter_map(|object| identity(&object.json)).collect();
            self.with(|cache| {
                let other = |(key, version): &&(Key, Version)| cache.pods.version(key) != Some(version);
                behind.extend(listed.iter().filter(other).map(|(key, _)| key.clone()));
            });
            seen.extend(listed.into_iter().map(|(key, _)| key));
            if let Some(version) = turn(&mut params, page.metadata) {
                break version;
            }
        };
        if behind.len() > MOST_SINGLE {
            return self.list::<PodKind>(client, namespace, &params, by).await;
        }
        let api: Api<Object<PodKind>> = Api::namespaced(client.clone(), namespace);
        let mut reads = stream::iter(behind)
            .map(|key| {
                let api = api.clone();
                async move { (api.get_opt(&key.name).await, key) }
            })
            .buffer_unordered(SIDE_BY_SIDE);
        while let Some((pod, key)) = reads.next().await {
            match pod? {
                Some(pod) => self.take(&pod, Source::Call, by),
                // Deleted since: as if it had not been listed.
                None => drop(seen.remove(&key)),
            }
        }
        Ok((seen, version))
    }

    async fn list<K: Watched>(
        &self,
        client: &Client,
        namespace: &str,
        params: &ListParams,
        by: Option<&Item>,
    ) -> Result<(BTreeSet<Key>, String), LiveError> {
        let api: Api<Object<K>> = Api::namespaced(client.clone(), namespace);
        let mut seen = BTreeSet::new();
        let mut params = params.clone().limit(PAGE);
        loop {
            let page = api.list(&params).await?;
            for object in &page.items {
                seen.extend(identity(&object.json).map(|(key, _)| key));
                self.take(object, Source::Call, by);
            }
            if let Some(version) = turn(&mut params, page.metadata) {
                return Ok((seen, version));
            }
        }
    }
}

/// Asks for the next page of a list. `Some`: that was the last one, and the version of the whole list.
fn turn(params: &mut ListParams, page: ListMeta) -> Option<String> {
    params.continue_token = page.continue_.filter(|token| !token.is_empty());
    params.continue_token.is_none().then(|| page.resource_version.unwrap_or_default())
}
