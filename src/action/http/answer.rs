//! What an answer means.

use http::StatusCode;
use interlock_core::api::hook::HttpHook;
use reqwest::Response;
use serde_json::{Value, json};

use super::Trouble;
use crate::action::{End, cel::Expression};

/// So much of an answer's body is read, in bytes; then the connection is dropped.
pub const BODY_LIMIT: usize = 64 * 1024;

/// An answer, as far as it is looked at.
pub(super) struct Answer {
    status: StatusCode,
    /// Empty unless an expression asks for it, or if it is longer than [`BODY_LIMIT`].
    body: Vec<u8>,
}

/// Judges answers by what the hook says.
pub(super) struct Judge {
    success: Vec<(u16, u16)>,
    until: Vec<(u16, u16)>,
    expression: Option<Expression>,
}

impl Judge {
    pub(super) fn new(hook: &HttpHook) -> Result<Self, Trouble> {
        let success = ranges(&hook.success_status, &[(200, 299)])?;
        let repeat = hook.repeat_until.as_ref();
        let until = ranges(repeat.map_or(&[], |r| &r.status), &success)?;
        let expression = repeat.and_then(|r| r.expression.as_deref()).map(Expression::parse).transpose();
        Ok(Self { success, until, expression: expression.map_err(|_| Trouble::InvalidHook)? })
    }

    /// Without `repeatUntil`.
    pub(super) fn once(&self, answer: &Answer) -> End {
        let reason = reason(answer.status);
        if within(&self.success, answer.status) { End::succeeded(reason) } else { refused(answer.status) }
    }

    /// With `repeatUntil`.
    pub(super) async fn polled(&self, answer: Answer) -> End {
        let Answer { status, body } = answer;
        if !within(&self.until, status) {
            return refused(status);
        }
        let Some(expression) = &self.expression else { return End::succeeded(reason(status)) };
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match expression.holds(vec![("status", json!(status.as_u16())), ("body", body)]).await {
            Some(true) => End::succeeded(reason(status)),
            Some(false) | None => End::failed("NotYet"),
        }
    }

    /// Has its body to end before the status counts?
    fn waits_for_body(&self, status: StatusCode) -> bool {
        within(&self.success, status) || within(&self.until, status)
    }
}

fn ranges(texts: &[String], default: &[(u16, u16)]) -> Result<Vec<(u16, u16)>, Trouble> {
    if texts.is_empty() {
        return Ok(default.to_vec());
    }
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| (100..600).contains(code));
    let range = |text: &String| match text.split_once('-') {
        Some((from, to)) => Some((code(from)?, code(to)?)),
        None => code(text).map(|code| (code, code)),
    };
    texts.iter().map(range).collect::<Option<_>>().ok_or(Trouble::InvalidHook)
}

fn within(ranges: &[(u16, u16)], status: StatusCode) -> bool {
    ranges.iter().any(|(from, to)| (*from..=*to).contains(&status.as_u16()))
}

fn reason(status: StatusCode) -> String {
    format!("Http{}", status.as_u16())
}

fn refused(status: StatusCode) -> End {
    if status.is_redirection() { End::failed("Redirect") } else { End::failed(reason(status)) }
}

/// Reads an answer to its end, or to the limit.
pub(super) async fn read(mut response: Response, judge: &Judge) -> Result<Answer, Trouble> {
    let status = response.status();
    let (mut read, mut body) = (0, Vec::new());
    while judge.waits_for_body(status) {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                read += chunk.len();
                if read > BODY_LIMIT {
                    body.clear();
                    break;
                }
                if judge.expression.is_some() {
                    body.extend_from_slice(&chunk);
                }
            }
            Ok(None) => break,
            Err(_) => return Err(Trouble::ConnectionClosed),
        }
    }
    Ok(Answer { status, body })
}
