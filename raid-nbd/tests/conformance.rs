//! The conformance list of the NBD protocol, one test for each point, numbered as the list is.
//!
//! Each test runs twice: `pure` against the connection's state machine alone, `socket` against a running server
//! with an array in memory. Tests that need an engine that answers late are in `conformance_late.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;

/// Declares each point as a test in both worlds.
macro_rules! conformance {
    ($($name:ident)*) => {
        mod pure {
            $(#[test] fn $name() { super::$name::<super::Pure>() })*
        }
        mod socket {
            $(#[test] fn $name() { super::$name::<super::Socket>() })*
        }
    };
}

conformance! {
    c01_unknown_client_flag_closes
    c02_unknown_option_is_unsupported_and_the_next_parses
    c03_data_where_there_is_none_is_invalid
    c04_abort_is_acknowledged
    c05_go_always_describes_the_export
    c06_repeated_and_unknown_info_requests_are_ignored
    c07_unknown_export_is_an_error_and_life_goes_on
    c08_export_name_of_an_unknown_export_closes
    c09_zeroes_follow_export_name_alone
    c10_meta_contexts_need_structured_replies
    c10_meta_contexts_are_listed_and_set_by_different_rules
    c10_a_later_choice_of_contexts_replaces_an_earlier_one
    c11_a_name_longer_than_its_option_is_invalid
    c12_a_long_option_is_too_big
    c13_df_needs_structured_replies
    c14_read_is_chunked_even_in_failure
    c15_chunks_stay_in_their_range
    c16_ranges_are_checked_and_refused_payload_is_consumed
    c16_a_read_only_export_refuses_writes
    c17_unknown_commands_and_flags_are_invalid
    c18_fua_goes_with_every_command
    c19_requests_for_nothing_do_not_disconnect
    c20_offsets_do_not_overflow
    c21_flush_ignores_offset_and_length
    c22_disc_has_no_reply
    c23_a_long_write_is_refused_or_disconnected
    c25_fast_zero_fails_and_leaves_data
    c26_block_status_covers_the_range
    c27_block_status_needs_a_context
    c28_cookies_come_back
    c30_half_a_write_is_no_write
    c31_extended_headers_are_refused_and_life_goes_on
    c32_starttls_is_refused_and_life_goes_on
}

fn world<W: World>() -> W {
    W::new(Config::default())
}

/// The only client of its server, which lives as long as it.
fn alone<W: World + Send + 'static>(config: Config) -> Client<W::Wire> {
    let world = W::new(config);
    let mut client = world.connect();
    client.server = Some(Box::new(world));
    client
}

fn c01_unknown_client_flag_closes<W: World + Send + 'static>() {
    let world = world::<W>();
    for flags in [4, 1 << 31, 7] {
        let mut client = world.connect();
        client.greet(flags);
        client.wire.expect_closed();
    }
}

fn c02_unknown_option_is_unsupported_and_the_next_parses<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    for code in [4, 12, 99, 0, u32::MAX] {
        assert_eq!(client.ask(code, b"some data"), UNSUP, "option {code}");
    }
    client.describe(7, "", &[]);
    client.check_alive();
}

fn c03_data_where_there_is_none_is_invalid<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    assert_eq!(client.ask(3, b"x"), INVALID);
    assert_eq!(client.ask(8, b"x"), INVALID);
    client.option(3, b"");
    let replies = client.replies(3);
    assert_eq!(replies.len(), 2);
    assert_eq!((replies[0].kind, &replies[0].data[..]), (2, &b"\0\0\0\x04diska disk"[..]));
    // The refused STRUCTURED_REPLY has not taken effect.
    client.describe(7, "disk", &[]);
    client.check_alive();
}

fn c04_abort_is_acknowledged<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect();
    client.greet(3);
    assert_eq!(client.ask(2, b""), ACK);
    client.wire.expect_closed();
    // A client that does not wait for the answer harms nobody.
    let mut client = world.connect();
    client.greet(3);
    client.option(2, b"");
    client.wire.hang_up();
    world.connect().begin(false, false).check_alive();
}

fn c05_go_always_describes_the_export<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    // `describe` insists on one INFO_EXPORT.
    let info = client.describe(6, "disk", &[1, 2, 3]);
    let find = |kind| {
        let mut found = info.infos.iter().filter(|(other, _)| *other == kind);
        let (_, data) = found.next().unwrap();
        assert!(found.next().is_none());
        &data[..]
    };
    assert_eq!(find(1), b"disk");
    assert_eq!(find(2), b"a disk");
    let sizes = find(3);
    assert_eq!(sizes[..4], 1_u32.to_be_bytes());
    let preferred = u32::from_be_bytes(sizes[4..8].try_into().unwrap());
    assert!(preferred.is_power_of_two() && preferred >= 512);
    assert_eq!(sizes[8..], (32_u32 << 20).to_be_bytes());
    assert!(info.size > 1 << 20);
    // HAS_FLAGS, FLUSH, FUA, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO; no DF before structured replies.
    assert_eq!(info.flags & !(1 << 5), 0b1101_0100_1101);
    let go = client.describe(7, "disk", &[]);
    assert_eq!((go.size, go.flags), (info.size, info.flags));
    client.check_alive();
}

