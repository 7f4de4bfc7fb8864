//! TLS, always verified: by the system's certificates, or by those of the hook instead.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    client::danger::ServerCertVerifier,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::{Trouble, secrets::Hidden};

/// Certificate chain and key, in PEM.
pub(super) struct Identity {
    pub(super) certificate: Hidden,
    pub(super) key: Hidden,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn system_verifier() -> Option<Arc<dyn ServerCertVerifier>> {
    match rustls_platform_verifier::Verifier::new(provider()) {
        Ok(verifier) => Some(Arc::new(verifier)),
        Err(error) => {
            tracing::warn!(%error, "no CA certificates: https hooks without a caBundle will fail; install them or set SSL_CERT_FILE");
            None
        }
    }
}

/// What is trusted without a word of the hook.
pub(super) fn system() -> ClientConfig {
    config(system_verifier(), RootCertStore::empty(), None).unwrap_or_else(|_| nothing())
}

/// For requests without TLS.
pub(super) fn nothing() -> ClientConfig {
    config(None, RootCertStore::empty(), None).unwrap_or_else(|_| {
        // The provider knows the default versions: this is never reached.
        ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
    })
}

/// Does it hold certificates, and nothing else that is in PEM?
pub(in crate::action) fn is_bundle(text: &str) -> bool {
    roots(text).is_ok()
}

fn roots(bundle: &str) -> Result<RootCertStore, Trouble> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.map_err(|_| Trouble::InvalidHook)?).map_err(|_| Trouble::InvalidHook)?;
    }
    if roots.is_empty() { Err(Trouble::InvalidHook) } else { Ok(roots) }
}

/// With a CA bundle and a client certificate of the hook.
pub(super) fn of(bundle: Option<&str>, identity: Option<&Identity>) -> Result<ClientConfig, Trouble> {
    match bundle {
        None => config(system_verifier(), RootCertStore::empty(), identity),
        Some(bundle) => config(None, roots(bundle)?, identity),
    }
}

fn config(
    verifier: Option<Arc<dyn ServerCertVerifier>>,
    roots: RootCertStore,
    identity: Option<&Identity>,
) -> Result<ClientConfig, Trouble> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|_| Trouble::TlsFailed)?;
    let builder = match verifier {
        Some(verifier) => builder.dangerous().with_custom_certificate_verifier(verifier),
        None => builder.with_root_certificates(roots),
    };
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&identity.certificate.0).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or(Trouble::SecretInvalid)?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key.0).map_err(|_| Trouble::SecretInvalid)?;
    builder.with_client_auth_cert(chain, key).map_err(|_| Trouble::SecretInvalid)
}
