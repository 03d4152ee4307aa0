//! A real kernel's md on any machine: User-Mode Linux from Debian, an ordinary process.
//!
//! The guest sees the host's root read-only, and one folder that both can write. It needs neither
//! virtualisation nor modules of the host, but root: it acts on files as who started it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use super::peer;

const INIT: &str = include_str!("guest.sh");
/// How long a step may take before it is taken for a hang; the longest needs about a minute.
const PATIENCE: Duration = Duration::from_secs(600);
const MEMORY: &str = "mem=384M";

/// A running guest. It goes away with the test.
pub struct Guest {
    child: Child,
    /// The guest's own folder. Not the members' one: its path is short enough for a socket.
    job: tempfile::TempDir,
    steps: usize,
}

/// Whether guests can run here; says so if not, as [`peer::present`] does.
pub fn present() -> bool {
    let modules = Path::new("/usr/lib/uml/modules").is_dir();
    let tools = peer::find_all(&["linux.uml", "modprobe", "mdadm", "losetup", "sha256sum"]);
    peer::condition("user-mode-linux and root", modules && tools && geteuid().is_root())
}

impl Guest {
    /// Boots a guest that can write to `work`, which must be there.
    pub fn boot(work: &Path) -> Self {
        let job = tempfile::Builder::new().prefix("uml").tempdir_in("/tmp").unwrap();
        let init = job.path().join("init");
        fs::write(&init, INIT).unwrap();
        make_executable(&init);
        let console = File::create(job.path().join("console")).unwrap();
        let mut command = peer::command("linux.uml");
        command.args([MEMORY, "rootfstype=hostfs", "rootflags=/", "ro", "noreboot", "panic=-1"]);
        command.args(["con0=null,fd:1", "con=null", "ssl=null", "umid=guest"]);
        command.arg(format!("uml_dir={}", job.path().display()));
        command.arg(format!("init={}", init.display()));
        command.arg(format!("JOB={}", job.path().display()));
        command.arg(format!("WORK={}", work.display()));
        if has_wide_registers() {
            without_register_sets(&mut command);
        }
        // Memory goes to the host's tmpfs, unless these name another place.
        command.env_remove("TMPDIR").env_remove("TMP").env_remove("TEMP");
        command.stdin(Stdio::null()).stderr(console.try_clone().unwrap()).stdout(console);
        // The kernel has helpers: a group of their own, to be ended together.
        let child = command.process_group(0).spawn().unwrap();
        Self { child, job, steps: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.path().join(name)
    }

    /// Hands a script to the guest, which begins at once, and returns its number.
    pub fn begin(&mut self, script: &str) -> usize {
        let step = self.steps;
        self.steps += 1;
        // Appears whole or not at all.
        fs::write(self.path("next"), script).unwrap();
        fs::rename(self.path("next"), self.path(&format!("{step}.sh"))).unwrap();
        step
    }

    /// Runs a script, which must succeed, and returns what it printed.
    pub fn run(&mut self, script: &str) -> String {
        let step = self.begin(script);
        let deadline = Instant::now() + PATIENCE;
        let status = self.path(&format!("{step}.status"));
        loop {
            let text = fs::read_to_string(&status).unwrap_or_default();
            if let Some(status) = text.strip_suffix('\n') {
                let output = fs::read(self.path(&format!("{step}.out"))).unwrap();
                let output = String::from_utf8_lossy(&output).into_owned();
                assert_eq!(status, "0", "status of a step in the guest\n{output}");
                return output;
            }
            self.assert_running(deadline);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a file is there that a script makes.
    pub fn wait_for(&mut self, path: &Path) {
        let deadline = Instant::now() + PATIENCE;
        while !path.exists() {
            self.assert_running(deadline);
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn assert_running(&mut self, deadline: Instant) {
        let ended = self.child.try_wait().unwrap();
        if ended.is_none() && Instant::now() < deadline {
            return;
        }
        let last = self.steps.saturating_sub(1);
        let output = fs::read_to_string(self.path(&format!("{last}.out"))).unwrap_or_default();
        let console = fs::read(self.path("console")).unwrap_or_default();
        let tail = String::from_utf8_lossy(&console[console.len().saturating_sub(3000)..]);
        panic!("the guest ended or hangs ({ended:?})\n{output}\nconsole:\n{tail}");
    }

    /// Cuts the power; returns what the last step had printed.
    pub fn cut(mut self) -> String {
        self.kill();
        let last = self.steps.saturating_sub(1);
        let output = fs::read(self.path(&format!("{last}.out"))).unwrap_or_default();
        String::from_utf8_lossy(&output).into_owned()
    }

    fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the processor has AMX, whose registers are more than UML before 6.13 can hold: its first
/// process would die of it.
fn has_wide_registers() -> bool {
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains("amx_tile")
}

/// Makes UML believe that its host has no register sets, so that it keeps the old 512 bytes of
/// registers. AVX is then not preserved, and the guest's programs are told to go without.
fn without_register_sets(command: &mut Command) {
    // The last one is what copying goes by, whatever the rest say.
    let without = "-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load";
    command.arg(format!("GLIBC_TUNABLES=glibc.cpu.hwcaps={without}"));
    command.arg("OPENSSL_ia32cap=~0x1000000000000000:~0x20");
    const GETREGSET: u32 = 0x4204;
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // The call's number is at 0, its first argument at 16.
    let filter = [
        step(load, 0, 0),
        step(equal, 3, libc::SYS_ptrace as u32),
        step(load, 0, 16),
        step(equal, 1, GETREGSET),
        step(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        step(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let len = filter.len() as u16;
        let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
        let filtering = libc::SECCOMP_MODE_FILTER;
        // SAFETY: with these arguments prctl touches no memory.
        let first = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: `program` and the filter it points to live until the call returns.
        let second = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filtering, &raw const program) };
        if first == 0 && second == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing, as is due after a fork.
    unsafe { command.pre_exec(install) };
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
