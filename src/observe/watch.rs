//! The watches.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, pin_mut};
use interlock_core::api::reference::WorkloadKind;
use kube::{
    Api, Client, Config,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::task::JoinSet;

use super::{
    Observe,
    cache::identity,
    object::{
        BudgetKind, DaemonSetKind, DeploymentKind, JobKind, Object, PodKind, PolicyKind, ReplicaSetKind, RestartKind,
        RunKind, StatefulSetKind,
    },
    table::Source,
    watched::Watched,
};
use crate::publish::metrics::Metrics;

/// After so many seconds the API server ends a watch and we begin a new one; five seconds later we do so ourselves.
/// A connection that silently lost its other end is therefore noticed within a minute, also on a machine that is
/// late by some seconds.
const WATCH_SECONDS: u32 = 45;
/// How long an answer may keep us waiting for its next byte. Longer than a watch without news.
const SILENCE: Duration = Duration::from_secs(50);
/// How long we wait before everything is listed again because the version from which a watch was to go on is gone.
const GONE_PAUSE: Duration = Duration::from_secs(1);

/// Which objects are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only Deployments that this field selector selects.
    pub field_selector: Option<String>,
    /// Only Deployments that this label selector selects.
    pub label_selector: Option<String>,
}

impl Scope {
    /// Is the watch of Deployments narrowed, so that one which is not known may exist?
    pub fn narrowed(&self) -> bool {
        self.field_selector.is_some() || self.label_selector.is_some()
    }

    fn api<K: Watched>(&self, client: Client) -> Api<Object<K>> {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }
}

/// What following a kind has come to.
#[derive(Debug)]
pub enum Followed {
    /// A complete list has been taken.
    Listed,
    /// Something has changed.
    News,
    /// It is tried again.
    Troubled(String),
    /// The API server refuses, or does not know the kind.
    Refused(kube::Error),
}

/// A watch has ended, which it never does by itself.
#[derive(Debug, thiserror::Error)]
#[error("the watch of {0} ended")]
pub struct WatchEnded(&'static str);

/// A client for the controller, see [`client_config`].
pub fn client(config: Config) -> Result<Client, kube::Error> {
    Client::try_from(client_config(config))
}

/// What a client of the controller needs: nothing is repeated behind our back, and silence is noticed within a minute.
pub fn client_config(mut config: Config) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(SILENCE);
    // Else a request on a connection that was idle for nearly so long would have only the rest of the time.
    config.reset_reader_on_write = true;
    config.write_timeout = Some(Duration::from_secs(30));
    config
}

