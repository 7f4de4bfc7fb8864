//! Image references: the same image can be written in several ways.

/// The reference with the parts that the container runtime fills in: `app` is `docker.io/library/app:latest`.
/// A reference with a digest keeps its tag only if it has one.
pub fn normalise(reference: &str) -> String {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
        Some(_) => ("docker.io", name.to_owned()),
        None => ("docker.io", format!("library/{name}")),
    };
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let tagged = path.rsplit('/').next().is_some_and(|last| last.contains(':'));
    match digest {
        Some(digest) => format!("{registry}/{path}@{digest}"),
        None if tagged => format!("{registry}/{path}"),
        None => format!("{registry}/{path}:latest"),
    }
}

/// The digest that a reference is pinned to.
pub fn digest(reference: &str) -> Option<&str> {
    reference.split_once('@').map(|(_, digest)| digest).filter(|digest| !digest.is_empty())
}

/// Do both references name the same image?
pub fn same(a: &str, b: &str) -> bool {
    a == b || normalise(a) == normalise(b)
}

/// Does a text name this image, and not only one that begins or ends like it (`v1` and `v10`)? A registry may stand
/// before it: the kubelet completes short names.
pub fn named(text: &str, image: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !image.is_empty()
        && text.match_indices(image).any(|(at, _)| {
            let (before, after) =
                (text.get(..at).unwrap_or_default(), text.get(at + image.len()..).unwrap_or_default());
            let ends = match after.strip_prefix('.') {
                // A sentence may end here.
                Some(rest) => !rest.starts_with(inside),
                None => !after.starts_with(inside),
            };
            ends && !before.ends_with(|c: char| inside(c) || c == '.')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_get_what_the_runtime_fills_in() {
        assert_eq!(normalise("app"), "docker.io/library/app:latest");
        assert_eq!(normalise("team/app:v1"), "docker.io/team/app:v1");
        assert_eq!(normalise("r.test:5000/app"), "r.test:5000/app:latest");
        assert_eq!(normalise("localhost/app:v1"), "localhost/app:v1");
        assert_eq!(normalise("r.test/app:v1@sha256:ab"), "r.test/app:v1@sha256:ab");
        assert!(same("docker.io/library/app:v3", "app:v3"));
        assert!(!same("app:v1", "app:v2"));
        for odd in ["", "@", ":", "/", "a@", "\0", "@@", "a/b/c@:"] {
            let _ = normalise(odd);
        }
    }

    #[test]
    fn a_text_names_an_image_whole() {
        let text = "Back-off pulling image \"docker.io/library/app:v10\": failed to resolve r.test/web:v1: not found.";
        assert!(named(text, "app:v10") && named(text, "docker.io/library/app:v10") && named(text, "r.test/web:v1"));
        assert!(!named(text, "app:v1") && !named(text, "pp:v10") && !named(text, "web:v") && !named(text, ""));
        assert!(named("cannot pull app:v1.", "app:v1") && !named("cannot pull app:v1.2", "app:v1"));
    }
}
