//! Hosts of one machine: a network namespace for each server and for the
//! callers, joined by a bridge, so that the bytes that each one sends can be
//! counted and nothing else uses their links.
//!
//! Counters are those of the virtual Ethernet links, at the bridge. The kernel
//! hands packets over in pieces of up to 64 KiB with one header each: a real
//! network adds a header to every 1,448 bytes, for all systems alike.

mod wire;

pub use wire::{Quality, Rate, Wire, WireCounts};

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::peer::CONGESTION;

const PREFIX: &str = "trefoil";
const SWITCH: &str = "switch";
/// Addresses 10.211.0.0/16 exist inside the namespaces only.
const NETWORK: [u8; 2] = [10, 211];
const HOSTS_COUNT_MAX: usize = 65_000;
const NAMES_DIR: &str = "/run/netns";

/// Networks that this process has made.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// Why there is no network of our own.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Namespaces take privileges.
    #[error("network namespaces need root")]
    NotRoot,
    /// `ip` is missing or refused.
    #[error("`ip {command}`: {problem}")]
    Ip {
        /// Its arguments.
        command: String,
        /// What went wrong.
        problem: String,
    },
    /// The namespace could not be entered.
    #[error("cannot enter network namespace {name}: {source}")]
    Enter {
        /// Which.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// No wire: no devices of our own.
    #[error("a device for a wire ({name}): {source}; it takes /dev/net/tun")]
    Device {
        /// Which.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// More hosts than addresses.
    #[error("no more than {HOSTS_COUNT_MAX} hosts")]
    TooMany,
}

/// A host: where to listen, and how to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its namespace and its link at the bridge; none on loopback.
    place: Option<(String, String)>,
}

impl Host {
    /// Everything on loopback, as one host.
    pub fn loopback() -> Self {
        Host {
            address: Ipv4Addr::LOCALHOST,
            place: None,
        }
    }

    /// Runs `work` on a thread in the host's namespace, where its sockets and
    /// the processes it starts then are.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R, NetworkError> {
        match &self.place {
            Some((name, _)) => enter(name, work),
            None => Ok(work()),
        }
    }
}

impl Host {
    /// What the kernel waits for at least, from here on, before its TCP takes something for
    /// lost: for connections that begin afterwards. Whether it could be set (Linux 6.11).
    pub fn set_tcp_rto_min(&self, least: Duration) -> Result<bool, NetworkError> {
        let text = least.as_micros().to_string();
        self.enter(|| std::fs::write("/proc/sys/net/ipv4/tcp_rto_min_us", text).is_ok())
    }
}

/// The same by a namespace's name.
fn enter<R: Send>(name: &str, work: impl FnOnce() -> R + Send) -> Result<R, NetworkError> {
    let fail = |source| NetworkError::Enter {
        name: name.to_owned(),
        source,
    };
    let namespace = File::open(Path::new(NAMES_DIR).join(name)).map_err(fail)?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind)
                .map_err(|errno| fail(errno.into()))?;
            Ok(work())
        });
        match inside.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A bridge and its hosts; dropping it removes them.
#[derive(Debug)]
pub struct Network {
    prefix: String,
    hosts_count: usize,
}

impl Network {
    /// An empty network. Removes what a run that was killed has left.
    pub fn create() -> Result<Self, NetworkError> {
        if !rustix::process::geteuid().is_root() {
            return Err(NetworkError::NotRoot);
        }
        remove_abandoned();
        // There may be several in one process, each of which removes its own.
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = Network {
            prefix: format!("{PREFIX}-{}-{number}", std::process::id()),
            hosts_count: 0,
        };
        let switch = network.name(SWITCH);
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "bridge0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "bridge0", "up"])?;
        Ok(network)
    }

    /// One more host, called `name`.
    pub fn host(&mut self, name: &str) -> Result<Host, NetworkError> {
        let (host, link) = self.place(name)?;
        let switch = self.name(SWITCH);
        ip(&[
            "-n", &switch, "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns",
            &host,
        ])?;
        self.join(host, link)
    }

