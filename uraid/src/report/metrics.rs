//! Prometheus text (OpenMetrics) of one look at an array.
//!
//! Gauges have the names and labels of node_exporter's md collector with `node_md` replaced by
//! `raid`, so that its alerts need no more than that. `device` is the array's name; a group of a
//! nested array is `NAME/0`, `NAME/1`, and so on.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use raid_io::{GroupStatus, MemberStatus, Status};

use crate::events::array_name;

/// Renders `status`.
///
/// # Errors
/// Returns what the encoder says; it does not fail on any status.
pub(crate) fn render(status: &Status) -> Result<String, String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Look(status.clone())));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| format!("metrics: {error}"))?;
    Ok(text)
}

#[derive(Debug)]
struct Look(Status);

type Labels = Vec<(&'static str, String)>;

/// One metric: its samples, by labels.
struct Samples<V>(Vec<(Labels, V)>);

impl<V> Samples<V> {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: V) {
        let owned = labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        self.0.push((owned, value));
    }
}

impl Collector for Look {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        states(encoder, &self.0)?;
        sizes(encoder, &self.0)?;
        work(encoder, &self.0)?;
        members(encoder, &self.0)
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &Samples<f64>,
) -> fmt::Result {
    use prometheus_client::metrics::MetricType;
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in &samples.0 {
        ConstGauge::new(*value).encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}

/// The encoder puts `_total` behind the name.
fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &Samples<u64>,
) -> fmt::Result {
    use prometheus_client::metrics::MetricType;
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in &samples.0 {
        ConstCounter::new(*value).encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}

/// The groups with the names of their devices.
fn groups(status: &Status) -> impl Iterator<Item = (String, &GroupStatus)> {
    let name = array_name(status);
    let is_nested = status.groups.len() > 1;
    let device = move |index| if is_nested { format!("{name}/{index}") } else { name.to_owned() };
    status.groups.iter().enumerate().map(move |(index, group)| (device(index), group))
}

fn is_idle(group: &GroupStatus) -> bool {
    matches!(group.sync_action.as_str(), "" | "idle")
}

/// The states of node_exporter, of which each group is in one.
const STATES: [&str; 5] = ["active", "inactive", "recovering", "resync", "check"];

fn state(group: &GroupStatus) -> &'static str {
    match group.sync_action.as_str() {
        _ if group.failed || group.write_failed => "inactive",
        "recover" => "recovering",
        // A repair is a resync in /proc/mdstat, whence node_exporter has it.
        "resync" | "repair" => "resync",
        "check" => "check",
        _ => "active",
    }
}

fn states(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let (mut states, mut disks) = (Samples::new(), Samples::new());
    let (mut required, mut degraded) = (Samples::new(), Samples::new());
    for (device, group) in groups(status) {
        for name in STATES {
            let value = f64::from(u8::from(name == state(group)));
            states.add(&[("device", &device), ("state", name)], value);
        }
        let kinds: [(&str, &[&str]); 3] = [
            ("active", &["in_sync"]),
            ("failed", &["faulty"]),
            ("spare", &["spare", "recovering", "replacement"]),
        ];
        for (kind, words) in kinds {
            let is_one = |member: &&MemberStatus| words.contains(&member.state.as_str());
            let count = group.members.iter().filter(is_one).count() as f64;
            disks.add(&[("device", &device), ("state", kind)], count);
        }
        required.add(&[("device", &device)], group.slot_count.into());
        degraded.add(&[("device", &device)], group.degraded.into());
    }
    gauge(encoder, "raid_state", "1 for the state that the device is in", &states)?;
    gauge(encoder, "raid_disks", "Members by what they are", &disks)?;
    gauge(encoder, "raid_disks_required", "Slots of a fully functional device", &required)?;
    gauge(encoder, "raid_degraded", "Slots that are not in sync", &degraded)
}

fn sizes(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let (mut blocks, mut synced, mut ratio) = (Samples::new(), Samples::new(), Samples::new());
    for (device, group) in groups(status) {
        let labels = [("device", device.as_str())];
        let size = (group.size_bytes >> 10) as f64;
        blocks.add(&labels, size);
        let (done, total) = (group.sync_done_bytes, group.sync_total_bytes.max(1));
        let (passed, part) = match is_idle(group) {
            true => (size, 1.0),
            false => ((done >> 10) as f64, done as f64 / total as f64),
        };
        synced.add(&labels, passed);
        ratio.add(&labels, part);
    }
    gauge(encoder, "raid_blocks", "Size in blocks of 1 KiB", &blocks)?;
    let help =
        "Blocks of 1 KiB of each member that background work has passed; raid_blocks if idle";
    gauge(encoder, "raid_blocks_synced", help, &synced)?;
    let help = "Part of the background work that is done; 1 if idle";
    gauge(encoder, "raid_sync_progress_ratio", help, &ratio)
}

