//! The async face: futures that any runtime can poll, and a thread that drives one queue.
//!
//! Nothing but wakers is needed of the runtime. Operations go to the driver's thread through a
//! channel, and it is woken by an eventfd that it waits on together with its queue's.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::{Array, Buffer, Completion, Error, Operation, Queue};

/// An array for async code. Cheap to clone; the clones share one queue and its thread.
///
/// Every method gives the buffer back with the result. A future that is dropped before its end does
/// not stop its operation, which keeps the buffer until then.
///
/// ```
/// use raid_io::{Array, AsyncArray, Buffer, MemoryOptions};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark(); }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// # fn main() -> Result<(), raid_io::Error> {
/// let array = AsyncArray::new(&Array::in_memory(MemoryOptions::default())?)?;
/// block_on(async {
///     let (result, buffer) = array.write(512, Buffer::copy_of(b"hello"), false).await;
///     result?;
///     let (result, buffer) = array.read(512, buffer).await;
///     result?;
///     assert_eq!(&buffer[..], b"hello");
///     array.flush().await
/// })
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncArray {
    driver: Arc<Driver>,
}

/// The thread's side that callers see.
struct Driver {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

/// Operations on their way to the thread.
struct Orders {
    queue: SegQueue<(Operation, Arc<Slot>)>,
    eventfd: OwnedFd,
    closed: std::sync::atomic::AtomicBool,
}

/// Where one operation's end is left.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Option<(Result<(), Error>, Option<Buffer>)>,
    waker: Option<Waker>,
}

impl AsyncArray {
    /// Starts a thread with a queue of `array`.
    ///
    /// # Errors
    /// Returns an error if the queue or the thread cannot be had.
    pub fn new(array: &Array) -> Result<Self, Error> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("make an eventfd"))?;
        let orders = Arc::new(Orders { queue: SegQueue::new(), eventfd, closed: false.into() });
        let queue = array.queue()?;
        let theirs = Arc::clone(&orders);
        let thread = thread::Builder::new()
            .name("uraid-async".into())
            .spawn(move || drive(queue, &theirs))
            .map_err(|source| Error::System { action: "start a thread", source })?;
        Ok(Self { driver: Arc::new(Driver { orders, thread: Some(thread) }) })
    }

    /// Fills the buffer from `offset`.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), Error>, Buffer) {
        with_buffer(self.run(Operation::Read { offset, buffer }).await)
    }

    /// Writes the buffer at `offset`; with `fua` the data is durable at the end.
    pub async fn write(
        &self,
        offset: u64,
        buffer: Buffer,
        fua: bool,
    ) -> (Result<(), Error>, Buffer) {
        with_buffer(self.run(Operation::Write { offset, buffer, fua }).await)
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// Returns an error if a member cannot be flushed.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run(Operation::Flush).await.0
    }

    /// Gives room back.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run(Operation::Discard { offset, len }).await.0
    }

    /// Makes a range read as zeroes; `unmap` lets it give room back.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be written.
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.run(Operation::WriteZeroes { offset, len, unmap, fua: false }).await.0
    }

    /// Carries out any operation.
    ///
    /// # Errors
    /// The future's first value is how it went; the second is the operation's buffer.
    fn run(&self, operation: Operation) -> Outcome {
        let slot = Arc::new(Slot::default());
        self.driver.orders.queue.push((operation, Arc::clone(&slot)));
        self.driver.orders.signal();
        Outcome { slot }
    }
}

/// Takes the buffer out of an end that always has one.
fn with_buffer(
    (result, buffer): (Result<(), Error>, Option<Buffer>),
) -> (Result<(), Error>, Buffer) {
    (result, buffer.unwrap_or_else(|| Buffer::zeroed(0)))
}

/// The end of an operation, to come.
struct Outcome {
    slot: Arc<Slot>,
}

impl Future for Outcome {
    type Output = (Result<(), Error>, Option<Buffer>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let Some(ended) = state.ended.take() {
            return Poll::Ready(ended);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => state.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: Result<(), Error>, buffer: Option<Buffer>) {
        let mut state = self.lock();
        state.ended = Some((result, buffer));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Orders {
    fn signal(&self) {
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.orders.closed.store(true, std::sync::atomic::Ordering::Release);
        self.orders.signal();
        if let Some(thread) = self.thread.take() {
            // The last clone may be dropped by a future's waker, on the driver's own thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// The life of the thread.
fn drive(mut queue: Queue, orders: &Orders) {
    let mut slots: Vec<Option<Arc<Slot>>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut held: Option<(Operation, Arc<Slot>)> = None;
    loop {
        while let Some((operation, slot)) = held.take().or_else(|| orders.queue.pop()) {
            let index = free.pop().unwrap_or_else(|| {
                slots.push(None);
                slots.len() - 1
            });
            match queue.submit(operation, index as u64) {
                Ok(()) => slots[index] = Some(slot),
                Err(refused) => {
                    free.push(index);
                    if matches!(refused.error, Error::QueueFull(_)) {
                        held = Some((refused.operation, slot));
                        break;
                    }
                    let buffer = match refused.operation {
                        Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => {
                            Some(buffer)
                        }
                        _ => None,
                    };
                    slot.end(Err(refused.error), buffer);
                }
            }
        }
        let mut news = false;
        while let Some(Completion { user_data, result, buffer }) = queue.poll() {
            news = true;
            let index = user_data as usize;
            if let Some(slot) = slots[index].take() {
                free.push(index);
                slot.end(result, buffer);
            }
        }
        if news {
            continue;
        }
        let closed = orders.closed.load(std::sync::atomic::Ordering::Acquire);
        if closed && queue.in_flight() == 0 && orders.queue.is_empty() {
            return;
        }
        let ready = queue.eventfd();
        let mut fds =
            [PollFd::new(&ready, PollFlags::IN), PollFd::new(&orders.eventfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!("cannot wait for a queue: {errno}");
                return;
            }
        }
        let _ = rustix::io::read(&orders.eventfd, &mut [0; 8]);
    }
}
