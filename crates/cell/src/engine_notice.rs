//! Where a host's engine (`docs/softnic.md`) tells its backends' clients of itself: a file
//! beside each socket by which a backend hands its memory over. Backends read it when a
//! client asks; nothing else depends on it. One that a killed engine has left names an
//! address where nobody answers: its clients call, and ask again later.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Longest such file: an address and a line's end.
const LEN_MAX: u64 = 128;

/// See the module. Taken away when dropped, unless another engine has left its own.
#[derive(Debug)]
pub struct EngineNotice {
    path: PathBuf,
    text: String,
}

fn path_beside(fabric_socket: &Path) -> PathBuf {
    let mut name = fabric_socket.as_os_str().to_owned();
    name.push(".engine");
    name.into()
}

impl EngineNotice {
    /// Says beside `fabric_socket` that an engine listens at `address`.
    pub fn leave(fabric_socket: &Path, address: SocketAddr) -> io::Result<Self> {
        let notice = EngineNotice {
            path: path_beside(fabric_socket),
            text: format!("{address}\n"),
        };
        let mut next = notice.path.as_os_str().to_owned();
        next.push(format!("-{}", std::process::id()));
        let next = PathBuf::from(next);
        let _ = std::fs::remove_file(&next);
        let mut file = File::create_new(&next)?;
        let written = file.write_all(notice.text.as_bytes());
        written.and_then(|()| std::fs::rename(&next, &notice.path))?;
        Ok(notice)
    }

    /// Whether it still stands there.
    pub fn stands(&self) -> bool {
        read(&self.path).is_some_and(|text| text == self.text)
    }
}

impl Drop for EngineNotice {
    fn drop(&mut self) {
        if self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(LEN_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Where an engine listens that reads the backend with this socket, as far as is known.
pub fn engine_beside(fabric_socket: &Path) -> Option<SocketAddr> {
    read(&path_beside(fabric_socket))?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_counts_and_takes_away_its_own_only() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("backend-0.fabric");
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(engine_beside(&socket), None);
        let first = EngineNotice::leave(&socket, at(1)).unwrap();
        assert!(first.stands());
        assert_eq!(engine_beside(&socket), Some(at(1)));
        let second = EngineNotice::leave(&socket, at(2)).unwrap();
        assert!(!first.stands());
        drop(first);
        assert_eq!(engine_beside(&socket), Some(at(2)));
        drop(second);
        assert_eq!(engine_beside(&socket), None);
        std::fs::write(path_beside(&socket), "nonsense").unwrap();
        assert_eq!(engine_beside(&socket), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
