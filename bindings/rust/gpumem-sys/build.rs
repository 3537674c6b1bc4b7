// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Finds libgpumem by calling pkg-config.

use std::env;
use std::path::Path;
use std::process::{exit, Command};

/// The versions of the library that these declarations fit.
const VERSIONS: [&str; 2] = ["gpumem >= 0.1.0", "gpumem < 1.0.0"];

/// Variables that decide where the library is looked for.
const VARIABLES: [&str; 6] = [
    "GPUMEM_LIB_DIR",
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
    "PKG_CONFIG_SYSROOT_DIR",
    "PKG_CONFIG_ALLOW_CROSS",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in VARIABLES {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // The documentation needs no library, and neither does loading at run time.
    if env::var_os("CARGO_FEATURE_LINK").is_none() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Some(folder) = env::var_os("GPUMEM_LIB_DIR") {
        // The linker would not name the variable.
        if !Path::new(&folder).join("libgpumem.so").exists() {
            eprintln!(
                "GPUMEM_LIB_DIR is {}, where no libgpumem.so is; set it to the folder of libgpumem.so",
                folder.to_string_lossy()
            );
            exit(1);
        }
        println!("cargo:rustc-link-search=native={}", folder.to_string_lossy());
        println!("cargo:rustc-link-lib=dylib=gpumem");
        return;
    }
    if let Err(reason) = probe() {
        eprintln!(
            "libgpumem cannot be linked: {reason}\n\
             Install it with its pkg-config file, or set PKG_CONFIG_PATH to the folder of that file, or \
             GPUMEM_LIB_DIR to the folder of libgpumem.so.\n\
             With `default-features = false, features = [\"load\"]` the library is loaded at run time instead."
        );
        exit(1);
    }
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
    for required in VERSIONS {
        pkg_config(&["--exists", "--print-errors", required])?;
    }
    for word in pkg_config(&["--libs", "gpumem"])?.split_ascii_whitespace() {
        match word.get(..2) {
            Some("-L") => println!("cargo:rustc-link-search=native={}", &word[2..]),
            Some("-l") => println!("cargo:rustc-link-lib=dylib={}", &word[2..]),
            _ => println!("cargo:rustc-link-arg={word}"),
        }
    }
    // For the build scripts of crates that depend on this one: DEP_GPUMEM_VERSION, DEP_GPUMEM_INCLUDE.
    println!("cargo:version={}", version.trim());
    println!("cargo:include={}", pkg_config(&["--variable=includedir", "gpumem"])?.trim());
    Ok(())
}

fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(&program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", program.to_string_lossy()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
