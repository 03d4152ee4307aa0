//! `uraid serve`: opens an array and serves it until told to stop.
//!
//! ```text
//! sockets free? -> control socket -> members -> array -> NBD listeners -> "ready URI"
//! stop, SIGTERM, SIGINT -> drain clients -> flush, mark clean -> answer `stop` -> exit 0
//! ```
//!
//! Sockets come before members, so that a socket in use leaves every member as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use raid_io::{Array, CreateOptions, Level, OpenOptions};
use raid_nbd::Listen;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use super::listen::{self, Listeners};
use super::print;
use crate::cli::Serve;
use crate::control::{ControlSocket, Handler, Reply};
use crate::events::{Bus, EventFile, Hook, Watch};
use crate::failure::Failure;
use crate::service::{self, Engine};
use crate::size;

/// Where the embedded default lives, and every socket that is not given.
const FOLDER: &str = "uraid-data";
/// Members of the embedded default.
const MEMBER_COUNT: usize = 5;
/// Size of each member of the embedded default.
const MEMBER_BYTES: u64 = 256 << 20;
/// Chunk size of the embedded default.
const CHUNK_BYTES: u32 = 64 << 10;
/// How long clients get to finish what they have asked for.
const DRAIN: Duration = Duration::from_secs(30);

/// How long hooks and an event file get to take in the last events.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Why serving ends.
enum Stop {
    /// A signal, by its name.
    Signal(&'static str),
    /// A client of the control socket, who waits for the outcome.
    Asked(Sender<Result<(), String>>),
}

/// Runs the command; returns when the array is stopped.
///
/// # Errors
/// Fails if a socket is in use, the array cannot be opened, or it could not be stopped cleanly.
pub(crate) fn run(options: &Serve) -> Result<ExitCode, Failure> {
    let addresses = addresses(options)?;
    let control_path = options.control.clone().unwrap_or_else(|| default_path("control.sock"));
    if options.members.is_empty() || options.nbd.is_empty() || options.control.is_none() {
        make_folder()?;
    }
    for address in &addresses {
        listen::ensure_free(address)?;
    }
    let control = ControlSocket::bind(&control_path)?;
    let (sender, stops) = channel();
    catch_signals(sender.clone())?;
    let tellers = Tellers::start(options)?;
    let array = open(options)?;
    let served = serve(&array, &addresses, &control, &tellers.bus, sender, options);
    let outcome = match served {
        Ok(listeners) => {
            let watch = Watch::start(Arc::new(array.clone()), tellers.bus.clone())?;
            announce(&listeners, options, &control_path)?;
            let waiting = wait_for_stop(&stops);
            listeners.stop(DRAIN);
            control.close();
            let stopping = watch.finish();
            let outcome = array.stop().map_err(Failure::from);
            stopping.stopped(outcome.is_ok());
            tellers.finish();
            tell(waiting, outcome)
        }
        Err(failure) => {
            array.stop()?;
            Err(failure)
        }
    };
    control.finish();
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Everybody who is told of events, but for clients of the control socket.
struct Tellers {
    bus: Bus,
    hook: Option<Hook>,
    file: Option<EventFile>,
}

impl Tellers {
    fn start(options: &Serve) -> Result<Self, Failure> {
        let bus = Bus::default();
        let hook = options.hook.as_deref().map(|program| Hook::start(program, &bus)).transpose()?;
        let file =
            options.events.as_deref().map(|path| EventFile::start(path, &bus)).transpose()?;
        Ok(Self { bus, hook, file })
    }

    /// Lets the last events arrive; the bus is closed.
    fn finish(self) {
        if let Some(file) = self.file {
            file.finish(LAST_EVENTS);
        }
        if let Some(hook) = self.hook {
            hook.finish(LAST_EVENTS);
        }
    }
}

fn default_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn addresses(options: &Serve) -> Result<Vec<Listen>, Failure> {
    if options.nbd.is_empty() {
        return Ok(vec![Listen::Unix(default_path("nbd.sock"))]);
    }
    options.nbd.iter().map(|text| listen::parse(text)).collect()
}

/// Makes the folder of the defaults, for this user only: the sockets in it give access to the data.
fn make_folder() -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(FOLDER);
    made.map_err(|error| Failure::new(format!("{FOLDER}: cannot make the folder: {error}")))
}

fn open(options: &Serve) -> Result<Array, Failure> {
    let mut open = OpenOptions::default();
    open.read_only = options.read_only;
    open.force = options.force;
    open.speed_min = options.speed_min;
    open.speed_max = options.speed_max;
    let seconds = |name: &str, seconds: f64| {
        let duration = Duration::try_from_secs_f64(seconds);
        duration.map_err(|error| Failure::new(format!("{name}: {error}")))
    };
    open.idle_after = seconds("--safe-mode-delay", options.safe_mode_delay)?;
    open.io_timeout = seconds("--io-timeout", options.io_timeout)?;
    if !options.members.is_empty() {
        return Ok(Array::open(&options.members, &open)?);
    }
    let all: Vec<PathBuf> =
        (0..MEMBER_COUNT).map(|index| default_path(&format!("member{index}.img"))).collect();
    let present: Vec<PathBuf> = all.iter().filter(|path| path.exists()).cloned().collect();
    if present.is_empty() {
        return create_default(&all, open);
    }
    if present.len() < all.len() {
        warn!(
            "{} of {} member files in {FOLDER} are missing",
            all.len() - present.len(),
            all.len()
        );
    }
    info!("opening the array in {FOLDER}");
    Ok(Array::open(&present, &open)?)
}

fn create_default(members: &[PathBuf], open: OpenOptions) -> Result<Array, Failure> {
    let mut create = CreateOptions::new(Level::Raid5);
    create.chunk_bytes = CHUNK_BYTES;
    create.member_bytes = Some(MEMBER_BYTES);
    create.name = FOLDER.to_owned();
    // Files that were just made hold zeroes, and so does their parity.
    create.assume_clean = true;
    create.open = open;
    info!(
        "made {MEMBER_COUNT} member files of {} in {FOLDER}: RAID 5, chunk {}",
        size::short(MEMBER_BYTES),
        size::short(CHUNK_BYTES.into())
    );
    Ok(Array::create(&create, members)?)
}

/// Everything that lets clients in: listeners first, then the control socket's answers.
fn serve(
    array: &Array,
    addresses: &[Listen],
    control: &ControlSocket,
    bus: &Bus,
    stops: Sender<Stop>,
    options: &Serve,
) -> Result<Listeners, Failure> {
    let listeners = Listeners::start(array, addresses, options.read_only)?;
    control.serve(handler(Arc::new(array.clone()), bus.clone(), stops))?;
    Ok(listeners)
}

fn handler(engine: Arc<dyn Engine>, bus: Bus, stops: Sender<Stop>) -> Arc<Handler> {
    Arc::new(move |request| {
        // Only `stop` is left over: it concerns the process, not the array alone.
        service::answer(&engine, &bus, request).unwrap_or_else(|| Reply::Now(ask_to_stop(&stops)))
    })
}

fn ask_to_stop(stops: &Sender<Stop>) -> Result<Value, String> {
    let (sender, outcome) = channel();
    let ended = "the array is being stopped already".to_owned();
    stops.send(Stop::Asked(sender)).map_err(|_| ended.clone())?;
    outcome.recv().map_err(|_| ended)?.map(|()| Value::Null)
}

/// The first SIGTERM or SIGINT stops in good order; a second one ends the process at once.
fn catch_signals(stops: Sender<Stop>) -> Result<(), Failure> {
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&again))?;
        signal_hook::flag::register(signal, Arc::clone(&again))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
            let _ = stops.send(Stop::Signal(name));
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}

