//! Does with a file everything that a caller can do. Nothing may panic, and whatever was read can
//! be written and read again.

use bytes::Bytes;
use fucina_gguf::{File, Metadata, Writer};

/// The body of the fuzz target, and of the test that replays its corpus.
///
/// # Panics
///
/// Panics if the crate breaks a promise.
pub(crate) fn exercise(contents: &[u8]) {
    let file = match File::from_bytes(Bytes::copy_from_slice(contents)) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let meta = file.metadata();
    for (key, value) in meta.iter() {
        assert!(meta.contains(key));
        assert!(meta.get(key).is_some());
        assert!(!value.type_name().is_empty());
        let _ = value.to_string();
        touch_getters(meta, key);
    }
    touch_getters(meta, "no such key");
    let mut bytes_of_tensors = 0_u64;
    for info in file.tensors() {
        let data = file.tensor_data(info).expect("a listed tensor has data");
        assert_eq!(data.len(), info.len_bytes());
        assert_eq!(data, contents[info.file_offset()..][..info.len_bytes()]);
        bytes_of_tensors += data.len() as u64;
        assert!(info.len_elems() > 0);
        if let Ok(dtype) = info.dtype() {
            let row = info.shape().first().copied().unwrap_or(1);
            let row_bytes = dtype.row_bytes(row).expect("a row is whole blocks");
            assert_eq!(info.len_bytes(), info.len_elems() / row * row_bytes);
        }
    }
    assert_eq!(file.tensor_bytes(), bytes_of_tensors);
    assert!(file.total_bytes() >= bytes_of_tensors, "tensors do not overlap");
    round_trip(&file);
}

fn touch_getters(meta: &Metadata, key: &str) {
    let _ = (meta.u32(key), meta.u64(key), meta.i32(key), meta.i64(key), meta.usize(key));
    let _ = (meta.f32(key), meta.bool(key), meta.str(key));
    let _ = (meta.i32_array(key), meta.u32_array(key), meta.u64_array(key));
    let _ = (meta.f32_array(key), meta.bool_array(key));
    if let Ok(strings) = meta.str_array(key) {
        for (at, string) in strings.iter().enumerate() {
            assert_eq!(strings.get(at), Some(string));
        }
        assert_eq!(strings.iter().count(), strings.len());
        assert_eq!(strings.get(strings.len()), None);
    }
}

/// Written, read, written again: the same bytes, and the same tensors.
fn round_trip(file: &File) {
    let first = rewrite(file);
    let again = File::from_bytes(first.clone()).expect("what was written can be read");
    assert_eq!(rewrite(&again), first);
    assert_eq!(again.version(), file.version());
    assert_eq!(again.alignment(), file.alignment());
    for info in again.tensors() {
        let before = file.tensor(info.name()).expect("no new tensors");
        assert_eq!(info.shape(), before.shape());
        assert_eq!(info.ggml_type(), before.ggml_type());
        assert_eq!(again.tensor_data(info), file.tensor_data(before));
    }
}

fn rewrite(file: &File) -> Bytes {
    let mut writer = Writer::new();
    writer.version(file.version()).expect("a version that was read");
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).expect("an entry that was read");
    }
    for info in file.tensors().iter().filter(|info| info.type_name() != "unknown") {
        let data = file.tensor_data(info).expect("a listed tensor has data");
        let (name, id) = (info.name(), info.ggml_type());
        writer.tensor_ggml(name, id, info.shape(), data).expect("a tensor that was read");
    }
    writer.to_bytes().expect("memory takes everything")
}
