//! The protobuf contract (`proto/trefoil.proto`), its generated stubs, and the
//! conversions between its messages and the vocabulary of `layout::op`.
//!
//! This is the only place for generated code. Whatever arrives is converted
//! before anybody looks at it: the conversions are total, and a message that
//! no peer of this contract would send is a [`ContractError`] that names the
//! field.

mod connect;
mod convert;
mod dial;
mod generated;
mod unexecuted;

pub use connect::{
    Client, Credentials, Endpoint, EndpointError, MESSAGE_LEN_MAX, MUTATE_PATH, OWN_USER_ONLY,
    RELOAD_PATH, SHORT_MESSAGE_LEN_MAX, Service, client, endpoint_tcp, endpoint_unix, of_short,
    service, shown_token,
};
pub use convert::{
    ContractError, EntryForm, Listed, OtherLayout, StateWords, TOUCH_COUNT_MAX, Touches,
    decode_ack, decode_hash, decode_hashes, decode_held, decode_listed, decode_lookup_answer,
    decode_mutation, decode_states, decode_touches, decode_version, encode_ack, encode_hash,
    encode_hashes, encode_held, encode_listed, encode_long_answer, encode_lookup_answer,
    encode_mutation, encode_states, encode_touches, encode_version, entry_form, make_answer_plain,
    make_item_plain, settle_answer, settle_item,
};
pub use dial::{connect_tls_lazy, failure_text, handshake_error};
pub use generated::v1;
pub use unexecuted::{not_executed, was_not_executed};
