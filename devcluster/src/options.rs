//! What kind of cluster is started.

use std::path::PathBuf;

/// What kind of cluster to start. `Options::default()` suits nearly every test.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "switches that have nothing to do with each other")]
pub struct Options {
    /// How many nodes there are; each has room for 5000 pods, 1000 CPUs and 1000 GiB. Default 2.
    pub nodes: usize,
    /// Whether KWOK runs. Without it nodes stay NotReady and pods Pending, unless the test writes
    /// their status. Default true.
    pub kwok: bool,
    /// Whether the Deployment controller and the ReplicaSet controller run as processes of their
    /// own, components like the others: all controllers of one controller manager share its
    /// watches, and stand still together. Default false.
    pub separate_controllers: bool,
    /// Whether there is a real node `real-0` besides, with kubelet, containers and a [`crate::Registry`];
    /// [`crate::can_run_real_node`] says whether the machine allows it. Simulated nodes are labelled `type: kwok`
    /// and it `type: real`: with both, pods need a node selector. Default false.
    pub real_node: bool,
    /// Whether the API server writes an audit log. Default true.
    pub audit: bool,
    /// More flags for the API server; the last of two equal flags counts. Default none.
    pub apiserver_args: Vec<String>,
    /// More flags for the controller manager. Default none.
    pub controller_manager_args: Vec<String>,
    /// More flags for the scheduler. Default none.
    pub scheduler_args: Vec<String>,
    /// Where data and logs go; kept at the end. Default: a temporary folder, deleted at the end.
    pub dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 2,
            kwok: true,
            separate_controllers: false,
            real_node: false,
            audit: true,
            apiserver_args: Vec::new(),
            controller_manager_args: Vec::new(),
            scheduler_args: Vec::new(),
            dir: None,
        }
    }
}
