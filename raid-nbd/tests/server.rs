//! The server's own duties, over real sockets: many clients at once, limits, deadlines, stopping,
//! socket files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use raid_io::{Array, MemoryOptions};
use raid_nbd::{Listen, Server, ServerError, ServerOptions};
use support::gated::Gated;
use support::*;

fn memory() -> Array {
    Array::in_memory(MemoryOptions::default()).unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Several connections with several requests each are in flight together, on every worker.
#[test]
fn requests_of_many_connections_are_in_flight_together() {
    let array = Gated::new(1 << 20);
    let server = serve(array.clone(), |options| options.thread_count = Some(3));
    array.hold(true);
    let mut clients: Vec<_> = (0..7).map(|_| server.connect().begin(true, false)).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        for tag in 0..9 {
            client.write(0, tag, (index * 9 + usize::from(tag)) as u64 * 512, &[tag; 512]);
        }
    }
    array.wait_held(63);
    array.open();
    for client in &mut clients {
        for tag in 0..9 {
            assert_eq!(client.simple(tag), 0);
        }
    }
}

/// A client may have 128 requests in flight; the rest waits in its socket, and nothing is lost.
#[test]
fn one_connection_has_a_bounded_number_of_requests() {
    let array = Gated::new(1 << 20);
    let server = serve(array.clone(), |options| options.thread_count = Some(1));
    array.hold(true);
    let mut client = server.connect().begin(false, false);
    let mut bytes = Vec::new();
    for tag in 0..200 {
        bytes.extend(request(READ, 0, tag, u64::from(tag), 100));
    }
    client.wire.send(&bytes);
    array.wait_held(128);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(array.held_count(), 128);
    array.open();
    for tag in 0..200 {
        assert_eq!(client.simple(tag), 0);
        client.wire.receive(100);
    }
}

