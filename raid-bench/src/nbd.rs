//! A client of an NBD server, as small as a measurement needs it: simple replies, one socket.
//!
//! Requests are buffered until a reply is waited for, so that a batch costs one call, as it does
//! with a ring. The socket blocks: reads have short requests and writes short replies, so neither
//! side ever waits for the other to read what it cannot take.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use raid_io::{Buffer, Error};

use crate::failure::Failure;
use crate::port::{Done, Kind, Port};

/// "NBDMAGIC" and "IHAVEOPT".
const GREETING: [u64; 2] = [0x4e42_444d_4147_4943, 0x4948_4156_454f_5054];
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
/// Fixed newstyle, no zeroes.
const CLIENT_FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
/// The longest request that every server takes.
const REQUEST_BYTES_MAX: usize = 32 << 20;
/// An answer that takes longer will not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct NbdPort {
    reader: BufReader<UnixStream>,
    writer: BufWriter<UnixStream>,
    size: u64,
    /// Requests under way: their tags, and the buffers of reads and writes.
    out: Vec<Option<Asked>>,
    /// An answer that `wait` has seen the beginning of.
    awaited: bool,
}

/// A request under way.
struct Asked {
    tag: u64,
    kind: Kind,
    offset: u64,
    buffer: Option<Buffer>,
}

impl NbdPort {
    /// Connects to the default export of a server on a unix socket.
    pub(crate) fn connect(path: &Path) -> Result<Self, Failure> {
        let connect = || -> io::Result<Self> {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let mut reader = BufReader::with_capacity(256 << 10, stream.try_clone()?);
            let mut writer = BufWriter::with_capacity(64 << 10, stream);
            let size = handshake(&mut reader, &mut writer)?;
            Ok(Self { reader, writer, size, out: Vec::new(), awaited: false })
        };
        connect().map_err(Failure::Nbd)
    }

    fn receive(&mut self) -> io::Result<Done> {
        self.writer.flush()?;
        if u32_from(&mut self.reader)? != SIMPLE_REPLY {
            return Err(wrong("a reply does not begin as one"));
        }
        let error = u32_from(&mut self.reader)?;
        let cookie = u64_from(&mut self.reader)?;
        let place = usize::try_from(cookie).ok().and_then(|place| self.out.get_mut(place));
        let Some(Asked { tag, kind, offset, mut buffer }) = place.and_then(Option::take) else {
            return Err(wrong("a reply to what was not asked"));
        };
        if error != 0 {
            return Ok(Done { tag, result: Err(Error::Io { offset }), buffer });
        }
        if kind == Kind::Read
            && let Some(buffer) = &mut buffer
        {
            self.reader.read_exact(buffer)?;
        }
        Ok(Done { tag, result: Ok(()), buffer })
    }

    fn send(&mut self, kind: Kind, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let command: u16 = match kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 3,
        };
        let len = u32::try_from(data.len()).map_err(io::Error::other)?;
        self.writer.write_all(&REQUEST.to_be_bytes())?;
        self.writer.write_all(&0_u16.to_be_bytes())?;
        self.writer.write_all(&command.to_be_bytes())?;
        self.writer.write_all(&cookie.to_be_bytes())?;
        self.writer.write_all(&offset.to_be_bytes())?;
        self.writer.write_all(&len.to_be_bytes())?;
        if kind == Kind::Write { self.writer.write_all(data) } else { Ok(()) }
    }
}

impl Port for NbdPort {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX
    }

    fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        offset: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), Failure> {
        let place = self.out.iter().position(Option::is_none).unwrap_or(self.out.len());
        let data = buffer.as_deref().unwrap_or_default();
        self.send(kind, place as u64, offset, data).map_err(Failure::Nbd)?;
        if place == self.out.len() {
            self.out.push(None);
        }
        self.out[place] = Some(Asked { tag, kind, offset, buffer });
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Done>, Failure> {
        // More of what has come is worked off before the next batch goes out.
        if !self.awaited && self.reader.buffer().is_empty() {
            return Ok(None);
        }
        self.awaited = false;
        self.receive().map(Some).map_err(Failure::Nbd)
    }

    fn wait(&mut self) -> Result<(), Failure> {
        self.awaited = true;
        self.writer.flush().map_err(Failure::Nbd)
    }
}

/// Negotiates the default export; returns its size.
fn handshake(reader: &mut impl Read, writer: &mut impl Write) -> io::Result<u64> {
    if [u64_from(reader)?, u64_from(reader)?] != GREETING {
        return Err(wrong("the server does not greet as one"));
    }
    let _flags = array_from::<2>(reader)?;
    writer.write_all(&CLIENT_FLAGS.to_be_bytes())?;
    writer.write_all(&GREETING[1].to_be_bytes())?;
    writer.write_all(&OPTION_GO.to_be_bytes())?;
    // An empty name and no questions: four bytes of length and two of count, all zero.
    writer.write_all(&6_u32.to_be_bytes())?;
    writer.write_all(&[0; 6])?;
    writer.flush()?;
    let mut size = None;
    loop {
        if u64_from(reader)? != OPTION_REPLY || u32_from(reader)? != OPTION_GO {
            return Err(wrong("an answer to what was not asked"));
        }
        let (kind, len) = (u32_from(reader)?, u32_from(reader)?);
        let mut data = vec![0; len.min(1 << 16) as usize];
        reader.read_exact(&mut data)?;
        match (kind, data.as_slice()) {
            (REPLY_INFO, [0, 0, rest @ ..]) => {
                size = rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            }
            (REPLY_INFO, _) => {}
            (REPLY_ACK, _) => return size.ok_or_else(|| wrong("no size was told")),
            _ => return Err(wrong("the server refuses the export")),
        }
    }
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::other(what)
}

fn array_from<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_from(reader: &mut impl Read) -> io::Result<u32> {
    array_from(reader).map(u32::from_be_bytes)
}

fn u64_from(reader: &mut impl Read) -> io::Result<u64> {
    array_from(reader).map(u64::from_be_bytes)
}
