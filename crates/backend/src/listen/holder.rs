//! Who holds a port, as far as /proc tells this user.

use std::fs;
use std::path::Path;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The process that listens on `port`, as "name (process N)".
pub(super) fn of_port(port: u16) -> Option<String> {
    process(port).map(describe)
}

/// The number of the process that listens on `port`.
pub(super) fn process(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<u64> = tables
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .collect();
    let wanted: Vec<String> = inodes.iter().map(|i| format!("socket:[{i}]")).collect();
    let processes = fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if holds_any(&process.path(), &wanted) {
            return Some(pid);
        }
    }
    None
}

fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| -> Option<u64> {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let (_, found) = local.rsplit_once(':')?;
        let matches = state == LISTENING && u16::from_str_radix(found, 16) == Ok(port);
        // transmit and receive queues, timer, retransmissions, user, timeout, then the inode
        matches.then(|| fields.nth(5)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(inode).collect()
}

fn holds_any(process: &Path, wanted: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors.flatten().any(|descriptor| {
        fs::read_link(descriptor.path())
            .is_ok_and(|target| wanted.iter().any(|w| target.as_os_str() == w.as_str()))
    })
}

fn describe(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("{name} (process {pid})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holder = of_port(port).unwrap();
        let me = format!("process {}", std::process::id());
        assert!(holder.contains(&me), "{holder}");
    }

    #[test]
    fn tables_of_any_shape_are_read() {
        let table = "sl local_address rem st\n 0: 0100007F:1CF3 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n 1: 0100007F:1CF3 00000000:0000 01 0:0 0:0 0 0 0 9 1\nnonsense\n";
        assert_eq!(listening_inodes(table, 7411), [4711]);
        assert_eq!(listening_inodes(table, 80), [0; 0]);
    }
}
