//! Any bytes as a data entry: decoding stays inside, validation accepts only
//! what was encoded under the same tag and version.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;

fuzz_target!(|input: (u64, u64, Vec<u8>, Vec<u8>)| {
    let (tag, time_ns, key, bytes) = input;
    let version = Version { time_ns, origin: tag };
    if let Some(entry) = DataEntry::decode(&bytes) {
        assert!(entry.encoded_len() <= bytes.len());
        let mut again = vec![0; entry.encoded_len()];
        entry.encode(&mut again, tag, version);
        assert_eq!(DataEntry::validate(&again, tag, version, entry.key), Ok(entry));
    }
    let _ = DataEntry::validate(&bytes, tag, version, &key);
});
