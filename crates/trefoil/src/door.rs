//! Options of the front door, for `serve` and `gateway`.

use crate::args::{DoorArgs, MemcachedVersion, Plaintext, Switch, Transactions};
use crate::failure::Failure;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Notify;
use trefoil_gateway::observe::{Observatory, ObserveOptions, SLOW_THRESHOLD_DEFAULT};
use trefoil_gateway::server::{
    Door, DoorAddress, Doors, Gateway, GatewayOptions, Limits, Protocol, TlsFiles, Users,
    thread_count_default,
};
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::world::{Isolation, Release};

/// memcached's own port.
pub(crate) const MEMCACHED_DEFAULT: &str = "127.0.0.1:11211";
pub(crate) const REDIS_DEFAULT: &str = "off";
/// Before an address that TLS files are not for.
const PLAIN: &str = "plain:";
/// Most event loops: more than any machine has cores for.
const THREAD_COUNT_MAX: usize = 1024;
/// Least and most that buffers take of the memory of a process.
const BUFFERS: (u64, u64) = (16 << 20, 256 << 20);
const BUFFERS_SHARE: u64 = 8;

/// What the command line says of doors; `memory` is the bound of the process,
/// where it has one.
pub(crate) fn options(
    args: &DoorArgs,
    plaintext: &[Plaintext],
    memory: Option<u64>,
    stop: &Arc<Notify>,
) -> Result<GatewayOptions, Failure> {
    check(args)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: args.tls_client_ca.clone(),
        }),
        (None, None) if args.tls_client_ca.is_none() => None,
        _ => {
            return Err(Failure::Usage(
                "TLS needs both --tls-cert and --tls-key".into(),
            ));
        }
    };
    let memcached = args.memcached.as_deref().unwrap_or(MEMCACHED_DEFAULT);
    let mut doors = parse(memcached, "--memcached", Protocol::Memcached, tls.as_ref())?;
    let redis = args.redis.as_deref().unwrap_or(REDIS_DEFAULT);
    doors.extend(parse(redis, "--redis", Protocol::Redis, tls.as_ref())?);
    let users = args.auth_file.as_deref().map(Users::read).transpose();
    let stop = Arc::clone(stop);
    let defaults = GatewayOptions::new(doors);
    let buffers = memory.map_or(BUFFERS.1, |memory| {
        (memory / BUFFERS_SHARE).clamp(BUFFERS.0, BUFFERS.1)
    });
    let item_len_max = args.item_max.map(|size| size.as_u64() as usize);
    Ok(GatewayOptions {
        plaintext: protocols(plaintext),
        thread_count: args.threads.unwrap_or_else(thread_count_default),
        limits: Limits {
            connections_max: args.connections.unwrap_or(defaults.limits.connections_max),
            idle_timeout: match args.idle_timeout {
                None => defaults.limits.idle_timeout,
                Some(idle) => Some(idle).filter(|idle| !idle.is_zero()),
            },
            authentication_timeout: args
                .auth_timeout
                .unwrap_or(defaults.limits.authentication_timeout),
            buffer_bytes_max: args.buffers.map_or(buffers, |size| size.as_u64()) as usize,
        },
        spin: args.spin.unwrap_or(defaults.spin),
        io_uring: args.io_uring != Some(Switch::Off),
        users: users.map_err(|error| Failure::doing("--auth-file", error))?,
        item_len_max: item_len_max.unwrap_or(defaults.item_len_max),
        shutdown_allowed: args.enable_shutdown,
        admin_commands: args.admin_commands != Some(Switch::Off),
        release: match args.memcached_version {
            Some(MemcachedVersion::V1_6_45) => Release::V1_6_45,
            Some(MemcachedVersion::V1_6_18) | None => Release::V1_6_18,
        },
        transactions: match args.transactions {
            Some(Transactions::Strict) => Isolation::Strict,
            Some(Transactions::Relaxed) | None => Isolation::Relaxed,
        },
        on_shutdown: Some(Arc::new(move || stop.notify_one())),
        ..defaults
    })
}

/// Refuses numbers that no front door can be run with.
fn check(args: &DoorArgs) -> Result<(), Failure> {
    let least_one = [
        ("--connections", args.connections.map(|count| count as u64)),
        ("--item-max", args.item_max.map(|size| size.as_u64())),
        ("--buffers", args.buffers.map(|size| size.as_u64())),
    ];
    if let Some((option, _)) = least_one.iter().find(|(_, given)| *given == Some(0)) {
        return Err(Failure::Usage(format!("{option} 0: give at least 1")));
    }
    match args.threads {
        Some(count) if !(1..=THREAD_COUNT_MAX).contains(&count) => Err(Failure::Usage(format!(
            "--threads {count}: choose 1 to {THREAD_COUNT_MAX}"
        ))),
        _ => Ok(()),
    }
}

