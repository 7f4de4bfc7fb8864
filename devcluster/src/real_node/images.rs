//! Container images, made in memory: one layer with the test program, and a configuration per tag.

use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// A manifest, a configuration or a layer, as a registry hands it out.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) media_type: &'static str,
    /// `sha256:...` of the bytes.
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        Self { media_type, digest, bytes }
    }

    fn descriptor(&self) -> serde_json::Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// What a tag asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag<'a> {
    /// What the program answers.
    version: &'a str,
    /// How the program behaves, see `go/node/app/main.go`.
    mode: &'a str,
    /// How long the registry takes to hand out the manifest.
    pub(crate) delay: Duration,
}

impl<'a> Tag<'a> {
    /// Reads a tag; `None`: there is no such tag. What tags there are stands at [`super::Registry`].
    pub(crate) fn parse(tag: &'a str) -> Option<Self> {
        let version = tag.strip_suffix("-again").unwrap_or(tag);
        let modes = ["crash", "never-ready", "deaf", "pause"];
        let mode = modes.into_iter().find(|mode| version.starts_with(mode)).unwrap_or_default();
        let mut delay = Duration::ZERO;
        if let Some(rest) = version.strip_prefix("slow") {
            let seconds = rest.split('-').next().unwrap_or_default();
            delay = Duration::from_secs(seconds.parse().ok()?);
        }
        let plain = version.strip_prefix('v').is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()));
        (plain || !mode.is_empty() || !delay.is_zero()).then_some(Self { version, mode, delay })
    }
}

/// The layer of all images: the program under `/app`.
pub(crate) fn layer(program: &[u8]) -> Blob {
    let mut tar = Vec::with_capacity(program.len() + 2048);
    tar.extend(tar_header("app", program.len()));
    tar.extend_from_slice(program);
    // Padded to whole blocks, and two empty blocks at the end.
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    Blob::new("application/vnd.oci.image.layer.v1.tar", tar)
}

/// Configuration and manifest of an image. Repositories have images of their own, so that a pull of one test is not
/// a pull of another; only the last part of the repository's name counts, so the same image is there under several names.
pub(crate) fn image(layer: &Blob, repository: &str, tag: Tag<'_>) -> (Blob, Blob) {
    let title = repository.rsplit('/').next().unwrap_or(repository);
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {
            "Entrypoint": ["/app"],
            "Env": [format!("VERSION={}", tag.version), format!("MODE={}", tag.mode)],
            "Labels": { "org.opencontainers.image.title": title },
        },
        "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
    });
    let config = Blob::new("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor(),
        "layers": [layer.descriptor()],
    });
    let manifest = Blob::new("application/vnd.oci.image.manifest.v1+json", manifest.to_string().into_bytes());
    (config, manifest)
}

/// The header of an executable file in a tar archive (POSIX ustar).
fn tar_header(name: &str, size: usize) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &str| {
        for (to, byte) in header.iter_mut().skip(at).zip(text.bytes()) {
            *to = byte;
        }
    };
    put(0, name);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    // The checksum counts its own field as spaces.
    put(148, "        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    for (to, byte) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *to = byte;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_what_they_do() {
        let mode = |tag| Tag::parse(tag).map(|t| (t.version, t.mode, t.delay.as_secs()));
        assert_eq!(mode("v1"), Some(("v1", "", 0)));
        assert_eq!(mode("v1-again"), Some(("v1", "", 0)));
        assert_eq!(mode("crash2"), Some(("crash2", "crash", 0)));
        assert_eq!(mode("never-ready"), Some(("never-ready", "never-ready", 0)));
        assert_eq!(mode("slow3-b"), Some(("slow3-b", "", 3)));
        assert!(["latest", "vx", "slow", "slowly", ""].into_iter().all(|tag| Tag::parse(tag).is_none()));
    }

    #[test]
    fn an_alias_and_another_name_have_the_same_digest() {
        let layer = layer(b"program");
        let digest = |repository, tag| image(&layer, repository, Tag::parse(tag).unwrap()).1.digest;
        assert_eq!(digest("web", "v1"), digest("web", "v1-again"));
        assert_eq!(digest("web", "v1"), digest("library/web", "v1"));
        assert_ne!(digest("web", "v1"), digest("web", "v2"));
        assert_ne!(digest("web", "v1"), digest("api", "v1"));
    }

    #[test]
    fn the_layer_is_an_archive_that_tar_reads() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("layer.tar");
        std::fs::write(&archive, layer(b"program").bytes).unwrap();
        let out = std::process::Command::new("tar").arg("-tvf").arg(&archive).output().unwrap();
        let list = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && list.starts_with("-rwxr-xr-x") && list.contains("7 "), "{list}");
    }
}
