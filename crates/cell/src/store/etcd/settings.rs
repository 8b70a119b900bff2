//! How this process comes into etcd, and for how long a registration stands.

use super::ConfigStoreError;
use std::time::Duration;
use trefoil_etcd::EtcdAccess;

/// How long a backend that was killed is believed to live.
const LEASE_DEFAULT: Duration = Duration::from_secs(10);

/// Certificates, credentials and times.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// Certificates and a user.
    pub access: EtcdAccess,
    /// How long a backend that was killed is believed to live.
    pub lease: Duration,
}

impl Default for EtcdSettings {
    fn default() -> Self {
        EtcdSettings {
            access: EtcdAccess::default(),
            lease: LEASE_DEFAULT,
        }
    }
}

impl EtcdSettings {
    /// As the environment says.
    pub fn from_environment() -> Result<Self, ConfigStoreError> {
        let access = EtcdAccess::from_environment();
        let access = access.map_err(|error| ConfigStoreError::Refused {
            address: "etcd".to_owned(),
            reason: error.to_string(),
        })?;
        Ok(EtcdSettings {
            access,
            ..EtcdSettings::default()
        })
    }
}
