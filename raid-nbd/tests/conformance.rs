//! The conformance list of the NBD protocol, one test for each point, numbered as the list is.
//!
//! Each test runs twice: `pure` against the connection's state machine alone, `socket` against a
//! running server with an array in memory. Tests that need an engine that answers late are in
//! `conformance_late.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "conformance/options.rs"]
mod options;
#[path = "conformance/requests.rs"]
mod requests;
mod support;

use support::*;

/// Declares each point as a test in both worlds.
macro_rules! conformance {
    ($($file:ident: $($name:ident)*;)*) => {
        mod pure {
            $($(#[test] fn $name() { super::$file::$name::<super::Pure>() })*)*
        }
        mod socket {
            $($(#[test] fn $name() { super::$file::$name::<super::Socket>() })*)*
        }
    };
}

conformance! {
    options:
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
    c31_extended_headers_are_refused_and_life_goes_on
    c32_starttls_is_refused_and_life_goes_on
    ;
    requests:
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
    ;
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
