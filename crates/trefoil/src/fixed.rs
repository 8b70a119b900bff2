//! Settings that a server keeps until it is restarted: which of them a configuration
//! file that was read again sets anew.

use crate::args::{DoorArgs, GatewayArgs, ServeArgs, StoreArgs, UpArgs};
use std::fmt::Debug;

/// A server's settings that stay as they are, and what they are.
pub(crate) struct Fixed(Vec<(&'static str, String)>);

impl Fixed {
    pub(crate) fn of_serve(args: &ServeArgs) -> Self {
        let mut fixed = Fixed(vec![
            ("mode", shown(&args.mode)),
            ("name", shown(&args.name)),
            ("listen", shown(&args.listen)),
            ("socket", shown(&args.socket)),
            ("metrics", shown(&args.metrics)),
            ("allow_user", shown(&args.allow_user)),
            ("token_file", shown(&args.token_file)),
            ("plaintext", shown(&args.plaintext)),
        ]);
        fixed.add_store(&args.store);
        fixed.add_doors(&args.doors);
        fixed
    }

    pub(crate) fn of_up(args: &UpArgs) -> Self {
        let mut fixed = Fixed(vec![
            ("dir", shown(&args.dir)),
            ("mode", shown(&args.mode)),
            ("backends", shown(&args.backends)),
            ("load", shown(&args.load)),
            ("metrics", shown(&args.metrics)),
            ("name", shown(&args.name)),
            ("allow_user", shown(&args.allow_user)),
        ]);
        fixed.add_store(&args.store);
        fixed
    }

    pub(crate) fn of_gateway(args: &GatewayArgs) -> Self {
        let mut fixed = Fixed(vec![
            ("cell", shown(&args.address.cell)),
            ("metrics", shown(&args.metrics)),
            ("plaintext", shown(&args.plaintext)),
        ]);
        fixed.add_doors(&args.doors);
        fixed
    }

    /// Of a store: all but its memory.
    fn add_store(&mut self, store: &StoreArgs) {
        self.0.extend([
            ("eviction", shown(&store.eviction)),
            ("value_max", shown(&store.value_max)),
            ("hash", shown(&store.hash)),
            ("partitions", shown(&store.partitions)),
            ("huge_pages", shown(&store.huge_pages)),
        ]);
    }

    /// Of front doors: what `Gateway::reload` does not take.
    fn add_doors(&mut self, doors: &DoorArgs) {
        self.0.extend([
            ("memcached", shown(&doors.memcached)),
            ("redis", shown(&doors.redis)),
            ("threads", shown(&doors.threads)),
            ("spin", shown(&doors.spin)),
            ("slow_log", shown(&doors.slow_log)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{DOOR_KEYS, GATEWAY_KEYS, SERVE_KEYS, STORE_KEYS, UP_KEYS};

    /// What a running server takes anew, as docs/operations.md says.
    const TAKEN: [&str; 9] = [
        "memory",
        "auth_file",
        "connections",
        "idle_timeout",
        "auth_timeout",
        "buffers",
        "item_max",
        "admin_commands",
        "enable_shutdown",
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
            mode: None,
            config: None,
            backends: None,
            load: None,
            metrics: None,
            name: None,
            allow_user: Vec::new(),
            store: StoreArgs::default(),
        };
        check(Fixed::of_up(&up), &[&UP_KEYS[..], &STORE_KEYS].concat());
        let gateway = GatewayArgs {
            address: crate::args::CellAddress {
                cell: "there".to_owned(),
            },
            doors: DoorArgs::default(),
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
}
