//! A place at a backend's queue: a lane of its own, and the right to mark. Set-up only.

use super::connect::{ConnectError, ConnectOptions, Parts, greet_by};
use crate::port::Refreshed;
use crate::region_view::RegionView;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use trefoil_layout::KeyHash;
use trefoil_layout::hello::Hello;
use trefoil_ordered::marks::{self, Marker};
use trefoil_ordered::words::Mapped;
use trefoil_ordered::{Queue, SetUpError};
use trefoil_region::Mapping;

/// What a client of a backend's queue has.
#[derive(Debug)]
pub struct Seat {
    /// The backend's memory: whose lease runs as long as commits count.
    pub view: Arc<RegionView>,
    /// Marks what is about to be committed.
    pub marker: Marker<Mapped>,
    /// Commits it.
    pub queue: Queue,
}

impl Seat {
    /// [`RegionView::acknowledges_in`], by windows that are taken anew if need be.
    #[inline]
    pub fn epoch(&mut self, place: usize, hash: KeyHash, config_id: u32) -> Option<u32> {
        let epoch = self.view.acknowledges_in(place, hash, config_id);
        if epoch.is_some() {
            return epoch;
        }
        self.epoch_anew(place, hash, config_id)
    }

    #[cold]
    fn epoch_anew(&mut self, place: usize, hash: KeyHash, config_id: u32) -> Option<u32> {
        match RegionView::refresh_shared(&mut self.view) {
            Refreshed::Changed => self.view.acknowledges_in(place, hash, config_id),
            _ => None,
        }
    }

    /// Takes a place at the queue of backend number `backend` of the process that listens at
    /// `path`.
    pub fn take(path: &Path, backend: u32, options: &ConnectOptions) -> Result<Self, ConnectError> {
        // A server that is too old to have a queue takes this for no greeting.
        let hello = Hello {
            backend,
            wants_rings: false,
            knows_marks: true,
            wants_lane: true,
        };
        let (socket, granted, mut descriptors) = greet_by(path, &hello, options)?;
        let inconsistent = |what| ConnectError::Inconsistent {
            path: path.to_path_buf(),
            what,
        };
        let place = granted.place.map_or(usize::MAX, |place| place as usize);
        if place >= marks::PLACES || granted.marks_len == 0 || descriptors.len() != 7 {
            return Err(inconsistent("there is no lane in what was granted"));
        }
        let lane = <[OwnedFd; 3]>::try_from(descriptors.split_off(4));
        let [order, lane, bell] = lane.map_err(|_| inconsistent("a descriptor is missing"))?;
        let marks = Mapping::reader_writer(&descriptors[3], granted.marks_len.into())?;
        let parts = Parts::map(path, options, socket, &granted, descriptors)?;
        let queue = Queue::join_lane(order, lane, UnixStream::from(bell));
        let queue = queue.map_err(|error| match error {
            SetUpError::Mapping(error) => ConnectError::Mapping(error),
            _ => inconsistent("the lane is of another version"),
        })?;
        let connection = parts.establish(&granted);
        Ok(Seat {
            view: Arc::clone(connection.view()),
            marker: Marker::new(Mapped(marks), place),
            queue,
        })
    }
}
