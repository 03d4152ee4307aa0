//! Programs of others that the tests use. Without them the tests that need them are skipped, or
//! fail in CI.

use std::path::Path;
use std::process::Command;

/// A program or library, and the Debian package that has it.
///
/// qemu-system-x86 is not among them: bookworm's removes a newer qemu-utils without a word.
const PEERS: [(&str, &str); 16] = [
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("nbdkit", "nbdkit"),
    ("fio", "fio"),
    ("qemu-io", "qemu-utils"),
    ("qemu-img", "qemu-utils"),
    ("mdadm", "mdadm"),
    ("linux.uml", "user-mode-linux"),
    ("modprobe", "kmod"),
    ("mkfs.ext4", "e2fsprogs"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("zstd", "zstd"),
    ("libisal.so.2", "libisal2"),
];

/// Whether a program can be called, or a library loaded.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&path);
    let system = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].into_iter().map(Into::into);
    let libraries = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into();
    own.chain(system).chain([libraries]).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether packages can be installed without a question: as root, on Debian.
pub(crate) fn may_install() -> bool {
    is_root() && Path::new("/etc/debian_version").exists()
}

/// Installs what is missing where that needs no question: as root, on Debian. Says what is missing
/// otherwise; the tests then decide for themselves.
pub(crate) fn install() {
    let mut packages: Vec<&str> = PEERS
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    if packages.is_empty() {
        return;
    }
    let command = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if !may_install() {
        println!("some peers are missing; on Debian: sudo {command}");
        return;
    }
    println!("== {command}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        let command = command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
        command.status().is_ok_and(|status| status.success())
    };
    let install = [&["install", "-y", "-q", "--no-install-recommends"], &packages[..]].concat();
    if !apt(&["update", "-q"]) || !apt(&install) {
        println!("not all peers could be installed; the tests that need them will say so");
    }
}
