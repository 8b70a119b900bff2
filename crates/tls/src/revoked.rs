//! Certificates that are not believed any more, although they have not ended.
//!
//! They stand in the file `revoked` of a server's directory: serial numbers as
//! `trefoil cell certs list` shows them, one a line; capital letters, colons between digits
//! and zeros before them do no harm; `#` begins a comment. A line that is no such number
//! revokes nothing, and the log says so. How the file is looked at, [`crate::listed`] says.

use crate::accept::Caller;
use crate::file::FileError;
use crate::listed::{Listed, lines};
use std::collections::HashSet;
use std::path::Path;

/// Name of the file in a directory with certificates.
pub const REVOKED_FILE: &str = "revoked";

/// The serial numbers that stand there.
pub(crate) type Revoked = Listed<HashSet<String>>;

/// Beside the certificate at `certificate`, before the first look.
pub(crate) fn beside(certificate: &Path) -> Revoked {
    Listed::at(certificate.with_file_name(REVOKED_FILE), parse)
}

impl Revoked {
    fn has(&self, serial: &str) -> bool {
        self.said(|serials| {
            !serials.is_empty() && number(serial).is_some_and(|serial| serials.contains(&serial))
        })
    }
}

fn parse(path: &Path, text: &str) -> Result<HashSet<String>, FileError> {
    let mut serials = HashSet::new();
    for (line, serial) in lines(text) {
        match number(serial) {
            Some(serial) => {
                serials.insert(serial);
            }
            None => {
                let path = path.display();
                tracing::error!(
                    "{path}:{line} is no serial number in hexadecimal digits, and revokes nothing"
                );
            }
        }
    }
    Ok(serials)
}

/// A serial number as all write it alike: small letters, no colons, no zeros before it.
fn number(serial: &str) -> Option<String> {
    let digits: String = serial.chars().filter(|letter| *letter != ':').collect();
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| digits.trim_start_matches('0').to_ascii_lowercase())
}

impl crate::watched::Tls {
    /// Whether the file says that this certificate is not believed any more.
    pub fn is_revoked(&self, caller: &Caller) -> bool {
        self.has_revoked(&caller.serial)
    }

    /// Likewise, by the certificate's serial number in hexadecimal digits.
    pub fn has_revoked(&self, serial: &str) -> bool {
        self.look_at_revoked();
        self.revoked().has(serial)
    }

    /// How often what the file says has changed, by now.
    pub fn revocation_changes(&self) -> u64 {
        self.look_at_revoked();
        self.revoked().changes()
    }

    fn look_at_revoked(&self) {
        let revoked = self.revoked();
        if revoked.look() {
            let count = revoked.said(HashSet::len);
            tracing::info!(count, "certificates are revoked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listed::LIST_LOOK_PERIOD;

    #[test]
    fn serials_are_taken_as_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(REVOKED_FILE);
        let revoked = beside(&folder.path().join("cert.pem"));
        revoked.begin().unwrap();
        let look = || {
            std::thread::sleep(LIST_LOOK_PERIOD);
            revoked.look();
        };
        assert!(!revoked.has("0a"));
        std::fs::write(&file, "# of a laptop that was lost\n0A  # anna's\n\n").unwrap();
        look();
        assert!(revoked.has("0a") && !revoked.has("0b") && !revoked.has(""));
        // What cannot be read changes nothing.
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        look();
        assert!(revoked.has("0a"));
        std::fs::write(&file, "0b\n").unwrap();
        look();
        assert!(!revoked.has("0a") && revoked.has("0b"));
        std::fs::remove_file(&file).unwrap();
        look();
        assert!(!revoked.has("0b"));
    }

    #[test]
    fn however_a_serial_is_written_it_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let revoked = beside(&folder.path().join("cert.pem"));
        let text = "00:0A:fF\nserial=12\n7x\n 1234 # one\n";
        std::fs::write(folder.path().join(REVOKED_FILE), text).unwrap();
        revoked.begin().unwrap();
        assert!(revoked.has("0aff") && revoked.has("aff") && revoked.has("1234"));
        assert!(!revoked.has("12") && !revoked.has("7") && !revoked.has("0aff00"));
    }

    #[test]
    fn only_a_file_that_is_not_there_revokes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(REVOKED_FILE);
        let new = || beside(&folder.path().join("cert.pem"));
        assert!(new().begin().is_ok());
        let revoked = new();
        std::fs::write(&file, "0a\n").unwrap();
        revoked.begin().unwrap();
        // Neither a folder nor a circle of links can be read, even by root.
        let is_kept = || {
            std::thread::sleep(LIST_LOOK_PERIOD);
            revoked.look();
            assert!(revoked.has("0a"));
            assert!(new().begin().is_err());
        };
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        is_kept();
        std::fs::remove_dir(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        is_kept();
        std::fs::remove_file(&file).unwrap();
        std::thread::sleep(LIST_LOOK_PERIOD);
        revoked.look();
        assert!(!revoked.has("0a"));
    }
}
