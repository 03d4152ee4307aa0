//! Points about requests and replies.

use super::support::*;
use super::{alone, world};

pub(super) fn c13_df_needs_structured_replies<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect().begin(false, false);
    assert_eq!(client.flags & 1 << 7, 0);
    client.request(READ, 4, 1, 0, 512);
    assert_eq!(client.simple(1), EINVAL);
    client.check_alive();
    let mut client = world.connect().begin(true, false);
    assert_ne!(client.flags & 1 << 7, 0);
    for len in [1, 65_536, 1 << 20] {
        client.request(READ, 4, 1, 7, len);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags), (1, 1));
        assert_eq!(chunk.body.len() as u32, len + 8);
    }
}

pub(super) fn c14_read_is_chunked_even_in_failure<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(true, false);
    client.request(READ, 0, 1, client.size, 1);
    assert_eq!(client.chunk_error(1), EINVAL);
    client.request(READ, 8, 2, 0, 1);
    assert_eq!(client.chunk_error(2), EINVAL);
    client.request(READ, 0, 3, 0, 0);
    let chunk = client.chunk();
    assert_eq!((chunk.kind, chunk.flags, chunk.cookie), (0, 1, cookie(3)));
    client.request(READ, 0, 4, 0, 33 << 20);
    assert_eq!(client.chunk_error(4), EINVAL);
    // The message is a text, and as long as it says.
    client.request(READ, 0, 5, u64::MAX, 1);
    let chunk = client.chunk();
    let len = u16::from_be_bytes([chunk.body[4], chunk.body[5]]);
    assert_eq!(chunk.body.len(), 6 + usize::from(len));
    assert!(std::str::from_utf8(&chunk.body[6..]).unwrap().contains("18446744073709551615"));
}

pub(super) fn c15_chunks_stay_in_their_range<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(true, false);
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    client.write(0, 1, 12_345, &data);
    assert_eq!(client.simple(1), 0);
    for (offset, len) in [(12_345_u64, 300_000_u32), (12_345, 1), (99_999, 70_001)] {
        client.request(READ, 0, 2, offset, len);
        let mut at = offset;
        loop {
            let chunk = client.chunk();
            assert_eq!(chunk.kind, 1);
            assert!(chunk.body.len() >= 9);
            assert_eq!(chunk.body[..8], at.to_be_bytes());
            let start = (at - 12_345) as usize;
            assert_eq!(chunk.body[8..], data[start..start + chunk.body.len() - 8]);
            at += chunk.body.len() as u64 - 8;
            assert!(at <= offset + u64::from(len));
            if chunk.flags == 1 {
                break;
            }
        }
        assert_eq!(at, offset + u64::from(len));
    }
}

pub(super) fn c16_ranges_are_checked_and_refused_payload_is_consumed<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    let size = client.size;
    for (command, error) in [(READ, EINVAL), (TRIM, EINVAL), (CACHE, EINVAL), (ZEROES, ENOSPC)] {
        for (offset, len) in [(size, 1), (size - 1, 2), (0, 0xffff_ffff), (size + 1, 1)] {
            client.request(command, 0, 1, offset, len);
            assert_eq!(client.simple(1), error, "command {command} at {offset}+{len}");
        }
        client.request(command, 0, 1, size - 1, 1);
        assert_eq!(client.simple(1), 0);
        if command == READ {
            client.wire.receive(1);
        }
    }
    for offset in [size, size - 99_999, u64::MAX - 5] {
        client.write(0, 1, offset, &[9; 100_000]);
        assert_eq!(client.simple(1), ENOSPC);
    }
    client.check_alive();
}

pub(super) fn c16_a_read_only_export_refuses_writes<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config { read_only: true }).begin(false, false);
    assert_ne!(client.flags & 2, 0);
    client.write(0, 1, 0, &[9; 10_000]);
    assert_eq!(client.simple(1), EPERM);
    client.request(ZEROES, 0, 2, 0, 10);
    assert_eq!(client.simple(2), EPERM);
    client.request(FLUSH, 0, 3, 0, 0);
    assert_eq!(client.simple(3), 0);
    assert_eq!(client.read(0, 10_000), [0; 10_000]);
}

