// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Finds libgpumem in a folder or by pkg-config, unless it is loaded at run time.

use std::env;
use std::path::Path;
use std::process::{exit, Command};

type Version = (u32, u32, u32);

/// These declarations fit the versions of the library from the first to below the second.
const OLDEST: Version = (0, 1, 0);
const TOO_NEW: Version = (1, 0, 0);

/// Variables that decide where the library is looked for.
const VARIABLES: [&str; 8] = [
    // DOCS_RS | any | not set | documentation only, without a library
    "DOCS_RS",
    // GPUMEM_LIB_DIR | a folder | pkg-config's | folder of `libgpumem.so`, without pkg-config
    "GPUMEM_LIB_DIR",
    // GPUMEM_LOAD | 1, 0 | as the features say | 1: [load](rust.md#loading) the library at run time; 0: link it
    "GPUMEM_LOAD",
    // PKG_CONFIG | a program | `pkg-config` | the program that finds the library
    "PKG_CONFIG",
    // PKG_CONFIG_PATH | folders | none | folders of `gpumem.pc`
    "PKG_CONFIG_PATH",
    // PKG_CONFIG_LIBDIR | folders | the system's | the same, in place of the system's
    "PKG_CONFIG_LIBDIR",
    // PKG_CONFIG_SYSROOT_DIR | a folder | none | folder that stands for the root of the system
    "PKG_CONFIG_SYSROOT_DIR",
    // PKG_CONFIG_ALLOW_CROSS | any | not set | pkg-config is for the machine that the program is built for
    "PKG_CONFIG_ALLOW_CROSS",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in VARIABLES {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    // As the feature does, but for a program whose dependencies have chosen the features.
    match set("GPUMEM_LOAD") {
        Some(value) if value == "1" => {
            println!("cargo:rustc-cfg=feature=\"load\"");
            println!("cargo:load=1");
            return;
        }
        Some(value) if value != "0" => fail(&format!(
            "GPUMEM_LOAD is {}; set it to 1 to load the library at run time, or to 0 to link it",
            value.to_string_lossy()
        )),
        _ => {}
    }
    // The documentation needs no library, and neither does loading at run time.
    if env::var_os("CARGO_FEATURE_LINK").is_none() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Some(folder) = set("GPUMEM_LIB_DIR") {
        link_from(Path::new(&folder));
    } else if let Err(reason) = probe() {
        fail(&format!(
            "libgpumem cannot be linked: {reason}\n\
             Install it with its pkg-config file, or set PKG_CONFIG_PATH to the folder of that file, or \
             GPUMEM_LIB_DIR to the folder of libgpumem.so.\n\
             With GPUMEM_LOAD=1, or `default-features = false, features = [\"load\"]`, the library is loaded at run \
             time instead."
        ));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    exit(1);
}

/// Links the library in a folder. The linker would name neither the variable nor the version.
fn link_from(folder: &Path) {
    let shown = folder.display();
    if !folder.join("libgpumem.so").exists() {
        fail(&format!(
            "GPUMEM_LIB_DIR is {shown}, where no libgpumem.so is; set it to the absolute path of the folder of libgpumem.so"
        ));
    }
    if let Some(version) = version_of(&folder.join("libgpumem.so")) {
        if version < OLDEST || version >= TOO_NEW {
            fail(&format!(
                "GPUMEM_LIB_DIR is {shown}, where gpumem has version {}, but a version from {} to below {} is needed",
                text(version),
                text(OLDEST),
                text(TOO_NEW)
            ));
        }
    }
    println!("cargo:rustc-link-search=native={shown}");
    println!("cargo:rustc-link-lib=dylib=gpumem");
}

fn text((major, minor, patch): Version) -> String {
    format!("{major}.{minor}.{patch}")
}

/// `libgpumem.so` is a link to a file that has the version in its name. If it is not, only the first call of the program
/// checks the version.
fn version_of(link: &Path) -> Option<Version> {
    let file = link.canonicalize().ok()?;
    let numbers = file.file_name()?.to_str()?.strip_prefix("libgpumem.so.")?;
    let mut numbers = numbers.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn probe() -> Result<(), String> {
    let host = env::var("HOST").unwrap_or_default();
    let target = env::var("TARGET").unwrap_or_default();
    let is_set = |name: &str| env::var_os(name).is_some();
    if host != target
        && !["PKG_CONFIG", "PKG_CONFIG_SYSROOT_DIR", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_ALLOW_CROSS"]
            .into_iter()
            .any(is_set)
    {
        return Err(format!(
            "pkg-config of {host} does not find libraries of {target}; set PKG_CONFIG_LIBDIR"
        ));
    }
    let version = pkg_config(&["--modversion", "gpumem"])?;
    for required in [format!("gpumem >= {}", text(OLDEST)), format!("gpumem < {}", text(TOO_NEW))] {
        pkg_config(&["--exists", "--print-errors", &required])?;
    }
    for word in words(&pkg_config(&["--libs", "gpumem"])?) {
        match word.get(..2) {
            Some("-L") => println!("cargo:rustc-link-search=native={}", &word[2..]),
            Some("-l") => println!("cargo:rustc-link-lib=dylib={}", &word[2..]),
            _ => println!("cargo:rustc-link-arg={word}"),
        }
    }
    // For the build scripts of crates that depend on this one: DEP_GPUMEM_VERSION, DEP_GPUMEM_INCLUDE.
    println!("cargo:version={}", String::from_utf8_lossy(&version).trim());
    let include = pkg_config(&["--variable=includedir", "gpumem"])?;
    println!("cargo:include={}", words(&include).next().unwrap_or_default());
    Ok(())
}

/// pkg-config writes a backslash before each space, and before each byte of a letter that is not ASCII.
fn words(output: &[u8]) -> impl Iterator<Item = String> {
    let mut words = vec![Vec::new()];
    let mut bytes = output.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => words.last_mut().unwrap().extend(bytes.next()),
            _ if byte.is_ascii_whitespace() => words.push(Vec::new()),
            _ => words.last_mut().unwrap().push(byte),
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).map(|word| String::from_utf8_lossy(&word).into_owned())
}

fn pkg_config(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(&program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", program.to_string_lossy()))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
