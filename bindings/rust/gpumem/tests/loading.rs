// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Loading the library at run time: one that is missing, too old, of another version, or not gpumem at all.
#![cfg(feature = "load")]

use std::path::{Path, PathBuf};
use std::process::Command;

use gpumem::{Backend, ErrorKind, Instance, Status, Version};

/// Runs in a process of its own, because the first library that is loaded stays.
fn try_with(library: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("GPUMEM_LIBRARY", library)
        .env("GPUMEM_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Prints the error of each call that would load the library.
#[test]
fn child() {
    if std::env::var_os("GPUMEM_TEST_CHILD").is_none() {
        return;
    }
    for error in [
        Instance::open(Backend::HOST).map(drop).unwrap_err(),
        Instance::default_instance().map(drop).unwrap_err(),
        gpumem::probe(Backend::HOST).map(drop).unwrap_err(),
        Version::of_library().map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Library);
        println!("error: {}", error.message());
    }
    // Functions that need no library still work.
    assert_eq!(Status::BUSY.name(), "GPUMEM_ERROR_BUSY");
}

fn first_error(output: &str) -> &str {
    output.lines().find_map(|line| line.split("error: ").nth(1)).unwrap()
}

/// A library built from C source, in a folder that is removed.
struct Made {
    folder: PathBuf,
}

impl Made {
    fn of(name: &str, source: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gpumem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let made = Self { folder };
        std::fs::write(made.folder.join("library.c"), source).unwrap();
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(made.library())
            .arg(made.folder.join("library.c"))
            .status()
            .unwrap();
        assert!(status.success());
        made
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libgpumem.so.0")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_library_that_is_missing() {
    let output = try_with(Path::new("/nowhere/libgpumem.so.0"));
    assert!(first_error(&output).contains("/nowhere/libgpumem.so.0"), "{output}");
    assert!(first_error(&output).contains("install libgpumem.so.0, or set GPUMEM_LIBRARY"), "{output}");
}

#[test]
fn a_file_that_is_no_library() {
    let output = try_with(Path::new("/dev/null"));
    assert!(first_error(&output).contains("/dev/null"), "{output}");
}

#[test]
fn a_library_that_is_not_gpumem() {
    let made = Made::of("other", "int other(void) { return 1; }");
    let output = try_with(&made.library());
    assert!(first_error(&output).contains("is not gpumem"), "{output}");
    assert!(first_error(&output).contains(made.library().to_str().unwrap()), "{output}");
}

#[test]
fn a_library_that_is_too_old() {
    let source = "unsigned gpumem_version(void) { return 9; }\n\
                  int gpumem_table_get(unsigned v, void *t, void *e) { return 0; }";
    let made = Made::of("old", source);
    let output = try_with(&made.library());
    assert!(first_error(&output).contains("has version 0.0.9"), "{output}");
    assert!(first_error(&output).contains(made.library().to_str().unwrap()), "{output}");
}

#[test]
fn a_library_of_another_major_version() {
    let source = "unsigned gpumem_version(void) { return 3u << 22; }\n\
                  int gpumem_table_get(unsigned v, void *t, void *e) { return -401; }";
    let made = Made::of("new", source);
    assert!(first_error(&try_with(&made.library())).contains("has version 3.0.0"));
}

#[test]
fn a_library_that_lacks_functions() {
    // It has `gpumem_version` only; everything else is NULL in its table.
    let source = "unsigned gpumem_version(void) { return 1u << 12; }\n\
                  int gpumem_table_get(unsigned v, void *t, void *e) {\n\
                    ((unsigned (**)(void))t)[1] = gpumem_version; return 0; }";
    let made = Made::of("small", source);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_of_small", "--nocapture"])
        .env("GPUMEM_LIBRARY", made.library())
        .env("GPUMEM_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn child_of_small() {
    if std::env::var_os("GPUMEM_TEST_CHILD").is_none() {
        return;
    }
    assert_eq!(Version::of_library().unwrap().to_string(), "0.1.0");
    let error = Instance::open(Backend::HOST).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Library);
    assert!(error.message().contains("gpumem_instance_open"), "{error}");
    let error = gpumem::log::clear().unwrap_err();
    assert!(error.message().contains("gpumem_log_set_function"), "{error}");
}

#[test]
fn only_the_first_library_counts() {
    Version::of_library().unwrap();
    // SAFETY: nothing is loaded, or only the library that was loaded before.
    unsafe {
        let error = gpumem::load_from("/nowhere/libgpumem.so.0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Library);
        let same = std::env::var("GPUMEM_LIBRARY").unwrap_or_else(|_| "libgpumem.so.0".to_owned());
        assert!(gpumem::load_from(same).unwrap_err().message().contains("in use already"));
        assert_eq!(gpumem::load_from("a\0b").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
