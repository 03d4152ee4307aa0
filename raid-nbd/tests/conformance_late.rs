//! Points of the conformance list that need an engine which answers late, out of order, with
//! failures, or for an export larger than memory; over a real socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use raid_nbd::connection::Failure;
use raid_nbd::proto::transmission::Errno;
use support::gated::{Gated, eio};
use support::*;

fn gated() -> (Gated, Socket) {
    let array = Gated::new(1 << 20);
    let server = serve(array.clone(), |options| options.thread_count = Some(2));
    (array, server)
}

#[test]
fn c14_failed_reads_say_where() {
    let (array, server) = gated();
    let mut client = server.connect().begin(true, true);
    array.hold(true);
    client.request(READ, 0, 1, 4096, 8192);
    array.wait_held(1);
    array.release(0, Err(eio(Some(5000))));
    let chunk = client.chunk();
    assert_eq!((chunk.kind, chunk.flags, chunk.error()), (0x8002, 1, EIO));
    assert_eq!(chunk.body[chunk.body.len() - 8..], 5000_u64.to_be_bytes());
    client.request(READ, 0, 2, 4096, 8192);
    array.wait_held(1);
    array.release(0, Err(eio(None)));
    assert_eq!(client.chunk_error(2), EIO);
    // An offset that is none of the request's is kept from the client, which would not believe it.
    client.request(READ, 0, 5, 4096, 8192);
    array.wait_held(1);
    array.release(0, Err(eio(Some(4096 + 8192))));
    assert_eq!(client.chunk().kind, 0x8001);
    client.write(0, 3, 0, &[1; 512]);
    array.wait_held(1);
    array.release(0, Err(eio(None)));
    assert_eq!(client.chunk_error(3), EIO);
    // A trim is a hint: that it cannot be followed is no failure. ENOTSUP is for FAST_ZERO alone.
    for (command, error) in [(TRIM, None), (ZEROES, Some(EINVAL))] {
        client.request(command, 0, 4, 0, 512);
        array.wait_held(1);
        array.release(0, Err(Failure::from(Errno::NotSupported)));
        match error {
            None => assert_eq!(client.simple(4), 0),
            Some(error) => assert_eq!(client.chunk_error(4), error),
        }
    }
}

#[test]
fn c18_fua_reaches_the_engine() {
    let (array, server) = gated();
    let mut client = server.connect().begin(false, false);
    client.write(1, 1, 512, &[1; 512]);
    assert_eq!(client.simple(1), 0);
    client.request(ZEROES, 1, 2, 0, 512);
    assert_eq!(client.simple(2), 0);
    client.request(ZEROES, 2, 3, 0, 512);
    assert_eq!(client.simple(3), 0);
    // The engine's discard knows no FUA: a flush follows it.
    client.request(TRIM, 1, 4, 0, 512);
    assert_eq!(client.simple(4), 0);
    let expected = [
        "write 512+512 fua=true",
        "zeroes 0+512 unmap=true fua=true",
        "zeroes 0+512 unmap=false fua=false",
        "discard 0+512",
        "flush",
    ];
    assert_eq!(array.log(), expected);
}

#[test]
fn c22_disc_drains() {
    let (array, server) = gated();
    array.hold(true);
    let mut client = server.connect().begin(false, false);
    client.write(0, 1, 512, &[5; 512]);
    client.request(DISC, 0, 2, 0, 0);
    array.wait_held(1);
    std::thread::sleep(Duration::from_millis(50));
    array.open();
    assert_eq!(client.simple(1), 0);
    client.wire.expect_closed();
    assert_eq!(array.bytes(512, 512), [5; 512]);
}

#[test]
fn c24_trim_and_zeroes_take_any_length() {
    let array = Gated::new(1 << 40);
    let server = serve(array.clone(), |_| {});
    let mut client = server.connect().begin(false, false);
    for (command, flags) in [(TRIM, 0), (ZEROES, 0), (ZEROES, 2), (CACHE, 0)] {
        client.request(command, flags, 1, 1 << 39, u32::MAX);
        assert_eq!(client.simple(1), 0);
    }
    let expected = [
        "discard 549755813888+4294967295",
        "zeroes 549755813888+4294967295 unmap=true fua=false",
        "zeroes 549755813888+4294967295 unmap=false fua=false",
    ];
    assert_eq!(array.log(), expected);
}

#[test]
fn c26_block_status_has_a_bound() {
    let (_, server) = gated();
    let mut client = server.connect().begin(true, true);
    let extents = client.status(0, 0, 1 << 20);
    assert_eq!(extents.len(), 1 << 14);
    assert_eq!(extents[..2], [(1, 0), (1, 3)]);
}

#[test]
fn c28_replies_come_in_the_order_of_the_engine() {
    let (array, server) = gated();
    array.hold(true);
    let mut client = server.connect().begin(false, false);
    for tag in 0..10 {
        client.write(0, tag, u64::from(tag) * 512, &[tag; 512]);
    }
    array.wait_held(10);
    for tag in [7, 0, 9, 3] {
        let log: Vec<u8> = (0..10).collect();
        let gone = [7, 0, 9, 3].iter().position(|other| *other == tag).unwrap();
        let index = log
            .iter()
            .filter(|other| ![7, 0, 9, 3][..gone].contains(*other))
            .position(|other| *other == tag)
            .unwrap();
        array.release(index, Ok(()));
        assert_eq!(client.simple(tag), 0);
    }
    array.open();
}

/// FLUSH covers writes that were answered on any connection: it is the engine's promise, and the
/// server keeps it by submitting a flush only when it arrives, after those answers.
#[test]
fn c29_flush_comes_after_writes_of_other_connections() {
    let (array, server) = gated();
    let mut writer = server.connect().begin(false, false);
    let mut flusher = server.connect().begin(false, false);
    assert_ne!(flusher.flags & 1 << 8, 0, "CAN_MULTI_CONN");
    for tag in 0..50 {
        writer.write(0, tag, 0, &[tag; 512]);
        assert_eq!(writer.simple(tag), 0);
        flusher.request(FLUSH, 0, tag, 0, 0);
        assert_eq!(flusher.simple(tag), 0);
        assert_eq!(flusher.read(0, 512), [tag; 512]);
    }
    let log = array.log();
    let order: Vec<_> = log.iter().filter(|entry| !entry.starts_with("read")).collect();
    assert_eq!(order.len(), 100);
    assert!(order.chunks(2).all(|pair| pair[0].starts_with("write") && pair[1] == "flush"));
}

#[test]
fn c30_half_a_write_never_reaches_the_engine() {
    let (array, server) = gated();
    let mut client = server.connect().begin(false, false);
    client.request(WRITE, 0, 1, 0, 100_000);
    client.wire.send(&vec![8; 99_999]);
    client.wire.hang_up();
    let mut client = server.connect().begin(false, false);
    client.request(FLUSH, 0, 1, 0, 0);
    assert_eq!(client.simple(1), 0);
    while server.server.connection_count() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(array.log(), ["flush"]);
}