impl Observe {
    /// Watches until one of the watches ends, which is an error.
    pub async fn watch(self: Arc<Self>, client: Client, scope: Scope, metrics: Metrics) -> WatchEnded {
        let all = watcher::Config::default;
        let mut narrowed = all();
        narrowed.field_selector.clone_from(&scope.field_selector);
        narrowed.label_selector.clone_from(&scope.label_selector);
        let mut watches = JoinSet::new();
        watches.spawn(Arc::clone(&self).watch_kind::<PolicyKind>(scope.api(client.clone()), all(), metrics.clone()));
        watches.spawn(Arc::clone(&self).watch_kind::<RunKind>(scope.api(client.clone()), all(), metrics.clone()));
        watches.spawn(Arc::clone(&self).watch_kind::<RestartKind>(scope.api(client.clone()), all(), metrics.clone()));
        watches.spawn(Arc::clone(&self).watch_kind::<BudgetKind>(scope.api(client.clone()), all(), metrics.clone()));
        watches.spawn(Arc::clone(&self).watch_kind::<DeploymentKind>(
            scope.api(client.clone()),
            narrowed,
            metrics.clone(),
        ));
        watches.spawn(Arc::clone(&self).watch_kind::<ReplicaSetKind>(
            scope.api(client.clone()),
            all(),
            metrics.clone(),
        ));
        watches.spawn(Arc::clone(&self).watch_kind::<PodKind>(scope.api(client.clone()), all(), metrics.clone()));
        let (api, m) = (scope.api(client.clone()), metrics.clone());
        watches.spawn(Arc::clone(&self).watch_when_wanted::<StatefulSetKind>(WorkloadKind::StatefulSet, api, m));
        let (api, m) = (scope.api(client.clone()), metrics.clone());
        watches.spawn(Arc::clone(&self).watch_when_wanted::<DaemonSetKind>(WorkloadKind::DaemonSet, api, m));
        let api = scope.api(client);
        watches.spawn(Arc::clone(&self).watch_when_wanted::<JobKind>(WorkloadKind::Job, api, metrics));
        match watches.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(_)) | None => WatchEnded("objects"),
        }
    }

    /// Watches a kind from the moment on that something waits for an object of it: where nobody does, neither the watch nor
    /// the right to it is needed.
    async fn watch_when_wanted<K: Watched>(
        self: Arc<Self>,
        kind: WorkloadKind,
        api: Api<Object<K>>,
        metrics: Metrics,
    ) -> WatchEnded {
        let mut wanted = self.wanted.subscribe();
        if wanted.wait_for(|kinds| kinds.contains(&kind)).await.is_err() {
            return WatchEnded(K::PLURAL);
        }
        self.watch_kind(api, watcher::Config::default(), metrics).await
    }

    /// Follows one kind in a namespace, for commands that wait. Ends only when the API server refuses for good.
    pub(crate) async fn follow<K: Watched>(&self, client: Client, namespace: &str, tell: impl Fn(Followed)) {
        let api: Api<Object<K>> = Api::namespaced(client, namespace);
        let config = watcher::Config::default().streaming_lists().timeout(WATCH_SECONDS);
        let stream = watcher(api, config).default_backoff();
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    let listed = matches!(event, Event::InitDone);
                    self.take_event(event);
                    tell(if listed { Followed::Listed } else { Followed::News });
                }
                Err(
                    watcher::Error::InitialListFailed(error)
                    | watcher::Error::WatchStartFailed(error)
                    | watcher::Error::WatchFailed(error),
                ) if matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404)) => {
                    tell(Followed::Refused(error));
                    return;
                }
                Err(error) => tell(Followed::Troubled(error.to_string())),
            }
        }
    }

    async fn watch_kind<K: Watched>(
        self: Arc<Self>,
        api: Api<Object<K>>,
        config: watcher::Config,
        metrics: Metrics,
    ) -> WatchEnded {
        let config = config.streaming_lists().timeout(WATCH_SECONDS);
        let begin = || watcher(api.clone(), config.clone()).default_backoff();
        let stream = begin();
        pin_mut!(stream);
        let mut failures = 0_u64;
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    if failures > 0 {
                        tracing::info!(kind = K::KIND, failures, "watching again");
                        failures = 0;
                    }
                    self.take_event(event);
                }
                Err(error) => {
                    failures += 1;
                    metrics.watch_restarted(K::KIND);
                    // Each power of two: what lasts is seen, and does not flood the log.
                    if failures.is_power_of_two() {
                        tracing::warn!(kind = K::KIND, failures, error = %explain::<K>(&error), "watch failed; trying again");
                    }
                    // The watcher begins anew when it is told so by an event, but would ask for the same version for
                    // ever when it is told so by the status.
                    if matches!(&error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
                    {
                        tokio::time::sleep(GONE_PAUSE).await;
                        stream.set(begin());
                    }
                }
            }
        }
        WatchEnded(K::PLURAL)
    }

    fn take_event<K: Watched>(&self, event: Event<Object<K>>) {
        match event {
            Event::Apply(object) | Event::InitApply(object) => self.take(&object, Source::Watch, None),
            Event::Delete(object) => {
                if let Some((key, version)) = identity(&object.json) {
                    self.forget::<K>(&key, &version, None);
                }
            }
            Event::Init => self.with_mut(K::begin),
            Event::InitDone => {
                let items = self.with_mut(K::finish);
                self.tell(items, None);
            }
        }
    }
}

fn explain<K: Watched>(error: &watcher::Error) -> String {
    let missing = matches!(error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if status.code == 404);
    if missing && K::GROUP == interlock_core::api::names::GROUP {
        return format!("the API server does not know {}.{}; run: kubectl interlock install", K::PLURAL, K::GROUP);
    }
    error.to_string()
}
