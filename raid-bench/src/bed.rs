//! The members of a run: made, filled with noise, opened as an array or by themselves.
//!
//! ```text
//! member:  | superblock, room for it | the array's part | the raw part |
//! ```
//!
//! The two parts are of the same size on the same member, so that what one of them does not get
//! the other one does not get either. Files are locked by whoever has them open: array and raw
//! members take turns.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use raid_io::{
    Array, BitmapChoice, CreateOptions, MemberDevice, Members, MemoryOptions, OpenOptions,
};

use crate::cli::{Bench, MemberKind};
use crate::devices::{FlatDevice, NullDevice};
use crate::failure::Failure;
use crate::job::{self, Job, Order};
use crate::port::RawMap;
use crate::scratch::Scratch;
use crate::shape::Shape;
use crate::stats::short_size;
use crate::target::Target;

/// Room for superblocks, bitmaps and the way to the data of members with superblocks.
const HEAD_BYTES: u64 = 16 << 20;
/// Memory of a queue for the requests of a job.
const POOL_BYTES: u32 = 64 << 20;
/// Memory of a queue for the engine.
const SCRATCH_BYTES: u32 = 64 << 20;
/// Requests that members are filled with.
const FILL_BYTES: u64 = 1 << 20;

/// Members, and what they are to be used for.
pub(crate) struct Bed {
    pub(crate) kind: MemberKind,
    pub(crate) shape: Shape,
    /// Bytes of each member that the array uses, and of its raw part.
    pub(crate) part_bytes: u64,
    /// Files and block devices; none of members in memory.
    pub(crate) paths: Vec<PathBuf>,
    devices: Vec<Arc<dyn MemberDevice>>,
    is_direct: bool,
    /// The folder of files that were made here.
    _scratch: Option<Scratch>,
}

impl Bed {
    /// Makes members, or opens those that were named, and fills them with noise.
    pub(crate) fn new(options: &Bench) -> Result<Self, Failure> {
        let choice = options.level;
        let count = match options.members.as_slice() {
            [one] if one.parse::<usize>().is_ok() => one.parse().unwrap_or(0),
            paths => paths.len(),
        };
        let named = options.members.iter().any(|one| one.parse::<usize>().is_err());
        let (min, groups) = (choice.members_min(), if choice.nested { 2 } else { 1 });
        if count < min || count > 64 || !count.is_multiple_of(groups) {
            let name = choice.name();
            let even = if choice.nested { ", an even number of them" } else { "" };
            let reason = format!("{name} is measured on {min} to 64 members{even}, not on {count}");
            return Err(Failure::Impossible(reason));
        }
        let chunk = options.chunk;
        let part_bytes = options.member_size / chunk.max(1) * chunk;
        if !chunk.is_power_of_two() || !(4096..=1 << 20).contains(&chunk) || part_bytes < 8 << 20 {
            let reason = "chunks are 4K to 1M, a power of two, and members 8M at least";
            return Err(Failure::Impossible(reason.into()));
        }
        let shape = Shape { choice, members: count, chunk_bytes: chunk };
        let mut bed = Self {
            kind: options.member_kind,
            shape,
            part_bytes,
            paths: Vec::new(),
            devices: Vec::new(),
            is_direct: true,
            _scratch: None,
        };
        let size = HEAD_BYTES + 2 * part_bytes;
        match options.member_kind {
            MemberKind::Null | MemberKind::Memory if named => {
                let reason = "members that are named are files or block devices";
                return Err(Failure::Impossible(reason.into()));
            }
            MemberKind::Null => {
                bed.devices = (0..count).map(|_| Arc::new(NullDevice { size }) as _).collect();
            }
            MemberKind::Memory => {
                let need = count as u64 * size + (1 << 30);
                if crate::machine::available_bytes().is_some_and(|bytes| bytes < need) {
                    let reason = format!("{} of memory are needed", short_size(need));
                    return Err(Failure::Impossible(reason));
                }
                bed.devices = (0..count).map(|_| Arc::new(FlatDevice::new(size)) as _).collect();
            }
            MemberKind::File if named => {
                if !options.force {
                    let reason = "members that are named are written over; --force allows it";
                    return Err(Failure::Impossible(reason.into()));
                }
                bed.paths = options.members.iter().map(PathBuf::from).collect();
            }
            MemberKind::File => {
                let scratch = Scratch::new(&options.scratch)?;
                let path = |index| scratch.path().join(format!("member{index}"));
                bed.paths = (0..count).map(path).collect();
                for path in &bed.paths {
                    let file = File::create_new(path).map_err(Failure::file("make", path))?;
                    file.set_len(size).map_err(Failure::file("make", path))?;
                }
                bed._scratch = Some(scratch);
            }
        }
        bed.fill(size)?;
        Ok(bed)
    }

