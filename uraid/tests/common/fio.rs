//! fio's NBD engine as a load that verifies itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::file;
use super::peer;

/// The options that every run has; jobs differ in what follows.
pub struct Job<'a> {
    pub uri: &'a str,
    /// Connections; each has its own part of the array.
    pub jobs: u32,
    /// Bytes of each part.
    pub bytes: u64,
    pub lines: &'a [&'a str],
}

impl Job<'_> {
    fn write(&self, folder: &Path) -> PathBuf {
        let mut text = format!("[global]\nioengine=nbd\nuri={}\ngroup_reporting=1\n", self.uri);
        for line in self.lines {
            text += line;
            text.push('\n');
        }
        for job in 0..self.jobs {
            let offset = u64::from(job) * self.bytes;
            text += &format!("[job{job}]\noffset={offset}\nsize={}\n", self.bytes);
        }
        file(folder, "job.fio", text.as_bytes())
    }

    /// The command that runs this job in `folder`.
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = peer::command("fio");
        command.current_dir(folder).arg("--output-format=terse").arg(self.write(folder));
        command
    }
}
