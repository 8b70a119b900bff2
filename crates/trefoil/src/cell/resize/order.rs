//! What `cell up` does with orders to resize, beside watching its backends.

use super::{Control, Ground, Newcomer, Resize, Stage};
use crate::cell::maintenance;
use crate::cell::order_error::OrderError;
use crate::cell::orders::{Event, Order, Ordered};
use crate::cell::revival::Backend;
use crate::cell::up::BACKEND_COUNT_MAX;
use crate::settings::MemoryLimit;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a process that has retired may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A resize, and who wants it to be given up.
pub(in crate::cell) struct Resizing {
    resize: Resize,
    aborter: Option<mpsc::Sender<Event>>,
}

impl Resizing {
    pub(in crate::cell) fn stage(&self) -> Stage {
        self.resize.stage()
    }
}

/// Takes an order, if it is about resizing, or must not be carried out meanwhile; whoever
/// gave it is told. Any other comes back.
pub(in crate::cell) async fn take(
    ordered: Option<Ordered>,
    resizing: &mut Option<Resizing>,
    is_moving: bool,
    ground: &maintenance::Ground<'_>,
) -> Option<Ordered> {
    let (order, events) = ordered?;
    let answer = match (order, resizing.as_mut()) {
        (Order::Resize { .. }, None) if is_moving => Some(Err(OrderError::Busy)),
        (
            Order::Resize {
                backends,
                without_room,
            },
            None,
        ) => match begin((backends, without_room), events.clone(), ground) {
            Ok(resize) => {
                *resizing = Some(Resizing {
                    resize,
                    aborter: None,
                });
                None
            }
            Err(error) => Some(Err(error)),
        },
        (Order::ResizePause, Some(of)) => Some(of.resize.control(Control::Paused)),
        (Order::ResizeContinue, Some(of)) => Some(of.resize.control(Control::Runs)),
        (Order::ResizeAbort, Some(of)) => match of.resize.control(Control::Aborted) {
            Ok(()) => {
                of.aborter = Some(events.clone());
                None
            }
            Err(error) => Some(Err(error)),
        },
        (_, Some(of)) => Some(Err(OrderError::Resizing(of.resize.backends))),
        (order, None) => return Some((order, events)),
    };
    if let Some(answer) = answer {
        let event = match answer {
            Ok(()) => Event::of("done"),
            Err(error) => Event::failed(&error),
        };
        let _ = events.send(event).await;
    }
    None
}

fn begin(
    (backends, without_room): (u32, bool),
    events: mpsc::Sender<Event>,
    ground: &maintenance::Ground<'_>,
) -> Result<Resize, OrderError> {
    if ground.starter.home.spread().is_some() {
        return Err(OrderError::ResizeOfSpread);
    }
    let programs = ground.backends.iter().map(Backend::program);
    let of = Ground {
        starter: ground.starter,
        address: ground.address,
        mode: ground.mode,
        memory: ground.memory,
        programs: programs.cloned().collect(),
        backends_max: BACKEND_COUNT_MAX,
    };
    Resize::begin((backends, without_room), events, &of)
}

/// Waits for the end of the resize, if there is one, and tells of it; the backends that
/// there are now, if it came to a good end.
pub(in crate::cell) async fn ended(resizing: &mut Option<Resizing>) -> Option<Vec<Newcomer>> {
    let Some(of) = resizing.as_mut() else {
        return std::future::pending().await;
    };
    let result = of.resize.ended().await;
    let of = resizing.take()?;
    let told = result.as_ref().map(drop).map_err(Clone::clone);
    if let Err(error) = &told {
        tracing::warn!(why = %error, "the resize was not carried out");
    }
    of.resize.tell(&told);
    if let Some(aborter) = &of.aborter {
        let event = match &told {
            Ok(()) => Event::failed(&OrderError::CameTooLate),
            Err(_) => Event::of("done"),
        };
        let _ = aborter.try_send(event);
    }
    result.ok()
}

/// Watches the new backends from now on, and sees to it that the old ones end.
pub(in crate::cell) fn replace(backends: &mut Vec<Backend>, joined: Vec<Newcomer>) {
    let joined = joined
        .into_iter()
        .map(|of| Backend::joined(of.number, &of.program, of.child));
    for backend in std::mem::replace(backends, joined.collect()) {
        for (number, mut child) in backend.into_children() {
            tokio::spawn(async move {
                if tokio::time::timeout(END_PATIENCE, child.wait())
                    .await
                    .is_err()
                {
                    tracing::error!(
                        backend = number,
                        "the former process of a resized cell does not end; killing it"
                    );
                    let _ = child.kill().await;
                }
            });
        }
    }
}

/// Gives the new backends the limit that was chosen while they copied, if it is another one
/// than they were started with.
pub(in crate::cell) fn set_memory(memory: &mut MemoryLimit, joined: &[Newcomer]) {
    let chosen = memory.chosen();
    if joined.iter().all(|of| of.memory == chosen) {
        return;
    }
    if let Err(error) = memory.set_again() {
        tracing::error!(%error, "the new backends keep the memory limit that they were started with");
    }
}
