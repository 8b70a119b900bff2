//! Files and sockets that belong to somebody else are not trusted.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A path that is not safe to use.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, this process runs as user {user}: run as that user or choose another path"
    )]
    Other {
        /// Which path.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
    },
    /// It belongs to another user, who may have put it there to be taken for
    /// somebody else's.
    #[error(
        "{path} belongs to user {owner}, and {place} is no place where only that user, root or user {user} can put it: move the cell to one, or run as user {owner}"
    )]
    Planted {
        /// Which path.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
        /// A directory on the way to it, or the path itself, that others may write to.
        place: PathBuf,
    },
    /// A link on the way to it is another user's, who may have put it there to lead
    /// astray.
    #[error(
        "{link}, on the way to {path}, is a link of user {owner}: give the path behind it, if that is meant"
    )]
    Link {
        /// Which path.
        path: PathBuf,
        /// The link.
        link: PathBuf,
        /// The link's owner's user id.
        owner: u32,
    },
    /// A directory of this user's or root's to which everybody may write.
    #[error(
        "everybody may write to {path} (mode {mode:o}), and put another cell there: take that away (chmod o-w), or choose another directory"
    )]
    Open {
        /// Which directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be inspected.
    #[error("cannot inspect {path}: {source}")]
    Inspect {
        /// Which path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Checks that `path` belongs to the user this process runs as, or to root, who
/// could do anything to this process anyway.
pub fn check_owner(path: &Path) -> Result<(), OwnerError> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| inspect(path, source))?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(OwnerError::Other {
            path: path.to_owned(),
            owner: metadata.uid(),
            user,
        });
    }
    Ok(())
}

const EVERYBODY_WRITES: u32 = 0o002;

/// Checks that not everybody may put a cell's files into its directory: what they say
/// is believed, and values are sent where they say. (Where the directory itself could
/// be replaced, its owner tells; and a group that may write was chosen.)
pub(crate) fn check_closed(directory: &Path) -> Result<(), OwnerError> {
    let metadata = std::fs::metadata(directory).map_err(|source| inspect(directory, source))?;
    closed(directory, metadata.mode())
}

fn closed(directory: &Path, mode: u32) -> Result<(), OwnerError> {
    match mode & EVERYBODY_WRITES {
        0 => Ok(()),
        _ => Err(OwnerError::Open {
            path: directory.to_owned(),
            mode: mode & 0o7777,
        }),
    }
}

/// A cell's directory or socket that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it really is: free of links, lest one that changes later leads elsewhere.
    pub path: PathBuf,
    /// Its owner's user id.
    pub owner: u32,
}

/// Checks a cell's directory or socket for a client that was told where it is. It may
/// be another user's, who lets this one in, if nobody else can have put it there: in a
/// directory that everybody may write to, the name may be a trap, and so may a link.
pub fn check_found(path: &Path) -> Result<Found, OwnerError> {
    let walk = Walk::along(path)?;
    walk.judge(path, rustix::process::geteuid().as_raw())?;
    Ok(Found {
        path: walk.end,
        owner: walk.owner,
    })
}

/// Links on the way to a path, as many as the kernel follows.
const LINK_COUNT_MAX: usize = 40;

/// One name on the way, and the directory in which it stands.
struct Step {
    place: PathBuf,
    place_owner: u32,
    place_mode: u32,
    entry: PathBuf,
    entry_owner: u32,
    is_link: bool,
}

/// The way to a path, every link included.
struct Walk {
    steps: Vec<Step>,
    /// Where it ends: absolute, and no link.
    end: PathBuf,
    owner: u32,
    mode: u32,
    is_dir: bool,
}

