//! An authority's directory: nothing in it is overwritten but by `renew`, and what is
//! put there is whole or not there.

use super::authority::Made;
use crate::failure::Failure;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use trefoil_tls::{AUTHORITY_FILE, CERTIFICATE_FILE, CertFiles, Certificate, Identity, KEY_FILE};

const AUTHORITY_KEY_FILE: &str = "ca-key.pem";
const MODE_DIRECTORY: u32 = 0o700;
const MODE_FILE: u32 = 0o600;
const NAME_LEN_MAX: usize = 64;

/// See the module.
pub(super) struct Folder(PathBuf);

/// Checks the name of a server or client: it is a directory's, too.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && ![AUTHORITY_FILE, AUTHORITY_KEY_FILE].contains(&name);
    match is_name {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "the name \"{name}\" cannot be used: give 1 to {NAME_LEN_MAX} letters, digits, '.', \
             '-' and '_', not beginning with '.'"
        ))),
    }
}

impl Folder {
    /// A directory for a new authority; it may be there, and has to be this user's alone.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(MODE_DIRECTORY);
        builder
            .create(path)
            .map_err(|error| Failure::doing(format!("cannot make {}", path.display()), error))?;
        let folder = Folder::open_any(path)?;
        for file in [AUTHORITY_FILE, AUTHORITY_KEY_FILE] {
            if path.join(file).exists() {
                return Err(Failure::Failed(format!(
                    "{} is there already: issue from that authority (trefoil cell certs issue), \
                     or choose another directory",
                    path.join(file).display()
                )));
            }
        }
        Ok(folder)
    }

    /// The directory of an authority.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if !path.join(AUTHORITY_FILE).exists() {
            return Err(Failure::Failed(format!(
                "there is no authority in {}: make one by `trefoil cell certs init --dir {}`",
                path.display(),
                path.display()
            )));
        }
        Folder::open_any(path)
    }

    fn open_any(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let metadata = fs::metadata(path)
            .map_err(|error| Failure::doing(format!("cannot inspect {shown}"), error))?;
        let user = rustix::process::geteuid().as_raw();
        if metadata.uid() != user {
            return Err(Failure::Failed(format!(
                "{shown} belongs to user {}, and this process runs as user {user}: run as that \
                 user, or choose another directory",
                metadata.uid()
            )));
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Failure::Failed(format!(
                "others may look into {shown} (mode {mode:04o}), where keys are kept: take that \
                 away (chmod 0700 {shown}), or choose another directory"
            )));
        }
        Ok(Folder(path.to_owned()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Where the files of a server or client are.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn authority_key_path(&self) -> PathBuf {
        self.0.join(AUTHORITY_KEY_FILE)
    }

    /// Puts a new authority there.
    pub(super) fn put_authority(&self, certificate: &str, key: &str) -> Result<(), Failure> {
        write_new(&self.authority_key_path(), key)?;
        write_new(&self.0.join(AUTHORITY_FILE), certificate)
    }

    /// The authority's certificate: the first one in its file. Others may follow, which
    /// are to be believed, too.
    pub(super) fn authority(&self) -> Result<Certificate, Failure> {
        let path = self.0.join(AUTHORITY_FILE);
        let certificate = first(&path)?;
        match certificate.is_authority {
            true => Ok(certificate),
            false => Err(Failure::Failed(format!(
                "{} does not begin with an authority's certificate",
                path.display()
            ))),
        }
    }

    /// Its key, in PEM.
    pub(super) fn authority_key(&self) -> Result<String, Failure> {
        let path = self.authority_key_path();
        trefoil_tls::check_private(&path).map_err(Failure::of)?;
        read(&path)
    }

    /// What was issued under a name, if anything was.
    pub(super) fn issued(&self, name: &str) -> Option<Result<Certificate, Failure>> {
        let place = self.place(name);
        place.exists().then(|| first(&place.join(CERTIFICATE_FILE)))
    }

    /// All names under which something was issued, in order.
    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        let fail = |error: io::Error| {
            Failure::doing(format!("cannot look into {}", self.0.display()), error)
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let is_place = entry.path().join(CERTIFICATE_FILE).exists();
            if is_place && check_name(&name).is_ok() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Puts what was issued under a name there, after a look whether its owner can use
    /// it. Where something stands already it is replaced, if that is meant.
    pub(super) fn put_issued(
        &self,
        name: &str,
        made: &Made,
        replaces: bool,
    ) -> Result<Certificate, Failure> {
        let place = self.place(name);
        let next = self.0.join(format!(".{name}.next-{}", std::process::id()));
        let _ = fs::remove_dir_all(&next);
        let files = CertFiles::in_directory(&next);
        let put = || {
            let mut builder = DirBuilder::new();
            builder
                .mode(MODE_DIRECTORY)
                .create(&next)
                .map_err(|error| {
                    Failure::doing(format!("cannot make {}", next.display()), error)
                })?;
            write_new(&files.authorities, &read(&self.0.join(AUTHORITY_FILE))?)?;
            write_new(&files.certificate, &made.certificate)?;
            write_new(&files.key, &made.key)?;
            let identity = Identity::read(&files, None).map_err(|error| {
                Failure::doing(
                    format!(
                        "what was issued cannot be used; does {} fit {}?",
                        self.authority_key_path().display(),
                        self.0.join(AUTHORITY_FILE).display()
                    ),
                    error,
                )
            })?;
            match replaces {
                true => replace(&next, &place)?,
                false => renameat_with(CWD, &next, CWD, &place, RenameFlags::NOREPLACE).map_err(
                    |error| Failure::doing(format!("cannot make {}", place.display()), error),
                )?,
            }
            Ok(identity.certificate)
        };
        let result = put();
        let _ = fs::remove_dir_all(&next);
        result
    }
}

/// Takes files over one by one, the certificate last: whoever reads between finds a key
/// that does not fit, keeps what they have, and looks again.
fn replace(from: &Path, to: &Path) -> Result<(), Failure> {
    for file in [AUTHORITY_FILE, KEY_FILE, CERTIFICATE_FILE] {
        let to = to.join(file);
        fs::rename(from.join(file), &to)
            .map_err(|error| Failure::doing(format!("cannot replace {}", to.display()), error))?;
    }
    Ok(())
}

fn first(path: &Path) -> Result<Certificate, Failure> {
    let certificates = trefoil_tls::read_certificates(path).map_err(Failure::of)?;
    Certificate::parse(&certificates[0])
        .ok_or_else(|| Failure::Failed(format!("{} holds no X.509 certificate", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::doing(format!("cannot read {}", path.display()), error))
}

/// Writes a file that is not there yet.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(MODE_FILE)
        .open(path);
    file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })
    .map_err(|error| Failure::doing(format!("cannot write {}", path.display()), error))
}
