//! Where a server listens: unix and TCP sockets, and the care that a socket file needs.
//!
//! A socket file outlives its process. One that nobody answers on is removed, one that somebody
//! answers on is an error, and anything else at its path is never touched. The check and the bind
//! happen under a lock on the directory, so that two servers that start together do not remove each
//! other's socket.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::ServerError;
use crate::proto::PORT;

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 64;

/// An address to listen on. Parsed from `unix:PATH` and `tcp:HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A socket file.
    Unix(PathBuf),
    /// `HOST:PORT`; the first address that the host has. Port 0 is any free one.
    Tcp(String),
}

impl FromStr for Listen {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let wrong = || ServerError::Address(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", host)) if !host.is_empty() => {
                let bare_ipv6 = host.ends_with(']');
                let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty());
                if has_port && !bare_ipv6 {
                    return Ok(Self::Tcp(host.to_owned()));
                }
                Ok(Self::Tcp(format!("{}:{PORT}", host.trim_end_matches(':'))))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A bound address. A socket file is removed when it is dropped.
#[derive(Debug)]
pub(super) enum Listener {
    Unix { socket: OwnedFd, path: PathBuf, identity: (u64, u64) },
    Tcp { socket: TcpListener, address: SocketAddr },
}

impl Listener {
    pub(super) fn bind(listen: &Listen, unix_mode: u32) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Bind { address: listen.to_string(), source };
        match listen {
            Listen::Unix(path) => bind_unix(path, unix_mode, failed),
            Listen::Tcp(address) => bind_tcp(address).map_err(failed),
        }
    }

    /// The address as a client writes it.
    pub(super) fn uri(&self, export_name: &str) -> String {
        let name = escape(export_name.as_bytes(), b"");
        match self {
            Self::Unix { path, .. } => {
                let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let path = escape(absolute.as_os_str().as_encoded_bytes(), b"/");
                format!("nbd+unix:///{name}?socket={path}")
            }
            Self::Tcp { address, .. } => {
                let slash = if name.is_empty() { "" } else { "/" };
                format!("nbd://{address}{slash}{name}")
            }
        }
    }

    pub(super) fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp { .. })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { socket, .. } => socket.as_fd(),
            Self::Tcp { socket, .. } => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the socket is open its inode cannot be given to another file, so that equal numbers
        // mean our own file.
        if let Self::Unix { path, identity, .. } = self
            && identity_of(path).is_ok_and(|found| found == *identity)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: &str) -> io::Result<Listener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpListener::bind(address) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                let address = socket.local_addr()?;
                return Ok(Listener::Tcp { socket, address });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_unix(
    path: &Path,
    mode: u32,
    failed: impl Fn(io::Error) -> ServerError,
) -> Result<Listener, ServerError> {
    let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
    let _lock = lock_directory(path);
    remove_stale(path, &address, &failed)?;
    let bind = || -> io::Result<Listener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        let identity = identity_of(path)?;
        let listener = Listener::Unix { socket, path: path.to_owned(), identity };
        // Nobody can connect before `listen`, so that the mode is never wider than it should be.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    bind().map_err(failed)
}

/// Locks the directory of `path` until dropped, as far as it can be opened.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or_else(|| Path::new("."))).ok()?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive).ok()?;
    Some(directory)
}

/// Device and inode of what is at a path itself.
fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Clear the path of a socket file that nobody listens on.
fn remove_stale(
    path: &Path,
    address: &SocketAddrUnix,
    failed: &impl Fn(io::Error) -> ServerError,
) -> Result<(), ServerError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ServerError::NotASocket { path: path.to_owned() });
    }
    // Nonblocking: a live server whose backlog is full answers EAGAIN, and is live all the same.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| failed(errno.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => {}
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            return Err(ServerError::SocketInUse { path: path.to_owned() });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    fs::remove_file(path).map_err(failed)
}

/// Percent-encode whatever a URI does not take as it is.
fn escape(bytes: &[u8], also: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let cases = [
            ("unix:/run/a b", Some(Listen::Unix("/run/a b".into()))),
            ("tcp:localhost", Some(Listen::Tcp("localhost:10809".into()))),
            ("tcp:127.0.0.1:0", Some(Listen::Tcp("127.0.0.1:0".into()))),
            ("tcp:[::1]", Some(Listen::Tcp("[::1]:10809".into()))),
            ("tcp:[::1]:7", Some(Listen::Tcp("[::1]:7".into()))),
            ("unix:", None),
            ("/run/socket", None),
            ("vsock:3", None),
        ];
        for (text, listen) in cases {
            assert_eq!(text.parse::<Listen>().ok(), listen, "{text}");
        }
    }

    #[test]
    fn uris_are_escaped() {
        assert_eq!(escape("/run/ä b?".as_bytes(), b"/"), "/run/%C3%A4%20b%3F");
    }
}