    /// The same behind a wire that may be bad.
    pub fn host_by_wire(&mut self, name: &str) -> Result<(Host, Wire), NetworkError> {
        let (host, link) = self.place(name)?;
        let device = |namespace: &str, name: &str| {
            let fail = |source| NetworkError::Device {
                name: name.to_owned(),
                source,
            };
            enter(namespace, || wire::open_device(name))?.map_err(fail)
        };
        let ends = (device(&self.name(SWITCH), &link)?, device(&host, "eth0")?);
        let host = self.join(host, link)?;
        // Another one's faults come at other frames.
        let seed = (self.hosts_count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok((host, Wire::between(ends.0, ends.1, seed)))
    }

    /// Cuts a host's link, or joins it again.
    pub fn link(&self, host: &Host, is_up: bool) -> Result<(), NetworkError> {
        let Some((_, link)) = &host.place else {
            return Ok(());
        };
        let state = match is_up {
            true => "up",
            false => "down",
        };
        ip(&["-n", &self.name(SWITCH), "link", "set", link, state]).map(drop)
    }

    /// A namespace for one more host, and the name of its link at the bridge.
    fn place(&mut self, name: &str) -> Result<(String, String), NetworkError> {
        if self.hosts_count >= HOSTS_COUNT_MAX {
            return Err(NetworkError::TooMany);
        }
        self.hosts_count += 1;
        let host = self.name(name);
        ip(&["netns", "add", &host])?;
        Ok((host, format!("port{}", self.hosts_count)))
    }

    /// The host that was made last, whose link there is.
    fn join(&self, host: String, link: String) -> Result<Host, NetworkError> {
        let switch = self.name(SWITCH);
        let [high, low] = (self.hosts_count as u16).to_be_bytes();
        let address = Ipv4Addr::new(NETWORK[0], NETWORK[1], high, low);
        let placed = format!("{address}/16");
        ip(&[
            "-n", &switch, "link", "set", &link, "master", "bridge0", "up",
        ])?;
        ip(&["-n", &host, "addr", "add", &placed, "dev", "eth0"])?;
        ip(&["-n", &host, "link", "set", "eth0", "up"])?;
        ip(&["-n", &host, "link", "set", "lo", "up"])?;
        let host = Host {
            address,
            place: Some((host, link)),
        };
        // Settings of this namespace, not of the machine; where they cannot be
        // made the defaults stay, for all systems alike.
        host.enter(|| {
            let _ = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION);
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
        })?;
        Ok(host)
    }

    /// Bytes that these hosts have sent to others so far.
    pub fn sent_bytes(&self, hosts: &[&Host]) -> Result<u64, NetworkError> {
        let switch = self.name(SWITCH);
        let arguments = ["-n", &switch, "-json", "-stats", "link", "show"];
        let said = ip(&arguments)?;
        let links: Vec<serde_json::Value> =
            serde_json::from_str(&said).map_err(|error| NetworkError::Ip {
                command: arguments.join(" "),
                problem: error.to_string(),
            })?;
        let received = |host: &&Host| {
            let (_, port) = host.place.as_ref()?;
            let link = links.iter().find(|link| link["ifname"] == port.as_str())?;
            link["stats64"]["rx"]["bytes"].as_u64()
        };
        Ok(hosts.iter().filter_map(received).sum())
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(|name| {
            name.strip_prefix(&self.prefix)
                .is_some_and(|rest| rest.starts_with('-'))
        });
    }
}

