//! mdadm reads what is made here, and prints what this crate understands of it.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
            writeln!(std::io::stderr(), "skipped: needs mdadm").unwrap();
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
        for minor in Minor::ALL {
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