fn announce(listeners: &Listeners, options: &Serve, control: &Path) -> Result<(), Failure> {
    let mut text = String::new();
    for uri in listeners.uris() {
        text += &format!("ready {uri}\n");
    }
    print(&text)?;
    if options.members.is_empty() {
        print(&hints(listeners, control))?;
    }
    Ok(())
}

/// What to try first, for somebody who has just built this.
fn hints(listeners: &Listeners, control: &Path) -> String {
    let uris = listeners.uris();
    let uri = uris.first().map_or("", String::as_str);
    let control = match control == default_path("control.sock") {
        true => String::new(),
        false => format!(" --control {}", control.display()),
    };
    // As it was called, so that the lines can be copied.
    let command = std::env::args().next().unwrap_or_else(|| "uraid".to_owned());
    format!(
        "\nIn another terminal, in this folder:\n  \
         nbdinfo '{uri}'\n  \
         nbdcopy some-file '{uri}'\n  \
         {command} status{control}\n  \
         {command} detail{}\n  \
         {command} stop{control}\n  \
         {command} cat --length 1M {FOLDER}/member*.img | hexdump -C | head     (after the stop)\n",
        if control.is_empty() { " --control uraid-data/control.sock" } else { &control }
    )
}

/// Waits for the first reason to stop; `Some` is a client that waits for the outcome.
fn wait_for_stop(stops: &Receiver<Stop>) -> Option<Sender<Result<(), String>>> {
    match stops.recv() {
        Ok(Stop::Signal(name)) => {
            info!("{name}: stopping");
            None
        }
        Ok(Stop::Asked(sender)) => {
            info!("asked to stop: stopping");
            Some(sender)
        }
        Err(_) => None,
    }
}

fn tell(
    waiting: Option<Sender<Result<(), String>>>,
    outcome: Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(waiting) = waiting {
        let answer = outcome.as_ref().map_err(Failure::to_string).copied();
        let _ = waiting.send(answer);
    }
    if outcome.is_ok() {
        info!("stopped cleanly");
    }
    outcome
}