fn work(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let device = array_name(status);
    let one = |pairs: &[(&str, u64)]| {
        let mut samples = Samples::new();
        for (op, value) in pairs {
            samples.add(&[("device", device), ("op", op)], *value);
        }
        samples
    };
    let s = &status.statistics;
    let operations = one(&[("read", s.reads), ("write", s.writes), ("flush", s.flushes)]);
    counter(encoder, "raid_io_operations", "Requests completed", &operations)?;
    let bytes = one(&[("read", s.read_bytes), ("write", s.written_bytes)]);
    counter(encoder, "raid_io_bytes", "Bytes of completed requests", &bytes)?;
    for (name, help, value) in [
        ("raid_rmw", "Stripes written by read-modify-write", s.rmw),
        ("raid_rcw", "Stripes written by reconstruct-write", s.rcw),
        ("raid_full_stripe_writes", "Stripes written without a read", s.full_stripe_writes),
        ("raid_degraded_reads", "Reads that had to regenerate lost data", s.degraded_reads),
        ("raid_resynced_bytes", "Array bytes that resyncs have gone over", s.resynced_bytes),
    ] {
        let mut samples = Samples::new();
        samples.add(&[("device", device)], value);
        counter(encoder, name, help, &samples)?;
    }
    Ok(())
}

fn members(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let (mut operations, mut errors) = (Samples::new(), Samples::new());
    for (device, group) in groups(status) {
        // In a slot: a member that is left out is listed by its path once more.
        let is_used = |member: &&MemberStatus| !member.path.is_empty() && member.slot.is_some();
        for member in group.members.iter().filter(is_used) {
            let labels = |op| [("device", device.as_str()), ("member", &*member.path), ("op", op)];
            operations.add(&labels("read"), member.reads);
            operations.add(&labels("write"), member.writes);
            errors.add(&labels("read"), member.read_errors);
        }
    }
    counter(encoder, "raid_member_operations", "Operations sent to a member", &operations)?;
    counter(encoder, "raid_member_errors", "Errors answered by regeneration", &errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(path: &str, slot: u32, state: &str) -> MemberStatus {
        let (path, state) = (path.to_owned(), state.to_owned());
        MemberStatus { path, slot: Some(slot), state, reads: 7, ..MemberStatus::default() }
    }

    fn status() -> Status {
        let group = GroupStatus {
            size_bytes: 2048 << 10,
            slot_count: 3,
            degraded: 1,
            sync_action: "recover".into(),
            sync_done_bytes: 256 << 10,
            sync_total_bytes: 1024 << 10,
            members: vec![
                member("/a", 0, "in_sync"),
                member("/b \"quoted\"\nand broken\\", 1, "in_sync"),
                member("/c", 2, "recovering"),
            ],
            ..GroupStatus::default()
        };
        let mut status = Status { name: "box".into(), groups: vec![group], ..Status::default() };
        status.statistics.rmw = u64::MAX;
        status
    }

    #[test]
    fn gauges_are_node_exporters() {
        let text = render(&status()).unwrap();
        for line in [
            "# TYPE raid_state gauge",
            "raid_state{device=\"box\",state=\"recovering\"} 1.0",
            "raid_state{device=\"box\",state=\"active\"} 0.0",
            "raid_disks{device=\"box\",state=\"active\"} 2.0",
            "raid_disks{device=\"box\",state=\"spare\"} 1.0",
            "raid_disks_required{device=\"box\"} 3.0",
            "raid_blocks{device=\"box\"} 2048.0",
            "raid_blocks_synced{device=\"box\"} 256.0",
            "raid_sync_progress_ratio{device=\"box\"} 0.25",
            "raid_rmw_total{device=\"box\"} 18446744073709551615",
            "raid_member_operations_total{device=\"box\",member=\"/a\",op=\"read\"} 7",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n--\n{text}");
        }
    }

    /// A path is whatever somebody called a file: it must not become a line of its own.
    #[test]
    fn paths_cannot_break_the_text() {
        let text = render(&status()).unwrap();
        let line = r#"{device="box",member="/b \"quoted\"\nand broken\\",op="read"} 0"#;
        assert!(
            text.lines().any(|shown| shown == format!("raid_member_errors_total{line}")),
            "{text}"
        );
    }

    #[test]
    fn an_idle_array_is_wholly_synced_and_groups_are_devices() {
        let mut status = status();
        status.groups[0].sync_action = "idle".into();
        status.groups.push(status.groups[0].clone());
        let text = render(&status).unwrap();
        for line in [
            "raid_blocks_synced{device=\"box/0\"} 2048.0",
            "raid_sync_progress_ratio{device=\"box/1\"} 1.0",
            "raid_state{device=\"box/1\",state=\"active\"} 1.0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n--\n{text}");
        }
    }
}
