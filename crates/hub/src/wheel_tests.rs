use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::*;

fn size(len: usize) -> u32 {
    len.try_into().unwrap()
}

fn short(len: usize) -> u16 {
    len.try_into().unwrap()
}

/// A zip archive, written apart from the reader.
fn archive(entries: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for &(name, bytes, deflate) in entries {
        let at = size(out.len());
        let packed = if deflate {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            bytes.to_vec()
        };
        let mut crc = Crc::new();
        crc.update(bytes);
        // From the version that is needed to the length of the extra field: the same in both.
        let mut common = vec![20, 0, 0, 0, if deflate { 8 } else { 0 }, 0, 0, 0, 0, 0];
        for number in [crc.sum(), size(packed.len()), size(bytes.len())] {
            common.extend(number.to_le_bytes());
        }
        common.extend(short(name.len()).to_le_bytes());
        common.extend([0, 0]);
        out.extend([b"PK\x03\x04", &*common, name.as_bytes(), &packed].concat());
        let rest = [[0; 10].as_slice(), &at.to_le_bytes(), name.as_bytes()].concat();
        directory.extend([b"PK\x01\x02", &[20, 0][..], &common, &rest].concat());
    }
    let (at, len) = (size(out.len()), size(directory.len()));
    out.extend(directory);
    let count = short(entries.len()).to_le_bytes();
    let end = [[0; 4].as_slice(), &count, &count, &len.to_le_bytes(), &at.to_le_bytes(), &[0; 2]];
    out.extend([b"PK\x05\x06", &*end.concat()].concat());
    out
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fucina-{}-{name}.whl", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn unpacked(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let path = file(name, bytes);
    let mut out = Vec::new();
    let result = Wheel::open(&path).and_then(|wheel| {
        let len = wheel.len_bytes();
        wheel.unpack(&mut |bytes| {
            out.extend_from_slice(bytes);
            assert!(out.len() as u64 <= len, "never more than it says");
            Ok(())
        })
    });
    std::fs::remove_file(path).unwrap();
    result.map(|()| out)
}

const OTHERS: [(&str, &[u8], bool); 3] = [
    ("p/__init__.py", b"x", true),
    ("p-1.dist-info/METADATA", b"y", true),
    ("p/deep/data/x", b"z", false),
];

fn wheel(data: &[u8], deflate: bool) -> Vec<u8> {
    let mut entries = OTHERS.to_vec();
    entries.insert(1, ("p/data/part01.bin", data, deflate));
    archive(&entries)
}

#[test]
fn the_file_of_the_folder_data_is_unpacked() {
    let data: Vec<u8> = (0..700_000_u32).map(|n| (n / 7).to_le_bytes()[0]).collect();
    for deflate in [true, false] {
        assert_eq!(unpacked(&format!("good-{deflate}"), &wheel(&data, deflate)), Ok(data.clone()));
    }
    let commented = [&*wheel(b"abc", true), b"a comment"].concat();
    assert_eq!(unpacked("comment", &commented), Ok(b"abc".to_vec()));
}

#[test]
fn exactly_one_file_is_wanted() {
    assert!(unpacked("none", &archive(&OTHERS)).is_err());
    let two = archive(&[("p/data/a", b"1", false), ("p/data/b", b"2", false)]);
    let error = unpacked("two", &two).unwrap_err();
    assert!(error.to_string().contains("several"), "{error}");
}

#[test]
fn no_damaged_wheel_passes_and_none_panics() {
    let data: Vec<u8> = (0..3000_u32).map(|n| (n * n / 3).to_le_bytes()[0]).collect();
    for deflate in [true, false] {
        let good = wheel(&data, deflate);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x55;
            // A change of what nobody reads, such as a time or another entry, does no harm.
            if let Ok(out) = unpacked(&format!("flip-{deflate}"), &bad) {
                assert_eq!(out, data, "byte {at}");
            }
            if at % 16 == 0 {
                assert!(unpacked(&format!("cut-{deflate}"), &good[..at]).is_err(), "{at} bytes");
            }
        }
    }
    assert!(unpacked("empty", b"").is_err());
    assert!(unpacked("ends", &b"PK\x05\x06".repeat(1000)).is_err());
    assert!(unpacked("huge", &[b"PK\x05\x06".as_slice(), &[255; 18]].concat()).is_err());
}

#[test]
fn a_file_that_unpacks_to_more_than_it_says_is_stopped() {
    let mut bomb = wheel(&vec![0; 1 << 20], true);
    let said = (1_u32 << 20).to_le_bytes();
    let at: Vec<_> = (0..bomb.len() - 4).filter(|&at| bomb[at..at + 4] == said).collect();
    assert_eq!(at.len(), 2, "before the bytes and in the directory");
    for at in at {
        bomb[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
    }
    let error = unpacked("bomb", &bomb).unwrap_err();
    assert!(error.to_string().contains("longer than it says"), "{error}");
}