/// Removes namespaces of processes that are gone.
fn remove_abandoned() {
    remove(|name| {
        let number = name.strip_prefix(PREFIX).and_then(|rest| {
            rest.strip_prefix('-')?
                .split('-')
                .next()?
                .parse::<u32>()
                .ok()
        });
        number.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
}

fn remove(is_ours: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(NAMES_DIR) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && is_ours(name)
        {
            // A namespace that stays is met again by the next run.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<String, NetworkError> {
    let fail = |problem: String| NetworkError::Ip {
        command: arguments.join(" "),
        problem,
    };
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| fail(format!("{error}; it is in Debian's iproute2")))?;
    if !output.status.success() {
        return Err(fail(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The address of a host for a server to listen on.
pub(super) fn any_port(host: &Host) -> String {
    format!("{}:0", IpAddr::V4(host.address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn loopback_is_one_host_without_a_namespace() {
        let host = Host::loopback();
        assert_eq!(host.enter(|| 5).unwrap(), 5);
        assert_eq!(any_port(&host), "127.0.0.1:0");
    }

    /// Where namespaces are not to be had, the error says so.
    #[test]
    fn bytes_between_hosts_are_counted() {
        let mut network = match Network::create() {
            Ok(network) => network,
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("root") || said.contains("ip netns"), "{said}");
                return;
            }
        };
        let (one, other) = (network.host("one").unwrap(), network.host("other").unwrap());
        let before = network.sent_bytes(&[&one]).unwrap();
        let listener = other
            .enter(|| TcpListener::bind((other.address, 0)).unwrap())
            .unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut all = Vec::new();
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_to_end(&mut all).unwrap();
                assert_eq!(all.len(), 1 << 20);
            });
            one.enter(|| {
                let mut stream = TcpStream::connect(to).unwrap();
                stream.write_all(&vec![1; 1 << 20]).unwrap();
            })
            .unwrap();
        });
        let sent = network.sent_bytes(&[&one]).unwrap() - before;
        assert!((1 << 20..(1 << 20) + (1 << 17)).contains(&sent), "{sent}");
        let back = network.sent_bytes(&[&other]).unwrap();
        assert!(back < 1 << 17, "{back}");
        let name = network.name("one");
        drop(network);
        assert!(!Path::new(NAMES_DIR).join(name).exists());
    }

    /// Each fault of a wire, seen by a receiver of datagrams; where there are no devices,
    /// the error says so.
    #[test]
    fn a_wire_does_what_it_is_told() {
        use std::net::UdpSocket;
        let mut network = match Network::create() {
            Ok(network) => network,
            Err(NetworkError::NotRoot | NetworkError::Ip { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let one = network.host("near").unwrap();
        let (other, wire) = match network.host_by_wire("far") {
            Ok(host) => host,
            Err(error) => return assert!(error.to_string().contains("/dev/net/tun"), "{error}"),
        };
        let bound = |host: &Host| host.enter(|| UdpSocket::bind((host.address, 0))).unwrap();
        let (near, far) = (bound(&one).unwrap(), bound(&other).unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let come = |number: u64| {
            near.send(&number.to_le_bytes()).unwrap();
            let mut came = 0;
            let mut bytes = [0; 64];
            while let Ok(len) = far.recv(&mut bytes) {
                assert_eq!(bytes[..len], number.to_le_bytes());
                came += 1;
            }
            came
        };
        assert_eq!(come(1), 1);
        let all = 10_000;
        let of = Quality::default();
        for (quality, wanted) in [
            (Quality { lost: all, ..of }, 0),
            (Quality { doubled: all, ..of }, 2),
            (Quality { damaged: all, ..of }, 0),
        ] {
            wire.set(quality);
            assert_eq!(come(2), wanted, "{quality:?}");
        }
        let counts = wire.counts();
        assert!(counts.lost > 0 && counts.doubled > 0 && counts.damaged > 0);
        let delay = Duration::from_millis(40);
        wire.set(Quality { delay, ..of });
        let begin = std::time::Instant::now();
        near.send(b"late").unwrap();
        far.recv(&mut [0; 8]).unwrap();
        assert!(begin.elapsed() >= delay);
        // What waits for a narrow wire beyond its queue is lost.
        let rate = Some(Rate {
            bytes_per_s: 10_000,
            queue_len: 2000,
        });
        wire.set(Quality { rate, ..of });
        (0..50).for_each(|_| drop(near.send(&[0; 500])));
        while wire.counts().overflowed < 40 {
            std::thread::sleep(Duration::from_millis(5));
        }
        network.link(&other, false).unwrap();
        wire.set(of);
        let mut bytes = [0; 1024];
        while far.recv(&mut bytes).is_ok() {}
        assert_eq!(come(3), 0);
    }
}
