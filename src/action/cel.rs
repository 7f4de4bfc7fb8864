//! Expressions in CEL that people write, evaluated so that none can hold the controller up or end it: what nests too
//! deeply is not parsed, every turn of a macro is counted and looks at the clock, and all of it happens in a thread of its
//! own, whose stack is large enough for what the parser does with the longest text.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use cel::{
    Context, ExecutionError, IdedExpr, Value as Cel,
    common::ast::{CallExpr, EntryExpr, Expr},
    parser::Parser,
};
use serde_json::Value;

/// Longest text; the schema says the same.
const LONGEST: usize = 1024;
/// So many signs of a text may begin something nested: brackets, prefixes, choices. The parser itself has a limit, but it
/// counts only after it went down.
const NESTED: usize = 64;
/// Stack of the thread.
const STACK: usize = 32 << 20;
/// Turns of all macros of one evaluation together.
const TURNS: u32 = 10_000;
/// How long the turns may take.
const TIME: Duration = Duration::from_millis(500);
/// The function that every turn of a macro goes through. No user can write its name.
const TURN: &str = "@turn";
/// Names that are there without being variables.
const TYPES: [&str; 11] =
    ["bool", "bytes", "double", "duration", "int", "list", "map", "null_type", "string", "timestamp", "uint"];

/// A parsed expression.
#[derive(Clone)]
pub(super) struct Expression(Arc<IdedExpr>);

/// It is none, or asks for what is not offered.
#[derive(Debug)]
pub(super) struct Invalid;

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let nested = text.chars().filter(|c| "([{!-?".contains(*c)).count();
        if text.len() > LONGEST || nested > NESTED {
            return Err(Invalid);
        }
        let text = text.to_owned();
        let parse = move || {
            let mut expression = Parser::new().parse(&text).map_err(|_| Invalid)?;
            guard(&mut expression)?;
            Ok(Self(Arc::new(expression)))
        };
        // A panic in there comes out as an error.
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(parse).map_err(|_| Invalid)?;
        thread.join().unwrap_or(Err(Invalid))
    }

    /// The first name in it that is none of these variables.
    pub(super) fn unknown(&self, variables: &[&str]) -> Option<String> {
        let mut known: Vec<&str> = TYPES.into_iter().chain(variables.iter().copied()).collect();
        unknown(&self.0, &mut known)
    }

    /// Is it true? `None`: it has no answer, for example because a field is not there.
    pub(super) async fn holds(&self, variables: Vec<(&'static str, Value)>) -> Option<bool> {
        let expression = Arc::clone(&self.0);
        let wait = move || {
            let evaluate = move || evaluate(&expression, variables);
            let thread = std::thread::Builder::new().stack_size(STACK).spawn(evaluate).ok()?;
            thread.join().ok().flatten()
        };
        // A panic in there comes out as an error.
        tokio::task::spawn_blocking(wait).await.ok().flatten()
    }
}

fn evaluate(expression: &IdedExpr, variables: Vec<(&'static str, Value)>) -> Option<bool> {
    let mut context = Context::default();
    for (name, value) in variables {
        context.add_variable_from_value(name, of_json(value));
    }
    let (turns, end) = (AtomicU32::new(0), Instant::now() + TIME);
    context.add_function(TURN, move |go_on: bool| -> Result<bool, ExecutionError> {
        if turns.fetch_add(1, Ordering::Relaxed) >= TURNS || Instant::now() >= end {
            return Err(ExecutionError::function_error(TURN, "too much work"));
        }
        Ok(go_on)
    });
    match Cel::resolve(expression, &context) {
        Ok(Cel::Bool(holds)) => Some(holds),
        Ok(_) | Err(_) => None,
    }
}

/// Whole numbers are integers, as people write them in expressions.
fn of_json(value: Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(int), _) => Cel::Int(int),
            (None, Some(float)) => Cel::Float(float),
            (None, None) => Cel::Null,
        },
        Value::String(text) => Cel::String(Arc::new(text)),
        Value::Array(items) => Cel::List(Arc::new(items.into_iter().map(of_json).collect())),
        Value::Object(map) => {
            let map: std::collections::HashMap<String, Cel> = map.into_iter().map(|(k, v)| (k, of_json(v))).collect();
            Cel::from(map)
        }
    }
}

/// A name that is not among those known here; what a macro names is known inside of it.
fn unknown<'e>(expression: &'e IdedExpr, known: &mut Vec<&'e str>) -> Option<String> {
    let mut of_all = |parts: &[&'e IdedExpr]| parts.iter().find_map(|part| unknown(part, known));
    match &expression.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Struct(_) => None,
        Expr::Ident(name) => (!known.contains(&name.as_str())).then(|| name.clone()),
        Expr::Select(select) => of_all(&[&select.operand]),
        Expr::List(list) => of_all(&list.elements.iter().collect::<Vec<_>>()),
        Expr::Map(map) => map.entries.iter().find_map(|entry| match &entry.expr {
            EntryExpr::StructField(_) => None,
            EntryExpr::MapEntry(entry) => of_all(&[&entry.key, &entry.value]),
        }),
        Expr::Call(call) => of_all(&call.target.iter().map(AsRef::as_ref).chain(&call.args).collect::<Vec<_>>()),
        Expr::Comprehension(turns) => {
            let outside = of_all(&[&turns.iter_range, &turns.accu_init]);
            if outside.is_some() {
                return outside;
            }
            let before = known.len();
            known.extend([turns.iter_var.as_str(), turns.accu_var.as_str()]);
            known.extend(turns.iter_var2.as_deref());
            let inside =
                [&turns.loop_cond, &turns.loop_step, &turns.result].into_iter().find_map(|part| unknown(part, known));
            known.truncate(before);
            inside
        }
    }
}

