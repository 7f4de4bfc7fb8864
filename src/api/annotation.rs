//! The annotations by which a Deployment carries its hooks itself.

use interlock_core::{
    api::{names, policy::Hook},
    validate,
};

/// Parses the text of annotation `interlock.dev/hooks`: a YAML list of hooks, in the form of `spec.hooks`.
///
/// # Errors
/// What is wrong, with line and column where that is known. No CustomResourceDefinition guards an annotation, so
/// everything that its schema would refuse is refused here.
pub fn hooks(text: &str) -> Result<Vec<Hook>, String> {
    let hooks: Vec<Hook> = serde_saphyr::from_str(text).map_err(|error| {
        let place = error
            .location()
            .map_or_else(String::new, |place| format!(" line {}, column {}:", place.line(), place.column()));
        // The first line says what is wrong; the rest is a picture of the place for a terminal.
        let message = error.without_snippet().to_string();
        let message = message.lines().next().unwrap_or_default().trim();
        format!("annotation {}:{place} {}", names::HOOKS, cut(message, 256))
    })?;
    match validate::hooks(&hooks).into_iter().next() {
        None => Ok(hooks),
        Some(problem) => Err(format!("annotation {}: {}", names::HOOKS, problem.message)),
    }
}

/// The text, cut to so many characters.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}
