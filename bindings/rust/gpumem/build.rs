// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Finds out whether gpumem-sys was built to load the library, and whether the compiler knows
//! `#[diagnostic::on_unimplemented]`, which older ones refuse.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC");
    // GPUMEM_LOAD=1 is a feature of both crates.
    if env::var_os("DEP_GPUMEM_LOAD").is_some() {
        println!("cargo:rustc-cfg=feature=\"load\"");
    }
    let minor = minor_version().unwrap_or(0);
    if minor >= 80 {
        println!("cargo:rustc-check-cfg=cfg(gpumem_diagnostics)");
    }
    if minor >= 78 {
        println!("cargo:rustc-cfg=gpumem_diagnostics");
    }
}

/// 95 for `rustc 1.95.0 (59807616e 2026-04-14)`.
fn minor_version() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split('.').nth(1)?.parse().ok()
}
