//! The kernel's md beside us, where there is one.

use std::path::Path;

/// Why md cannot be measured here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root".to_owned());
    }
    if !Path::new("/proc/mdstat").exists() {
        return Some("this kernel has no md (no /proc/mdstat)".to_owned());
    }
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"];
    if !folders.iter().any(|folder| Path::new(folder).join("mdadm").exists()) {
        return Some("mdadm is not installed".to_owned());
    }
    None
}
