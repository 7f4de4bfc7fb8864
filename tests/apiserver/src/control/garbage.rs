//! The garbage collector: what is owned by nothing that exists goes, in the background.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

use super::{Lag, View};
use crate::{
    json::{list, text},
    kinds,
    store::{Caller, Preconditions, Store},
};

const OWNERS: [&str; 3] = ["deployments", "replicasets", "hookruns"];
const OWNED: [&str; 4] = ["replicasets", "pods", "hookruns", "jobs"];

pub(super) async fn run(store: Arc<Store>, mut switch: watch::Receiver<bool>) {
    let mut view = View::new(&store, &OWNERS, Lag::default());
    loop {
        view.turn(None, &mut switch).await;
        collect(&store);
    }
}

fn collect(store: &Store) {
    // What is owned is read before the owners, so that no owner is missed.
    let owned: Vec<_> =
        OWNED.iter().flat_map(|plural| store.list(plural, None).0.into_iter().map(move |o| (*plural, o))).collect();
    let owners: BTreeSet<String> =
        OWNERS.iter().flat_map(|p| store.list(p, None).0).map(|o| text(&o, "/metadata/uid").to_owned()).collect();
    for (plural, object) in owned {
        let of = list(&object, "/metadata/ownerReferences");
        if of.is_empty() || of.iter().any(|o| owners.contains(text(o, "/uid"))) {
            continue;
        }
        let target = (kinds::of(plural), text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        let conditions = Preconditions { uid: Some(text(&object, "/metadata/uid")), ..Preconditions::default() };
        let _ = store.delete(Caller::system("garbage-collector"), target, conditions);
    }
}
