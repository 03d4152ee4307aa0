//! Clients that mean harm or do not know better. After each of them an honest one is served as
//! ever.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use raid_io::{Array, MemoryOptions};
use support::*;

struct Victim(Socket);

impl Victim {
    fn new() -> Self {
        Self(serve(Array::in_memory(MemoryOptions::default()).unwrap(), |_| {}))
    }

    fn connect(&self) -> Client<UnixStream> {
        self.0.connect()
    }
}

impl Drop for Victim {
    /// Whatever happened: an honest client is served, and nothing of the others is left.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut client = self.connect().begin(false, false);
        client.check_alive();
        let start = Instant::now();
        while self.0.server.connection_count() > 1 {
            assert!(start.elapsed() < PATIENCE, "a hostile connection is left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// xorshift64*, seeded: garbage that is the same on every run.
fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn garbage_instead_of_a_handshake() {
    let victim = Victim::new();
    for seed in 1..50 {
        let mut client = victim.connect();
        client.wire.receive(18);
        client.wire.send(&garbage(seed, 1 + seed as usize * 37));
        client.wire.hang_up();
    }
}

#[test]
fn garbage_instead_of_requests() {
    let victim = Victim::new();
    for seed in 1..50 {
        let mut client = victim.connect().begin(true, true);
        client.wire.send(&garbage(seed, 28 + seed as usize * 37));
        client.wire.expect_closed();
    }
}

/// Every field of an option as large as it goes, in every option.
#[test]
fn huge_lengths_in_options() {
    let victim = Victim::new();
    for code in 0..13_u32 {
        for len in [65_537_u32, 1 << 20, 1 << 31, u32::MAX] {
            let mut client = victim.connect();
            client.greet(3);
            client.wire.send(b"IHAVEOPT");
            client.wire.send(&code.to_be_bytes());
            client.wire.send(&len.to_be_bytes());
            client.wire.send(&[0xff; 2000]);
            client.wire.hang_up();
        }
    }
}

/// The names that smashed other servers: 256, 257, 1024, 4096 and 4097 bytes, in all options that
/// have one, with a length that says so and with one that lies.
#[test]
fn name_smashing() {
    let victim = Victim::new();
    for len in [255, 256, 257, 1023, 1025, 4095, 4096, 4097, 40_000] {
        let name = "n".repeat(len);
        let mut client = victim.connect();
        client.greet(3);
        assert_eq!(client.ask(8, b""), ACK);
        for code in [6, 7] {
            let expected = if len > 4096 { INVALID } else { UNKNOWN };
            assert_eq!(client.ask(code, &info_data(&name, &[3])), expected, "{len}");
        }
        for code in [9, 10] {
            let expected = if len > 4096 { INVALID } else { UNKNOWN };
            assert_eq!(client.ask(code, &meta_data(&name, &["base:"])), expected, "{len}");
            let long_query = meta_data("disk", &[&name]);
            client.option(code, &long_query);
            let last = client.replies(code).pop().unwrap();
            assert_eq!(last.kind, if len > 4096 { INVALID } else { ACK }, "{len}");
        }
        let mut lie = info_data(&name, &[3]);
        lie[..4].copy_from_slice(&(len as u32 + 3).to_be_bytes());
        assert_eq!(client.ask(7, &lie), INVALID);
        client.option(1, name.as_bytes());
        client.wire.expect_closed();
    }
}

/// All orders of five messages of the handshake: no panic, and nothing reaches a client that is not
/// through.
#[test]
fn messages_in_any_order() {
    let victim = Victim::new();
    let messages: [Vec<u8>; 5] = [
        request(READ, 0, 1, 0, 16),
        [b"IHAVEOPT\0\0\0\x08\0\0\0\0".to_vec()].concat(),
        [&b"IHAVEOPT\0\0\0\x07\0\0\0\x0a"[..], &info_data("disk", &[])].concat(),
        [&b"IHAVEOPT\0\0\0\x0a\0\0\0\x1f"[..], &meta_data("disk", &["base:allocation"])].concat(),
        b"IHAVEOPT\0\0\0\x02\0\0\0\0".to_vec(),
    ];
    for order in 0..5_usize.pow(5) {
        let mut bytes = vec![0, 0, 0, 3];
        for place in 0..5_u32 {
            bytes.extend_from_slice(&messages[order / 5_usize.pow(place) % 5]);
        }
        let mut client = victim.connect();
        client.wire.send(&bytes);
        client.wire.hang_up();
    }
}

/// Clients that come and go as fast as they can, from several threads, while an honest one works.
#[test]
fn floods() {
    let victim = Victim::new();
    let mut honest = victim.connect().begin(false, false);
    let path = victim.0.path.clone();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                for round in 0..300 {
                    // Refused by a full backlog is refused well.
                    if let Ok(stream) = UnixStream::connect(&path)
                        && round % 3 == 0
                    {
                        kept.push(stream);
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        honest.check_alive();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    honest.check_alive();
    honest.wire.hang_up();
}

/// Announces the largest writes on many connections and sends none of their payload: no memory goes
/// to them beyond the server's budget, and an honest client still gets its turn when they are gone.
#[test]
fn announced_payloads_that_never_come() {
    let victim = Victim::new();
    let mut clients: Vec<_> = (0..60).map(|_| victim.connect().begin(false, false)).collect();
    for client in &mut clients {
        client.request(WRITE, 0, 1, 0, 4 << 20);
        client.wire.send(&[1; 100]);
    }
    victim.connect().begin(false, false).check_alive();
}

/// Reads as much as possible, takes nothing, and disappears.
#[test]
fn replies_that_nobody_takes() {
    let victim = Victim::new();
    for _ in 0..5 {
        let mut client = victim.connect().begin(true, true);
        for tag in 0..100 {
            client.request(READ, 0, tag, 0, 4 << 20);
            client.request(STATUS, 0, tag, 0, 4 << 20);
        }
        client.wire.hang_up();
    }
}
