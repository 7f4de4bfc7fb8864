//! The controller dies before each of its writes, and right after each with the reply lost; the API server answers each
//! write with each kind of trouble. Taken up again, every scenario reaches the end that it reaches without trouble.

use apiserver::gate::{Answer, Moment};
use inproc::{each, story};
use serde_json::Value;
use tally::Tally;

use crate::scenarios::{ALL, Scenario, same};

/// What happens at a write.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Death(Moment),
    Answered(Answer),
}

const DEATHS: [Trouble; 2] = [Trouble::Death(Moment::Before), Trouble::Death(Moment::After)];
const ANSWERS: [Trouble; 6] = [
    Trouble::Answered(Answer::Code(409)),
    Trouble::Answered(Answer::Code(422)),
    Trouble::Answered(Answer::Code(429)),
    Trouble::Answered(Answer::Code(500)),
    Trouble::Answered(Answer::Code(504)),
    Trouble::Answered(Answer::Lost),
];

/// The end without trouble, and how many writes it took.
pub fn reference(scenario: Scenario) -> (Value, usize) {
    story(async {
        let env = scenario.prepare(1).await;
        let (mark, calls, before) = (env.observer.mark(), env.hooks.calls().len(), env.gate.writes().len());
        scenario.act(&env).await;
        let ending = scenario.ending(&env, mark, calls).await;
        let writes = env.gate.writes();
        (ending, writes[before..].iter().filter(|w| !w.what.contains("hookpolicies")).count())
    })
}

/// The end with trouble at the `nth` write.
fn troubled(scenario: Scenario, trouble: Trouble, nth: usize) -> Value {
    story(async {
        let env = scenario.prepare(1).await;
        let (mark, calls) = (env.observer.mark(), env.hooks.calls().len());
        let told = async {
            scenario.act(&env).await;
            scenario.ending(&env, mark, calls).await
        };
        let ending = match trouble {
            Trouble::Answered(answer) => {
                env.gate.answer_any(answer, nth);
                told.await
            }
            Trouble::Death(moment) => {
                let mut stops = env.gate.stop_at_any(moment, nth);
                tokio::pin!(told);
                tokio::select! {
                    biased;
                    stop = stops.recv() => {
                        env.kill().await;
                        drop(stop);
                        env.start();
                        told.await
                    }
                    // There was no such write: timing decides whether counters are written.
                    ending = &mut told => ending,
                }
            }
        };
        if std::env::var_os("POINT").is_some() {
            println!("{}", env.log());
        }
        ending
    })
}

fn enumerate(name: &'static str, troubles: &[Trouble]) {
    let tally = Tally::new(name);
    let references: Vec<(Scenario, Value, usize)> = ALL
        .into_iter()
        .map(|scenario| {
            let (ending, writes) = reference(scenario);
            (scenario, ending, writes)
        })
        .collect();
    // Each write meets all deaths, and a part of the answers here; the long form has all pairs.
    let part = if troubles.len() == DEATHS.len() || std::env::var_os("INTERLOCK_LONG").is_some() { 1 } else { 3 };
    let mut points = Vec::new();
    for (index, (_, _, writes)) in references.iter().enumerate() {
        for nth in 1..=writes + 1 {
            let due = troubles.iter().enumerate().filter(|(i, _)| i % part == nth % part);
            points.extend(due.map(|(_, trouble)| (index, *trouble, nth)));
        }
    }
    if let Ok(only) = std::env::var("POINT") {
        points.retain(|(index, trouble, nth)| format!("{:?} {trouble:?} {nth}", references[*index].0).contains(&only));
    }
    tally.points(points.len());
    let faults = each(&points, |(index, trouble, nth)| {
        let (scenario, wanted, _) = &references[*index];
        let have = troubled(*scenario, *trouble, *nth);
        same(&tally, wanted, &have).map_err(|why| format!("{scenario:?} ends otherwise:{why}"))
    });
    assert!(faults.is_empty(), "{} of {} points end otherwise:\n{}", faults.len(), points.len(), faults.join("\n"));
}

#[test]
fn death_before_and_after_every_write() {
    enumerate("death at every write, in process", &DEATHS);
}

#[test]
fn trouble_as_the_answer_to_every_write() {
    enumerate("trouble at every write, in process", &ANSWERS);
}

/// A reference that shows no update would make every comparison with it empty.
#[test]
fn without_trouble_every_scenario_is_what_it_says() {
    let of = |scenario| reference(scenario).0;
    let (two, native, birth) = (of(Scenario::TwoPods), of(Scenario::Native), of(Scenario::Birth));
    assert_eq!(two["pods born and gone"], serde_json::json!([0, 0]), "{two:#}");
    assert_eq!(two["runs"][0]["way"], "InPlace");
    assert_eq!(two["hook keys"].as_object().unwrap().len(), 2);
    assert_eq!(native["pods born and gone"], serde_json::json!([2, 2]), "{native:#}");
    assert_eq!(birth["pods born and gone"], serde_json::json!([1, 0]), "{birth:#}");
    assert_eq!(of(Scenario::Return)["runs"][0]["outcome"], "Returned");
    assert_eq!(of(Scenario::Zero)["pods born and gone"][1], 2);
    assert_eq!(of(Scenario::Revert)["deployment"]["paused"], true);
    // One call before and one after each pod, one before and one after the whole.
    let hooked = of(Scenario::Hooked);
    assert_eq!(hooked["pods born and gone"], serde_json::json!([0, 0]), "{hooked:#}");
    let keys: u64 = hooked["hook keys"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(keys, 2 + 2 * 2, "{hooked:#}");
    assert_eq!(of(Scenario::Superseded)["runs"].as_array().unwrap().len(), 2);
}
