//! A small NBD client: one request at a time over a unix socket, exact about what was acknowledged.
//!
//! Peers do the breadth; this one is for tests that must know which write was answered when the
//! server died.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_EXPORT_NAME: u32 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A connection in the transmission phase.
pub struct Client {
    stream: UnixStream,
    pub size: u64,
}

impl Client {
    /// Connects to the socket of a `nbd+unix:///?socket=PATH` URI.
    pub fn connect(uri: &str) -> io::Result<Self> {
        let path = uri.split_once("socket=").expect("a unix socket's URI").1;
        let mut stream = UnixStream::connect(path)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = Vec::new();
        // Fixed newstyle, no zeroes; then the default export.
        hello.extend(3_u32.to_be_bytes());
        hello.extend(b"IHAVEOPT");
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend(0_u32.to_be_bytes());
        stream.write_all(&hello)?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let size = u64::from_be_bytes(export[..8].try_into().unwrap());
        Ok(Self { stream, size })
    }

    fn request(&mut self, kind: u16, offset: u64, len: usize, payload: &[u8]) -> io::Result<()> {
        let mut request = Vec::with_capacity(28 + payload.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(0_u16.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), SIMPLE_REPLY_MAGIC);
        assert_eq!(reply[8..16], offset.to_be_bytes(), "the reply of another request");
        match word(4) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, bytes.len(), bytes)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(READ, offset, len, &[])?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
