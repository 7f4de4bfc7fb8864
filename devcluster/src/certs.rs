//! Certificates, made anew for every cluster.

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate with its private key, both as PEM text.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// The certificate authority of one cluster. It signs both the API server's certificate and those
/// of clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("devcluster-ca", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A serving certificate for these names and addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        self.sign(CertificateParams::new(names)?, name("devcluster", &[])?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate: Kubernetes takes the common name as user name and the organizations as
    /// groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.sign(CertificateParams::default(), name(user, groups)?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        subject: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        params.distinguished_name = subject;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.0).context("cannot sign a certificate")?;
        Ok(Identity { cert: cert.pem(), key: key.serialize_pem() })
    }
}

/// The key pair that signs service account tokens: private and public part as PEM text.
///
/// Both are needed: the API server reads the private key as PKCS#8, but takes keys for verification
/// only as public keys.
pub(crate) fn service_account_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn name(common_name: &str, organizations: &[&str]) -> Result<DistinguishedName> {
    // rcgen keeps one value per attribute type. Spelled as a number, the organization counts as
    // another type.
    let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    ensure!(
        organizations.len() <= types.len(),
        "a client certificate of the development cluster takes at most {} groups; use impersonation for more",
        types.len()
    );
    let mut name = DistinguishedName::new();
    for (kind, organization) in types.into_iter().zip(organizations) {
        name.push(kind, *organization);
    }
    name.push(DnType::CommonName, common_name);
    Ok(name)
}
