//! A view as it is routed by: points to servers that can be reached.

use crate::choice::two_of;
use crate::peer::Peer;
use std::collections::BTreeMap;
use std::sync::Arc;
use trefoil_coordination::{Security, View};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId};

/// The servers, by id. A server that comes back is another one, by id.
pub(crate) type Peers = BTreeMap<ServerId, Arc<Peer>>;

/// Never changed, only replaced.
#[derive(Debug)]
pub(crate) struct Table {
    /// `None` before the first assignment.
    pub(crate) version: Option<AssignmentVersion>,
    /// First point of each slice; the first is 0.
    starts: Vec<u64>,
    /// The servers of each slice, the primary first, and whether the first one
    /// of the list really is.
    routes: Vec<Route>,
    pub(crate) peers: Peers,
}

#[derive(Debug, Default)]
struct Route {
    primary: Option<Arc<Peer>>,
    replicas: Vec<Arc<Peer>>,
}

impl Table {
    /// Takes over the connections of the table before.
    pub(crate) fn new(view: &View, before: &Peers, security: &Security, corpus: &str) -> Self {
        let peers: Peers = view
            .servers
            .iter()
            .filter_map(|(&id, info)| {
                let known = before
                    .get(&id)
                    .filter(|peer| peer.address == info.address)
                    .cloned();
                let peer = match known {
                    Some(peer) => peer,
                    None => Arc::new(
                        Peer::new(id, &info.address, security, corpus)
                            .inspect_err(|error| {
                                tracing::warn!(server = %id, address = info.address, error, "cannot be routed to");
                            })
                            .ok()?,
                    ),
                };
                Some((id, peer))
            })
            .collect();
        let slices = view.assignment.slices();
        let route = |servers: &[ServerId]| Route {
            primary: servers.first().and_then(|id| peers.get(id)).cloned(),
            replicas: servers
                .iter()
                .filter_map(|id| peers.get(id))
                .cloned()
                .collect(),
        };
        Table {
            version: view.version(),
            starts: slices.iter().map(|slice| slice.slice.start().0).collect(),
            routes: slices.iter().map(|slice| route(&slice.servers)).collect(),
            peers,
        }
    }

    fn route(&self, point: KeyPoint) -> Option<&Route> {
        let after = self.starts.partition_point(|&start| start <= point.0);
        self.routes.get(after.checked_sub(1)?)
    }

    /// Who takes writes.
    pub(crate) fn primary(&self, point: KeyPoint) -> Option<&Arc<Peer>> {
        self.route(point)?.primary.as_ref()
    }

    /// Who answers a read: the better of two replicas chosen at random. The
    /// best of all would be everybody's choice at once.
    pub(crate) fn replica(&self, point: KeyPoint) -> Option<&Arc<Peer>> {
        match self.route(point)?.replicas.as_slice() {
            [] => None,
            [one] => Some(one),
            many => {
                let (a, b) = two_of(many.len());
                let (a, b) = (&many[a], &many[b]);
                Some(if a.cost() <= b.cost() { a } else { b })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_coordination::ServerInfo;
    use trefoil_sharder::{AssignedSlice, Assignment, Capacity, Slice};

    fn made(view: &View, before: &Peers) -> Table {
        Table::new(view, before, &Security::Loopback, "mail")
    }

    fn view(generation: u64, slices: &[(u64, &[u64])], members: &[u64]) -> View {
        let ends = slices
            .iter()
            .skip(1)
            .map(|(start, _)| u128::from(*start))
            .chain([1 << 64]);
        let slices = slices
            .iter()
            .zip(ends)
            .map(|((start, servers), end)| AssignedSlice {
                slice: Slice::new(KeyPoint(*start), end).unwrap(),
                servers: servers.iter().map(|&id| ServerId(id)).collect(),
            })
            .collect();
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        let capacity = Capacity { cpu: 1.0, bytes: 1 };
        View {
            assignment: Assignment::new(version, slices).unwrap(),
            servers: members
                .iter()
                .map(|&id| {
                    let info = ServerInfo::new(format!("127.0.0.1:{id}"), capacity);
                    (ServerId(id), info)
                })
                .collect(),
            servers_as_of: version,
        }
    }

    #[tokio::test]
    async fn points_find_their_servers() {
        let view = view(1, &[(0, &[1]), (100, &[2, 3]), (200, &[9, 3])], &[1, 2, 3]);
        let table = made(&view, &Peers::new());
        let primary = |point| table.primary(KeyPoint(point)).map(|peer| peer.id.0);
        assert_eq!(primary(0), Some(1));
        assert_eq!(primary(99), Some(1));
        assert_eq!(primary(100), Some(2));
        assert_eq!(
            primary(200),
            None,
            "9 is no member, and 3 is not the primary"
        );
        for _ in 0..20 {
            assert_eq!(table.replica(KeyPoint(u64::MAX)).unwrap().id.0, 3);
        }
        let empty = made(&View::empty(), &Peers::new());
        assert_eq!(empty.version, None);
        assert!(empty.primary(KeyPoint(0)).is_none() && empty.replica(KeyPoint(0)).is_none());
    }

    #[tokio::test]
    async fn connections_and_what_is_known_of_them_stay() {
        let first = made(&view(1, &[(0, &[1, 2])], &[1, 2]), &Peers::new());
        let next = made(&view(2, &[(0, &[2, 3])], &[2, 3]), &first.peers);
        let kept = |id| Arc::ptr_eq(&first.peers[&ServerId(id)], &next.peers[&ServerId(id)]);
        assert!(kept(2));
        assert_eq!(next.peers.len(), 2);
    }

    #[tokio::test]
    async fn a_replica_that_stalls_is_avoided() {
        let table = made(&view(1, &[(0, &[1, 2, 3])], &[1, 2, 3]), &Peers::new());
        table.peers[&ServerId(2)].begin().failed();
        let mut chosen = [0; 4];
        for _ in 0..300 {
            chosen[table.replica(KeyPoint(5)).unwrap().id.0 as usize] += 1;
        }
        assert_eq!(chosen[2], 0, "never the worse of two");
        assert!(chosen[1] > 50 && chosen[3] > 50, "{chosen:?}");
    }
}
