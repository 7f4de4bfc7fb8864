use std::collections::BTreeSet;

use interlock_core::effect::DeploymentPurpose;
use prometheus_parse::{Scrape, Value};

use super::*;

fn scrape(metrics: &Metrics) -> Scrape {
    let text = metrics.render().unwrap();
    assert!(text.ends_with("# EOF\n"));
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

fn value(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> String {
    let found: Vec<_> = scrape
        .samples
        .iter()
        .filter(|s| s.metric == name && labels.iter().all(|(k, v)| s.labels.get(k) == Some(*v)))
        .collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    match found[0].value {
        Value::Counter(v) | Value::Gauge(v) | Value::Untyped(v) => v.to_string(),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_counted_is_what_a_prometheus_parser_reads() {
    let metrics = Metrics::new();
    metrics.run_ended(Outcome::Succeeded);
    metrics.run_ended(Outcome::Succeeded);
    metrics.runs(3, 1);
    metrics.hook_attempt(Phase::PreUpdate, StepOutcome::TimedOut);
    metrics.pods_updated(4);
    let release = Effect::PatchDeployment { purpose: DeploymentPurpose::Release, patch: serde_json::json!({}) };
    metrics.write_of(effect_kind(&release), WriteResult::Lost);
    metrics.planned(Duration::from_micros(20));
    metrics.first_write(Duration::from_millis(7));
    metrics.pass_error();
    metrics.panicked();
    metrics.leading(true);
    metrics.watch_restarted("Pod");

    let s = scrape(&metrics);
    assert_eq!(value(&s, "interlock_runs_total", &[("outcome", "Succeeded")]), "2");
    assert_eq!(value(&s, "interlock_runs_total", &[("outcome", "Aborted")]), "0");
    assert_eq!(value(&s, "interlock_runs_active", &[]), "3");
    assert_eq!(value(&s, "interlock_runs_stalled", &[]), "1");
    assert_eq!(value(&s, "interlock_hook_attempts_total", &[("phase", "PreUpdate"), ("outcome", "TimedOut")]), "1");
    assert_eq!(value(&s, "interlock_pods_updated_total", &[]), "4");
    assert_eq!(value(&s, "interlock_writes_total", &[("effect", "PatchDeployment"), ("result", "lost")]), "1");
    assert_eq!(value(&s, "interlock_writes_total", &[("effect", "PatchDeployment"), ("result", "ok")]), "0");
    assert_eq!(value(&s, "interlock_pass_errors_total", &[]), "1");
    assert_eq!(value(&s, "interlock_panics_total", &[]), "1");
    assert_eq!(value(&s, "interlock_leader", &[]), "1");
    assert_eq!(value(&s, "interlock_watch_restarts_total", &[("kind", "Pod")]), "1");
    assert_eq!(value(&s, "interlock_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), "1");
    let plan = s.samples.iter().find(|s| s.metric == "interlock_plan_duration_seconds").unwrap();
    assert!(
        matches!(&plan.value, Value::Histogram(buckets) if buckets.last().unwrap().count.to_string() == "1"),
        "{plan:?}"
    );
    assert!(s.samples.iter().all(|s| s.metric.starts_with("interlock_")));
}

#[test]
fn no_label_can_name_an_object() {
    let metrics = Metrics::new();
    metrics.watch_restarted("Deployment");
    metrics.write_of("PolicyStatus", WriteResult::Ok);
    let keys: BTreeSet<String> =
        scrape(&metrics).samples.iter().flat_map(|s| s.labels.keys().cloned().collect::<Vec<_>>()).collect();
    assert_eq!(
        keys.iter().map(String::as_str).collect::<Vec<_>>(),
        ["effect", "kind", "outcome", "phase", "result", "version"]
    );
}
