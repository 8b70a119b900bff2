//! Memory objects as two processes see them (both sides mapped here).

use std::os::fd::AsFd;
use std::time::Duration;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::{
    Gathered, Gatherer, HUGE_PAGE_LEN, HugePages, Mapping, MappingError, MemoryObject, WordBuffer,
};

const MIB: u64 = 1 << 20;

#[test]
fn private_memory_behaves_like_a_mapping() {
    let mapping = Mapping::heap(4096);
    let words = mapping.words();
    let part = words.slice(64, 32).unwrap();
    part.copy_in(&[1, 2, 3, 4]);
    assert_eq!((words.load(8), words.load(11)), (1, 4));
    let mut buffer = WordBuffer::default();
    buffer.fill_from(part);
    assert_eq!(&buffer.bytes()[..8], &1u64.to_le_bytes());
    part.zero();
    assert_eq!(words.load(9), 0);
}

#[test]
fn bytes_are_copied_in_to_their_last_word() {
    let mapping = Mapping::heap(256);
    let words = mapping.words();
    let bytes: Vec<u8> = (1..=64).collect();
    for first in 0..3 {
        for len in 0..=bytes.len() {
            (0..32).for_each(|at| words.store(at, u64::MAX));
            words.copy_in_bytes(first, &bytes[..len]);
            let after: Vec<u8> = (0..32)
                .flat_map(|at| words.load(at).to_le_bytes())
                .collect();
            let end = 8 * first + len.next_multiple_of(8);
            assert_eq!(after[8 * first..][..len], bytes[..len]);
            assert!(after[8 * first + len..end].iter().all(|byte| *byte == 0));
            assert!(after[..8 * first].iter().all(|byte| *byte == 0xff));
            assert!(after[end..].iter().all(|byte| *byte == 0xff));
        }
    }
    let words = words.slice(0, 64).unwrap();
    let beyond = std::panic::catch_unwind(|| words.copy_in_bytes(1, &bytes));
    assert!(beyond.is_err());
}

/// Whole words at an address of words are copied another way than the rest.
#[test]
fn what_is_appended_is_the_same_wherever_it_begins() {
    let mapping = Mapping::heap(256);
    let words = mapping.words();
    (0..32).for_each(|at| words.store(at, 0x0101_0101_0101_0101 * (at as u64 + 1)));
    let all: Vec<u8> = (0..32_u8).flat_map(|at| [at + 1; 8]).collect();
    for before in 0..9 {
        for skip in 0..20 {
            for len in [0, 1, 7, 8, 9, 64, 72, 136, 200, 236] {
                let mut out = Vec::with_capacity(before);
                out.resize(before, 0xee);
                words.append_to(skip, len, &mut out);
                assert_eq!(out[..before], vec![0xee; before]);
                assert_eq!(out[before..], all[skip..skip + len], "{before} {skip}");
            }
        }
    }
}

#[test]
fn slices_outside_or_unaligned_are_refused() {
    let mapping = Mapping::heap(64);
    let words = mapping.words();
    assert!(words.slice(0, 64).is_some());
    assert!(words.slice(64, 0).is_some());
    for (offset, len) in [
        (0, 72),
        (64, 8),
        (8, 64),
        (4, 8),
        (u64::MAX - 7, 8),
        (8, usize::MAX),
    ] {
        assert!(words.slice(offset, len).is_none(), "{offset} {len}");
    }
}

/// Readers get each word whole even while it is being written.
#[test]
fn racing_words_are_never_torn_inside() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let mapping = Mapping::heap(256);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..rounds {
                let word = u64::from(i as u32) << 32 | u64::from(i as u32);
                for at in 0..32 {
                    mapping.words().store(at, word);
                }
            }
        });
        let mut buffer = WordBuffer::default();
        for _ in 0..rounds {
            buffer.fill_from(mapping.words());
            assert!(buffer.words().iter().all(|w| *w >> 32 == *w & 0xffff_ffff));
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn object_is_sparse_populated_and_given_back() {
    let object = MemoryObject::create("test", 64 * MIB, 64 * MIB, HugePages::Off).unwrap();
    assert_eq!(object.resident_len().unwrap(), 0);
    object.populate(MIB..3 * MIB).unwrap();
    assert_eq!(object.resident_len().unwrap(), 2 * MIB);
    let owner = Mapping::owner(&object).unwrap();
    owner.words().store(MIB as usize / 8, 42);
    object.punch(MIB..2 * MIB).unwrap();
    assert_eq!(object.resident_len().unwrap(), MIB);
    assert_eq!(
        owner.words().load(MIB as usize / 8),
        0,
        "a hole reads as zero"
    );
}

#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn reader_sees_writes_but_cannot_write_or_resize() {
    let object = MemoryObject::create("test", MIB, MIB, HugePages::Off).unwrap();
    let owner = Mapping::owner(&object).unwrap();
    let fd = object.reopen_read_only().unwrap();
    let reader = Mapping::reader(&fd, MIB).unwrap();
    owner.words().store(5, 99);
    assert_eq!(reader.words().load(5), 99);
    assert!(matches!(
        Mapping::reader_writer(&fd, MIB),
        Err(MappingError::Map { .. })
    ));
    assert!(rustix::fs::ftruncate(&object, 2 * MIB).is_err());
    assert!(rustix::fs::ftruncate(&object, 0).is_err());
    let mode = rustix::fs::fstat(object.as_fd()).unwrap().st_mode;
    assert_eq!(mode & 0o777, 0o600);
}

