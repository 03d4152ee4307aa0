//! Fuzz bodies, and the loopback that drives a connection without a socket. Not part of the API.
//!
//! The bodies take any bytes and panic only when the connection breaks a rule of its own. `fuzz/`
//! calls them from libFuzzer, `tests/fuzz.rs` with seeded random input.

mod loopback;
mod replies;

use std::sync::Arc;

pub use self::loopback::Loopback;
pub use self::replies::{Reply, ReplyReader};
use crate::connection::Limits;
use crate::export::Export;
use crate::proto::transmission::Request;

/// Reads decisions from fuzz input; zeroes when it is used up.
#[derive(Debug)]
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    fn wide(&mut self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }
}

const SIZE_BYTES: u64 = 64 << 10;

fn export(dice: &mut Dice<'_>) -> Export {
    let mut export = Export::new("disk", SIZE_BYTES);
    let bits = dice.byte();
    export.read_only = bits & 7 == 7;
    export.can_trim = bits & 8 == 0;
    export.fast_zero = bits & 16 != 0;
    export.rotational = bits & 32 != 0;
    export.description = (bits & 64 != 0).then(|| "raid5 3 x 64K".to_owned());
    export
}

/// A handshake: options with correct magic numbers and arbitrary everything else, or plain noise,
/// in arbitrary pieces. The engine must see nothing before the handshake succeeded. Returns whether
/// it did.
pub fn handshake(bytes: &[u8]) -> bool {
    let mut dice = Dice(bytes);
    let export = Arc::new(export(&mut dice));
    let mut client = Loopback::new(export, Limits::default());
    let step = 1 + dice.below(40);
    if dice.byte() & 3 == 0 {
        client.feed(dice.0, step);
        client.check_untouched();
        return false;
    }
    client.feed(&[0, 0, 0, dice.byte() & 3], step);
    while !dice.0.is_empty() && !client.has_begun() {
        let option = option_bytes(&mut dice);
        client.feed(&option, step);
        client.check_untouched();
    }
    let begun = client.has_begun();
    let rest = dice.0;
    client.feed(rest, step);
    client.end_of_stream();
    client.check_finished();
    begun
}

fn option_bytes(dice: &mut Dice<'_>) -> Vec<u8> {
    let code = dice.below(14) as u32;
    let mut data = Vec::new();
    match dice.below(4) {
        0 => {}
        1 => data.extend((0..dice.below(64)).map(|_| dice.byte())),
        _ => {
            let name: &[u8] = [&b""[..], b"disk", b"other"][dice.below(3)];
            data.extend_from_slice(&(name.len() as u32).to_be_bytes());
            data.extend_from_slice(name);
            if code == 9 || code == 10 {
                data.extend_from_slice(b"\0\0\0\x01\0\0\0\x0fbase:allocation");
            } else {
                data.extend_from_slice(b"\0\x02\0\x03\0\x01");
            }
            if dice.byte() & 15 == 0 {
                let place = dice.below(data.len());
                data[place] ^= dice.byte();
            }
        }
    }
    let mut len = data.len() as u32;
    if dice.byte() == 0xff {
        len = dice.wide() as u32;
    }
    let mut option = b"IHAVEOPT".to_vec();
    option.extend_from_slice(&code.to_be_bytes());
    option.extend_from_slice(&len.to_be_bytes());
    option.extend_from_slice(&data);
    option
}

/// Requests after a good handshake: plausible ones with arbitrary fields, pieces, order of
/// completion and failures. Every reply is parsed and checked against what was asked. Returns the
/// number of replies.
pub fn stream(bytes: &[u8]) -> usize {
    let mut dice = Dice(bytes);
    let export = Arc::new(export(&mut dice));
    let limits = Limits {
        request_count_max: 1 + (dice.byte() & 7),
        request_bytes_max: 8192,
        ..Limits::default()
    };
    let features = dice.byte();
    let structured = features & 1 != 0;
    let mut client = Loopback::new(export, limits);
    client.negotiate(structured, structured && features & 2 != 0);
    client.hold = features & 4 != 0;
    let step = 1 + usize::from(dice.byte()) * 16;
    let mut reader = ReplyReader::new(structured);
    let mut cookie = 0;
    let mut reply_count = 0;
    while !dice.0.is_empty() && client.is_open() {
        if dice.byte() == 0xfe {
            let noise: Vec<u8> = (0..dice.below(80)).map(|_| dice.byte()).collect();
            client.feed(&noise, step);
            break;
        }
        cookie += 1;
        let (request, payload) = request(&mut dice, cookie);
        reader.expect(&request);
        let mut message = request.encode().to_vec();
        message.resize(message.len() + payload, dice.byte());
        let cut = if dice.byte() == 0xfd { dice.below(message.len()) } else { 0 };
        client.feed(&message[..message.len() - cut], step);
        if cut > 0 {
            break;
        }
        if dice.byte() & 3 == 0 {
            client.release(dice.below(8), dice.byte() & 31 == 0);
        }
        reply_count += reader.read(&client.take_sent()).len();
    }
    client.end_of_stream();
    client.check_finished();
    reply_count + reader.read(&client.take_sent()).len()
}

fn request(dice: &mut Dice<'_>, cookie: u64) -> (Request, usize) {
    let command = dice.below(10) as u16;
    let flags = if dice.byte() & 1 == 0 { 0 } else { u16::from(dice.byte() & 63) };
    let offset = match dice.below(8) {
        0 => dice.wide(),
        1 => SIZE_BYTES - u64::from(dice.byte()),
        _ => dice.wide() % SIZE_BYTES,
    };
    let length = match dice.below(16) {
        0 => 0,
        1 => dice.wide() as u32,
        _ => (dice.wide() % 3000) as u32,
    };
    let length = if command == 1 { length.min(20_000) } else { length };
    let payload = if command == 1 { length as usize } else { 0 };
    (Request { flags, command, cookie, offset, length }, payload)
}
