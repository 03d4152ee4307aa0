//! Parity kernels on CPUs that this machine is not: 64-bit Arm, and x86-64 without AVX.
//!
//! Both under QEMU's user emulation, with Debian's packages alone: its rustc and the standard
//! library that it ships for arm64, since rustup may have no way to a foreign one. Debian's rustc
//! is another version than rustup's, so that its output has folders of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::{peers, tidy};

const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// Where Debian's rustc looks for standard libraries.
const LIBRARIES: &str = "/usr/lib/rustlib";
/// Debian's current rustc, as browsers need it; a stable release's own one is too old.
const RUSTC_PACKAGE: &str = "rustc-web";
const PACKAGES: [&str; 4] =
    [RUSTC_PACKAGE, "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"];

/// Emulated CPUs, and the kernel that must be the best on each.
const X86_CPUS: [(&str, &str); 2] = [("qemu64", "sse2"), ("Nehalem", "ssse3")];

/// Runs both. What is missing is installed if `install` and possible; otherwise says so, which in
/// CI is a failure.
pub(crate) fn run(install: bool) -> Result<(), String> {
    let start = Instant::now();
    if install
        && peers::may_install()
        && !is_complete()
        && let Err(problem) = get_ready()
    {
        println!("== other CPUs: {problem}");
    }
    if !is_complete() {
        let need = format!("needs {} and the arm64 standard library", PACKAGES.join(", "));
        if std::env::var_os("CI").is_some() {
            return Err(format!("other CPUs: {need}"));
        }
        println!("== other CPUs: skipped: {need} (as root on Debian: cargo xtask arm)");
        return Ok(());
    }
    neon()?;
    if cfg!(target_arch = "x86_64") {
        x86_without_avx()?;
    }
    println!("== other CPUs: passed in {} s", start.elapsed().as_secs());
    Ok(())
}

fn is_complete() -> bool {
    let has_library = Path::new(LIBRARIES).join(TRIPLE).is_dir();
    let programs = ["qemu-aarch64-static", "qemu-x86_64-static", "aarch64-linux-gnu-gcc"];
    has_library && debian_rustc().is_file() && programs.into_iter().all(peers::is_there)
}

fn debian_rustc() -> PathBuf {
    PathBuf::from("/usr/bin/rustc")
}

// ==== Installing ====

fn get_ready() -> Result<(), String> {
    println!("== other CPUs: installing {}", PACKAGES.join(" "));
    call("dpkg", ["--add-architecture", "arm64"], None)?;
    call("apt-get", ["update", "-qq"], None)?;
    let options = ["-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y"];
    let arguments = [&options[..], &["--no-install-recommends"], &PACKAGES[..]].concat();
    call("apt-get", arguments, None)?;
    let scratch = tidy::root().join("target/arm-packages");
    let result = standard_library(&scratch);
    // Left behind at worst, in a folder of build output.
    let _ = std::fs::remove_dir_all(&scratch);
    result
}

/// Unpacks the standard library for arm64 of just this rustc's version beside its own: its package
/// cannot be installed together with the native one.
fn standard_library(scratch: &Path) -> Result<(), String> {
    std::fs::create_dir_all(scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let version = output("dpkg-query", ["-W", "-f", "${Version}", RUSTC_PACKAGE])?;
    let development = format!("libstd-rust-web-dev:arm64={version}");
    let depends = output("apt-cache", ["depends", &development])?;
    let shared = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("libstd-rust-web-"))
        .ok_or("no shared standard library among the packages")?;
    // Some versions of apt-cache append the architecture.
    let shared = shared.split(':').next().unwrap_or(shared);
    let shared = format!("{shared}:arm64={version}");
    call("apt-get", ["-qq", "download", &development, &shared], Some(scratch))?;
    let entries = std::fs::read_dir(scratch).map_err(|error| error.to_string())?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension() == Some(OsStr::new("deb")) {
            let unpack = [OsStr::new("-x"), path.as_os_str(), OsStr::new("root")];
            call("dpkg", unpack, Some(scratch))?;
        }
    }
    let library = scratch.join("root").join(&LIBRARIES[1..]).join(TRIPLE);
    call("cp", [OsStr::new("-r"), library.as_os_str(), OsStr::new(LIBRARIES)], None)
}

// ==== Running ====

/// All of raid-core's parity tests on 64-bit Arm.
fn neon() -> Result<(), String> {
    println!("== NEON: raid-core's parity tests under qemu-aarch64");
    let test = |arguments: &[&str]| {
        let mut command = Command::new(cargo());
        command.args(["test", "--quiet", "-p", "raid-core", "--target", TRIPLE]);
        command.args(["--target-dir", "target/arm"]).args(arguments).current_dir(tidy::root());
        command.env("RUSTC", debian_rustc()).env("RUSTDOC", "/usr/bin/rustdoc");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        let runner = "qemu-aarch64-static -L /usr/aarch64-linux-gnu";
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        wait("NEON", command)
    };
    test(&["--lib", "parity"])?;
    test(&["--test", "kernels"])
}

/// The same tests, built as always, where detection must not find AVX.
fn x86_without_avx() -> Result<(), String> {
    for (cpu, best) in X86_CPUS {
        println!("== x86-64 without AVX: raid-core's parity tests under qemu-x86_64 -cpu {cpu}");
        let mut command = Command::new(cargo());
        command.args(["test", "--quiet", "-p", "raid-core", "--test", "kernels"]);
        command.current_dir(tidy::root());
        command.env(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("qemu-x86_64-static -cpu {cpu}"),
        );
        command.env("URAID_TEST_BEST_KERNEL", best);
        wait("x86-64 without AVX", command)?;
    }
    Ok(())
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn call<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
    folder: Option<&Path>,
) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    wait(program, command)
}

fn wait(what: &str, mut command: Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{what}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}")) }
}

fn output<const N: usize>(program: &str, arguments: [&str; N]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