fn protocols(plaintext: &[Plaintext]) -> Vec<Protocol> {
    let protocol = |what: &Plaintext| match what {
        Plaintext::Memcached => Some(Protocol::Memcached),
        Plaintext::Redis => Some(Protocol::Redis),
        Plaintext::Rpc | Plaintext::Metrics => None,
    };
    plaintext.iter().filter_map(protocol).collect()
}

fn parse(
    text: &str,
    option: &str,
    protocol: Protocol,
    tls: Option<&TlsFiles>,
) -> Result<Vec<Door>, Failure> {
    if text == "off" {
        return Ok(Vec::new());
    }
    let door = |text: &str| {
        let plain = text.strip_prefix(PLAIN);
        let address: DoorAddress = plain
            .unwrap_or(text)
            .parse()
            .map_err(|e| Failure::Usage(format!("{option}: {e}, or off")))?;
        // A Unix socket is private already.
        let is_plain = plain.is_some() || matches!(address, DoorAddress::Unix(_));
        Ok(Door {
            protocol,
            address,
            tls: tls.filter(|_| !is_plain).cloned(),
        })
    };
    text.split(',').map(door).collect()
}

/// A front door that is open, and what is seen there.
pub(crate) struct Front {
    pub gateway: Gateway,
    pub observatory: Arc<Observatory>,
}

impl Front {
    /// Takes these options' users and limits, and reads certificates again; see
    /// `Gateway::reload`.
    pub(crate) fn reload(&self, options: &GatewayOptions) -> Result<(), Failure> {
        self.gateway.reload(options).map_err(Failure::of)?;
        self.observatory.adopt(self.gateway.settings());
        Ok(())
    }
}

/// Opens the doors to `keyspace`, which is made for each event loop. `is_local`: it
/// is the store of this process.
pub(crate) fn open<K: Keyspace + Send + 'static>(
    args: &DoorArgs,
    options: GatewayOptions,
    doors: Doors,
    keyspace: impl Fn() -> K,
    is_local: bool,
) -> Result<Front, Failure> {
    let slow = args.slow_log.unwrap_or(SLOW_THRESHOLD_DEFAULT);
    let observatory = Observatory::new(ObserveOptions {
        slow_threshold: Some(slow).filter(|slow| !slow.is_zero()),
        is_local,
        ..ObserveOptions::of(&options, &doors)
    });
    let gateway = Gateway::start(
        options,
        doors,
        |index| observatory.counted(index, keyspace()),
        |index| observatory.observer(index),
    );
    Ok(Front {
        gateway: gateway.map_err(Failure::of)?,
        observatory,
    })
}

/// Where a protocol is spoken, for the ready line: its first address, or null.
pub(crate) fn shown(front: Option<&Front>, protocol: Protocol) -> Value {
    let address = front.and_then(|front| front.gateway.address(protocol));
    address.map_or(Value::Null, |address| address.to_string().into())
}

/// The same for all addresses: lists, by protocol.
pub(crate) fn all_shown(front: Option<&Front>) -> Value {
    let of = |protocol: Protocol| -> Vec<String> {
        let all = front.map_or(&[][..], |front| front.gateway.addresses());
        let of_it = all.iter().filter(|(spoken, _)| *spoken == protocol);
        of_it.map(|(_, address)| address.to_string()).collect()
    };
    serde_json::json!({
        "memcached": of(Protocol::Memcached),
        "redis": of(Protocol::Redis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_are_told_apart() {
        let tls = TlsFiles {
            certificate: "cert".into(),
            key: "key".into(),
            client_authorities: None,
        };
        let text = "127.0.0.1:1,plain:127.0.0.1:2,unix:/s";
        let doors = parse(text, "--memcached", Protocol::Memcached, Some(&tls)).unwrap();
        let is_tls: Vec<bool> = doors.iter().map(|door| door.tls.is_some()).collect();
        assert_eq!(is_tls, [true, false, false]);
        assert!(
            parse("off", "--redis", Protocol::Redis, None)
                .unwrap()
                .is_empty()
        );
        for text in ["", "11211", "127.0.0.1:1,"] {
            let error = parse(text, "--redis", Protocol::Redis, None).unwrap_err();
            assert!(error.to_string().contains("--redis"), "{error}");
        }
    }
}