impl Walk {
    fn along(path: &Path) -> Result<Self, OwnerError> {
        let look = |at: &Path| std::fs::symlink_metadata(at).map_err(|e| inspect(at, e));
        let absolute = std::path::absolute(path).map_err(|e| inspect(path, e))?;
        let mut left = VecDeque::new();
        put_first(&mut left, &absolute);
        let mut end = PathBuf::from("/");
        let mut steps = Vec::new();
        let mut link_count = 0;
        while let Some(name) = left.pop_front() {
            match name.as_bytes() {
                b"/" => {
                    end = "/".into();
                    continue;
                }
                b".." => {
                    end.pop();
                    continue;
                }
                b"." => continue,
                _ => {}
            }
            let place = look(&end)?;
            let entry = end.join(&name);
            let metadata = look(&entry)?;
            let is_link = metadata.is_symlink();
            steps.push(Step {
                place: end.clone(),
                place_owner: place.uid(),
                place_mode: place.mode(),
                entry: entry.clone(),
                entry_owner: metadata.uid(),
                is_link,
            });
            if !is_link {
                end = entry;
                continue;
            }
            link_count += 1;
            if link_count > LINK_COUNT_MAX {
                return Err(inspect(path, rustix::io::Errno::LOOP.into()));
            }
            let target = std::fs::read_link(&entry).map_err(|e| inspect(&entry, e))?;
            put_first(&mut left, &target);
        }
        let metadata = look(&end)?;
        if metadata.is_symlink() {
            // It was none a moment ago.
            return Err(inspect(path, rustix::io::Errno::LOOP.into()));
        }
        Ok(Walk {
            steps,
            end,
            owner: metadata.uid(),
            mode: metadata.mode(),
            is_dir: metadata.is_dir(),
        })
    }

    /// Decides for a client that runs as `user` and was told `path`.
    fn judge(&self, path: &Path, user: u32) -> Result<(), OwnerError> {
        const OTHERS_WRITE: u32 = 0o022;
        const STICKY: u32 = 0o1000;
        let owner = self.owner;
        let is_ours = |id: u32| id == user || id == 0;
        let is_trusted = |id: u32| is_ours(id) || id == owner;
        let planted = |place: &Path| OwnerError::Planted {
            path: path.to_owned(),
            owner,
            user,
            place: place.to_owned(),
        };
        if !is_ours(owner) && self.is_dir && self.mode & OTHERS_WRITE != 0 {
            return Err(planted(&self.end));
        }
        if self.is_dir {
            closed(&self.end, self.mode)?;
        }
        for step in &self.steps {
            let others_write = step.place_mode & OTHERS_WRITE != 0;
            // What is ours stays what it is where others can only add.
            let is_kept = step.place_mode & STICKY != 0 && is_ours(step.entry_owner);
            if !is_ours(owner) && (others_write && !is_kept || !is_trusted(step.place_owner)) {
                return Err(planted(&step.place));
            }
            let is_foreign = match is_ours(owner) {
                true => others_write && !is_ours(step.entry_owner),
                false => !is_trusted(step.entry_owner),
            };
            if step.is_link && is_foreign {
                return Err(OwnerError::Link {
                    path: path.to_owned(),
                    link: step.entry.clone(),
                    owner: step.entry_owner,
                });
            }
        }
        Ok(())
    }
}

/// Puts the parts of `path` before what is left to walk.
fn put_first(left: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        left.push_front(part.as_os_str().to_owned());
    }
}

