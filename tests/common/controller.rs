//! `interlock run` as a process.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// A running `interlock run` for one namespace.
pub(crate) struct Controller {
    child: Child,
    /// Where it serves.
    pub(crate) url: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Controller {
    /// Starts it and waits until it listens.
    pub(crate) async fn start(kubeconfig: &Path, namespace: &str, election: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_interlock"))
            .args(["run", "--kubeconfig", kubeconfig.to_str().unwrap(), "--namespace", namespace])
            .args(["--listen", "127.0.0.1:0", "--log-format", "json", "--hook-allow-loopback"])
            .args(election)
            .env_remove("RUST_LOG")
            .env_remove("POD_NAMESPACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let port = timeout(Duration::from_secs(150), async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it ended before it listened");
                let event: serde_json::Value = serde_json::from_str(&line).expect(&line);
                log.lock().unwrap().push(line);
                if let Some(port) = event["port"].as_u64() {
                    return port;
                }
            }
        })
        .await
        .unwrap();
        // Read on, or it would block on a full pipe.
        let kept = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().unwrap().push(line);
            }
        });
        Self { child, url: format!("http://127.0.0.1:{port}"), log }
    }

    /// The lines of its log so far.
    #[allow(dead_code)] // not every test program reads it
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Its metrics as they are now.
    #[allow(dead_code)]
    pub(crate) async fn metrics(&self) -> String {
        get(&self.url, "/metrics").await.1
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&self) {
        let ready = async {
            while get(&self.url, "/readyz").await.0 != 200 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(200), ready).await.expect("it does not become ready");
    }

    /// Does it say that it leads?
    pub(crate) async fn leads(&self) -> bool {
        get(&self.url, "/metrics").await.1.contains("\ninterlock_leader 1\n")
    }

    /// Sends a signal: `TERM`, `KILL`, `STOP`, `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        timeout(Duration::from_secs(150), self.child.wait()).await.expect("it does not end").unwrap()
    }

    /// Ends it the orderly way.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.wait().await.code()
    }
}

async fn get(url: &str, path: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
    match client.get(format!("{url}{path}")).send().await {
        Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
        Err(_) => (0, String::new()),
    }
}
