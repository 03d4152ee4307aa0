//! mdadm reads what is made here, and prints what this crate understands of it.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use raid_core::md::bitmap::BitmapWishes;
use raid_core::md::create::{CreateOptions, plan};
use raid_core::md::superblock::{Context, Minor};
use raid_core::md::update::{Change, apply};
use raid_core::md::{MdTime, Superblock};

use crate::create::{TIME, members, options};
use crate::examine::check_lines;
use crate::images::MemberArea;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uraid-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What mdadm says of a file, `None` when there is no mdadm (which is no excuse in CI).
fn examine(path: &Path) -> Option<String> {
    let output = Command::new("mdadm").arg("--examine").arg(path).env("TZ", "UTC").output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "mdadm is needed in CI");
            eprintln!("skipped: needs mdadm");
            return None;
        }
        output => output.unwrap(),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

/// Writes a superblock to a sparse file as large as the member, and compares every line of mdadm's.
fn compare(folder: &Folder, superblock: &Superblock, context: Context, what: &str) -> Option<()> {
    let path = folder.0.join("member");
    let file = File::create(&path).unwrap();
    file.set_len(context.member_bytes).unwrap();
    let area = superblock.encode();
    file.write_all_at(&area[..], superblock.super_offset_bytes()).unwrap();
    let text = examine(&path)?;
    let member = MemberArea { name: "member".into(), context, area: area.to_vec() };
    let count = check_lines(&text, &member, superblock, what);
    assert!(count >= 18, "{what}: {count} lines\n{text}");
    Some(())
}

/// All levels, versions, small and large members, before and after updates.
#[test]
fn mdadm_reads_new_superblocks() {
    let folder = Folder::new("examine");
    let shapes =
        [(-1, 0), (0, 1), (1, 0), (4, 0), (5, 2), (6, 2), (6, 16), (10, 0x102), (10, 0x201)];
    for (level, layout) in shapes {
        for minor in Minor::VERSION_1 {
            for member_bytes in [8 << 20, 300 << 20, 3 << 40_u64] {
                let options = CreateOptions { minor, level, layout, slot_count: 4, ..options() };
                let mut made = plan(&options, &members(&[member_bytes; 5], 4)).unwrap().superblocks;
                let what = format!("level {level} layout {layout} {minor} {member_bytes}");
                let context = Context { minor, member_bytes };
                for index in [0, 4] {
                    if compare(&folder, &made[index], context, &what).is_none() {
                        return;
                    }
                }
                let mut all: Vec<&mut Superblock> = made.iter_mut().collect();
                let failed = all.remove(3).dev_number;
                let changes = [Change::Fail { dev_number: failed }, Change::MarkDirty];
                apply(&mut all, &changes, MdTime(TIME.0 + 60)).unwrap();
                compare(&folder, &made[1], context, &what);
            }
        }
    }
}

/// What signs, made by the tool itself on an image of 400 MiB (`$I`), and what is to be found.
const SIGNERS: &[(&str, &str, &str)] = &[
    ("mkfs.ext4", "mkfs.ext4 -q -F $I", "ext2/3/4 file system"),
    ("mkswap", "mkswap -q $I", "swap file system"),
    ("mkfs.vfat", "mkfs.vfat $I", "FAT file system"),
    ("mkfs.exfat", "mkfs.exfat $I", "exFAT file system"),
    ("mkfs.ntfs", "mkfs.ntfs -q -F -f $I", "NTFS file system"),
    ("mkfs.xfs", "mkfs.xfs -q $I", "XFS file system"),
    ("mkfs.btrfs", "mkfs.btrfs -q $I", "btrfs file system"),
    ("mkfs.f2fs", "mkfs.f2fs -q $I", "f2fs file system"),
    ("mkreiserfs", "mkreiserfs -q -f $I", "reiserfs file system"),
    ("mkfs.nilfs2", "mkfs.nilfs2 -q $I", "nilfs2 file system"),
    ("mkfs.jfs", "mkfs.jfs -q $I", "JFS file system"),
    ("mkudffs", "mkudffs $I", "UDF file system"),
    ("mkfs.ocfs2", "mkfs.ocfs2 -q -x -M local -T mail $I", "OCFS2 file system"),
    ("mkfs.gfs2", "mkfs.gfs2 -O -p lock_nolock -J 8 $I", "GFS2 file system"),
    ("mkfs.erofs", "mkfs.erofs --quiet $I $D/files", "erofs file system"),
    ("mksquashfs", "mksquashfs $D/files $I -quiet -noappend", "squashfs file system"),
    ("genisoimage", "genisoimage -quiet -o $I $D/files", "ISO 9660 file system"),
    (
        "cryptsetup",
        "echo secret | cryptsetup luksFormat -q --pbkdf-force-iterations 1000 --pbkdf pbkdf2 \
            --type luks1 $I -",
        "LUKS volume",
    ),
    (
        "cryptsetup",
        "echo secret | cryptsetup luksFormat -q --pbkdf-force-iterations 1000 --pbkdf pbkdf2 \
            --type luks2 $I -",
        "LUKS2 second header",
    ),
    ("make-bcache", "make-bcache -B $I", "bcache device"),
    ("sgdisk", "sgdisk -n 1:0:0 $I", "GPT partition table"),
    ("sfdisk", "echo ,,L | sfdisk -q $I", "DOS partition table"),
];

