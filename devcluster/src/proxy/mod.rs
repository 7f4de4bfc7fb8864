//! A proxy between one client and the API server, which spoils the watches of chosen resources.

mod relay;
mod request;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kube::config::AuthInfo;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

/// What happens to the watches of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchFault {
    /// Nothing: they pass at once.
    #[default]
    None,
    /// What the API server sends arrives this much later, in order; watches that run already take
    /// part.
    Delay(Duration),
    /// The connection stays open and no further byte comes. A watch that was caught stays silent
    /// when the fault is taken away, as a connection does whose other end was lost; new ones then
    /// pass.
    BlackHole,
    /// Watches that run are cut, and those that go on from a version are answered with status 410.
    /// A watch that begins with all objects passes.
    Gone,
    /// The same as the API server says it: status 200, and in the stream an event of type `ERROR`
    /// with code 410. Written as JSON, so for clients that ask for JSON.
    Expired,
}

/// What the relayed watches of one resource look at.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    fault: WatchFault,
    /// How often they were cut.
    cuts: u64,
    /// How many have begun, those included that the proxy answers itself.
    begun: u64,
    /// How many are being relayed now.
    running: u64,
}

/// The resources by name; one is made when it is first spoken of.
#[derive(Debug, Default)]
struct Resources(Mutex<BTreeMap<String, watch::Sender<State>>>);

impl Resources {
    fn get(&self, resource: &str) -> watch::Sender<State> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(resource.to_owned()).or_default().clone()
    }
}

/// An HTTP proxy on 127.0.0.1 for one client of the API server. Faults apply to the watches of one
/// resource, may change at any time, and everything else passes at once.
///
/// It talks plain HTTP to its client, which clients made with client-go or kube take as `server` of
/// a kubeconfig, and TLS to the API server. A request with an `Authorization` header is passed on
/// with it; any other one gets the proxy's own credentials, see [`crate::Cluster::route`]. Requests
/// that change protocol (exec, attach) do not pass.
///
/// It runs in a thread of its own and ends when it is dropped; connections through it are then
/// closed. Resources are named as `kubectl api-resources` does: `pods`, `replicasets.apps`.
///
/// ```no_run
/// # async fn example(cluster: devcluster::Cluster) -> anyhow::Result<()> {
/// use devcluster::{Component, WatchFault};
///
/// let proxy = cluster.proxy(Component::ControllerManager).await?;
/// cluster.route(Component::ControllerManager, Some(&proxy.url())).await?;
/// proxy.set("replicasets.apps", WatchFault::Delay(std::time::Duration::from_secs(1)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WatchProxy {
    address: SocketAddr,
    resources: Arc<Resources>,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<()>,
}

impl WatchProxy {
    /// Starts a proxy to the API server of this configuration, with its credentials.
    ///
    /// # Errors
    /// When there is no free port, or no client can be made from the configuration.
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, |config| Ok(Client::try_from(config)?)).await
    }

    /// The same with clients made by `make`, which may add layers of its own. It is called twice:
    /// for requests with the proxy's credentials, and for those that bring theirs.
    ///
    /// # Errors
    /// When there is no free port, or `make` fails.
    pub async fn start_with(
        mut config: Config,
        make: impl Fn(Config) -> Result<Client> + Send + 'static,
    ) -> Result<Self> {
        // The client is to see every failure itself.
        config.default_retry = false;
        let resources = Arc::new(Resources::default());
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let shared = Arc::clone(&resources);
        thread::Builder::new().name("devcluster-proxy".into()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tell.send(Err(error.into())).unwrap_or_default(),
            };
            runtime.block_on(async {
                match serve(config, &make, shared).await {
                    Ok((address, serving)) => {
                        tell.send(Ok(address)).unwrap_or_default();
                        tokio::select! {
                            _ = stopped => {}
                            () = serving => {}
                        }
                    }
                    Err(error) => tell.send(Err(error)).unwrap_or_default(),
                }
            });
        })?;
        let address = tokio::task::spawn_blocking(move || told.recv())
            .await?
            .map_err(|_| anyhow!("the thread of the proxy has ended"))?
            .context("cannot start a proxy")?;
        Ok(Self { address, resources, _stop: stop })
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on the watches of this resource fare like this.
    pub fn set(&self, resource: &str, fault: WatchFault) {
        self.resources.get(resource).send_modify(|state| {
            state.fault = fault;
            if matches!(fault, WatchFault::Gone | WatchFault::Expired) {
                state.cuts += 1;
            }
        });
    }

    /// Breaks the connections of the running watches of this resource, in the middle of the answer.
    /// New ones are not affected.
    pub fn cut(&self, resource: &str) {
        self.resources.get(resource).send_modify(|state| state.cuts += 1);
    }

    /// How many watches of this resource the client has begun so far.
    pub fn begun(&self, resource: &str) -> u64 {
        self.resources.get(resource).borrow().begun
    }

    /// How many watches of this resource run now: they were passed on, and neither side has ended
    /// them.
    pub fn running(&self, resource: &str) -> u64 {
        self.resources.get(resource).borrow().running
    }

    /// Returns once the client has begun more than `count` watches of this resource.
    pub async fn more_than(&self, resource: &str, count: u64) {
        let mut state = self.resources.get(resource).subscribe();
        // An error would mean that the sender is gone, which lives as long as this proxy.
        let _ = state.wait_for(|state| state.begun > count).await;
    }
}

/// Binds and returns the address with what serves there.
async fn serve(
    config: Config,
    make: &impl Fn(Config) -> Result<Client>,
    resources: Arc<Resources>,
) -> Result<(SocketAddr, impl Future<Output = ()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let mut bare = config.clone();
    bare.auth_info = AuthInfo::default();
    let relay = Arc::new(relay::Relay { own: make(config)?, bare: make(bare)?, resources });
    let app = axum::Router::new().fallback(relay::take).with_state(relay);
    let serving = async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the proxy has ended");
        }
    };
    Ok((address, serving))
}