pub(super) fn c17_unknown_commands_and_flags_are_invalid<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    for command in [8, 9, 100, 65_535] {
        client.request(command, 0, 1, 0, 4096);
        assert_eq!(client.simple(1), EINVAL, "command {command}");
    }
    // Flags: FUA 1, NO_HOLE 2, DF 4, REQ_ONE 8, FAST_ZERO 16, PAYLOAD_LEN 32.
    let cases = [(READ, 2), (READ, 8), (READ, 16), (TRIM, 2), (FLUSH, 2), (CACHE, 4), (ZEROES, 8)];
    for (command, flags) in cases.into_iter().chain((0..8).map(|command| (command, 1 << 15))) {
        if command != WRITE && command != DISC {
            client.request(command, flags, 2, 0, 4096);
            assert_eq!(client.simple(2), EINVAL, "command {command} with flags {flags}");
        }
    }
    for flags in [2, 4, 8, 16, 32, 0x8000] {
        client.write(flags, 3, 0, &[1; 5000]);
        assert_eq!(client.simple(3), EINVAL, "WRITE with flags {flags}");
    }
    client.check_alive();
    // Without its magic number a request is not one.
    client.wire.send(&[0; 28]);
    client.wire.expect_closed();
}

pub(super) fn c18_fua_goes_with_every_command<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(true, true);
    assert_ne!(client.flags & 1 << 3, 0);
    client.request(READ, 1, 1, 0, 512);
    assert_eq!(client.chunk().body.len(), 520);
    client.write(1, 2, 0, b"stable");
    assert_eq!(client.simple(2), 0);
    for command in [FLUSH, TRIM, CACHE, ZEROES] {
        let offset = if command == FLUSH { 0 } else { 65_536 };
        client.request(command, 1, 3, offset, 0);
        assert_eq!(client.simple(3), 0, "command {command}");
        if command != FLUSH {
            client.request(command, 1, 3, offset, 4096);
            assert_eq!(client.simple(3), 0, "command {command}");
        }
    }
    assert!(!client.status(1, 0, 4096).is_empty());
}

pub(super) fn c19_requests_for_nothing_do_not_disconnect<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    for command in [READ, TRIM, CACHE, ZEROES] {
        for offset in [0, 5, client.size] {
            client.request(command, 0, 1, offset, 0);
            assert_eq!(client.simple(1), 0, "command {command}");
        }
    }
    client.write(0, 2, 0, b"");
    assert_eq!(client.simple(2), 0);
    client.check_alive();
}

pub(super) fn c20_offsets_do_not_overflow<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    for offset in [u64::MAX, u64::MAX - 4095, 1 << 63, (1 << 63) - 1] {
        for (command, error) in [(READ, EINVAL), (TRIM, EINVAL), (CACHE, EINVAL), (ZEROES, ENOSPC)]
        {
            client.request(command, 0, 1, offset, 4096);
            assert_eq!(client.simple(1), error, "command {command} at {offset}");
        }
        client.write(0, 2, offset, &[3; 4096]);
        assert_eq!(client.simple(2), ENOSPC);
    }
    client.check_alive();
}

pub(super) fn c21_flush_ignores_offset_and_length<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    for (offset, len) in [(0, 0), (512, 512), (u64::MAX, u32::MAX)] {
        client.request(FLUSH, 0, 1, offset, len);
        assert_eq!(client.simple(1), 0);
    }
}

pub(super) fn c22_disc_has_no_reply<W: World + Send + 'static>() {
    let world = world::<W>();
    for flags in [0, 1, 0x8000] {
        let mut client = world.connect().begin(false, false);
        // In one piece: the replies of what came before DISC are sent, nothing after it is looked
        // at.
        let mut bytes = request(READ, 0, 1, 0, 100);
        bytes.extend(request(FLUSH, 0, 2, 0, 0));
        bytes.extend(request(DISC, flags, 3, 0, 0));
        bytes.extend(request(FLUSH, 0, 4, 0, 0));
        client.wire.send(&bytes);
        let replies = client.wire.receive(16 + 100 + 16);
        assert_eq!(replies.iter().filter(|byte| **byte == 0xc0).count(), 2);
        client.wire.expect_closed();
    }
}

