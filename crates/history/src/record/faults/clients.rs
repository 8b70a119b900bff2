//! A client is killed in the middle of what it does, or the gateway.

use super::Begun;
use crate::record::RecordError;
use crate::record::round::Round;

pub(super) fn kill_client(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    Ok(match round.replace_worker()? {
        true => Begun::Done,
        false => Begun::No,
    })
}

pub(super) fn restart_gateway(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    // It would not find the cell.
    if round.store_is_away || !round.has_gateway() {
        return Ok(Begun::No);
    }
    round.restart_gateway()?;
    Ok(Begun::Done)
}
