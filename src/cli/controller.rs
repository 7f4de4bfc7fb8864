//! Is there a controller at all? Its Lease tells, to those who may read it.

use std::time::Duration;

use interlock_core::time::Time;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{
    connect::Connection,
    output::age,
    server::{LEASE_NAME, LEASE_NAMESPACE},
};

/// How old a renewal may be. A holder renews every two seconds; the clocks of two machines differ by some.
const STALE_MILLIS: i64 = 30_000;
/// How long this may take: it is only a hint.
const WITHIN: Duration = Duration::from_secs(5);

/// What is to be said if no controller holds the Lease; `None` if one does, or if it cannot be told.
pub async fn missing(connection: &Connection, now: Time) -> Option<String> {
    let api: Api<Lease> = Api::namespaced(connection.client.clone(), LEASE_NAMESPACE);
    let lease = tokio::time::timeout(WITHIN, api.get_opt(LEASE_NAME)).await.ok()?.ok()?;
    judged(lease.as_ref(), now)
}

fn judged(lease: Option<&Lease>, now: Time) -> Option<String> {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|at| Time(at.0.as_millisecond()));
    let why = match (holder, renewed) {
        ("", _) | (_, None) => "nobody holds".to_owned(),
        (_, Some(renewed)) if now.millis_since(renewed) > STALE_MILLIS => {
            format!("for {} nobody has renewed", age(renewed, now))
        }
        (_, Some(_)) => return None,
    };
    Some(format!(
        "not running: {why} the Lease {LEASE_NAMESPACE}/{LEASE_NAME} (one that runs with another Lease, or without, does \
         not show here)"
    ))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

    use super::*;

    fn lease(holder: &str, renewed: i64) -> Lease {
        let renew_time = jiff::Timestamp::from_millisecond(renewed).ok().map(MicroTime);
        let spec = LeaseSpec { holder_identity: Some(holder.into()), renew_time, ..LeaseSpec::default() };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_lease_that_is_renewed_is_no_news() {
        let now = Time(1_000_000_000);
        assert_eq!(judged(Some(&lease("a", now.0 - 2_000)), now), None);
        // A clock that is ahead.
        assert_eq!(judged(Some(&lease("a", now.0 + 60_000)), now), None);
    }

    #[test]
    fn nobody_and_somebody_who_is_gone() {
        let now = Time(1_000_000_000);
        for lease in [None, Some(lease("", now.0))] {
            assert!(judged(lease.as_ref(), now).is_some_and(|text| text.starts_with("not running: nobody holds")));
        }
        let text = judged(Some(&lease("a", now.0 - 300_000)), now).unwrap();
        assert!(
            text.starts_with("not running: for 5m nobody has renewed the Lease interlock-system/interlock"),
            "{text}"
        );
    }
}