fn inspect(path: &Path, source: std::io::Error) -> OwnerError {
    OwnerError::Inspect {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const ROOT: u32 = 0;
    const VICTIM: u32 = 1000;
    const ALICE: u32 = 1001;
    const MALLORY: u32 = 1002;

    /// A name in a directory of `place` (owner, mode).
    fn step(place: (u32, u32), entry_owner: u32, is_link: bool) -> Step {
        Step {
            place: "/place".into(),
            place_owner: place.0,
            place_mode: place.1,
            entry: "/place/name".into(),
            entry_owner,
            is_link,
        }
    }

    #[test]
    fn what_others_may_have_put_there_is_refused() {
        let top = (ROOT, 0o755);
        let tmp = (ROOT, 0o1777);
        let cases = [
            // owner, the last of the way, accepted
            // The cell itself, as ever.
            (ALICE, step(top, ALICE, false), true),
            (ALICE, step(tmp, ALICE, false), false),
            (ALICE, step((ALICE, 0o755), ALICE, false), true),
            (ALICE, step((ALICE, 0o775), ALICE, false), false),
            (ALICE, step((MALLORY, 0o755), ALICE, false), false),
            (ALICE, step(tmp, ROOT, false), true),
            (ALICE, step((ROOT, 0o777), ROOT, false), false),
            (VICTIM, step(tmp, VICTIM, false), true),
            (VICTIM, step((VICTIM, 0o775), VICTIM, false), true),
            (ROOT, step((MALLORY, 0o755), ROOT, false), true),
            // Links to it.
            (ALICE, step(top, ROOT, true), true),
            (ALICE, step(tmp, ROOT, true), true),
            (ALICE, step(tmp, VICTIM, true), true),
            (ALICE, step((ALICE, 0o755), ALICE, true), true),
            (MALLORY, step(tmp, MALLORY, true), false),
            (ALICE, step(tmp, MALLORY, true), false),
            (ALICE, step((ROOT, 0o775), ROOT, true), false),
            (ALICE, step((VICTIM, 0o775), VICTIM, true), false),
            (ALICE, step((MALLORY, 0o755), MALLORY, true), false),
            (ALICE, step(top, MALLORY, true), false),
            // Links to what is one's own.
            (VICTIM, step(tmp, MALLORY, true), false),
            (ROOT, step((ROOT, 0o775), MALLORY, true), false),
            (VICTIM, step(tmp, VICTIM, true), true),
            (VICTIM, step(tmp, ROOT, true), true),
        ];
        for (index, (owner, last, accepted)) in cases.into_iter().enumerate() {
            let walk = Walk {
                steps: vec![step(top, ROOT, false), last],
                end: "/home/cell".into(),
                owner,
                mode: 0o711,
                is_dir: true,
            };
            let found = walk.judge(Path::new("/place/name"), VICTIM);
            assert_eq!(found.is_ok(), accepted, "case {index}: {found:?}");
        }
    }

    #[test]
    fn a_directory_that_others_write_to_is_no_cell_of_its_owner() {
        for (mode, accepted) in [(0o711, true), (0o731, false), (0o1777, false)] {
            let walk = Walk {
                steps: vec![step((ROOT, 0o755), ALICE, false)],
                end: "/cell".into(),
                owner: ALICE,
                mode,
                is_dir: true,
            };
            let found = walk.judge(Path::new("/cell"), VICTIM);
            assert_eq!(found.is_ok(), accepted, "{mode:o}");
        }
    }

    /// Its owner says nothing of who has put files into it. A sticky bit keeps what is
    /// there, but not what will be.
    #[test]
    fn a_directory_that_everybody_writes_to_is_nobodys_cell() {
        for owner in [VICTIM, ROOT] {
            for (mode, accepted) in [
                (0o700, true),
                (0o755, true),
                (0o775, true),
                (0o777, false),
                (0o702, false),
                (0o1777, false),
            ] {
                let walk = Walk {
                    steps: vec![step((ROOT, 0o755), owner, false)],
                    end: "/cell".into(),
                    owner,
                    mode,
                    is_dir: true,
                };
                let found = walk.judge(Path::new("/cell"), VICTIM);
                assert_eq!(found.is_ok(), accepted, "{mode:o}");
            }
        }
        // A socket is its owner's, whoever may write to it.
        let walk = Walk {
            steps: vec![step((ROOT, 0o1777), VICTIM, false)],
            end: "/tmp/socket".into(),
            owner: VICTIM,
            mode: 0o777,
            is_dir: false,
        };
        assert!(walk.judge(Path::new("/tmp/socket"), VICTIM).is_ok());
    }

    /// The way is the kernel's, and every link on it is seen.
    #[test]
    fn a_way_ends_where_the_kernel_ends() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::create_dir(at("c")).unwrap();
        std::fs::write(at("c/file"), "").unwrap();
        symlink("b/../../c", at("a/relative")).unwrap();
        symlink(at("a/relative/"), at("absolute")).unwrap();
        symlink("../absolute/file", at("a/to-file")).unwrap();
        for (name, links) in [
            ("a/b", 0),
            ("a/./b/..", 0),
            ("a/relative", 1),
            ("a/relative/..", 1),
            ("absolute", 2),
            ("absolute/file", 2),
            ("a/to-file", 3),
        ] {
            let walk = Walk::along(&at(name)).unwrap();
            assert_eq!(walk.end, at(name).canonicalize().unwrap(), "{name}");
            let below = |step: &&Step| step.is_link && step.place.starts_with(home.path());
            assert_eq!(walk.steps.iter().filter(below).count(), links, "{name}");
        }
        let root = Walk::along(Path::new("/..")).unwrap();
        assert_eq!((root.end, root.is_dir), ("/".into(), true));
    }

    #[test]
    fn ways_that_do_not_end_are_named() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        symlink("two", at("one")).unwrap();
        symlink("one", at("two")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for name in ["one", "dangling", "missing/x", "file/x"] {
            let is_inspect = matches!(check_found(&at(name)), Err(OwnerError::Inspect { .. }));
            assert!(is_inspect, "{name}");
        }
    }
}
