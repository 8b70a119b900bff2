//! Settings that a server keeps until it is restarted: which of them a configuration
//! file that was read again sets anew.

use crate::args::{DoorArgs, EngineSize, GatewayArgs, ServeArgs, StoreArgs, Switch, UpArgs};
use crate::cell::up;
use crate::settings::StoreSettings;
use crate::{door, engine, gateway, serve};
use std::fmt::Debug;
use trefoil_cell::Mode;
use trefoil_gateway::observe::SLOW_THRESHOLD_DEFAULT;
use trefoil_gateway::server::{GatewayOptions, thread_count_default};

/// A server's settings that stay as they are, and what they are: the default, where
/// nothing is said. Who writes the default into the file changes nothing, but for the
/// number of partitions, which follows from the memory at the start.
pub(crate) struct Fixed(Vec<(&'static str, String)>);

impl Fixed {
    pub(crate) fn of_serve(args: &ServeArgs) -> Self {
        let listen = serve::LISTEN_DEFAULT.to_string();
        let mut fixed = Fixed(vec![
            ("mode", text(&args.mode, serve::MODE_DEFAULT)),
            ("name", text(&args.name, serve::NAME_DEFAULT)),
            ("listen", text(&args.listen, &listen)),
            ("socket", shown(&serve::socket(args).ok())),
            ("metrics", text(&args.metrics, serve::METRICS_DEFAULT)),
            ("allow_user", shown(&args.allow_user)),
            ("token_file", shown(&args.token_file)),
            ("certs", shown(&args.certs)),
            ("plaintext", shown(&args.plaintext)),
            ("engine", text(&args.engine, serve::ENGINE_DEFAULT)),
            (
                "restart",
                shown(&args.restart.unwrap_or(serve::RESTART_DEFAULT)),
            ),
        ]);
        fixed.add_engine(args.engine_size);
        fixed.add_store(&args.store);
        fixed.add_doors(&args.doors);
        fixed
    }

    pub(crate) fn of_up(args: &UpArgs) -> Self {
        let mode = text(&args.mode, up::MODE_DEFAULT);
        let copies = mode.parse().ok().map(|mode: Mode| mode.copy_count() as u32);
        let mut fixed = Fixed(vec![
            ("dir", shown(&args.dir)),
            ("store", shown(&args.config_store)),
            ("mode", mode),
            ("backends", shown(&args.backends.or(copies))),
            ("load", shown(&args.load)),
            ("metrics", text(&args.metrics, up::METRICS_DEFAULT)),
            ("name", text(&args.name, up::NAME_DEFAULT)),
            ("allow_user", shown(&args.allow_user)),
            (
                "restart",
                format!("{:?}", args.restart.unwrap_or(up::RESTART_DEFAULT)),
            ),
            ("spares", shown(&args.spares.or(Some(up::SPARES_DEFAULT)))),
            ("queue", shown(&args.queue)),
            ("engine", text(&args.engine, serve::ENGINE_DEFAULT)),
            (
                "engine_metrics",
                text(&args.engine_metrics, engine::METRICS_DEFAULT),
            ),
            ("here", shown(&args.here)),
            ("listen", shown(&args.host.listen)),
            ("advertise", shown(&args.host.advertise)),
            ("certs", shown(&args.host.certs)),
            ("plaintext", shown(&args.host.plaintext)),
            ("token_file", shown(&args.host.token_file)),
        ]);
        fixed.add_engine(args.engine_size);
        fixed.add_store(&args.store);
        fixed
    }

    fn add_engine(&mut self, size: EngineSize) {
        let engines = size.engines.unwrap_or(engine::ENGINES_DEFAULT);
        let sessions = size.engine_sessions.unwrap_or(engine::SESSIONS_DEFAULT);
        self.0.push(("engines", shown(&engines)));
        self.0.push(("engine_sessions", shown(&sessions)));
        self.0.push(("engine_share", shown(&size.engine_share)));
    }

    pub(crate) fn of_gateway(args: &GatewayArgs) -> Self {
        let mut fixed = Fixed(vec![
            ("cell", shown(&args.address.cell)),
            ("certs", shown(&args.address.certs)),
            ("commit", shown(&args.commit.unwrap_or_default())),
            ("metrics", text(&args.metrics, gateway::METRICS_DEFAULT)),
            ("plaintext", shown(&args.plaintext)),
        ]);
        fixed.add_doors(&args.doors);
        fixed
    }

    /// Of a store: all but its memory.
    fn add_store(&mut self, store: &StoreArgs) {
        let store = StoreSettings::from(store);
        self.0.extend([
            ("eviction", shown(&store.eviction)),
            ("value_max", shown(&store.value_len_max)),
            ("hash", shown(&store.hash)),
            ("partitions", shown(&store.partition_count)),
            ("huge_pages", shown(&store.huge_pages)),
            ("repair_interval", shown(&store.repair.interval)),
            ("repair_rate", shown(&store.repair.rate)),
            ("recovery_rate", shown(&store.recovery_rate)),
        ]);
    }

    /// Of front doors: what `Gateway::reload` does not take.
    fn add_doors(&mut self, doors: &DoorArgs) {
        let defaults = GatewayOptions::new(Vec::new());
        let threads = doors.threads.unwrap_or_else(thread_count_default);
        let slow_log = doors.slow_log.unwrap_or(SLOW_THRESHOLD_DEFAULT);
        self.0.extend([
            ("memcached", text(&doors.memcached, door::MEMCACHED_DEFAULT)),
            ("redis", text(&doors.redis, door::REDIS_DEFAULT)),
            ("threads", shown(&threads)),
            ("spin", shown(&doors.spin.unwrap_or(defaults.spin))),
            ("io_uring", shown(&(doors.io_uring != Some(Switch::Off)))),
            ("slow_log", shown(&slow_log)),
            ("tls_cert", shown(&doors.tls_cert)),
            ("tls_key", shown(&doors.tls_key)),
            ("tls_client_ca", shown(&doors.tls_client_ca)),
        ]);
    }

    /// Names of those that are another in `now`.
    fn changed(&self, now: &Fixed) -> Vec<&'static str> {
        let pairs = self.0.iter().zip(&now.0);
        pairs
            .filter(|(before, now)| before != now)
            .map(|(before, _)| before.0)
            .collect()
    }

    /// Logs the names of those that are another in `now`.
    pub(crate) fn tell_changed(&self, now: &Fixed) {
        let changed = self.changed(now);
        if !changed.is_empty() {
            tracing::warn!(
                "SIGHUP: changed in the file, but kept as at the start until a restart: {}",
                changed.join(", ")
            );
        }
    }
}

fn shown(setting: &impl Debug) -> String {
    format!("{setting:?}")
}

fn text(setting: &Option<String>, default: &str) -> String {
    setting.as_deref().unwrap_or(default).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{DOOR_KEYS, GATEWAY_KEYS, SERVE_KEYS, STORE_KEYS, UP_KEYS};

    /// What a running server takes anew, as docs/operations.md says.
    const TAKEN: [&str; 11] = [
        "memory",
        "auth_file",
        "connections",
        "idle_timeout",
        "auth_timeout",
        "buffers",
        "item_max",
        "admin_commands",
        "enable_shutdown",
        "memcached_version",
        "transactions",
    ];

    #[test]
    fn each_setting_is_taken_anew_or_said_to_be_kept() {
        let check = |fixed: Fixed, known: &[&'static str]| {
            let mut kept: Vec<_> = fixed.0.iter().map(|(name, _)| *name).collect();
            let mut expected = known.to_vec();
            expected.retain(|key| !TAKEN.contains(key));
            kept.sort_unstable();
            expected.sort_unstable();
            assert_eq!(kept, expected);
        };
        let known = [&SERVE_KEYS[..], &STORE_KEYS, &DOOR_KEYS].concat();
        check(Fixed::of_serve(&ServeArgs::default()), &known);
        let up = UpArgs {
            dir: None,
            config_store: None,
            mode: None,
            config: None,
            backends: None,
            load: None,
            metrics: None,
            name: None,
            allow_user: Vec::new(),
            restart: None,
            queue: false,
            spares: None,
            engine: None,
            engine_metrics: None,
            engine_size: EngineSize::default(),
            store: StoreArgs::default(),
            here: Vec::new(),
            host: crate::args::HostArgs::default(),
        };
        check(Fixed::of_up(&up), &[&UP_KEYS[..], &STORE_KEYS].concat());
        let gateway = GatewayArgs {
            address: crate::args::CellAddress {
                cell: "there".to_owned(),
                certs: None,
            },
            doors: DoorArgs::default(),
            commit: None,
            metrics: None,
            plaintext: Vec::new(),
            config: None,
        };
        let known = [&GATEWAY_KEYS[..], &DOOR_KEYS].concat();
        check(Fixed::of_gateway(&gateway), &known);
    }

    #[test]
    fn only_what_has_changed_is_named() {
        let before = ServeArgs::default();
        let mut now = before.clone();
        let changed = |now: &ServeArgs| Fixed::of_serve(&before).changed(&Fixed::of_serve(now));
        now.doors.connections = Some(5);
        now.store.memory = Some(bytesize::ByteSize::gib(2));
        assert!(changed(&now).is_empty());
        now.doors.threads = Some(2);
        now.mode = Some("R=3.2".to_owned());
        assert_eq!(changed(&now), ["mode", "threads"]);
    }

    #[test]
    fn a_default_that_is_written_down_is_no_change() {
        let before = ServeArgs::default();
        let mut now = before.clone();
        now.mode = Some("R=1".to_owned());
        now.name = Some("serve".to_owned());
        now.listen = Some("127.0.0.1:7411".to_owned());
        now.socket = serve::socket(&before).ok();
        now.metrics = Some("127.0.0.1:9411".to_owned());
        now.store.eviction = Some(crate::args::Eviction::Slru);
        now.store.value_max = Some(bytesize::ByteSize::mib(16));
        now.store.hash = Some(crate::args::Hash::Xxh3);
        now.store.huge_pages = Some(true);
        now.doors.memcached = Some("127.0.0.1:11211".to_owned());
        now.doors.redis = Some("off".to_owned());
        now.doors.threads = Some(thread_count_default());
        now.doors.spin = Some(std::time::Duration::from_micros(50));
        now.doors.slow_log = Some(std::time::Duration::from_millis(10));
        let changed = |before: &ServeArgs, now: &ServeArgs| {
            Fixed::of_serve(before).changed(&Fixed::of_serve(now))
        };
        assert!(changed(&before, &now).is_empty());
        // Nor if the line is taken out again.
        assert!(changed(&now, &before).is_empty());
        before.clone_into(&mut now);
        now.store.huge_pages = Some(false);
        assert_eq!(changed(&before, &now), ["huge_pages"]);
    }
}