/// More readers than there are addresses for as many mappings.
#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn readers_of_one_object_share_its_mapping() {
    const LEN: u64 = 1 << 40;
    let object = MemoryObject::create("test", LEN, MIB, HugePages::Off).unwrap();
    let other = MemoryObject::create("test", LEN, MIB, HugePages::Off).unwrap();
    let owner = Mapping::owner(&object).unwrap();
    owner.words().store(1, 7);
    for _ in 0..2 {
        let readers: Vec<Mapping> = (0..300)
            .map(|_| {
                let fd = object.reopen_read_only().unwrap();
                Mapping::shared_reader(&fd, LEN).unwrap()
            })
            .collect();
        assert!(readers.iter().all(|reader| reader.words().load(1) == 7));
        let fd = other.reopen_read_only().unwrap();
        let foreign = Mapping::shared_reader(&fd, LEN).unwrap();
        assert_eq!(foreign.words().load(1), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn reader_refuses_what_could_be_cut_short() {
    let file = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, MIB).unwrap();
    assert!(matches!(
        Mapping::reader(&file, MIB),
        Err(MappingError::NotSealed { .. })
    ));
    let object = MemoryObject::create("test", MIB, MIB, HugePages::Off).unwrap();
    assert!(matches!(
        Mapping::reader(&object, 2 * MIB),
        Err(MappingError::NotSealed { .. })
    ));
}

/// One large value must not cost its reader as much memory for life.
#[test]
fn a_large_buffer_shrinks_when_only_small_copies_come() {
    const LARGE: usize = 16 << 20;
    const KEPT: usize = 256 << 10;
    let mut buffer = WordBuffer::default();
    buffer.prepare(LARGE);
    for _ in 0..3 {
        // Large ones come in between: it is needed.
        for _ in 0..63 {
            buffer.prepare(1_000);
        }
        assert!(buffer.capacity() >= LARGE);
        buffer.prepare(LARGE / 16);
        assert!(buffer.capacity() >= LARGE);
    }
    for _ in 0..64 {
        buffer.prepare(1_000).fill(7);
    }
    assert!(buffer.capacity() <= KEPT, "{}", buffer.capacity());
    assert_eq!(buffer.bytes(), [7, 0, 0, 0, 0, 0, 0, 0].repeat(125));
    // It grows again, and one that is not large stays as it is.
    assert_eq!(buffer.prepare(KEPT).len() * 8, KEPT);
    for _ in 0..1_000 {
        buffer.prepare(8);
    }
    assert!(buffer.capacity() >= KEPT);
}

/// The CPU time that this thread has had.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whoever drops the last handle may be an event loop: the kernel looks at every page
/// of what is unmapped.
#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn the_end_of_a_long_mapping_costs_its_dropper_little() {
    let len = 256 * MIB;
    let object = MemoryObject::create("test", len, len, HugePages::Off).unwrap();
    let mapping = Mapping::owner(&object).unwrap();
    let begin = thread_cpu();
    mapping.prefault(0..len);
    let populating = thread_cpu() - begin;
    let begin = thread_cpu();
    drop(mapping);
    let dropping = thread_cpu() - begin;
    // To unmap all of it takes a tenth, page by page.
    assert!(
        dropping < populating / 30,
        "{dropping:?} after {populating:?}"
    );
}

/// Whatever lies behind: a range with a hole stays as it is, for to gather it would fill the
/// hole, which nobody counts.
#[test]
#[cfg_attr(miri, ignore = "memory objects are the kernel's")]
fn only_what_is_wholly_populated_is_gathered() {
    let len = 6 * HUGE_PAGE_LEN;
    let object = MemoryObject::create("test", len, len, HugePages::Off).unwrap();
    let mapping = Mapping::owner(&object).unwrap();
    let range = |page: u64| page * HUGE_PAGE_LEN..(page + 1) * HUGE_PAGE_LEN;
    for page in [0, 2, 3, 5] {
        object.populate(range(page)).unwrap();
        let words = range(page).start as usize / 8..range(page).end as usize / 8;
        // What nobody has touched yet counts as a hole.
        words
            .step_by(512)
            .for_each(|at| mapping.words().store(at, 1));
    }
    object.punch(range(2).end - 4096..range(2).end).unwrap();
    let whole = |page: u64| mapping.is_populated(page * HUGE_PAGE_LEN);
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(whole),
        [true, false, false, true, false, true]
    );
    let resident = object.resident_len().unwrap();
    let mut gatherer = Gatherer::new(len);
    let mut pages = 0;
    while gatherer.step(&object, &mapping) == Gathered::Page {
        pages += 1;
    }
    if gatherer.step(&object, &mapping) != Gathered::Unsupported {
        assert_eq!(pages, 3);
    }
    assert_eq!(object.resident_len().unwrap(), resident);
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(whole),
        [true, false, false, true, false, true]
    );
}
