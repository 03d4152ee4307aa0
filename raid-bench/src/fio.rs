//! Samples in the form of fio's JSON output, so that what plots fio's plots these.

use serde_json::{Value, json};

use crate::job::{Count, Job, Order, Sample};

/// fio's list of percentiles.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// One entry of `jobs`: all samples of a figure together. Rates are those of the whole time.
pub(crate) fn job(name: &str, job: &Job, samples: &[Sample], queues: u32) -> Value {
    let mut all: Option<Sample> = None;
    let (mut seconds, mut user, mut system) = (0.0, 0.0, 0.0);
    for sample in samples {
        seconds += sample.seconds;
        user += sample.cpu.user();
        system += sample.cpu.system();
        all = Some(match all {
            None => sample.clone(),
            Some(all) => all.beside(sample),
        });
    }
    let Some(all) = all else { return Value::Null };
    let percent = |part: f64| if seconds > 0.0 { part / seconds * 100.0 } else { 0.0 };
    json!({
        "jobname": name,
        "groupid": 0,
        "error": 0,
        "elapsed": seconds.ceil() as u64,
        "job options": {
            "name": name,
            "rw": rw(job),
            "bs": job.bytes.1.to_string(),
            "iodepth": (job.depth / queues.max(1)).max(1).to_string(),
            "numjobs": queues.to_string(),
            "rwmixread": job.read_percent.to_string(),
            "direct": "1",
        },
        "read": direction(&all.reads, seconds),
        "write": direction(&all.writes, seconds),
        "trim": direction(&Count::default(), seconds),
        "usr_cpu": percent(user),
        "sys_cpu": percent(system),
        "iodepth_achieved": samples.iter().map(|s| s.depth_achieved).sum::<f64>()
            / samples.len() as f64,
    })
}

fn rw(job: &Job) -> &'static str {
    match (job.order, job.read_percent) {
        (Order::Sequential, 100) => "read",
        (Order::Sequential, 0) => "write",
        (Order::Sequential, _) => "rw",
        (Order::Random, 100) => "randread",
        (Order::Random, 0) => "randwrite",
        (Order::Random, _) => "randrw",
    }
}

fn direction(count: &Count, seconds: f64) -> Value {
    let rate = |amount: u64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
    let bytes_a_second = rate(count.bytes);
    let latency = latency(count);
    json!({
        "io_bytes": count.bytes,
        "io_kbytes": count.bytes / 1024,
        "bw_bytes": bytes_a_second as u64,
        "bw": (bytes_a_second / 1024.0) as u64,
        "iops": rate(count.ops),
        "runtime": (seconds * 1e3) as u64,
        "total_ios": count.ops,
        "clat_ns": latency,
        "lat_ns": latency,
    })
}

fn latency(count: &Count) -> Value {
    let latency = &count.latency;
    let percentile = |percent: &f64| {
        let key = format!("{percent:.6}");
        (key, Value::from(latency.value_at_percentile(*percent)))
    };
    let percentiles: serde_json::Map<String, Value> = match count.ops {
        0 => serde_json::Map::new(),
        _ => PERCENTILES.iter().map(percentile).collect(),
    };
    json!({
        "min": if count.ops > 0 { latency.min() } else { 0 },
        "max": latency.max(),
        "mean": latency.mean(),
        "stddev": latency.stdev(),
        "N": count.ops,
        "percentile": percentiles,
    })
}
