//! The configuration as a message of the RPC contract.

use crate::address::{AddressError, RpcAddress};
use crate::config::{BackendConfig, CellConfig, ConfigError};
use crate::corpus::{CorpusDigest, CorpusId};
use crate::mode::ModeParseError;
use std::time::Duration;
use trefoil_rpc::{Client, ContractError, Credentials, Endpoint, EndpointError, v1};
use trefoil_tls::Tls;

/// Why a message is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A malformed message.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A mode of another release.
    #[error(transparent)]
    Mode(#[from] ModeParseError),
    /// An address of another release.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A configuration that nobody can serve.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A configuration as a message.
pub fn encode_config(config: &CellConfig) -> v1::CellConfig {
    let backends = config.backends.iter().map(|backend| v1::Backend {
        number: backend.number,
        addresses: backend.addresses.iter().map(ToString::to_string).collect(),
        fabric_socket: backend
            .fabric_socket
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        place: backend.place.clone().unwrap_or_default(),
    });
    v1::CellConfig {
        life: config.life,
        config_id: config.config_id,
        cell: config.cell.clone(),
        mode: config.mode.to_string(),
        backends: backends.collect(),
        hash: Some(trefoil_rpc::encode_hash(config.hash)),
        value_len_max: config.value_len_max,
        eviction: config.eviction.clone(),
        flush_floor: (!config.flush_floor.is_zero())
            .then(|| trefoil_rpc::encode_version(config.flush_floor)),
        corpus: config.corpus.as_ref().map(encode_corpus),
    }
}

/// A message as a validated configuration.
pub fn decode_config(message: &v1::CellConfig) -> Result<CellConfig, WireError> {
    let backend = |backend: &v1::Backend| -> Result<BackendConfig, WireError> {
        let addresses: Result<Vec<RpcAddress>, AddressError> =
            backend.addresses.iter().map(|text| text.parse()).collect();
        Ok(BackendConfig {
            number: backend.number,
            addresses: addresses?,
            fabric_socket: Some(&backend.fabric_socket)
                .filter(|path| !path.is_empty())
                .map(Into::into),
            place: Some(&backend.place)
                .filter(|place| !place.is_empty())
                .cloned(),
        })
    };
    let hash = message.hash.as_ref();
    let config = CellConfig {
        life: message.life,
        config_id: message.config_id,
        cell: message.cell.clone(),
        mode: message.mode.parse()?,
        backends: message
            .backends
            .iter()
            .map(backend)
            .collect::<Result<_, _>>()?,
        hash: trefoil_rpc::decode_hash(hash.ok_or(ContractError::Missing("hash"))?)?,
        value_len_max: message.value_len_max,
        eviction: message.eviction.clone(),
        flush_floor: message
            .flush_floor
            .map(trefoil_rpc::decode_version)
            .unwrap_or_default(),
        corpus: message.corpus.as_ref().map(decode_corpus).transpose()?,
    };
    config.validate()?;
    Ok(config)
}

/// A corpus' identity as a message.
pub fn encode_corpus(corpus: &CorpusId) -> v1::Corpus {
    v1::Corpus {
        digest_low: corpus.digest.0 as u64,
        digest_high: (corpus.digest.0 >> 64) as u64,
        len: corpus.len,
        first: Some(trefoil_rpc::encode_version(corpus.first)),
        path: corpus.path.clone().unwrap_or_default(),
    }
}

/// A message as a corpus' identity.
pub fn decode_corpus(message: &v1::Corpus) -> Result<CorpusId, WireError> {
    let first = message.first.ok_or(ContractError::Missing("first"))?;
    let digest = u128::from(message.digest_high) << 64 | u128::from(message.digest_low);
    Ok(CorpusId {
        digest: CorpusDigest(digest),
        len: message.len,
        first: trefoil_rpc::decode_version(first),
        path: Some(&message.path).filter(|path| !path.is_empty()).cloned(),
    })
}

/// An endpoint for a server's address, without TLS; connects to nothing yet.
pub fn endpoint(address: &RpcAddress) -> Result<Endpoint, EndpointError> {
    match crate::token::settled(address) {
        RpcAddress::Unix(path) => trefoil_rpc::endpoint_unix(&path),
        tcp => trefoil_rpc::endpoint_tcp(&tcp.to_string()),
    }
}

/// A client of the server at `address`, which connects when it is first used, and
/// takes `patience` at most for that.
///
/// With `tls`, a server over TCP is spoken to with TLS and by nothing else, and it
/// knows its clients by their certificates; without, it is shown a token. Unix sockets
/// need neither. Has to be called where a runtime is entered.
pub fn rpc_client(
    address: &RpcAddress,
    tls: Option<&Tls>,
    patience: Duration,
) -> Result<Client, EndpointError> {
    match (address, tls) {
        (RpcAddress::Tcp { host, port }, Some(tls)) => {
            let endpoint = trefoil_rpc::endpoint_tcp(&address.to_string())?;
            let endpoint = endpoint.connect_timeout(patience);
            let channel = trefoil_rpc::connect_tls_lazy(&endpoint, tls, host, *port);
            Ok(trefoil_rpc::client(channel, Credentials::none()))
        }
        _ => {
            let channel = endpoint(address)?.connect_timeout(patience).connect_lazy();
            Ok(trefoil_rpc::client(
                channel,
                crate::token::credentials(address),
            ))
        }
    }
}
