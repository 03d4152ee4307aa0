//! An array that travels between uraid and a kernel's md.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::image::{assert_same, bytes, file};
use super::rawcheck::RawSet;
use super::server::Server;
use super::shape::Shape;
use super::{peer, succeed, uraid};

/// An array in a folder of its own, named for its shape.
pub struct Array {
    pub folder: PathBuf,
    pub name: String,
    pub shape: Shape,
    pub members: Vec<PathBuf>,
    /// What the array holds.
    pub content: Vec<u8>,
    /// The raw checker knows this superblock and this layout; of the others the kernel's check has
    /// told.
    pub is_raw_known: bool,
}

impl Array {
    pub fn new(
        work: &Path,
        &(level, layout, members): &(&'static str, Option<&'static str>, usize),
    ) -> Self {
        let name = format!("r{level}-{}-{members}", layout.unwrap_or("x"));
        let shape = Shape { level, layout, members };
        let folder = work.join(&name);
        fs::create_dir(&folder).unwrap();
        let members = shape.paths(&folder);
        let layout = shape.layout.unwrap_or_default();
        let rotates = !(layout.starts_with("ddf") || layout.ends_with("-6"));
        let is_raw_known = rotates && !layout.starts_with("parity");
        Self { folder, name, shape, members, content: Vec::new(), is_raw_known }
    }

    /// Fills the array through a server.
    pub fn fill(&mut self, seed: u64) {
        let server = Server::start(&self.folder, &self.members);
        let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
        self.content = bytes(seed, size);
        let image = file(&self.folder, "in.bin", &self.content);
        succeed(peer::command("nbdcopy").arg("--flush").arg(&image).arg(&server.uri));
        server.stop();
    }

    /// A file `piece.bin` that the kernel is to write at byte `at`.
    pub fn piece(&mut self, seed: u64, at: usize, len: usize) {
        let piece = bytes(seed, len);
        file(&self.folder, "piece.bin", &piece);
        self.content[at..at + len].copy_from_slice(&piece);
    }

    pub fn header(&self) -> String {
        let groups = if matches!(self.shape.level, "50" | "60") { 2 } else { 1 };
        format!("array={} groups={groups}\n", self.name)
    }

    pub fn hash_line(&self) -> String {
        let hash = Sha256::digest(&self.content);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} hash {hash}", self.name)
    }

    pub fn judge(&self) {
        let cat = succeed(uraid().arg("cat").args(&self.members));
        assert_same(&cat, &self.content, &format!("{}: uraid cat", self.name));
        if !self.is_raw_known {
            return;
        }
        let raw = RawSet::open(&self.members);
        assert_same(&raw.content(), &self.content, &format!("{}: raw", self.name));
        assert_eq!(raw.mismatches(), [], "{}", self.name);
    }
}