pub(super) fn c23_a_long_write_is_refused_or_disconnected<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect().begin(false, false);
    let payload = vec![1; (32 << 20) + 1];
    client.write(0, 1, 0, &payload);
    assert_eq!(client.simple(1), EINVAL);
    client.check_alive();
    client.request(READ, 0, 2, 0, (32 << 20) + 1);
    assert_eq!(client.simple(2), EINVAL);
    for len in [(64 << 20) + 1, u32::MAX] {
        let mut client = world.connect().begin(false, false);
        client.request(WRITE, 0, 1, 0, len);
        client.wire.expect_closed();
    }
}

pub(super) fn c25_fast_zero_fails_and_leaves_data<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    client.write(0, 1, 1000, b"precious");
    assert_eq!(client.simple(1), 0);
    for flags in [16, 16 + 2, 16 + 1] {
        client.request(ZEROES, flags, 2, 1000, 8);
        assert_eq!(client.simple(2), ENOTSUP);
    }
    assert_eq!(client.read(1000, 8), b"precious");
    client.request(ZEROES, 2, 3, 1001, 2);
    assert_eq!(client.simple(3), 0);
    assert_eq!(client.read(1000, 8), b"p\0\0cious");
}

pub(super) fn c26_block_status_covers_the_range<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(true, true);
    client.write(0, 1, 100_000, &[1; 10]);
    assert_eq!(client.simple(1), 0);
    let size = client.size;
    for (offset, len) in [(0, size as u32), (99_999, 3), (5, 1), (size - 1, 1)] {
        let extents = client.status(0, offset, len);
        let total: u64 = extents.iter().map(|(len, _)| u64::from(*len)).sum();
        let last = u64::from(extents.last().unwrap().0);
        assert!(extents.iter().all(|(len, state)| *len > 0 && *state <= 3));
        assert!(extents.windows(2).all(|pair| pair[0].1 != pair[1].1), "neighbours are joined");
        assert!(total - last < u64::from(len) && total <= size - offset);
        let one = client.status(8, offset, len);
        assert_eq!(one.len(), 1);
        assert!(one[0].0 >= 1 && one[0].0 <= len);
    }
    // What was written is data.
    assert_eq!(client.status(8, 100_000, 10), [(10, 0)]);
    for (offset, len) in [(size, 1), (0, u32::MAX), (u64::MAX, 2), (0, 0)] {
        client.request(STATUS, 0, 2, offset, len);
        assert_eq!(client.chunk_error(2), EINVAL);
    }
}

pub(super) fn c27_block_status_needs_a_context<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect().begin(false, false);
    client.request(STATUS, 0, 1, 0, 4096);
    assert_eq!(client.simple(1), EINVAL);
    client.check_alive();
    let mut client = world.connect().begin(true, false);
    client.request(STATUS, 8, 1, 0, 4096);
    assert_eq!(client.chunk_error(1), EINVAL);
}

pub(super) fn c28_cookies_come_back<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    let mut bytes = Vec::new();
    for tag in 0..100 {
        bytes.extend(request(FLUSH, 0, tag, 0, 0));
    }
    client.wire.send(&bytes);
    let mut cookies: Vec<u64> = Vec::new();
    for _ in 0..100 {
        let reply = client.wire.receive(16);
        assert_eq!(reply[4..8], [0; 4]);
        cookies.push(u64::from_be_bytes(reply[8..].try_into().unwrap()));
    }
    cookies.sort_unstable();
    let mut expected: Vec<u64> = (0..100).map(cookie).collect();
    expected.sort_unstable();
    assert_eq!(cookies, expected);
}

pub(super) fn c30_half_a_write_is_no_write<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect().begin(false, false);
    client.write(0, 1, 8192, &[7; 8192]);
    assert_eq!(client.simple(1), 0);
    for sent in [0, 1, 4096, 8191] {
        let mut torn = world.connect().begin(false, false);
        torn.request(WRITE, 0, 2, 8192, 8192);
        torn.wire.send(&vec![8; sent]);
        if let Some(bytes) = W::peek(&torn.wire, 8192, 8192) {
            assert!(!bytes.contains(&8));
        }
        torn.wire.hang_up();
        assert_eq!(client.read(8192, 8192), [7; 8192], "after {sent} bytes of payload");
    }
}
