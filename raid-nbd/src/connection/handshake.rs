//! Option haggling.

use std::ops::DerefMut;

use super::judge::Negotiated;
use super::output::Reply;
use super::{Connection, Ended, HANDSHAKE_READ_BYTES, Stage};
use crate::proto::option::{
    FIXED_NEWSTYLE, InfoRequest, Malformed, MetaRequest, NO_ZEROES, OPTION_HEAD_BYTES, OptionCode,
    OptionHead, info, put_reply, reply,
};
use crate::proto::{OPTION_BYTES_MAX, OPTION_COUNT_MAX, OPTION_SKIP_BYTES_MAX};

/// The metadata context that tells holes from data.
pub(super) const ALLOCATION: &[u8] = b"base:allocation";
/// Its number on this server. One context needs no table; zero is left to mean nothing.
pub(super) const ALLOCATION_ID: u32 = 1;
/// The namespace alone asks LIST_META_CONTEXT for everything in it.
const ALLOCATION_NAMESPACE: &[u8] = b"base:";
/// EXPORT_NAME's reply ends with them unless both sides agreed to leave them out.
const ZEROES: [u8; 124] = [0; 124];

/// What the handshake has settled so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    option_count: u32,
    /// The export that `base:allocation` was chosen for.
    allocation_of: Option<Vec<u8>>,
}