    /// Writes noise over all that is used later: what was never written may be answered without a
    /// look at the device.
    fn fill(&mut self, size: u64) -> Result<(), Failure> {
        let members = self.open_members()?;
        if let Some(least) = members.sizes().into_iter().min().filter(|least| *least < size) {
            let (least, size) = (short_size(least), short_size(size));
            let reason = format!("a member has {least}, {size} are needed; see --member-size");
            return Err(Failure::Impossible(reason));
        }
        self.is_direct = members.is_direct();
        if self.kind == MemberKind::Null {
            return Ok(());
        }
        let all = (0..self.shape.members).collect();
        let map = RawMap { members: all, base: 0, len: size, unit: FILL_BYTES, written: None };
        let len = map.size_bytes();
        let target = Target::Raw { members, map };
        let mut job = Job::new("fill", Order::Sequential, FILL_BYTES, 16, len).reads(0);
        (job.bytes_max, job.time) = (len, Duration::from_secs(24 * 3600));
        job::run(target.port()?.as_mut(), &job)?;
        Ok(())
    }

    /// Whether the page cache is passed by.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether members come and go, with superblocks that remember.
    pub(crate) fn has_superblocks(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether members are files of one file system.
    pub(crate) fn share_a_disk(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let device = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
            metadata.map(|metadata| metadata.dev())
        };
        let mut devices = self.paths.iter().map(device);
        let first = devices.next().flatten();
        first.is_some() && devices.all(|device| device == first)
    }

    /// How everything is opened.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.pool_bytes = POOL_BYTES;
        options.scratch_bytes = SCRATCH_BYTES;
        options.request_count_max = 512;
        options
    }

    /// Makes the array anew over the members. Unless `is_in_sync`, its redundancy is made to agree
    /// with the noise on them in the background.
    pub(crate) fn create(&self, is_in_sync: bool, bitmap: bool) -> Result<Array, Failure> {
        if !self.has_superblocks() {
            return self.open(None);
        }
        let mut options = CreateOptions::new(self.shape.choice.level);
        options.chunk_bytes = u32::try_from(self.shape.chunk_bytes).unwrap_or(u32::MAX);
        options.groups = self.shape.groups() as u32;
        options.size_bytes = Some(self.part_bytes);
        options.assume_clean = is_in_sync;
        options.bitmap = if bitmap { BitmapChoice::Internal } else { BitmapChoice::None };
        options.force = true;
        options.open = self.open_options();
        Ok(Array::create(&options, &self.paths)?)
    }

    /// Opens the array, read-only and without its member `without` when one is named.
    pub(crate) fn open(&self, without: Option<usize>) -> Result<Array, Failure> {
        let mut options = self.open_options();
        if self.has_superblocks() {
            options.read_only = without.is_some();
            let there = self.paths.iter().enumerate().filter(|(index, _)| Some(*index) != without);
            let paths: Vec<PathBuf> = there.map(|(_, path)| path.clone()).collect();
            return Ok(Array::open(&paths, &options)?);
        }
        let mut memory = MemoryOptions::default();
        memory.level = self.shape.choice.level;
        memory.groups = self.shape.groups() as u32;
        memory.chunk_bytes = u32::try_from(self.shape.chunk_bytes).unwrap_or(u32::MAX);
        // The rest of each member stays raw.
        let front = |device: &Arc<dyn MemberDevice>| {
            Arc::new(Front { device: Arc::clone(device), size: self.part_bytes }) as Arc<_>
        };
        memory.member_bytes = self.part_bytes;
        memory.open = options;
        let devices = self.devices.iter().enumerate();
        let devices =
            devices.map(|(index, device)| (Some(index) != without).then(|| front(device)));
        Ok(Array::over_devices(devices.collect(), &memory)?)
    }

    /// The raw parts of members, interleaved by requests of `unit` bytes.
    pub(crate) fn raw(&self, select: &[usize], unit: u64) -> Result<Target, Failure> {
        let (members, len) = (select.to_vec(), self.part_bytes);
        let base = HEAD_BYTES + self.part_bytes;
        let map = RawMap { members, base, len, unit, written: None };
        Ok(Target::Raw { members: self.open_members()?, map })
    }

    fn open_members(&self) -> Result<Members, Failure> {
        let options = self.open_options();
        if self.has_superblocks() {
            return Ok(Members::open(&self.paths, &options)?);
        }
        Ok(Members::over_devices(self.devices.clone(), &options))
    }
}

/// The beginning of a device.
struct Front {
    device: Arc<dyn MemberDevice>,
    size: u64,
}

impl MemberDevice for Front {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn block_bytes(&self) -> u32 {
        self.device.block_bytes()
    }

    fn read_at(
        &self,
        buffers: &mut [std::io::IoSliceMut<'_>],
        offset: u64,
    ) -> std::io::Result<usize> {
        self.device.read_at(buffers, offset)
    }

    fn write_at(&self, buffers: &[std::io::IoSlice<'_>], offset: u64) -> std::io::Result<usize> {
        self.device.write_at(buffers, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.device.flush()
    }

    fn is_instant(&self) -> bool {
        self.device.is_instant()
    }
}
