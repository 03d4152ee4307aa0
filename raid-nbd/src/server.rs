//! The server: listeners, the handshake thread and the workers.
//!
//! ```text
//! listeners -> gate (handshake, no engine) -> worker 0: epoll + queue
//!                                          -> worker 1: epoll + queue  ...
//! ```
//!
//! All of the protocol is in [`crate::connection`]; here are sockets, threads and limits.

mod gate;
mod listener;
mod peer;
mod signal;
mod worker;

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use self::gate::Gate;
pub use self::listener::Listen;
use self::listener::Listener;
use self::signal::{Clock, Signal};
use self::worker::{Assign, Worker};
use crate::backend::Backend;
use crate::connection::Limits;
use crate::export::Export;
use crate::proto::NAME_BYTES_MAX;

/// Most threads that are started unasked: with more the members are the limit.
const THREAD_COUNT_MAX: usize = 8;
/// How long dropping a server waits for requests in flight.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// How an array is served.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; at least one.
    pub listeners: Vec<Listen>,
    /// The export's name, at most 255 bytes. The empty name always works as well.
    pub export_name: String,
    /// A text about the export for people.
    pub description: Option<String>,
    /// Refuse to write even when the array could.
    pub read_only: bool,
    /// Worker threads; `None`: as many as cores, at most 8.
    pub thread_count: Option<usize>,
    /// Clients at a time.
    pub connection_count_max: usize,
    /// Clients in the handshake at a time; one more throws out the oldest.
    pub half_open_count_max: usize,
    /// Payload bytes of all clients together; a request that does not fit waits.
    pub memory_bytes_max: usize,
    /// Permissions of socket files.
    pub unix_mode: u32,
    /// What one client may take.
    pub limits: Limits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            export_name: String::new(),
            description: None,
            read_only: false,
            thread_count: None,
            connection_count_max: 100,
            half_open_count_max: 16,
            memory_bytes_max: 512 << 20,
            unix_mode: 0o600,
            limits: Limits::default(),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Not an address.
    #[error("\"{0}\" is not unix:PATH or tcp:HOST:PORT")]
    Address(String),
    /// Nowhere to listen.
    #[error("no address to listen on")]
    NoListener,
    /// The name is too long.
    #[error("export name of {0} bytes > {NAME_BYTES_MAX}")]
    ExportName(usize),
    /// A server listens on the socket file.
    #[error("{}: a server is listening here already", path.display())]
    SocketInUse {
        /// The socket file.
        path: PathBuf,
    },
    /// Something else than a socket is there.
    #[error("{}: exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused the address.
    #[error("{address}: cannot listen: {source}")]
    Bind {
        /// The address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The array refused a queue.
    #[error("cannot make a queue: {0}")]
    Queue(Box<dyn Error + Send + Sync>),
    /// No thread, or none of its descriptors.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// A running server. Dropping it stops it; [`Server::stop`] does so with patience and a report.
///
/// ```
/// use raid_io::{Array, MemoryOptions};
/// use raid_nbd::server::{Server, ServerOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let array = Array::in_memory(MemoryOptions::default())?;
/// let listeners = vec!["tcp:127.0.0.1:0".parse()?];
/// let server = Server::start(array.clone(), ServerOptions { listeners, ..Default::default() })?;
/// println!("ready {}", server.uris()[0]);
/// server.stop(std::time::Duration::from_secs(5));
/// array.stop()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    uris: Vec<String>,
    clock: Clock,
    connection_count: Arc<AtomicUsize>,
    gate: Option<Running<()>>,
    workers: Vec<Running<usize>>,
}

/// A thread and what stops it.
#[derive(Debug)]
struct Running<T> {
    signal: Arc<Signal>,
    thread: Thread<T>,
}

/// What a thread returns, as soon as it does. A thread that has had io_uring requests at a device
/// which hangs does not get to its end in the kernel before they are answered: it is not waited
/// for any longer than for its result.
#[derive(Debug)]
struct Thread<T>(Mutex<mpsc::Receiver<T>>);

impl<T: Send + 'static> Thread<T> {
    fn start(name: String, body: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let body = move || {
            // Nobody listens when the server could not be started as a whole.
            let _ = sender.send(body());
        };
        thread::Builder::new().name(name).spawn(body)?;
        Ok(Self(Mutex::new(receiver)))
    }

    /// Waits for the result; `None` if the thread has panicked.
    fn result(self) -> Option<T> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Clients that were still busy at the deadline.
    pub cut_off_count: usize,
    /// Threads that had panicked, which is a defect.
    pub panicked_count: usize,
}