impl<B: DerefMut<Target = [u8]>> Connection<B> {
    pub(super) fn step_client_flags(&mut self) -> bool {
        let Some(bytes) = self.input.first::<4>() else { return false };
        let flags = u32::from_be_bytes(*bytes);
        self.input.consume(4);
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            self.close(Ended::ClientFlags(flags));
            return false;
        }
        self.session.fixed = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.session.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        self.stage = Stage::OptionHead;
        true
    }

    pub(super) fn step_option_head(&mut self) -> bool {
        // The replies of one option leave before the next is looked at, so they cannot pile up.
        if !self.output.is_empty() {
            return false;
        }
        let Some(bytes) = self.input.first::<OPTION_HEAD_BYTES>() else { return false };
        let Some(head) = OptionHead::parse(bytes) else {
            self.close(Ended::OptionMagic);
            return false;
        };
        self.input.consume(OPTION_HEAD_BYTES);
        self.session.option_count += 1;
        if self.session.option_count > OPTION_COUNT_MAX {
            self.close(Ended::TooManyOptions);
            return false;
        }
        if head.len <= OPTION_BYTES_MAX {
            self.stage = Stage::OptionData(head);
        } else if head.len <= OPTION_SKIP_BYTES_MAX && self.is_polite(head) {
            self.stage = Stage::OptionSkip(head, head.len as usize);
        } else {
            self.close(Ended::OptionTooLong { code: head.code, len: head.len });
        }
        true
    }

    /// Whether an option may be answered with an error.
    fn is_polite(&self, head: OptionHead) -> bool {
        self.session.fixed && OptionCode::from(head.code) != OptionCode::ExportName
    }

    pub(super) fn step_option_skip(&mut self, head: OptionHead, left: usize) -> bool {
        let skipped = left.min(self.input.len());
        self.input.consume(skipped);
        if skipped < left {
            self.stage = Stage::OptionSkip(head, left - skipped);
            return false;
        }
        self.stage = Stage::OptionHead;
        self.answer(head, reply::ERR_TOO_BIG, &[b"the option is too long"]);
        true
    }

    pub(super) fn step_option_data(&mut self, head: OptionHead) -> bool {
        let len = head.len as usize;
        if self.input.len() < len {
            return false;
        }
        let data = self.input.filled()[..len].to_vec();
        self.input.consume(len);
        self.stage = Stage::OptionHead;
        self.handle_option(head, &data);
        true
    }

    fn handle_option(&mut self, head: OptionHead, data: &[u8]) {
        let code = OptionCode::from(head.code);
        if !self.session.fixed && code != OptionCode::ExportName {
            return self.close(Ended::NotFixed(head.code));
        }
        match code {
            OptionCode::ExportName => self.handle_export_name(data),
            OptionCode::Abort => {
                self.answer(head, reply::ACK, &[]);
                self.stage = Stage::Draining(Ended::Abort);
            }
            OptionCode::List | OptionCode::StructuredReply | OptionCode::StartTls
                if !data.is_empty() =>
            {
                self.answer(head, reply::ERR_INVALID, &[b"this option has no data"]);
            }
            OptionCode::List => self.handle_list(head),
            OptionCode::StructuredReply => {
                self.session.structured = true;
                self.answer(head, reply::ACK, &[]);
            }
            OptionCode::Info | OptionCode::Go => match InfoRequest::parse(data) {
                Ok(request) => self.handle_info(head, code, &request),
                Err(malformed) => self.answer_malformed(head, malformed),
            },
            OptionCode::ListMetaContext | OptionCode::SetMetaContext => {
                self.handle_meta(head, code, data);
            }
            OptionCode::StartTls => self.answer(head, reply::ERR_UNSUP, &[b"TLS is not offered"]),
            OptionCode::ExtendedHeaders | OptionCode::Unknown => {
                self.answer(head, reply::ERR_UNSUP, &[b"this option is not offered"]);
            }
        }
    }

    fn handle_export_name(&mut self, name: &[u8]) {
        if !self.export.answers_to(name) {
            return self.close(Ended::UnknownExport);
        }
        let size = self.export.size_bytes.to_be_bytes();
        let flags = self.export.transmission_flags(self.session.structured).to_be_bytes();
        let mut bytes = Vec::with_capacity(10 + ZEROES.len());
        bytes.extend_from_slice(&size);
        bytes.extend_from_slice(&flags);
        if !self.session.no_zeroes {
            bytes.extend_from_slice(&ZEROES);
        }
        self.output.push(Reply::new(&[]).with_bytes(bytes));
        self.begin(name);
    }

    fn handle_list(&mut self, head: OptionHead) {
        let export = self.export.clone();
        let name = export.name.as_bytes();
        let description = export.description.as_deref().unwrap_or("").as_bytes();
        // Both are bounded: the name by the server's options, the text by what `Info` sends.
        let len = u32::try_from(name.len()).unwrap_or(0).to_be_bytes();
        self.answer(head, reply::SERVER, &[&len, name, bounded(description)]);
        self.answer(head, reply::ACK, &[]);
    }

    fn handle_info(&mut self, head: OptionHead, code: OptionCode, request: &InfoRequest<'_>) {
        if !self.export.answers_to(request.name) {
            return self.answer(head, reply::ERR_UNKNOWN, &[b"no such export"]);
        }
        let export = self.export.clone();
        let flags = export.transmission_flags(self.session.structured).to_be_bytes();
        let size = export.size_bytes.to_be_bytes();
        self.answer(head, reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        if request.wants(info::NAME) {
            let name = export.name.as_bytes();
            self.answer(head, reply::INFO, &[&info::NAME.to_be_bytes(), name]);
        }
        if let Some(text) = &export.description
            && request.wants(info::DESCRIPTION)
        {
            let text = bounded(text.as_bytes());
            self.answer(head, reply::INFO, &[&info::DESCRIPTION.to_be_bytes(), text]);
        }
        if request.wants(info::BLOCK_SIZE) {
            let [least, preferred, most] = export.block_sizes().map(u32::to_be_bytes);
            let kind = info::BLOCK_SIZE.to_be_bytes();
            self.answer(head, reply::INFO, &[&kind, &least, &preferred, &most]);
        }
        self.answer(head, reply::ACK, &[]);
        if code == OptionCode::Go {
            self.begin(request.name);
        }
    }

    fn handle_meta(&mut self, head: OptionHead, code: OptionCode, data: &[u8]) {
        let set = code == OptionCode::SetMetaContext;
        if set {
            // Whatever comes of it, an earlier choice is void.
            self.session.allocation_of = None;
        }
        if !self.session.structured {
            let message = b"structured replies come first";
            return self.answer(head, reply::ERR_INVALID, &[message]);
        }
        let request = match MetaRequest::parse(data) {
            Ok(request) => request,
            Err(malformed) => return self.answer_malformed(head, malformed),
        };
        if !self.export.answers_to(request.name) {
            return self.answer(head, reply::ERR_UNKNOWN, &[b"no such export"]);
        }
        let everything = !set && request.query_count == 0;
        let wanted = request
            .queries()
            .any(|query| query == ALLOCATION || (!set && query == ALLOCATION_NAMESPACE));
        if everything || wanted {
            let id = ALLOCATION_ID.to_be_bytes();
            self.answer(head, reply::META_CONTEXT, &[&id, ALLOCATION]);
            if set {
                self.session.allocation_of = Some(request.name.to_vec());
            }
        }
        self.answer(head, reply::ACK, &[]);
    }

    /// The client has chosen; requests follow.
    fn begin(&mut self, name: &[u8]) {
        let allocation = self.session.allocation_of.as_deref() == Some(name);
        self.negotiated = Negotiated { structured: self.session.structured, allocation };
        self.session = Session::default();
        self.input.shrink(HANDSHAKE_READ_BYTES);
        self.stage = Stage::Request;
    }

    fn answer_malformed(&mut self, head: OptionHead, malformed: Malformed) {
        let message: &[u8] = match malformed {
            Malformed::Invalid => b"the lengths in the option do not agree",
            Malformed::TooBig => b"too many queries",
        };
        self.answer(head, malformed.reply(), &[message]);
    }

    fn answer(&mut self, head: OptionHead, kind: u32, parts: &[&[u8]]) {
        let mut bytes = Vec::new();
        put_reply(&mut bytes, head.code, kind, parts);
        self.output.push(Reply::new(&[]).with_bytes(bytes));
    }
}

/// A text, cut to what a string of the protocol may be. Cut at a character, for clients that decode
/// it.
fn bounded(text: &[u8]) -> &[u8] {
    let mut len = text.len().min(crate::proto::MESSAGE_BYTES_MAX);
    while len < text.len() && text[len] & 0xc0 == 0x80 {
        len -= 1;
    }
    &text[..len]
}
