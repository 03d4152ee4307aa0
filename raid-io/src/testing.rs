//! What this crate's own tests share: devices that misbehave, loop devices, a number generator.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::member::{MemberDevice, MemoryDevice};

/// A small generator with a printed seed, so that a failure can be repeated.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.below(u64::MAX).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// How a [`FaultyDevice`] misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// Every other call is interrupted or told to try again, and the rest move little.
    Awkward,
    /// Every call fails with this errno.
    Errno(i32),
    /// Every write and flush fails with this errno.
    WriteErrno(i32),
}

/// A device behind a fault. It has no zeroes of its own and answers from a thread.
pub(crate) struct FaultyDevice {
    inner: Arc<dyn MemberDevice>,
    fault: Mutex<Fault>,
    calls: AtomicU64,
}

impl FaultyDevice {
    pub(crate) fn new(size: u64, fault: Fault) -> Arc<Self> {
        Self::over(Arc::new(MemoryDevice::new(size, 512)), fault)
    }

    pub(crate) fn over(inner: Arc<dyn MemberDevice>, fault: Fault) -> Arc<Self> {
        Arc::new(Self { inner, fault: Mutex::new(fault), calls: AtomicU64::new(0) })
    }

    /// Misbehaves in this way from now on.
    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Returns how many bytes the call may move.
    fn admit(&self, len: usize, writes: bool) -> io::Result<usize> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::None => Ok(len),
            Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Fault::WriteErrno(errno) if writes => Err(io::Error::from_raw_os_error(errno)),
            Fault::WriteErrno(_) => Ok(len),
            Fault::Awkward => match call % 5 {
                0 => Err(io::ErrorKind::Interrupted.into()),
                2 => Err(io::ErrorKind::WouldBlock.into()),
                // Less than a block, more than a block, several blocks.
                1 => Ok(len.min(100)),
                3 => Ok(len.min(700)),
                _ => Ok(len.min(1536)),
            },
        }
    }
}

impl MemberDevice for FaultyDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let Some(buffer) = buffers.iter_mut().find(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        let len = self.admit(buffer.len(), false)?;
        self.inner.read_at(&mut [IoSliceMut::new(&mut buffer[..len])], offset)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let Some(buffer) = buffers.iter().find(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let len = self.admit(buffer.len(), true)?;
        self.inner.write_at(&[IoSlice::new(&buffer[..len])], offset)
    }

    fn flush(&self) -> io::Result<()> {
        if *self.fault.lock().unwrap() == Fault::Awkward {
            return self.inner.flush();
        }
        self.admit(0, true)?;
        self.inner.flush()
    }

    fn extent(&self, offset: u64) -> (bool, u64) {
        self.inner.extent(offset)
    }
}

/// A loop device over a new file, taken apart when it is dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// Returns `None`, and says why, where there are no loop devices to be had. That is a failure
    /// where they are known to be there.
    pub(crate) fn new(folder: &Path, size: u64, sector: u32) -> Option<Self> {
        let file = folder.join(format!("loop-{sector}"));
        std::fs::File::create(&file).unwrap().set_len(size).unwrap();
        let sector = sector.to_string();
        let args = ["--find", "--show", "--direct-io=off", "--sector-size", &sector];
        let made = Command::new("losetup").args(args).arg(&file).output();
        let path = made.ok().filter(|out| out.status.success()).map(|out| out.stdout);
        let path = path.and_then(|path| String::from_utf8(path).ok());
        let Some(path) = path else {
            skip("root and loop devices");
            return None;
        };
        Some(Self { path: PathBuf::from(path.trim()) })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// Says that a test cannot run here; fails where it should be able to.
pub(crate) fn skip(needs: &str) {
    assert!(std::env::var_os("CI").is_none(), "needs {needs}");
    println!("skipped: needs {needs}");
}

/// Runs `work` on a thread that the system refuses io_uring, as many containers do.
pub(crate) fn without_uring<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_uring();
            work()
        });
        thread.join().unwrap()
    })
}

/// Installs a filter for the calling thread, and those it starts: io_uring_setup answers EPERM.
fn refuse_uring() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
    let step = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter are alive during the call, which copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}
