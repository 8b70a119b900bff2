//! What a cell is: its configuration, where keys are placed, where the
//! configuration is kept and how the cell is addressed.
//!
//! | module | what it holds |
//! |---|---|
//! | `mode` | `R=1`, `R=2`, `R=3.2` and what they imply |
//! | `config` | the configuration and its validation |
//! | `control` | who takes the place of a backend that is dead |
//! | `corpus` | which corpus an immutable cell serves |
//! | `flush` | which versions a flush makes invisible |
//! | `address`, `etcd_address` | how people write cells and servers |
//! | `store` | where the configuration is kept: one process, a directory, etcd (feature `etcd`) |
//! | `wire` | the configuration as a message of the RPC contract |
//! | `engine_notice` | where a host's engine tells its backends' clients of itself |
//! | `limit_note` | the memory limit that backends of a host were given last |
//! | `runtime_dir`, `token` | this user's private directory, and what is left there for its clients |
//!
//! Nothing here is on a data path but [`Placement::cohort`], which neither
//! allocates nor locks.

mod address;
mod config;
pub mod control;
mod corpus;
mod engine_notice;
mod etcd_address;
mod flush;
mod limit_note;
mod mode;
mod owner;
mod peer;
mod runtime_dir;
mod store;
mod token;
mod wire;

pub use address::{AddressError, CellAddress, CellLocation, RpcAddress, SOCKET_PATH_LEN_MAX};
pub use config::{BACKEND_COUNT_MAX, BackendConfig, CONFIG_ID_CHANGING, CellConfig, ConfigError};
pub use corpus::{CorpusDigest, CorpusDigester, CorpusId};
pub use engine_notice::{EngineNotice, engine_beside};
pub use etcd_address::EtcdAddress;
pub use flush::{FLUSH_NOW_MS, flush_floor};
pub use limit_note::LimitNote;
pub use mode::{Mode, ModeParseError};
pub use owner::{Found, OwnerError, check_found, check_owner};
pub use peer::listening_process;
pub use runtime_dir::{RuntimeDirError, runtime_dir};
pub use store::{
    BackendLock, BackendRegistry, Claimed, ConfigStore, ConfigStoreError, DirectoryStore,
    EmbeddedStore, FileError, Incarnations, is_ending, wait_out,
};
#[cfg(feature = "etcd")]
pub use store::{
    EtcdAccess, EtcdSettings, EtcdStore, Founder, FounderRegistration, Founders, Held, Leadership,
    SpareRegistration, TlsFiles,
};
pub use token::{
    TOKEN_FILE_VARIABLE, Token, TokenError, TokenFile, credentials, named_token_problem,
    read_token, use_token_file,
};
pub use trefoil_layout::placement::{COPY_COUNT_MAX, Cohort, Placement};
pub use wire::{
    WireError, decode_config, decode_corpus, encode_config, encode_corpus, endpoint, rpc_client,
};
