//! The files in `crds/` are what the code makes. `UPDATE_GENERATED=1 cargo test --test crds` writes them anew.

use std::{fs, path::Path};

#[test]
fn the_files_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let update = std::env::var_os("UPDATE_GENERATED").is_some_and(|value| value == "1");
    let mut expected = Vec::new();
    for crd in interlock::api::crds().unwrap() {
        let name = crd.spec.names.plural.clone();
        let text = interlock::install::yaml(&[serde_json::to_value(&crd).unwrap()]).unwrap();
        let path = folder.join(format!("{name}.yaml"));
        if update {
            fs::write(&path, &text).unwrap();
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == text,
            "{} is not what the code makes; run UPDATE_GENERATED=1 cargo test --test crds",
            path.display()
        );
        expected.push(path);
    }
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(expected.contains(&path), "{} belongs to no definition", path.display());
    }
}

#[test]
fn words_that_old_yaml_takes_for_booleans_are_quoted() {
    let crd = interlock::api::definition("hookpolicies").unwrap().unwrap();
    let text = interlock::install::yaml(&[serde_json::to_value(&crd).unwrap()]).unwrap();
    assert!(text.contains("- \"Off\"") || text.contains("- 'Off'"), "the enum value Off must not be read as false");
}
