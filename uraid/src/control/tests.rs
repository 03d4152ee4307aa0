//! Over real sockets, with a handler that is no array.

use super::*;
use crate::events::{Bus, Event, Kind};

fn socket(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("control.sock")
}

fn serving(path: &Path) -> (ControlSocket, Bus) {
    let socket = ControlSocket::bind(path).unwrap();
    let bus = Bus::default();
    let events = bus.clone();
    let is_idle = Arc::new(AtomicBool::new(false));
    let handler = move |request: Request| match request {
        Request::Status {} => Reply::Now(Ok(Value::from(42))),
        Request::Events {} => Reply::Events(events.subscribe()),
        Request::Check {} => {
            is_idle.store(true, Ordering::Relaxed);
            Reply::Now(Ok(Value::Null))
        }
        Request::Wait {} => {
            let is_idle = Arc::clone(&is_idle);
            let look = move || is_idle.load(Ordering::Relaxed).then_some(Ok(Value::from("idle")));
            Reply::Later(Box::new(look))
        }
        _ => Reply::Now(Err("not here".to_owned())),
    };
    socket.serve(Arc::new(handler)).unwrap();
    (socket, bus)
}

fn said(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_verb_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let _socket = serving(&socket(&folder));
    assert_eq!(ask(&socket(&folder), &Request::Status {}).unwrap(), Value::from(42));
}

#[test]
fn an_unknown_verb_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _socket = serving(&socket(&folder));
    let answer = said(&socket(&folder), b"{\"verb\":\"explode\"}\n");
    assert!(answer.contains(r#"unknown verb \"explode\""#), "{answer}");
}

#[test]
fn hostile_requests_are_answered_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let _socket = serving(&socket(&folder));
    let long = vec![b'x'; REQUEST_BYTES_MAX as usize + 1];
    for bytes in [&b"no json\n"[..], b"{}\n", b"{\"verb\":7}\n", b"no line end", b"", b"\xff\n"] {
        let answer = said(&socket(&folder), bytes);
        assert!(answer.starts_with("{\"ok\":false,\"error\":"), "{answer}");
        assert_eq!(answer.lines().count(), 1);
    }
    // The answer to an endless line may be lost with the bytes nobody read; the server lives
    // on.
    said(&socket(&folder), &long);
    assert_eq!(ask(&socket(&folder), &Request::Status {}).unwrap(), Value::from(42));
}

#[test]
fn the_socket_is_for_its_user_only_and_goes_with_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let (bound, _) = serving(&socket(&folder));
    let mode = fs::symlink_metadata(socket(&folder)).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(bound);
    assert!(!socket(&folder).exists());
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket(&folder);
    let first = UnixListener::bind(&path).unwrap();
    let failure = ControlSocket::bind(&path).unwrap_err();
    assert!(failure.to_string().contains("in use"), "{failure}");
    drop(first);
    ControlSocket::bind(&path).unwrap();
    fs::write(&path, "a file").unwrap();
    let failure = ControlSocket::bind(&path).unwrap_err();
    assert!(failure.to_string().contains("no socket"), "{failure}");
    assert_eq!(fs::read(&path).unwrap(), b"a file");
}

fn event(text: &str) -> Event {
    Event::new(Kind::TestMessage, "a", None, text.to_owned())
}

#[test]
fn a_listener_gets_events_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (socket_there, bus) = serving(&socket(&folder));
    let mut stream = subscribe(&socket(&folder)).unwrap();
    bus.publish(event("one"));
    bus.publish(event("two"));
    assert!(stream.next_line().unwrap().unwrap().contains("\"text\":\"one\""));
    assert!(stream.next_line().unwrap().unwrap().contains("\"text\":\"two\""));
    bus.close();
    assert_eq!(stream.next_line().unwrap(), None);
    socket_there.finish();
}

/// A client that subscribes and never reads: whoever publishes goes on, others are answered, and
/// when it reads at last it gets the oldest events and the number of those it missed.
#[test]
fn a_listener_that_does_not_read_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (_socket, bus) = serving(&socket(&folder));
    let mut slow = subscribe(&socket(&folder)).unwrap();
    let mut good = subscribe(&socket(&folder)).unwrap();
    let long = "x".repeat(10_000);
    let total = 3000_u64;
    for _ in 0..total {
        bus.publish(event(&long));
        // The good one keeps up, so that it misses nothing.
        assert!(good.next_line().unwrap().unwrap().contains("TestMessage"));
    }
    assert_eq!(ask(&socket(&folder), &Request::Status {}).unwrap(), Value::from(42));
    let (mut events, mut dropped) = (0, 0);
    while events + dropped < total {
        let line: Value = serde_json::from_str(&slow.next_line().unwrap().unwrap()).unwrap();
        match line["dropped"].as_u64() {
            Some(count) => dropped += count,
            None => events += 1,
        }
    }
    assert_eq!(events + dropped, total, "every event came, or was counted");
    assert!(dropped > 0, "30 MB cannot have fitted");
}

#[test]
fn stopping_does_not_wait_for_a_listener_that_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (there, bus) = serving(&socket(&folder));
    let _slow = subscribe(&socket(&folder)).unwrap();
    for _ in 0..200 {
        bus.publish(event(&"x".repeat(10_000)));
    }
    bus.close();
    let clients = Arc::clone(&there.clients);
    there.finish();
    assert_eq!(clients.connected.load(Ordering::Acquire), 0);
}

#[test]
fn waiting_ends_with_what_is_waited_for_or_with_the_array() {
    let folder = tempfile::tempdir().unwrap();
    let (there, _bus) = serving(&socket(&folder));
    let path = socket(&folder);
    let wait = || {
        let path = path.clone();
        thread::spawn(move || ask(&path, &Request::Wait {}).map_err(|failure| failure.to_string()))
    };
    let lasting = |count| {
        while there.clients.lasting.load(Ordering::Relaxed) != count {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let waiting = wait();
    lasting(1);
    there.close();
    assert!(waiting.join().unwrap().unwrap_err().contains("the array is being stopped"));
    there.clients.is_closing.store(false, Ordering::Release);
    let waiting = wait();
    lasting(1);
    ask(&path, &Request::Check {}).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), Value::from("idle"));
}

#[test]
fn those_who_wait_leave_room_for_those_who_ask() {
    let folder = tempfile::tempdir().unwrap();
    let (there, _bus) = serving(&socket(&folder));
    let listen = || subscribe(&socket(&folder));
    let listeners: Vec<_> = (0..LASTING_MAX).map(|_| listen().unwrap()).collect();
    let refused = listen().map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("8 clients wait or listen already"), "{refused}");
    assert_eq!(ask(&socket(&folder), &Request::Status {}).unwrap(), Value::from(42));
    drop(listeners);
    // Their leaving is noticed without any event.
    while there.clients.lasting.load(Ordering::Relaxed) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    listen().unwrap();
}