/// Real file systems, volumes and partition tables are recognised, each tool that is installed in
/// turn.
#[test]
fn foreign_data_is_recognised() {
    use raid_core::md::signature::{probe, ranges};
    let folder = Folder::new("signature");
    let image = folder.0.join("image");
    std::fs::create_dir_all(folder.0.join("files")).unwrap();
    std::fs::write(folder.0.join("files/file"), vec![b'x'; 3 << 20]).unwrap();
    let mut count = 0;
    for &(tool, command, expected) in SIGNERS {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        if !found.unwrap().status.success() {
            writeln!(std::io::stderr(), "skipped: needs {tool}").unwrap();
            continue;
        }
        let _ = std::fs::remove_file(&image);
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        let output = Command::new("sh")
            .args(["-c", command])
            .env("I", &image)
            .env("D", &folder.0)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {stderr}");
        let file = File::open(&image).unwrap();
        let member_bytes = file.metadata().unwrap().len();
        let read = |range: std::ops::Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start).unwrap();
            bytes
        };
        let (head, tail) = ranges(member_bytes);
        let findings = probe(member_bytes, &read(head), &read(tail));
        let is_found = findings.iter().any(|finding| finding.kind.to_string() == expected);
        assert!(is_found, "{command}: {findings:?}");
        count += 1;
    }
    assert!(count > 0 || std::env::var_os("CI").is_none(), "mkfs.ext4 and mkswap are needed in CI");
}

/// What `mdadm --examine-bitmap` says of a file.
fn examine_bitmap(path: &Path, what: &str) -> String {
    let output = Command::new("mdadm").arg("--examine-bitmap").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}{text}{stderr}");
    text
}

/// Bitmaps of new arrays in every version, and version 0.90 itself: mdadm finds them where they are
/// and nothing odd about them.
#[test]
fn mdadm_reads_new_bitmaps() {
    let folder = Folder::new("bitmap");
    let (path, bitmap_path) = (folder.0.join("member"), folder.0.join("bitmap"));
    for (level, layout) in [(1, 0), (5, 2), (6, 2), (10, 0x102), (10, 0x201)] {
        for minor in Minor::ALL {
            for member_bytes in [8 << 20, 300 << 20, 3 << 40_u64] {
                let bitmap = Some(BitmapWishes::default());
                let options =
                    CreateOptions { minor, level, layout, slot_count: 4, bitmap, ..options() };
                let made = plan(&options, &members(&[member_bytes; 4], 4)).unwrap();
                let superblock = &made.superblocks[1];
                let file = File::create(&path).unwrap();
                file.set_len(member_bytes).unwrap();
                let at = superblock.super_offset_bytes();
                file.write_all_at(&superblock.encode()[..], at).unwrap();
                let room = superblock.bitmap_room(member_bytes).unwrap();
                let image = made.bitmap.as_ref().unwrap();
                file.write_all_at(image.bytes(), room.start).unwrap();
                let Some(text) = examine(&path) else { return };
                let what = format!("level {level} {minor} {member_bytes}:\n{text}");
                assert!(text.contains(" - correct"), "{what}");
                assert!(text.contains(&superblock.array_uuid.to_string()), "{what}");
                assert!(text.contains(&format!("Version : {minor}")), "{what}");
                // In a file it looks at the start.
                std::fs::write(&bitmap_path, image.bytes()).unwrap();
                let text = examine_bitmap(&bitmap_path, &what);
                // All bytes of this uuid are alike, so its order does not matter.
                let uuid = superblock.array_uuid.to_string();
                let count = image.regions().count();
                let expected = [
                    "Magic : 6d746962".to_owned(),
                    format!("UUID : {uuid}"),
                    "State : OK".to_owned(),
                    format!("Chunksize : {} MB", image.head().chunk_bytes >> 20),
                    format!("Bitmap : {count} bits (chunks), {count} dirty (100.0%)"),
                ];
                for line in expected {
                    assert!(text.contains(&line), "{what}{line}\n{text}");
                }
            }
        }
    }
}
