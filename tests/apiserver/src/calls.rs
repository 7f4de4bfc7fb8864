//! The calls that hooks made.

use serde_json::Value;
use tokio::time::Instant;

use crate::{Observer, objects};

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Instant,
    pub path: String,
    pub key: String,
    pub body: Value,
}

impl Call {
    pub fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    /// The images that the update goes to.
    pub fn images(&self) -> Vec<String> {
        self.body["images"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, v)| v.as_str().map(str::to_owned))
            .collect()
    }
}

/// What is wrong if an image was seen in a pod of the app before a PreUpdate hook (path `/before`) was called for it and that
/// was recorded. Images that were there from the start are left out.
pub fn unhooked(observer: &Observer, calls: &[Call], app: &str, from_the_start: &[&str]) -> Option<String> {
    observer.images(app).into_iter().find_map(|image| {
        if from_the_start.iter().any(|v| objects::image(v) == image) {
            return None;
        }
        let seen = observer.first_seen(app, &image)?;
        let called = calls.iter().filter(|c| c.path == "/before" && c.images().contains(&image)).map(|c| c.at).min();
        let first = called.is_some_and(|at| at <= seen.at) && observer.hooks_recorded_before(&seen);
        (!first).then(|| format!("{image} was seen in a pod before its hook; called {called:?}, seen {seen:?}"))
    })
}