impl Server {
    /// Serve `array` until the server is stopped. When this returns, clients can connect.
    ///
    /// # Errors
    /// When an address cannot be listened on, or threads and queues cannot be made. Nothing is left
    /// behind.
    pub fn start<B: Backend>(array: B, options: ServerOptions) -> Result<Self, ServerError> {
        if options.listeners.is_empty() {
            return Err(ServerError::NoListener);
        }
        if options.export_name.len() > NAME_BYTES_MAX {
            return Err(ServerError::ExportName(options.export_name.len()));
        }
        let mut export = Export::new(options.export_name.clone(), 0);
        export.description = options.description.clone();
        export.read_only = options.read_only;
        array.describe(&mut export);
        let bind = |listen| Listener::bind(listen, options.unix_mode);
        let listeners: Vec<_> = options.listeners.iter().map(bind).collect::<Result<_, _>>()?;
        let uris = listeners.iter().map(|listener| listener.uri(&options.export_name)).collect();
        let mut server = Self {
            uris,
            clock: Clock::start(),
            connection_count: Arc::default(),
            gate: None,
            workers: Vec::new(),
        };
        let assigns = server.start_workers(&array, &options)?;
        server.start_gate(listeners, assigns, Arc::new(export), &options)?;
        Ok(server)
    }

    fn start_workers<B: Backend>(
        &mut self,
        array: &B,
        options: &ServerOptions,
    ) -> Result<Vec<Assign<B>>, ServerError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = options.thread_count.unwrap_or(cores.min(THREAD_COUNT_MAX)).max(1);
        let memory_max = options.memory_bytes_max / count;
        let mut assigns = Vec::with_capacity(count);
        for index in 0..count {
            let assign = Assign {
                inbox: Arc::new(Mutex::new(Vec::new())),
                signal: Arc::new(Signal::new()?),
                count: Arc::default(),
            };
            let signal = Arc::clone(&assign.signal);
            let thread = start_worker(index, array.clone(), &assign, self.clock, memory_max)?;
            self.workers.push(Running { signal, thread });
            assigns.push(assign);
        }
        Ok(assigns)
    }

    fn start_gate<B: Backend>(
        &mut self,
        listeners: Vec<Listener>,
        workers: Vec<Assign<B>>,
        export: Arc<Export>,
        options: &ServerOptions,
    ) -> Result<(), ServerError> {
        let signal = Arc::new(Signal::new()?);
        let gate = Gate {
            listeners,
            workers,
            export,
            limits: options.limits,
            connection_count_max: options.connection_count_max,
            half_open_count_max: options.half_open_count_max,
            connection_count: Arc::clone(&self.connection_count),
            signal: Arc::clone(&signal),
            clock: self.clock,
            half_open: VecDeque::new(),
            paused_until: None,
        };
        let thread = Thread::start("nbd-gate".into(), move || gate.run())?;
        self.gate = Some(Running { signal, thread });
        Ok(())
    }

    /// One URI for each listener, in the order of the options.
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Clients that are connected.
    pub fn connection_count(&self) -> usize {
        self.connection_count.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Stop: no new clients, no new requests; those in flight are finished and answered, for at
    /// most `patience`. The array stays open and is not flushed.
    pub fn stop(mut self, patience: Duration) -> Stopped {
        self.halt(patience)
    }

    fn halt(&mut self, patience: Duration) -> Stopped {
        let deadline = self.clock.now().saturating_add(patience);
        let mut stopped = Stopped::default();
        if let Some(gate) = self.gate.take() {
            gate.signal.stop(deadline);
            stopped.panicked_count += usize::from(gate.thread.result().is_none());
        }
        for worker in &self.workers {
            worker.signal.stop(deadline);
        }
        for worker in self.workers.drain(..) {
            match worker.thread.result() {
                Some(cut_off_count) => stopped.cut_off_count += cut_off_count,
                None => stopped.panicked_count += 1,
            }
        }
        stopped
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.halt(DROP_PATIENCE);
    }
}

/// Start one worker; its queue is made on its own thread, as io_uring likes it.
fn start_worker<B: Backend>(
    index: usize,
    array: B,
    assign: &Assign<B>,
    clock: Clock,
    memory_max: usize,
) -> Result<Thread<usize>, ServerError> {
    let (report, reported) = mpsc::channel();
    let assign = Assign {
        inbox: Arc::clone(&assign.inbox),
        signal: Arc::clone(&assign.signal),
        count: Arc::clone(&assign.count),
    };
    let body = move || {
        let queue = match array.queue() {
            Ok(queue) => queue,
            Err(error) => {
                let _ = report.send(Err(ServerError::Queue(error)));
                return 0;
            }
        };
        match Worker::new(array, queue, &assign, clock, memory_max) {
            Ok(worker) => {
                let _ = report.send(Ok(()));
                worker.run()
            }
            Err(errno) => {
                let _ = report.send(Err(ServerError::Thread(errno.into())));
                0
            }
        }
    };
    let thread = Thread::start(format!("nbd-worker-{index}"), body)?;
    match reported.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        // The thread ended without a word: it panicked.
        Err(_) => Err(ServerError::Thread(io::Error::other("the thread panicked"))),
    }
}
