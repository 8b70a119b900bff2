//! Over the system's RocksDB, which has to be there.

use std::path::Path;
use trefoil_rocksdb::{Batch, Db, DbOptions, Library, LibraryError, Wal};

fn library() -> &'static Library {
    Library::load(None).expect("RocksDB: scripts/setup.sh rocksdb")
}

fn open(folder: &Path) -> Db {
    Db::open(library(), folder, DbOptions::default()).expect("a database")
}

#[test]
fn what_was_written_is_there_after_the_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut value = Vec::new();
    {
        let db = open(folder.path());
        let mut batch = Batch::new(db.library());
        batch.put(b"one", b"1");
        batch.put(b"two", b"");
        batch.put(b"three", &[3; 3000]);
        batch.delete(b"one");
        db.write(&mut batch, Wal::Off).expect("written");
        batch.clear();
        batch.put(b"four", b"4");
        db.write(&mut batch, Wal::Synced).expect("written");
        assert_eq!(db.get(b"one", &mut value), Ok(false));
        db.flush().expect("flushed");
        assert_eq!(db.flushing_count(), Ok(0));
        assert_eq!(db.background_error_count(), Ok(0));
        db.sync_wal().expect("synced");
    }
    let db = open(folder.path());
    for (key, expected) in [
        (&b"two"[..], &b""[..]),
        (b"three", &[3; 3000]),
        (b"four", b"4"),
    ] {
        assert_eq!(db.get(key, &mut value), Ok(true), "{key:?}");
        assert_eq!(value, expected);
    }
    assert_eq!(db.get(b"one", &mut value), Ok(false));
    assert!(value.is_empty());
}

#[test]
fn one_process_at_a_time_is_told_in_its_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path());
    let second = Db::open(library(), folder.path(), DbOptions::default());
    let words = second.expect_err("the first one has it").to_string();
    assert!(words.contains("lock"), "{words}");
    drop(db);
    open(folder.path());
}

#[test]
fn a_library_that_is_none_is_told() {
    let missing = Library::load(Some(Path::new("/nowhere/librocksdb.so")));
    assert!(
        matches!(missing, Err(LibraryError::NotLoaded { .. })),
        "{missing:?}"
    );
    let foreign = Library::load(Some(Path::new("libc.so.6")));
    assert!(
        matches!(foreign, Err(LibraryError::Foreign { function, .. }) if function == "rocksdb_open"),
        "{foreign:?}"
    );
}