/// 64 MiB of payload in flight for one client: two reads of 32 MiB, and the third waits. The whole
/// server has a budget as well, and a client that waits for it is served in its turn.
#[test]
fn payload_in_flight_is_bounded() {
    for (memory, clients, together) in [(1 << 30, 1, 2), (64 << 20, 3, 2), (1, 3, 1)] {
        let array = Gated::new(1 << 30);
        let server = serve(array.clone(), |options| {
            options.thread_count = Some(1);
            options.memory_bytes_max = memory;
        });
        array.hold(true);
        let mut clients: Vec<_> =
            (0..clients).map(|_| server.connect().begin(false, false)).collect();
        for client in &mut clients {
            for tag in 0..3 {
                client.request(READ, 0, tag, 0, 32 << 20);
            }
        }
        array.wait_held(together);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(array.held_count(), together);
        array.open();
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                std::thread::spawn(move || {
                    for tag in 0..3 {
                        assert_eq!(client.simple(tag), 0);
                        client.wire.receive(32 << 20);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

/// An engine that takes two operations at a time makes nobody fail.
#[test]
fn a_full_engine_queue_delays_and_loses_nothing() {
    let array = Gated::new(1 << 20);
    array.limit(2);
    let server = serve(array.clone(), |options| options.thread_count = Some(1));
    let mut clients: Vec<_> = (0..4).map(|_| server.connect().begin(false, false)).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        for tag in 0..50 {
            client.write(0, tag, index as u64 * 65_536 + u64::from(tag) * 512, &[tag + 1; 512]);
        }
    }
    for (index, client) in clients.iter_mut().enumerate() {
        for tag in 0..50 {
            assert_eq!(client.simple(tag), 0);
        }
        assert_eq!(client.read(index as u64 * 65_536 + 49 * 512, 512), [50; 512]);
    }
}

#[test]
fn a_slow_handshake_is_cut_off() {
    let server = serve(memory(), |options| {
        options.limits.handshake_timeout = Duration::from_millis(200);
    });
    let start = Instant::now();
    let mut silent = server.connect();
    let mut dawdler = server.connect();
    dawdler.greet(3);
    dawdler.wire.send(b"IHAVEOPT\0\0");
    silent.wire.receive(18);
    silent.wire.expect_closed();
    dawdler.wire.expect_closed();
    assert!(start.elapsed() >= Duration::from_millis(190));
    wait_until("they are forgotten", || server.server.connection_count() == 0);
    // A deadline of the handshake is none of the requests.
    let mut client = server.connect().begin(false, false);
    std::thread::sleep(Duration::from_millis(300));
    client.check_alive();
}

#[test]
fn half_open_connections_give_way_to_new_ones() {
    let server = serve(memory(), |options| options.half_open_count_max = 4);
    let mut served = server.connect().begin(false, false);
    let mut idle: Vec<_> = (0..50).map(|_| server.connect()).collect();
    let mut late = server.connect().begin(false, false);
    late.check_alive();
    served.check_alive();
    for client in &mut idle[..40] {
        client.wire.receive(18);
        client.wire.expect_closed();
    }
    assert!(server.server.connection_count() <= 6);
}

#[test]
fn connections_are_limited() {
    let server = serve(memory(), |options| options.connection_count_max = 3);
    let mut clients: Vec<_> = (0..3).map(|_| server.connect().begin(false, false)).collect();
    server.connect().wire.expect_closed();
    let client = clients.pop().unwrap();
    client.wire.hang_up();
    wait_until("the connection is forgotten", || server.server.connection_count() == 2);
    server.connect().begin(false, false).check_alive();
    for client in &mut clients {
        client.check_alive();
    }
}

/// A client that does not take its replies is cut off; one that is idle is not.
#[test]
fn a_client_that_takes_no_replies_is_cut_off() {
    let server = serve(memory(), |options| {
        options.limits.stall_timeout = Duration::from_millis(300);
    });
    let mut idle = server.connect().begin(false, false);
    let mut deaf = server.connect().begin(false, false);
    for tag in 0..8 {
        deaf.request(READ, 0, tag, 0, 8 << 20);
    }
    let mut torn = server.connect().begin(false, false);
    torn.request(WRITE, 0, 1, 0, 4096);
    torn.wire.expect_closed();
    wait_until("the deaf client is gone", || server.server.connection_count() == 1);
    idle.check_alive();
}

#[test]
fn stop_finishes_requests_in_flight_and_refuses_later_ones() {
    let array = Gated::new(1 << 20);
    let server = serve(array.clone(), |options| options.thread_count = Some(2));
    array.hold(true);
    let mut busy = server.connect().begin(false, false);
    let mut idle = server.connect().begin(false, false);
    let mut handshake = server.connect();
    handshake.greet(3);
    busy.write(0, 1, 512, &[4; 512]);
    array.wait_held(1);
    let path = server.path.clone();
    let Socket { server, .. } = server;
    let stop = std::thread::spawn(move || server.stop(PATIENCE));
    handshake.wire.expect_closed();
    idle.wire.expect_closed();
    assert!(UnixStream::connect(&path).is_err(), "nobody gets in any more");
    busy.write(0, 2, 1024, &[5; 512]);
    assert_eq!(busy.simple(2), ESHUTDOWN);
    busy.request(READ, 0, 3, 0, 512);
    assert_eq!(busy.simple(3), ESHUTDOWN);
    array.open();
    assert_eq!(busy.simple(1), 0);
    busy.wire.expect_closed();
    let stopped = stop.join().unwrap();
    assert_eq!((stopped.cut_off_count, stopped.panicked_count), (0, 0));
    assert_eq!(array.log(), ["write 512+512 fua=false"]);
}

#[test]
fn stop_has_a_deadline() {
    let array = Gated::new(1 << 20);
    let Socket { server, path, directory: _directory } = serve(array.clone(), |_| {});
    array.hold(true);
    let mut client = connect(&path).begin(false, false);
    client.request(READ, 0, 1, 0, 512);
    array.wait_held(1);
    let start = Instant::now();
    assert_eq!(server.stop(Duration::from_millis(200)).cut_off_count, 1);
    assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < PATIENCE);
    client.wire.expect_closed();
}

#[test]
fn a_socket_file_comes_and_goes() {
    let server = serve(memory(), |_| {});
    let path = server.path.clone();
    let metadata = std::fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let uri = format!("nbd+unix:///disk?socket={}", path.display());
    assert_eq!(server.server.uris(), [uri]);
    server.server.stop(Duration::ZERO);
    assert!(!path.exists());
}

fn start_at(path: &std::path::Path) -> Result<Server, ServerError> {
    let listeners = vec![Listen::Unix(path.to_owned())];
    Server::start(memory(), ServerOptions { listeners, ..ServerOptions::default() })
}

#[test]
fn a_live_socket_is_left_alone_and_a_stale_one_replaced() {
    let first = serve(memory(), |_| {});
    let error = start_at(&first.path).unwrap_err();
    assert!(matches!(error, ServerError::SocketInUse { .. }), "{error}");
    first.connect().begin(false, false).check_alive();

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stale");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = start_at(&path).unwrap();
    let mut client = connect(&path);
    client.greet(3);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn what_is_not_a_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link, &directory.path().to_owned()] {
        let error = start_at(path).unwrap_err();
        assert!(matches!(error, ServerError::NotASocket { .. }), "{error}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let error = start_at(&directory.path().join("no/such/directory")).unwrap_err();
    assert!(matches!(error, ServerError::Bind { .. }), "{error}");
    let error = start_at(&directory.path().join("x".repeat(200))).unwrap_err();
    assert!(matches!(error, ServerError::Bind { .. }), "{error}");
}

/// Somebody else's socket at our path outlives us.
#[test]
fn only_the_own_socket_file_is_removed() {
    let server = serve(memory(), |_| {});
    std::fs::remove_file(&server.path).unwrap();
    let other = UnixListener::bind(&server.path).unwrap();
    let Socket { server, path, directory: _directory } = server;
    drop(server);
    assert!(path.exists());
    drop(other);
}

/// A second address that cannot be had leaves nothing of the first.
#[test]
fn a_failed_start_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let listeners = vec![Listen::Unix(path.clone()), Listen::Tcp("256.0.0.1:1".into())];
    let options = ServerOptions { listeners, ..ServerOptions::default() };
    assert!(matches!(Server::start(memory(), options), Err(ServerError::Bind { .. })));
    assert!(!path.exists());
    let options = ServerOptions::default();
    assert!(matches!(Server::start(memory(), options), Err(ServerError::NoListener)));
}

#[test]
fn tcp_is_served() {
    let listeners = vec!["tcp:127.0.0.1:0".parse().unwrap()];
    let options = ServerOptions { listeners, ..ServerOptions::default() };
    let server = Server::start(memory(), options).unwrap();
    let address = server.uris()[0].strip_prefix("nbd://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.write_all(&request(READ, 0, 1, 0, 1 << 20)).unwrap();
    let mut bytes = vec![0; 10 + 16 + (1 << 20)];
    stream.read_exact(&mut bytes).unwrap();
    stream.write_all(&request(DISC, 0, 2, 0, 0)).unwrap();
    assert_eq!(stream.read(&mut greeting).unwrap(), 0);
}

/// More requests than may be in flight, sent at once to a real engine: what is let in after replies
/// have left reaches the engine although nothing else happens. Over TCP, where a client that takes
/// its replies is no event for the server.
#[test]
fn requests_let_in_late_are_started() {
    let mut options = ServerOptions::default();
    options.listeners.push("tcp:127.0.0.1:0".parse().unwrap());
    options.limits.request_count_max = 4;
    options.thread_count = Some(1);
    let server = Server::start(memory(), options).unwrap();
    let address = server.uris()[0].strip_prefix("nbd://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 18 + 10]).unwrap();
    for _ in 0..20 {
        let mut bytes = Vec::new();
        for tag in 0..60 {
            bytes.extend(request(READ, 0, tag, u64::from(tag) * 1000, 1000));
        }
        stream.write_all(&bytes).unwrap();
        for _ in 0..60 {
            let mut reply = [0; 16 + 1000];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        }
    }
}

/// A client that sends something and hangs up while its worker is busy, so that the worker learns
/// of both at once: it is not forgotten half-read.
#[test]
fn the_last_words_and_the_end_may_come_together() {
    let array = Gated::new(1 << 20);
    let server = serve(array.clone(), |options| options.thread_count = Some(1));
    let mut busy = server.connect().begin(true, true);
    let mut torn = server.connect().begin(false, false);
    let mut polite = server.connect().begin(false, false);
    array.block_allocation(true);
    busy.request(STATUS, 0, 1, 0, 4096);
    array.wait_allocation();
    torn.request(WRITE, 0, 1, 0, 4096);
    torn.wire.send(&[1; 100]);
    torn.wire.hang_up();
    polite.write(0, 1, 0, &[2; 512]);
    polite.request(DISC, 0, 2, 0, 0);
    polite.wire.hang_up();
    array.block_allocation(false);
    assert_eq!(busy.chunk().kind, 5);
    wait_until("both are gone", || server.server.connection_count() == 1);
    assert_eq!(array.log(), ["write 0+512 fua=false"]);
}
