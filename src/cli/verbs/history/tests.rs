use serde_json::json;

use super::{
    super::fixture::{deployment, ended, fact, now, replica_set, run, stalled},
    *,
};

#[test]
fn revisions_and_runs() {
    let sets = [replica_set(1, "web:0", 0), replica_set(2, "web:1", 3)];
    let mut status = ended("Succeeded");
    status["way"] = json!({"kind": "InPlace"});
    let runs = [run(1, "web:1", &status), run(2, "web:2", &stalled("PodFailing"))];
    assert_eq!(
        render(&fact(&deployment("web:1")), &sets, &runs, now()),
        "\
REVISION   AGE   PODS   IMAGES   CHANGE-CAUSE
1          10m   0      web:0    cause 1
2*         10m   3      web:1    cause 2

NO   RUN     OUTCOME              WAY       AGE   TOOK   IMAGES
1    web-1   Succeeded            InPlace   5m    60s    web:1
2    web-2   Stalled/PodFailing   -         5m    -      web:2
"
    );
    assert!(!render(&fact(&deployment("web:1")), &sets, &[], now()).contains("RUN"));
}
