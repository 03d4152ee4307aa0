//! Folders for members that are made for one run, and that are gone after it, even when it is
//! interrupted.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// Folders that exist, for the signal handler's thread.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder that is removed with all its files when this is dropped, or when the process is told
/// to end.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    /// Makes a folder in `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self, Failure> {
        catch_signals();
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix("raid-bench-").tempdir_in(parent);
        let folder = folder.map_err(Failure::file("make a folder in", parent))?;
        folders().push(folder.path().to_owned());
        Ok(Self { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        folders().retain(|path| path != self.folder.path());
    }
}

fn folders() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folders when the process is to end, and ends it.
fn catch_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        let remove = move || {
            if let Some(signal) = signals.forever().next() {
                for folder in folders().drain(..) {
                    // Files that are being written go away with their last descriptor.
                    let _ = std::fs::remove_dir_all(folder);
                }
                std::process::exit(128 + signal);
            }
        };
        // Without the thread a signal ends the process as ever.
        let _ = thread::Builder::new().name("signals".into()).spawn(remove);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_files() {
        let parent = tempfile::tempdir().map_err(|_| ()).expect("a folder");
        let scratch = Scratch::new(parent.path()).expect("a folder in it");
        let path = scratch.path().to_owned();
        std::fs::write(path.join("member"), "x").expect("a file");
        assert!(folders().contains(&path));
        drop(scratch);
        assert!(!path.exists() && !folders().contains(&path));
    }
}
