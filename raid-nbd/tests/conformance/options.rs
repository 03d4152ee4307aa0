//! Points about the handshake.

use super::support::*;
use super::{alone, world};

pub(super) fn c01_unknown_client_flag_closes<W: World + Send + 'static>() {
    let world = world::<W>();
    for flags in [4, 1 << 31, 7] {
        let mut client = world.connect();
        client.greet(flags);
        client.wire.expect_closed();
    }
}

pub(super) fn c02_unknown_option_is_unsupported_and_the_next_parses<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    for code in [4, 12, 99, 0, u32::MAX] {
        assert_eq!(client.ask(code, b"some data"), UNSUP, "option {code}");
    }
    client.describe(7, "", &[]);
    client.check_alive();
}

pub(super) fn c03_data_where_there_is_none_is_invalid<W: World + Send + 'static>() {
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

pub(super) fn c04_abort_is_acknowledged<W: World + Send + 'static>() {
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

pub(super) fn c05_go_always_describes_the_export<W: World + Send + 'static>() {
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
    // HAS_FLAGS, FLUSH, FUA, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO; no DF before structured
    // replies.
    assert_eq!(info.flags & !(1 << 5), 0b1101_0100_1101);
    let go = client.describe(7, "disk", &[]);
    assert_eq!((go.size, go.flags), (info.size, info.flags));
    client.check_alive();
}

pub(super) fn c06_repeated_and_unknown_info_requests_are_ignored<W: World + Send + 'static>() {
    let mut client = alone::<W>(Config::default());
    client.greet(3);
    let info = client.describe(6, "disk", &[3, 3, 3, 77, 0, 0, 65535]);
    let kinds: Vec<u16> = info.infos.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0, 3]);
    client.describe(7, "disk", &[77]);
    client.check_alive();
}

pub(super) fn c07_unknown_export_is_an_error_and_life_goes_on<W: World + Send + 'static>() {
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

pub(super) fn c08_export_name_of_an_unknown_export_closes<W: World + Send + 'static>() {
    let world = world::<W>();
    for name in ["other".to_owned(), "d".repeat(5000), "d".repeat(100_000)] {
        let mut client = world.connect();
        client.greet(3);
        client.option(1, name.as_bytes());
        client.wire.expect_closed();
    }
}

pub(super) fn c09_zeroes_follow_export_name_alone<W: World + Send + 'static>() {
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

pub(super) fn c10_meta_contexts_need_structured_replies<W: World + Send + 'static>() {
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

pub(super) fn c10_meta_contexts_are_listed_and_set_by_different_rules<W: World + Send + 'static>() {
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

pub(super) fn c10_a_later_choice_of_contexts_replaces_an_earlier_one<W: World + Send + 'static>() {
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

pub(super) fn c11_a_name_longer_than_its_option_is_invalid<W: World + Send + 'static>() {
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

pub(super) fn c12_a_long_option_is_too_big<W: World + Send + 'static>() {
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

pub(super) fn c31_extended_headers_are_refused_and_life_goes_on<W: World + Send + 'static>() {
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

pub(super) fn c32_starttls_is_refused_and_life_goes_on<W: World + Send + 'static>() {
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
