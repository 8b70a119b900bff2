//! A cell that began anew in an etcd which had lost everything: config ids count from the
//! beginning there, so that it looks older than what a process has seen of the former life.

use std::collections::BTreeSet;
use trefoil_cell::{CellConfig, ConfigStoreError, EtcdStore, RpcAddress};
use trefoil_tls::Tls;

/// Has `store` go on with what etcd holds, if that is another life of the cell than was
/// known, and all backends that answer serve just that; whether it does. For processes that
/// hold nothing of the former life. An old backup is served by nobody.
pub(super) fn follow(store: &EtcdStore, error: &ConfigStoreError, tls: Option<&Tls>) -> bool {
    let ConfigStoreError::Older {
        found: Some(found),
        known,
        ..
    } = error
    else {
        return false;
    };
    if found.life == known.life {
        return false;
    }
    let Ok(Some(held)) = store.look() else {
        return false;
    };
    let served = trefoil_client::served(&addresses(&held.config), tls);
    let served: BTreeSet<(u64, u32)> = served
        .into_iter()
        .flatten()
        .map(|served| (served.config.life, served.config.config_id))
        .collect();
    let is_served = served == [(held.config.life, held.config.config_id)].into();
    if is_served {
        tracing::warn!(
            config_id = held.config.config_id,
            "the cell began anew, in an etcd that had lost the former one: it is followed"
        );
        store.believe(&held.config);
    }
    is_served
}

/// Where the backends are asked.
pub(super) fn addresses(config: &CellConfig) -> Vec<RpcAddress> {
    let backends = config.backends.iter();
    backends
        .flat_map(|b| b.addresses.first().cloned())
        .collect()
}