fn c06_repeated_and_unknown_info_requests_are_ignored<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    let info = client.describe(6, "disk", &[3, 3, 3, 77, 0, 0, 65535]);
    let kinds: Vec<u16> = info.infos.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0, 3]);
    client.describe(7, "disk", &[77]);
    client.check_alive();
}

fn c07_unknown_export_is_an_error_and_life_goes_on<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    let long = "x".repeat(4096);
    for name in ["dis", "disk ", "DISK", &long[..255], &long[..256], &long] {
        assert_eq!(client.ask(6, &info_data(name, &[])), UNKNOWN, "{name}");
        assert_eq!(client.ask(7, &info_data(name, &[3])), UNKNOWN, "{name}");
    }
    client.describe(7, "disk", &[]);
    client.check_alive();
}

fn c08_export_name_of_an_unknown_export_closes<W: World + Send + 'static>() {
    let world = world::<W>();
    for name in ["other".to_owned(), "d".repeat(5000), "d".repeat(100_000)] {
        let mut client = world.connect();
        client.greet(3);
        client.option(1, name.as_bytes());
        client.wire.expect_closed();
    }
}

fn c09_zeroes_follow_export_name_alone<W: World + Send + 'static>() {
    let world = world::<W>();
    for client_flags in 0..4 {
        let mut client = world.connect();
        client.greet(client_flags);
        client.option(1, b"disk");
        let description = client.wire.receive(10);
        client.flags = u16::from_be_bytes([description[8], description[9]]);
        if client_flags & 2 == 0 {
            assert_eq!(client.wire.receive(124), [0; 124]);
        }
        client.check_alive();
    }
    // GO never has them.
    let mut client = world.connect();
    client.greet(1);
    client.describe(7, "disk", &[]);
    client.check_alive();
    // Without the fixed newstyle there is nothing but EXPORT_NAME.
    let mut client = world.connect();
    client.greet(0);
    client.option(3, b"");
    client.wire.expect_closed();
}

fn c10_meta_contexts_need_structured_replies<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    for code in [9, 10] {
        assert_eq!(client.ask(code, &meta_data("disk", &["base:allocation"])), INVALID);
    }
    assert_eq!(client.ask(8, b""), ACK);
    for code in [9, 10] {
        assert_eq!(client.ask(code, &meta_data("other", &["base:allocation"])), UNKNOWN);
        assert_eq!(client.ask(code, &meta_data("disk", &["base:allocation"])[..20]), INVALID);
    }
    client.describe(7, "disk", &[]);
}

fn c10_meta_contexts_are_listed_and_set_by_different_rules<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    assert_eq!(client.ask(8, b""), ACK);
    let cases: [(u32, &[&str], bool); 9] = [
        (9, &[], true),
        (9, &["base:"], true),
        (9, &["base:allocation"], true),
        (9, &["base:alloc", "qemu:dirty-bitmap:x", "", ":"], false),
        (10, &[], false),
        (10, &["base:"], false),
        (10, &["nothing", "x-raid:nothing", "base:allocation2"], false),
        (10, &["x:y", "base:allocation", "base:allocation"], true),
        (9, &["x:y", "base:", "base:allocation"], true),
    ];
    for (code, queries, found) in cases {
        client.option(code, &meta_data("disk", queries));
        let replies = client.replies(code);
        assert_eq!(replies.last().unwrap().kind, ACK, "{queries:?}");
        assert_eq!(replies.len() == 2, found, "{code}: {queries:?}");
        if found {
            assert_eq!(replies[0].kind, 4);
            assert_eq!(&replies[0].data[4..], b"base:allocation");
        }
    }
}

fn c10_a_later_choice_of_contexts_replaces_an_earlier_one<W: World + Send + 'static>() {
    let world = world::<W>();
    let good = meta_data("disk", &["base:allocation"]);
    let later: [(u32, Vec<u8>, &str, bool); 6] = [
        (9, meta_data("disk", &[]), "disk", true),
        (10, good.clone(), "disk", true),
        (10, meta_data("disk", &[]), "disk", false),
        (10, good[..good.len() - 1].to_vec(), "disk", false),
        (10, meta_data("other", &["base:allocation"]), "disk", false),
        // The empty name is the same export, but it is not the name that was given.
        (10, good.clone(), "", false),
    ];
    for (code, data, name, chosen) in later {
        let mut client = world.connect();
        client.greet(3);
        assert_eq!(client.ask(8, b""), ACK);
        client.option(10, &good);
        assert_eq!(client.replies(10).len(), 2);
        client.option(code, &data);
        client.replies(code);
        client.describe(7, name, &[]);
        if chosen {
            client.status(0, 0, 4096);
        } else {
            client.request(STATUS, 0, 1, 0, 4096);
            assert_eq!(client.chunk_error(1), EINVAL);
        }
    }
}

