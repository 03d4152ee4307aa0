//! What to make of a request: pure rules over its fields, the export and what was negotiated.

use std::borrow::Cow;

use super::Ended;
use crate::export::Export;
use crate::proto::transmission::{CommandCode, Errno, Request};
use crate::proto::{PAYLOAD_BYTES_MAX, PAYLOAD_SKIP_BYTES_MAX, command_flag as flag};

/// What the handshake settled that requests depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) structured: bool,
    /// The `base:allocation` context was chosen for this export.
    pub(crate) allocation: bool,
}

/// A request that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    WriteZeroes { unmap: bool, fua: bool },
    Status { one: bool },
}

/// An error and a sentence about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: Errno,
    pub(crate) message: Cow<'static, str>,
}

impl Refusal {
    pub(crate) fn new(error: Errno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { error, message: message.into() }
    }
}

/// The verdict on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Hand it to the engine.
    Run(Command),
    /// Nothing to do: success.
    Done,
    /// Answer with an error; the payload of a WRITE is thrown away first.
    Refuse(Refusal),
    /// DISC.
    Disconnect,
    /// Close without an answer.
    Close(Ended),
}

/// Judge one request.
pub(crate) fn judge(request: &Request, export: &Export, negotiated: Negotiated) -> Verdict {
    let code = CommandCode::from(request.command);
    match code {
        CommandCode::Disc => return Verdict::Disconnect,
        CommandCode::Write if request.length > PAYLOAD_SKIP_BYTES_MAX => {
            return Verdict::Close(Ended::PayloadTooLong(request.length));
        }
        _ => {}
    }
    match check(code, request, export, negotiated) {
        Err(refusal) => Verdict::Refuse(refusal),
        Ok(None) => Verdict::Done,
        Ok(Some(command)) => Verdict::Run(command),
    }
}

/// The flags that a command takes. FUA is taken by each, as the protocol text asks.
fn flags_of(code: CommandCode, negotiated: Negotiated) -> u16 {
    let own = match code {
        CommandCode::Read if negotiated.structured => flag::DF,
        CommandCode::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
        CommandCode::BlockStatus => flag::REQ_ONE,
        _ => 0,
    };
    own | flag::FUA
}

fn check(
    code: CommandCode,
    request: &Request,
    export: &Export,
    negotiated: Negotiated,
) -> Result<Option<Command>, Refusal> {
    if code == CommandCode::Unknown || (code == CommandCode::Trim && !export.can_trim) {
        let message = format!("command {} is not offered", request.command);
        return Err(Refusal::new(Errno::Invalid, message));
    }
    let strange = request.flags & !flags_of(code, negotiated);
    if strange != 0 {
        let message = format!("flags {strange:#x} do not go with command {}", request.command);
        return Err(Refusal::new(Errno::Invalid, message));
    }
    if code == CommandCode::Flush {
        // Offset and length should be zero; there is no harm in them.
        return Ok(Some(Command::Flush));
    }
    let writes = matches!(code, CommandCode::Write | CommandCode::Trim | CommandCode::WriteZeroes);
    if writes && export.read_only {
        return Err(Refusal::new(Errno::Permission, "the export is read-only"));
    }
    check_range(code, request, export)?;
    let fua = request.flags & flag::FUA != 0;
    // A request for nothing succeeds; the engine never sees one.
    let some = request.length > 0;
    Ok(match code {
        CommandCode::Read => some.then_some(Command::Read),
        CommandCode::Write => some.then_some(Command::Write { fua }),
        CommandCode::Trim => some.then_some(Command::Trim { fua }),
        CommandCode::WriteZeroes => {
            if request.flags & flag::FAST_ZERO != 0 && !export.fast_zero {
                return Err(Refusal::new(Errno::NotSupported, "zeroing is no faster than writing"));
            }
            let unmap = request.flags & flag::NO_HOLE == 0;
            some.then_some(Command::WriteZeroes { unmap, fua })
        }
        CommandCode::BlockStatus => {
            if !negotiated.allocation {
                let message = "no metadata context was negotiated";
                return Err(Refusal::new(Errno::Invalid, message));
            }
            if !some {
                return Err(Refusal::new(Errno::Invalid, "block status of no bytes"));
            }
            Some(Command::Status { one: request.flags & flag::REQ_ONE != 0 })
        }
        // CACHE is a hint, and members are not read ahead for it.
        _ => None,
    })
}

fn check_range(code: CommandCode, request: &Request, export: &Export) -> Result<(), Refusal> {
    let payload = matches!(code, CommandCode::Read | CommandCode::Write);
    if payload && request.length > PAYLOAD_BYTES_MAX {
        let message = format!("length {} > {PAYLOAD_BYTES_MAX}", request.length);
        return Err(Refusal::new(Errno::Invalid, message));
    }
    let end = request.offset.checked_add(u64::from(request.length));
    if end.is_some_and(|end| end <= export.size_bytes) {
        return Ok(());
    }
    let error = match code {
        CommandCode::Write | CommandCode::WriteZeroes => Errno::NoSpace,
        _ => Errno::Invalid,
    };
    let message = format!(
        "offset {} + length {} > size {}",
        request.offset, request.length, export.size_bytes
    );
    Err(Refusal::new(error, message))
}
