//! Superblocks that Linux md wrote: of the whole images in `tests/golden`, and of
//! `tests/superblocks`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use raid_core::md::superblock::{AREA_BYTES, Context, Minor, decode};
use raid_core::md::{Candidate, Superblock, SuperblockError};

/// Values between the ends of a field's range: the same ones in each run of a test.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn some<T: From<u32> + TryFrom<u64>, const COUNT: usize>(&mut self) -> [T; COUNT] {
        [(); COUNT].map(|()| {
            self.0 =
                self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            // The low bits of such a generator hardly change.
            let value = self.0.rotate_left(32);
            T::try_from(value).unwrap_or_else(|_| T::from(value as u32))
        })
    }
}

/// What one member holds where its superblock should be.
pub(crate) struct MemberArea {
    pub(crate) name: String,
    pub(crate) context: Context,
    pub(crate) area: Vec<u8>,
}

impl MemberArea {
    pub(crate) fn decode(&self) -> Result<Superblock, SuperblockError> {
        decode(&self.area, self.context)
    }
}

/// An array and what `mdadm --examine` said of it.
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) members: Vec<MemberArea>,
    pub(crate) examine: String,
}

impl Image {
    /// The size of regions of its bitmap, when mdadm was told one.
    pub(crate) fn bitmap_chunk_bytes(&self) -> Option<u32> {
        let manifest = tests().join("golden").join(&self.name).join("manifest.json");
        let is_told = fs::read_to_string(manifest).unwrap().contains("--bitmap-chunk=64K");
        is_told.then_some(65536)
    }

    /// All bytes of a member of a golden array.
    pub(crate) fn whole(&self, index: usize) -> Vec<u8> {
        let path = self.folder().join(format!("{}.img.zst", self.members[index].name));
        let mut bytes = Vec::new();
        unpack(&path).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, self.members[index].context.member_bytes);
        bytes
    }

    /// What mdadm printed into one of the files beside the members.
    pub(crate) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder().join(file)).unwrap()
    }

    fn folder(&self) -> PathBuf {
        tests().join("golden").join(&self.name)
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn minor_of(array: &str) -> Minor {
    match array.rsplit("-v").next() {
        Some("1.0") => Minor::V1_0,
        Some("1.1") => Minor::V1_1,
        Some("0.90") => Minor::V0_90,
        _ => Minor::V1_2,
    }
}

fn unpack(path: &Path) -> zstd::Decoder<'static, std::io::BufReader<fs::File>> {
    zstd::Decoder::new(fs::File::open(path).unwrap()).unwrap()
}

/// One image of `tests/golden`; only as much of each member is unpacked as is needed.
fn from_golden(folder: &Path) -> Image {
    let array = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let manifest = fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let minor = minor_of(&array);
    let member = |entry: &serde_json::Value| {
        let file = entry["file"].as_str().unwrap();
        let member_bytes = entry["bytes"].as_u64().unwrap();
        let offset = minor.super_offset_bytes(member_bytes).unwrap() as usize;
        let mut bytes = vec![0; offset + AREA_BYTES];
        unpack(&folder.join(file)).read_exact(&mut bytes).unwrap();
        MemberArea {
            name: file.trim_end_matches(".img.zst").to_owned(),
            context: Context { minor, member_bytes },
            area: bytes.split_off(offset),
        }
    };
    Image {
        members: manifest["members"].as_array().unwrap().iter().map(member).collect(),
        examine: fs::read_to_string(folder.join("examine.txt")).unwrap(),
        name: array,
    }
}

fn from_superblocks(path: &Path) -> Image {
    let array = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut bytes = Vec::new();
    unpack(path).read_to_end(&mut bytes).unwrap();
    let minor = minor_of(&array);
    let member = |(index, record): (usize, &[u8])| MemberArea {
        name: format!("member{index}"),
        context: Context {
            minor,
            member_bytes: u64::from_le_bytes(*record.first_chunk::<8>().unwrap()),
        },
        area: record[8..].to_vec(),
    };
    Image {
        members: bytes.chunks(8 + AREA_BYTES).enumerate().map(member).collect(),
        examine: fs::read_to_string(path.with_extension("txt")).unwrap_or_default(),
        name: array,
    }
}

/// Every array with version-0.90 superblocks, by name.
pub(crate) fn all_old() -> Vec<Image> {
    let names = [
        "raid1-n2-v0.90",
        "raid10-n4-n2-c64k-v0.90",
        "raid5-n3-bitmap-failed1-v0.90",
        "raid5-n3to4-midreshape-v0.90",
        "raid5-n4-c64k-v0.90",
    ];
    names.iter().map(|name| named(name)).collect()
}

/// Every array with version-1 superblocks, by name.
pub(crate) fn all() -> Vec<Image> {
    let list = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(tests().join(folder)).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let is_new = |path: &PathBuf| path.is_dir() && !path.to_str().unwrap().ends_with("-v0.90");
    let golden = list("golden");
    let golden = golden.iter().filter(|path| is_new(path)).map(|path| from_golden(path));
    let superblocks = list("superblocks");
    let superblocks =
        superblocks.iter().filter(|path| path.extension().is_some_and(|e| e == "zst"));
    golden.chain(superblocks.map(|path| from_superblocks(path))).collect()
}

/// One of them.
pub(crate) fn named(name: &str) -> Image {
    let golden = tests().join("golden").join(name);
    if golden.is_dir() {
        return from_golden(&golden);
    }
    from_superblocks(&tests().join("superblocks").join(format!("{name}.zst")))
}

/// Members with what their superblocks say, as candidates.
#[derive(Clone)]
pub(crate) struct Members(pub(crate) Vec<(String, u64, Result<Superblock, SuperblockError>)>);

impl Members {
    pub(crate) fn of(image: &Image) -> Self {
        let member = |member: &MemberArea| {
            (member.name.clone(), member.context.member_bytes, member.decode())
        };
        Self(image.members.iter().map(member).collect())
    }

    pub(crate) fn candidates(&self) -> Vec<Candidate<'_>> {
        self.0
            .iter()
            .map(|(name, member_bytes, superblock)| Candidate {
                name,
                member_bytes: *member_bytes,
                superblock: superblock.as_ref(),
            })
            .collect()
    }

    pub(crate) fn superblock(&mut self, index: usize) -> &mut Superblock {
        self.0[index].2.as_mut().unwrap()
    }
}
