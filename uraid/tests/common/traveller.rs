//! An array that travels between uraid and a kernel's md.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::image::{assert_same, bytes, file};
use super::rawcheck::RawSet;
use super::server::Server;
use super::shape::Shape;
use super::{peer, succeed, uraid};

/// What an array is to be.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub shape: Shape,
    /// Version of the superblock; of nested arrays that of the inner ones.
    pub metadata: &'static str,
    /// Whether it has an internal bitmap, and how much a bit stands for.
    pub bitmap_chunk: Option<&'static str>,
}

impl Kind {
    pub const fn new(level: &'static str, layout: Option<&'static str>, members: usize) -> Self {
        let shape = Shape { level, layout, members };
        Self { shape, metadata: "1.2", bitmap_chunk: None }
    }

    pub const fn with_metadata(self, metadata: &'static str) -> Self {
        Self { metadata, ..self }
    }

    pub const fn with_bitmap(self, chunk: &'static str) -> Self {
        Self { bitmap_chunk: Some(chunk), ..self }
    }

    /// How many arrays a nested one has below it; 1 if it is not nested.
    pub fn groups(&self) -> usize {
        if matches!(self.shape.level, "50" | "60") { 2 } else { 1 }
    }

    fn name(&self) -> String {
        let Shape { level, layout, members } = self.shape;
        let bitmap = self.bitmap_chunk.map_or(String::new(), |chunk| format!("-b{chunk}"));
        format!("r{level}-{}-{members}-v{}{bitmap}", layout.unwrap_or("x"), self.metadata)
    }
}

/// An array in a folder of its own, named for its kind.
pub struct Array {
    pub folder: PathBuf,
    pub name: String,
    pub kind: Kind,
    pub members: Vec<PathBuf>,
    /// What the array holds.
    pub content: Vec<u8>,
}

impl Array {
    /// An array that is not there yet.
    pub fn new(work: &Path, kind: Kind) -> Self {
        let name = kind.name();
        let folder = work.join(&name);
        fs::create_dir(&folder).unwrap();
        let members = kind.shape.paths(&folder);
        Self { folder, name, kind, members, content: Vec::new() }
    }

    /// Lets uraid create it.
    pub fn create(&self, member_bytes: u64) {
        let mut create = self.kind.shape.create_command(&self.folder, "64K", member_bytes);
        create.args(["--metadata", self.kind.metadata]);
        if let Some(chunk) = self.kind.bitmap_chunk {
            create.args(["--bitmap", "internal", "--bitmap-chunk", chunk]);
        }
        succeed(&mut create);
    }

    /// Empty members, and a line for the guest that makes an array of them and fills it from
    /// `in.bin`, which is to be there. `options` are mdadm's.
    pub fn create_line(&self, member_bytes: u64, options: &str) -> String {
        for member in &self.members {
            fs::File::create(member).unwrap().set_len(member_bytes).unwrap();
        }
        let level = match self.kind.shape.level {
            "50" => "5",
            "60" => "6",
            level => level,
        };
        let layout =
            self.kind.shape.layout.map_or(String::new(), |name| format!("--layout={name}"));
        let bitmap = match (self.kind.bitmap_chunk, level) {
            (Some(chunk), _) => format!("--bitmap=internal --bitmap-chunk={chunk}"),
            (None, "0") => String::new(),
            (None, _) if options.contains("--consistency-policy") => String::new(),
            (None, _) => "--bitmap=none".to_owned(),
        };
        let metadata = self.kind.metadata;
        format!("create {level} --metadata={metadata} {layout} {bitmap} {options}\n")
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

    /// What the guest is to know of this array before its steps.
    pub fn header(&self) -> String {
        let bitmap = usize::from(self.kind.bitmap_chunk.is_some());
        let (name, groups) = (&self.name, self.kind.groups());
        format!("array={name} groups={groups} bitmap={bitmap} degraded=0\n")
    }

    pub fn hash_line(&self) -> String {
        let hash = Sha256::digest(&self.content);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} hash {hash}", self.name)
    }

    /// What the guest said of each member that was refilled: sectors written to it, and sectors
    /// that it has.
    pub fn refilled(&self, said: &str) -> Vec<(u64, u64)> {
        let prefix = format!("{} refilled ", self.name);
        let numbers =
            said.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(" of "));
        numbers.map(|(some, all)| (some.parse().unwrap(), all.parse().unwrap())).collect()
    }

    /// The array holds what it should, and copies and parity are right.
    pub fn judge(&self) {
        let cat = succeed(uraid().arg("cat").args(&self.members));
        assert_same(&cat, &self.content, &format!("{}: uraid cat", self.name));
        let raw = RawSet::open(&self.members);
        assert_same(&raw.content(), &self.content, &format!("{}: raw", self.name));
        assert_eq!(raw.mismatches(), [], "{}", self.name);
    }
}