/// Lets every turn of a macro go through [`TURN`], and refuses what cannot be evaluated.
fn guard(expression: &mut IdedExpr) -> Result<(), Invalid> {
    match &mut expression.expr {
        Expr::Unspecified | Expr::Struct(_) => return Err(Invalid),
        Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Select(select) => guard(&mut select.operand)?,
        Expr::List(list) => list.elements.iter_mut().try_for_each(guard)?,
        Expr::Map(map) => {
            for entry in &mut map.entries {
                match &mut entry.expr {
                    EntryExpr::StructField(_) => return Err(Invalid),
                    EntryExpr::MapEntry(entry) => {
                        guard(&mut entry.key)?;
                        guard(&mut entry.value)?;
                    }
                }
            }
        }
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                guard(target)?;
            }
            call.args.iter_mut().try_for_each(guard)?;
        }
        Expr::Comprehension(turns) => {
            for part in [&mut turns.iter_range, &mut turns.accu_init, &mut turns.loop_step, &mut turns.result] {
                guard(part)?;
            }
            let condition = std::mem::take(&mut turns.loop_cond);
            let id = condition.id;
            let call = CallExpr { func_name: TURN.to_owned(), target: None, args: vec![condition] };
            turns.loop_cond = IdedExpr { id, expr: Expr::Call(call) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn holds(text: &str, object: Value) -> Option<bool> {
        Expression::parse(text).unwrap().holds(vec![("object", object)]).await
    }

    #[tokio::test]
    async fn what_people_write() {
        let object = json!({
            "metadata": {"name": "web", "labels": {"a.b/c": "x"}},
            "status": {"replicas": 3, "ratio": 0.5, "ready": true, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        for (text, want) in [
            ("object.status.replicas == 3", Some(true)),
            ("object.status.replicas >= 4", Some(false)),
            ("object.status.ratio < 0.6", Some(true)),
            ("object.status.ready", Some(true)),
            ("object.metadata.labels['a.b/c'] == 'x'", Some(true)),
            ("object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", Some(true)),
            ("object.status.conditions.all(c, c.type == 'Ready')", Some(true)),
            ("object.status.conditions.filter(c, c.status == 'True').size() == 1", Some(true)),
            ("has(object.status.nothing)", Some(false)),
            ("has(object.status.ready) && object.status.ready", Some(true)),
            ("object.metadata.name.startsWith('w')", Some(true)),
            ("object.metadata.name.matches('^w.b$')", Some(true)),
            ("size(object.status.conditions) == 1 ? true : false", Some(true)),
            ("object.status.nothing == 1", None),
            ("object.status.replicas", None),
            ("nobody == 1", None),
        ] {
            assert_eq!(holds(text, object.clone()).await, want, "{text}");
        }
    }

    #[tokio::test]
    async fn what_is_no_expression() {
        for text in ["", "object.", "1 +", "object.status == ", "Foo{a: 1}", "'", "@turn(true)"] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }

    /// No text ends the process by the depth of what it says.
    #[tokio::test]
    async fn no_expression_is_too_deep() {
        for (open, close, sound) in [
            ("(", ")", true),
            ("[", "]", false),
            ("!", "", true),
            ("-", "", true),
            ("true?true:", "", true),
            ("{1:", "}", false),
        ] {
            for depth in [1, 20, 64, 65, 500] {
                let text = open.repeat(depth) + "true" + &close.repeat(depth);
                let holds = match Expression::parse(&text) {
                    Ok(expression) => expression.holds(Vec::new()).await,
                    Err(Invalid) => None,
                };
                assert!(sound || holds.is_none(), "{text}");
                assert!(depth < 65 || holds.is_none(), "{text}");
                assert!(depth > 20 || !sound || holds.is_some(), "{text}");
            }
        }
        for part in [".a", "[0]", "+1", "&&a", "==a", ".size()"] {
            let text = "a".to_owned() + &part.repeat(1000 / part.len());
            if let Ok(expression) = Expression::parse(&text) {
                assert_eq!(expression.holds(Vec::new()).await, None);
            }
        }
    }

    /// An expression that would take longer than the age of the world ends.
    #[tokio::test]
    async fn no_expression_holds_the_controller_up() {
        let many = json!({"l": vec![1; 5000]});
        for text in [
            "object.l.all(a, object.l.all(b, object.l.all(c, object.l.all(d, d == 1))))",
            "object.l.map(a, object.l.map(b, object.l)).size() > 0",
            "object.l.exists(a, object.l.exists(b, object.l.exists(c, c == 2)))",
        ] {
            assert_eq!(holds(text, many.clone()).await, None, "{text}");
        }
        assert_eq!(holds("object.l.all(a, a == 1)", many).await, Some(true));
    }
}
