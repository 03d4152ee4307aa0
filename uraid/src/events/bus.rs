//! From whoever notices something to everybody who wants to know, without ever waiting for them.
//!
//! Each listener has a queue of [`QUEUE_EVENTS_MAX`]. When it is full, the newest event is not put
//! in but counted, and the listener is told how many it missed where they are missing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Event;

/// Events that wait for one listener. An array that fails member by member, with every twentieth
/// of its rebuilds, makes far fewer in an hour.
pub(crate) const QUEUE_EVENTS_MAX: usize = 256;

/// Where events are put in. Clones are the same bus.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bus {
    listeners: Arc<Mutex<Listeners>>,
}

#[derive(Debug, Default)]
struct Listeners {
    queues: Vec<Arc<Queue>>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Arc<Event>>,
    /// Missed since the last event in the queue.
    dropped: u64,
    is_closed: bool,
    has_left: bool,
}

/// What a listener gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Something happened.
    Event(Arc<Event>),
    /// So many events did not fit into the queue.
    Dropped(u64),
    /// Nothing within the time.
    Quiet,
    /// Nothing more will come.
    Closed,
}

/// One listener's end. Dropping it unsubscribes.
#[derive(Debug)]
pub(crate) struct Subscription(Arc<Queue>);

/// A panic elsewhere leaves nothing half done in here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bus {
    /// Hands an event to every listener; never waits for one.
    pub(crate) fn publish(&self, event: Event) {
        let event = Arc::new(event);
        let mut listeners = lock(&self.listeners);
        listeners.queues.retain(|queue| {
            let mut waiting = lock(&queue.waiting);
            if waiting.has_left {
                return false;
            }
            // Once something is missing, the gap stays one gap until the listener has heard of it.
            if waiting.dropped > 0 || waiting.events.len() >= QUEUE_EVENTS_MAX {
                waiting.dropped += 1;
            } else {
                waiting.events.push_back(Arc::clone(&event));
            }
            queue.arrived.notify_one();
            true
        });
    }

    /// Listens to what is published from now on.
    pub(crate) fn subscribe(&self) -> Subscription {
        let mut listeners = lock(&self.listeners);
        let queue = Arc::new(Queue::default());
        lock(&queue.waiting).is_closed = listeners.is_closed;
        listeners.queues.push(Arc::clone(&queue));
        Subscription(queue)
    }

    /// Ends it: listeners get what waits for them, then [`Next::Closed`].
    pub(crate) fn close(&self) {
        let mut listeners = lock(&self.listeners);
        listeners.is_closed = true;
        for queue in listeners.queues.drain(..) {
            lock(&queue.waiting).is_closed = true;
            queue.arrived.notify_one();
        }
    }
}

impl Subscription {
    /// Waits for the next event for `patience` at most.
    pub(crate) fn next(&self, patience: Duration) -> Next {
        let waiting = lock(&self.0.waiting);
        let is_quiet = |waiting: &mut Waiting| {
            waiting.events.is_empty() && waiting.dropped == 0 && !waiting.is_closed
        };
        let waited = self.0.arrived.wait_timeout_while(waiting, patience, is_quiet);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = waiting.events.pop_front() {
            return Next::Event(event);
        }
        match std::mem::take(&mut waiting.dropped) {
            0 if waiting.is_closed => Next::Closed,
            0 => Next::Quiet,
            count => Next::Dropped(count),
        }
    }

    /// Says whether the bus has been closed, even if events are still waiting.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0.waiting).is_closed
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        waiting.has_left = true;
        waiting.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn event(text: &str) -> Event {
        Event::new(Kind::Fail, "array", None, text.to_owned())
    }

    fn text(next: Next) -> String {
        match next {
            Next::Event(event) => event.text.clone(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn every_listener_gets_what_came_after_it() {
        let bus = Bus::default();
        let first = bus.subscribe();
        bus.publish(event("a"));
        let second = bus.subscribe();
        bus.publish(event("b"));
        bus.close();
        let all = |listener: &Subscription| -> Vec<String> {
            (0..3).map(|_| text(listener.next(Duration::ZERO))).collect()
        };
        assert_eq!(all(&first), ["a", "b", "Closed"]);
        assert_eq!(all(&second), ["b", "Closed", "Closed"]);
        assert_eq!(bus.subscribe().next(Duration::from_secs(60)), Next::Closed);
    }

    #[test]
    fn a_listener_that_does_not_listen_misses_the_newest_and_is_told() {
        let bus = Bus::default();
        let listener = bus.subscribe();
        for number in 0..QUEUE_EVENTS_MAX + 7 {
            bus.publish(event(&number.to_string()));
        }
        for number in 0..QUEUE_EVENTS_MAX {
            assert_eq!(text(listener.next(Duration::ZERO)), number.to_string());
            if number == 0 {
                // There is room again, but this one is behind the gap.
                bus.publish(event("behind"));
            }
        }
        assert_eq!(listener.next(Duration::ZERO), Next::Dropped(8));
        bus.publish(event("later"));
        assert_eq!(text(listener.next(Duration::ZERO)), "later");
        assert_eq!(listener.next(Duration::ZERO), Next::Quiet);
    }

    #[test]
    fn a_listener_that_left_keeps_nothing() {
        let bus = Bus::default();
        drop(bus.subscribe());
        bus.publish(event("a"));
        assert!(lock(&bus.listeners).queues.is_empty());
    }
}