fn c11_a_name_longer_than_its_option_is_invalid<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    assert_eq!(client.ask(8, b""), ACK);
    for code in [6, 7, 9, 10] {
        for len in [9_u32, 4096, 4097, 65_536, 0x7fff_ffff, u32::MAX] {
            let mut data = len.to_be_bytes().to_vec();
            data.extend_from_slice(b"disk\0\0\0\0");
            assert_eq!(client.ask(code, &data), INVALID, "option {code}, length {len}");
        }
        assert_eq!(client.ask(code, b"\0\0"), INVALID);
    }
    client.describe(7, "disk", &[]);
}

fn c12_a_long_option_is_too_big<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect();
    client.greet(3);
    assert_eq!(client.ask(99, &vec![7; 64 << 10]), UNSUP);
    assert_eq!(client.ask(6, &vec![0; (64 << 10) + 1]), TOO_BIG);
    assert_eq!(client.ask(99, &vec![7; 1 << 20]), TOO_BIG);
    assert_eq!(client.ask(8, b""), ACK);
    let queries = ["base:allocation"; 65];
    assert_eq!(client.ask(10, &meta_data("disk", &queries)), TOO_BIG);
    client.describe(7, "disk", &[]);
    // Beyond that nobody is listened to, and nobody waits for the data.
    for len in [(1 << 20) + 1, 0x7fff_ffff, u32::MAX] {
        let mut client = world.connect();
        client.greet(3);
        client.wire.send(b"IHAVEOPT\0\0\0\x63");
        client.wire.send(&len.to_be_bytes());
        client.wire.expect_closed();
    }
    // Nor to somebody who never comes to the point.
    let mut client = world.connect();
    client.greet(3);
    for _ in 0..32 {
        assert_eq!(client.ask(99, b""), UNSUP);
    }
    client.option(99, b"");
    client.wire.expect_closed();
}

fn c13_df_needs_structured_replies<W: World + Send + 'static>() {
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

fn c14_read_is_chunked_even_in_failure<W: World + Send + 'static>() {
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

fn c15_chunks_stay_in_their_range<W: World + Send + 'static>() {
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

fn c16_ranges_are_checked_and_refused_payload_is_consumed<W: World + Send + 'static>() {
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

fn c16_a_read_only_export_refuses_writes<W: World + Send + 'static>() {
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

fn c17_unknown_commands_and_flags_are_invalid<W: World + Send + 'static>() {
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

fn c18_fua_goes_with_every_command<W: World + Send + 'static>() {
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

fn c19_requests_for_nothing_do_not_disconnect<W: World + Send + 'static>() {
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

fn c20_offsets_do_not_overflow<W: World + Send + 'static>() {
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

fn c21_flush_ignores_offset_and_length<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default()).begin(false, false);
    for (offset, len) in [(0, 0), (512, 512), (u64::MAX, u32::MAX)] {
        client.request(FLUSH, 0, 1, offset, len);
        assert_eq!(client.simple(1), 0);
    }
}

fn c22_disc_has_no_reply<W: World + Send + 'static>() {
    let world = world::<W>();
    for flags in [0, 1, 0x8000] {
        let mut client = world.connect().begin(false, false);
        // In one piece: the replies of what came before DISC are sent, nothing after it is looked at.
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

fn c23_a_long_write_is_refused_or_disconnected<W: World + Send + 'static>() {
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

fn c25_fast_zero_fails_and_leaves_data<W: World + Send + 'static>() {
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

fn c26_block_status_covers_the_range<W: World + Send + 'static>() {
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

fn c27_block_status_needs_a_context<W: World + Send + 'static>() {
    let world = world::<W>();
    let mut client = world.connect().begin(false, false);
    client.request(STATUS, 0, 1, 0, 4096);
    assert_eq!(client.simple(1), EINVAL);
    client.check_alive();
    let mut client = world.connect().begin(true, false);
    client.request(STATUS, 8, 1, 0, 4096);
    assert_eq!(client.chunk_error(1), EINVAL);
}

fn c28_cookies_come_back<W: World + Send + 'static>() {
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

fn c30_half_a_write_is_no_write<W: World + Send + 'static>() {
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

fn c31_extended_headers_are_refused_and_life_goes_on<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    assert_eq!(client.ask(11, b""), UNSUP);
    assert_eq!(client.ask(8, b""), ACK);
    assert_eq!(client.ask(11, b""), UNSUP);
    client.describe(7, "disk", &[3]);
    client.request(READ, 0, 1, 0, 16);
    assert_eq!(client.chunk().body.len(), 24);
    // An extended request is noise here.
    client.wire.send(&[0x21, 0xe4, 0x1c, 0x71]);
    client.wire.send(&[0; 28]);
    client.wire.expect_closed();
}

fn c32_starttls_is_refused_and_life_goes_on<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    assert_eq!(client.ask(8, b""), ACK);
    assert_eq!(client.ask(5, b"x"), INVALID);
    assert_eq!(client.ask(5, b""), UNSUP);
    assert_eq!(client.ask(5, b""), UNSUP);
    // What was agreed before still holds: nothing has been reset, because nothing was encrypted.
    client.describe(7, "disk", &[]);
    client.request(READ, 0, 1, 0, 16);
    assert_eq!(client.chunk().kind, 1);
}
