//! Memory of another process, mapped to be copied from. A module of its own: it is about
//! what the whole process maps.

use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::{HugePages, Mapping, MappingError, MemoryObject, maps_foreign};

const LEN: u64 = 64 << 20;

/// What is counted as resident here may be another's for as long as anything of it is
/// mapped, which a thread ends after the mapping's owner has gone on.
#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn a_process_knows_whether_it_maps_memory_of_another() {
    let object = MemoryObject::create("test", LEN, LEN, HugePages::Off).unwrap();
    let owner = Mapping::owner(&object).unwrap();
    owner.words().store(7, 42);
    object.populate(0..LEN).unwrap();
    let fd = object.reopen_read_only().unwrap();
    assert!(!maps_foreign());

    let refused = Mapping::foreign_reader(&fd, 2 * LEN);
    assert!(matches!(refused, Err(MappingError::NotSealed { .. })));
    assert!(!maps_foreign(), "what was refused is not mapped");

    let before = mapped(&object);
    let foreign = Mapping::foreign_reader(&fd, LEN).unwrap();
    let copy = foreign.clone();
    assert_eq!(foreign.words().load(7), 42);
    assert!(maps_foreign());
    drop(foreign);
    assert!(maps_foreign(), "a copy of it is left");
    drop(copy);
    let begin = std::time::Instant::now();
    while maps_foreign() {
        assert!(begin.elapsed().as_secs() < 60, "it stays mapped");
        std::thread::yield_now();
    }
    assert_eq!(mapped(&object), before, "nothing of it is mapped any more");
}

/// How many ranges of addresses the object takes in this process.
fn mapped(object: &MemoryObject) -> usize {
    let inode = rustix::fs::fstat(object).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_it = |line: &&str| line.split_ascii_whitespace().nth(4) == Some(inode.as_str());
    maps.lines().filter(is_it).count()
}
