//! Signatures that are plain bytes at a fixed place. The facts are those of the formats themselves.

use super::Kind;
use super::Kind::{Container, FileSystem, PartitionTable};

/// Where a signature lies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// From the start of the device.
    Start(u64),
    /// Before its end.
    End(u64),
}
use Place::{End, Start};

/// Whose, where, what. Alphabetical within each group.
#[rustfmt::skip]
pub(super) const SIGNATURES: &[(Kind, Place, &[u8])] = &[
    // The second place is that of a device with 4 KiB sectors.
    (PartitionTable("GPT"), Start(512), b"EFI PART"),
    (PartitionTable("GPT"), Start(4096), b"EFI PART"),
    (PartitionTable("GPT"), End(512), b"EFI PART"),
    (PartitionTable("GPT"), End(4096), b"EFI PART"),

    (Container("bcache device"), Start(4096 + 24),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    (Container("BitLocker volume"), Start(3), b"-FVE-FS-"),
    (Container("Ceph BlueStore device"), Start(0), b"bluestore block device"),
    // DDF: the anchor is the last sector.
    (Container("DDF RAID member"), End(512), b"\xde\x11\xde\x11"),
    (Container("dm-integrity device"), Start(0), b"integrt\0"),
    (Container("dm-verity device"), Start(0), b"verity\0\0"),
    (Container("Intel RAID (IMSM) member"), End(1024), b"Intel Raid ISM Cfg Sig. "),
    (Container("Intel RAID (IMSM) member"), End(8192), b"Intel Raid ISM Cfg Sig. "),
    (Container("LSI RAID member"), End(512), b"$XIDE$"),
    (Container("LUKS volume"), Start(0), b"LUKS\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x4000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x8000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x1_0000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x2_0000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x4_0000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x8_0000), b"SKUL\xba\xbe"),
    (Container("LUKS2 second header"), Start(0x10_0000), b"SKUL\xba\xbe"),
    // LVM2: a label in one of the first four sectors, its type 24 bytes on.
    (Container("LVM2 physical volume"), Start(24), b"LVM2 001"),
    (Container("LVM2 physical volume"), Start(512 + 24), b"LVM2 001"),
    (Container("LVM2 physical volume"), Start(1024 + 24), b"LVM2 001"),
    (Container("LVM2 physical volume"), Start(1536 + 24), b"LVM2 001"),
    (Container("NVIDIA RAID member"), End(1024), b"NVIDIA"),
    (Container("Promise RAID member"), End(63 * 512), b"Promise Technology, Inc."),
    (Container("Stratis device"), Start(512 + 4), b"!Stra0tis\x86\xff\x02^\x41rh"),
    (Container("VDO device"), Start(0), b"dmvdo001"),
    (Container("VMware VMFS volume"), Start(1 << 20), b"\x0d\xd0\x01\xc0"),

    (FileSystem("APFS"), Start(32), b"NXSB"),
    (FileSystem("bcachefs"), Start(4096 + 24),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    (FileSystem("btrfs"), Start(65536 + 64), b"_BHRfS_M"),
    (FileSystem("cramfs"), Start(0), b"\x45\x3d\xcd\x28"),
    (FileSystem("erofs"), Start(1024), b"\xe2\xe1\xf5\xe0"),
    (FileSystem("exFAT"), Start(3), b"EXFAT   "),
    (FileSystem("ext2/3/4"), Start(1024 + 56), b"\x53\xef"),
    (FileSystem("f2fs"), Start(1024), b"\x10\x20\xf5\xf2"),
    (FileSystem("FAT"), Start(54), b"FAT12   "),
    (FileSystem("FAT"), Start(54), b"FAT16   "),
    (FileSystem("FAT"), Start(82), b"FAT32   "),
    (FileSystem("GFS2"), Start(65536), b"\x01\x16\x19\x70"),
    (FileSystem("HFS+"), Start(1024), b"H+\0\x04"),
    (FileSystem("HFS+"), Start(1024), b"HX\0\x05"),
    (FileSystem("ISO 9660"), Start(32768 + 1), b"CD001"),
    (FileSystem("JFS"), Start(32768), b"JFS1"),
    (FileSystem("NTFS"), Start(3), b"NTFS    "),
    // OCFS2: in the third block, of 512 bytes to 4 KiB.
    (FileSystem("OCFS2"), Start(1024), b"OCFSV2"),
    (FileSystem("OCFS2"), Start(2048), b"OCFSV2"),
    (FileSystem("OCFS2"), Start(4096), b"OCFSV2"),
    (FileSystem("OCFS2"), Start(8192), b"OCFSV2"),
    (FileSystem("ReFS"), Start(3), b"ReFS\0"),
    (FileSystem("reiserfs"), Start(8192 + 52), b"ReIsErFs"),
    (FileSystem("reiserfs"), Start(65536 + 52), b"ReIsErFs"),
    (FileSystem("reiserfs"), Start(65536 + 52), b"ReIsEr2Fs"),
    (FileSystem("reiserfs"), Start(65536 + 52), b"ReIsEr3Fs"),
    (FileSystem("squashfs"), Start(0), b"hsqs"),
    (FileSystem("squashfs"), Start(0), b"sqsh"),
    // Swap signs at the end of the first page, whose size depends on the machine.
    (FileSystem("swap"), Start(4096 - 10), b"SWAPSPACE2"),
    (FileSystem("swap"), Start(4096 - 10), b"SWAP-SPACE"),
    (FileSystem("swap"), Start(8192 - 10), b"SWAPSPACE2"),
    (FileSystem("swap"), Start(16384 - 10), b"SWAPSPACE2"),
    (FileSystem("swap"), Start(65536 - 10), b"SWAPSPACE2"),
    (FileSystem("UDF"), Start(32768 + 1), b"BEA01"),
    (FileSystem("XFS"), Start(0), b"XFSB"),
];
