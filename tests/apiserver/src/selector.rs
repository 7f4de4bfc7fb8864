//! Label and field selectors of lists and watches.

use serde_json::Value;

use crate::{
    json::{at, text},
    refusal::Refusal,
};

#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(String),
    NotEqual(String),
    Exists,
    Absent,
}

impl Selector {
    pub fn read(labels: &str, fields: &str) -> Result<Self, Refusal> {
        if labels.contains('(') {
            return Err(Refusal::bad_request("set-based label selectors are not served here"));
        }
        let terms = |text: &'_ str| -> Vec<String> {
            text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect()
        };
        let labels = terms(labels).iter().map(|term| label(term)).collect();
        let fields = terms(fields).iter().map(|term| field(term)).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "/metadata/labels");
        self.labels.iter().all(|(key, test)| {
            let have = labels.get(key).and_then(Value::as_str);
            match test {
                Test::Equal(value) => have == Some(value),
                Test::NotEqual(value) => have != Some(value),
                Test::Exists => have.is_some(),
                Test::Absent => have.is_none(),
            }
        }) && self
            .fields
            .iter()
            .all(|(field, equal, value)| (text(object, &format!("/{}", field.replace('.', "/"))) == value) == *equal)
    }
}

fn label(term: &str) -> (String, Test) {
    let own = |text: &str| text.trim().to_owned();
    if let Some((key, value)) = term.split_once("!=") {
        (own(key), Test::NotEqual(own(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (own(key), Test::Equal(own(value)))
    } else if let Some(key) = term.strip_prefix('!') {
        (own(key), Test::Absent)
    } else {
        (own(term), Test::Exists)
    }
}

fn field(term: &str) -> Result<(String, bool, String), Refusal> {
    let (field, equal, value) = match (term.split_once("!="), term.split_once("==").or_else(|| term.split_once('='))) {
        (Some((field, value)), _) => (field, false, value),
        (None, Some((field, value))) => (field, true, value),
        (None, None) => return Err(Refusal::bad_request(format!("invalid field selector: {term}"))),
    };
    if !matches!(field.trim(), "metadata.name" | "metadata.namespace") {
        return Err(Refusal::bad_request(format!("field label not supported: {field}")));
    }
    Ok((field.trim().to_owned(), equal, value.trim().to_owned()))
}
