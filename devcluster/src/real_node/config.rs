//! Configuration files of kubelet, containerd and the network plugins.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::host::Host;
use crate::binaries::{Binaries, Binary};

/// In the node's own `/run`, see boot.sh; a path in the cluster's folder may be too long for a socket.
const SOCKET: &str = "/run/containerd/containerd.sock";

/// The kubelet's configuration.
pub(crate) fn kubelet(dir: &Path, host: &Host, port: u16) -> String {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": dir.join("ca.crt") },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "address": host.address(),
        "port": port,
        "healthzPort": 0,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", host.name()),
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": false,
        "resolvConf": dir.join("resolv.conf"),
        // There is no name service; without an address kubelet complains in events of every pod.
        "clusterDNS": ["10.0.0.10"],
        "imageGCHighThresholdPercent": 100,
        "evictionHard": { "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
        "serializeImagePulls": false,
    });
    config.to_string()
}

/// Flags of kubelet.
pub(crate) fn kubelet_args(dir: &Path, kubeconfig: &Path, host: &Host) -> Vec<String> {
    vec![
        format!("--config={}", dir.join("kubelet.json").display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", dir.join("kubelet").display()),
        format!("--cert-dir={}", dir.join("kubelet-pki").display()),
        format!("--hostname-override={}", super::NODE),
        format!("--node-ip={}", host.address()),
        "--node-labels=type=real".to_owned(),
    ]
}

/// containerd's configuration.
pub(crate) fn containerd(dir: &Path, binaries: &Binaries) -> Result<String> {
    let text = |value: &Path| value.to_str().map(|text| format!("{text:?}")).context("a path that is not UTF-8");
    let mut plugins = Vec::new();
    for binary in [Binary::CniBridge, Binary::CniHostLocal] {
        plugins.push(text(binaries.path(binary)?.parent().unwrap_or(Path::new("/")))?);
    }
    plugins.dedup();
    let lines = [
        "version = 3".to_owned(),
        format!("root = {}", text(&dir.join("containerd"))?),
        "state = \"/run/containerd\"".to_owned(),
        "[grpc]".to_owned(),
        format!("address = {SOCKET:?}"),
        "[plugins.'io.containerd.nri.v1.nri']".to_owned(),
        "disable = true".to_owned(),
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]".to_owned(),
        "sandbox = \"registry.test/pause:pause\"".to_owned(),
        "[plugins.'io.containerd.cri.v1.images'.registry]".to_owned(),
        format!("config_path = {}", text(&dir.join("registries"))?),
        "[plugins.'io.containerd.cri.v1.runtime']".to_owned(),
        "disable_apparmor = true".to_owned(),
        // Works without CAP_SYS_RESOURCE.
        "restrict_oom_score_adj = true".to_owned(),
        "netns_mounts_under_state_dir = true".to_owned(),
        "[plugins.'io.containerd.cri.v1.runtime'.cni]".to_owned(),
        format!("bin_dirs = [{}]", plugins.join(", ")),
        format!("conf_dir = {}", text(&dir.join("network"))?),
        "use_internal_loopback = true".to_owned(),
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]".to_owned(),
        "runtime_type = \"io.containerd.runc.v2\"".to_owned(),
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]".to_owned(),
        format!("BinaryName = {}", text(binaries.path(Binary::RuncUnfiltered)?)?),
        "SystemdCgroup = false".to_owned(),
    ];
    Ok(lines.join("\n") + "\n")
}

/// Every registry is ours, whatever its name: nothing is pulled from a network.
pub(crate) fn registries(port: u16) -> String {
    format!(
        "server = \"http://127.0.0.1:{port}\"\n\n[host.\"http://127.0.0.1:{port}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    )
}

/// The network of pods: a bridge, addresses of its subnet, no way out.
pub(crate) fn network(dir: &Path, host: &Host) -> String {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "devcluster",
        "plugins": [{
            "type": "bridge",
            "bridge": host.name(),
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": dir.join("addresses"),
                "ranges": [[{ "subnet": host.subnet() }]],
            },
        }],
    });
    config.to_string()
}
