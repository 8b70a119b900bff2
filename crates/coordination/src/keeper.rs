//! skeleton
use crate::error::CoordinationError;
use crate::session::Inner;
use crate::view::ServerInfo;
use std::sync::Arc;
use std::time::Duration;
pub(crate) struct Keeper;
impl Keeper {
    pub(crate) async fn register(
        _: Arc<Inner>,
        _: ServerInfo,
        _: Duration,
    ) -> Result<Self, CoordinationError> {
        Ok(Keeper)
    }
    pub(crate) async fn run(self) {}
}
