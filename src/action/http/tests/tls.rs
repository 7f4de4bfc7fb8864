//! TLS: whom we believe, and who we are.

use super::*;

/// Certificates of a private authority.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: rcgen::Issuer::new(params, key), pem }
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A receiver that shows a certificate for `name`, and asks for one of `clients`.
    async fn serve(&self, name: &str, clients: Option<&Self>) -> u16 {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(clients.pem.as_bytes()).unwrap()).unwrap();
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.unwrap())
            }
        };
        let (certificate, key) = self.issue(name);
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut buffer = [0; 4096];
                    let _ = stream.read(&mut buffer).await;
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        port
    }
}

#[tokio::test]
async fn tls_is_verified_by_the_bundle_and_we_show_our_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let port = authority.serve("localhost", None).await;
    let hook = |bundle: Option<&Authority>| HttpHook {
        ca_bundle: bundle.map(|a| a.pem.clone()),
        ..post_to(&format!("https://localhost:{port}/"))
    };
    assert_eq!(try_hook(&hook(Some(&authority)), 60).await, succeeded("Http200"));
    assert_eq!(try_hook(&hook(None), 60).await, failed("TlsFailed"));
    assert_eq!(try_hook(&hook(Some(&other)), 60).await, failed("TlsFailed"));
    let by_address = HttpHook { url: format!("https://127.0.0.1:{port}/"), ..hook(Some(&authority)) };
    assert_eq!(try_hook(&by_address, 60).await, failed("TlsFailed"), "the certificate names another host");
    for bundle in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let hook = HttpHook { ca_bundle: Some(bundle.into()), ..hook(None) };
        assert_eq!(try_hook(&hook, 60).await, failed("InvalidHook"));
    }

    let port = authority.serve("localhost", Some(&other)).await;
    let hook = |secret: Option<&str>| HttpHook {
        ca_bundle: Some(authority.pem.clone()),
        client_certificate: secret.map(|name| SecretName { name: name.into() }),
        ..post_to(&format!("https://localhost:{port}/"))
    };
    let (certificate, key) = other.issue("us");
    let (_, cluster) =
        cluster_with(&json!({"tls.crt": base64(certificate.as_bytes()), "tls.key": base64(key.as_bytes())}));
    assert_eq!(try_with(&client(), &cluster, &hook(Some("s")), 60).await, succeeded("Http200"));
    // In TLS 1.3 the refusal comes after the handshake.
    let without = try_hook(&hook(None), 60).await;
    assert!([failed("TlsFailed"), failed("ConnectionClosed")].contains(&without), "{without:?}");
    let (_, cluster) = cluster_with(&json!({"tls.crt": base64(b"no PEM"), "tls.key": base64(key.as_bytes())}));
    assert_eq!(try_with(&client(), &cluster, &hook(Some("s")), 60).await, failed("SecretInvalid"));
}
