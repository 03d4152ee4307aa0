//! An array on files, from several clients at once, and again after a stop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::PathBuf;

use raid_io::{Array, CreateOptions, Level, OpenOptions};
use support::*;

/// What client `index` writes in round `round`.
fn pattern(index: usize, round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + index * 7 + round * 13) as u8).collect()
}

/// Four clients write in stripes of their own, byte-granular and with many requests in flight, so
/// that their writes meet in the same chunks; everything is read back by another, before and after
/// a restart.
#[test]
fn clients_of_one_array_meet_in_its_stripes() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 100;
    const PIECE: usize = 5003;
    let directory = tempfile::tempdir().unwrap();
    let members: Vec<PathBuf> =
        (0..4).map(|index| directory.path().join(format!("member{index}"))).collect();
    let mut options = CreateOptions::new(Level::Raid5);
    options.chunk_bytes = 64 << 10;
    options.member_bytes = Some(16 << 20);
    let array = Array::create(&options, &members).unwrap();
    let server = serve(array.clone(), |options| options.thread_count = Some(2));
    let place = |index: usize, round: usize| ((round * CLIENTS + index) * PIECE + 1) as u64;
    std::thread::scope(|scope| {
        for index in 0..CLIENTS {
            let mut client = server.connect().begin(false, false);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let data = pattern(index, round, PIECE);
                    client.write(0, round as u8, place(index, round), &data);
                }
                let mut bytes = vec![0; 16 * ROUNDS];
                bytes.copy_from_slice(&client.wire.receive(16 * ROUNDS));
                assert!(bytes.chunks(16).all(|reply| reply[4..8] == [0; 4]), "a write failed");
                client.request(FLUSH, 0, 0, 0, 0);
                assert_eq!(client.simple(0), 0);
            });
        }
    });
    let check = |server: &Socket| {
        let mut client = server.connect().begin(false, false);
        for round in 0..ROUNDS {
            for index in 0..CLIENTS {
                let data = client.read(place(index, round), PIECE as u32);
                assert!(data == pattern(index, round, PIECE), "client {index}, round {round}");
            }
        }
    };
    check(&server);
    assert_eq!(server.server.stop(PATIENCE).cut_off_count, 0);
    array.stop().unwrap();
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    let server = serve(array.clone(), |_| {});
    check(&server);
    server.server.stop(PATIENCE);
    array.stop().unwrap();
}
