//! Steady requests to a Service from outside of all pods, sent as a proxy on the node sends them: only to addresses that the
//! EndpointSlices show as ready, one after the other, over a new connection each.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use devcluster::Cluster;
use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

/// One request every so often: 50 per second.
const EVERY: Duration = Duration::from_millis(20);
/// A request without an answer after this long is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When.
    pub at: Instant,
    /// Where it went; `None`: no address was ready.
    pub to: Option<IpAddr>,
    /// The version that answered, or why nothing did.
    pub answer: Result<String, String>,
}

#[derive(Default)]
struct Shared {
    /// Ready addresses by slice.
    ready: Mutex<BTreeMap<String, Vec<IpAddr>>>,
    sent: Mutex<Vec<Sent>>,
}

/// The load. It has a thread of its own: what else the test does must not hold it up.
pub struct Load {
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Begins to send to port 8080 of the pods of this Service.
    pub fn start(cluster: &'static Cluster, namespace: &str, service: &str) -> Self {
        let (shared, stop) = (Arc::new(Shared::default()), CancellationToken::new());
        let (of_thread, until, namespace) = (shared.clone(), stop.clone(), namespace.to_owned());
        let labels = format!("kubernetes.io/service-name={service}");
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = cluster.client().await.unwrap();
                tokio::select! {
                    () = follow(client, &namespace, &labels, &of_thread) => {}
                    () = send(&of_thread, &until) => {}
                }
            });
        });
        Self { shared, stop, thread: Some(thread) }
    }

    /// How many requests were answered so far.
    pub fn answered(&self) -> usize {
        self.shared.sent.lock().unwrap().iter().filter(|sent| sent.answer.is_ok()).count()
    }

    /// Ends it once the last request is over, and returns what became of each.
    pub fn end(mut self) -> Vec<Sent> {
        self.stop.cancel();
        self.thread.take().unwrap().join().expect("the load went on to its end");
        std::mem::take(&mut *self.shared.sent.lock().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn follow(client: Client, namespace: &str, labels: &str, shared: &Shared) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let mut events = std::pin::pin!(watcher::watcher(slices, watcher::Config::default().labels(labels)));
    while let Some(event) = events.next().await {
        let mut all = shared.ready.lock().unwrap();
        match event {
            Ok(Event::Apply(slice) | Event::InitApply(slice)) => drop(all.insert(slice.name_any(), ready(&slice))),
            Ok(Event::Delete(slice)) => drop(all.remove(&slice.name_any())),
            Ok(Event::Init) => all.clear(),
            Ok(Event::InitDone) | Err(_) => {}
        }
    }
}

/// An endpoint that does not say whether it is ready is ready.
fn ready(slice: &EndpointSlice) -> Vec<IpAddr> {
    let ready =
        |e: &&k8s_openapi::api::discovery::v1::Endpoint| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
    slice.endpoints.iter().flatten().filter(ready).flat_map(|e| &e.addresses).map(|a| a.parse().unwrap()).collect()
}

async fn send(shared: &Arc<Shared>, stop: &CancellationToken) {
    let (mut next, mut open) = (0_usize, JoinSet::new());
    while shared.ready.lock().unwrap().values().all(Vec::is_empty) && !stop.is_cancelled() {
        tokio::time::sleep(EVERY).await;
    }
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = tick.tick() => {}
        }
        let all: Vec<IpAddr> = shared.ready.lock().unwrap().values().flatten().copied().collect();
        let to = all.get(next % all.len().max(1)).copied();
        next += 1;
        let shared = shared.clone();
        open.spawn(async move {
            let at = Instant::now();
            let answer = match to {
                None => Err("no address is ready".to_owned()),
                Some(address) => timeout(PATIENCE, ask(address)).await.unwrap_or_else(|_| Err("no answer".to_owned())),
            };
            shared.sent.lock().unwrap().push(Sent { at, to, answer });
        });
        while open.try_join_next().is_some() {}
    }
    while open.join_next().await.is_some() {}
}

/// One request over a connection of its own: what the program in our images answers, which is its version.
async fn ask(address: IpAddr) -> Result<String, String> {
    let read = async {
        let mut stream = TcpStream::connect((address, 8080)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = read.await.map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") && body.ends_with('\n') => Ok(body.trim().to_owned()),
        _ => Err(format!("cut short, or no success: {answer:?}")),
    }
}
