//! `raid-bench spool`: very many small files, read in directory order, in name order, and one large
//! file from end to end.
//!
//! A real file system needs a kernel block device and root. Without them the same map of files is
//! laid out on the array itself: files of about 8 KiB one behind the other in the order of their
//! names, which is that of their making; the directory's own order is that of a hash, which is any
//! order at all. One file is read at a time, as `tar` does; the large file with the next pieces
//! under way, as the kernel's read-ahead does.

use std::time::Duration;

use raid_io::Buffer;
use serde::Serialize;

use crate::bed::Bed;
use crate::cli::Bench;
use crate::engine::prepare;
use crate::failure::Failure;
use crate::noise::{self, Look, Random};
use crate::port::{Kind, Port};
use crate::progress::Progress;
use crate::report::{Report, Run};
use crate::stats::{Summary, rate};
use crate::target::Target;

/// File systems allocate in blocks.
const BLOCK_BYTES: u64 = 4096;
/// Sizes of files: evenly spread, 8 KiB on average.
const FILE_BYTES: (u64, u64) = (1 << 10, 15 << 10);
const FILES_MAX: usize = 40_000;
/// What read-ahead asks for, and how much of it is under way.
const AHEAD_BYTES: u64 = 128 << 10;
const AHEAD_DEPTH: usize = 4;

/// One order of reading.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpoolRow {
    pub(crate) target: String,
    pub(crate) level: String,
    pub(crate) order: &'static str,
    /// "raw file map", or "ext4".
    pub(crate) how: &'static str,
    pub(crate) files: u64,
    pub(crate) files_a_second: f64,
    pub(crate) bytes_a_second: f64,
    pub(crate) spread: f64,
    pub(crate) samples: usize,
    pub(crate) flags: Vec<String>,
}

/// Where a file lies, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    offset: u64,
    bytes: u64,
}

/// Measures, and tells everything.
pub(crate) fn run(options: &Bench) -> Result<Report, Failure> {
    let mut run = Run::begin("spool", options);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let bed = Bed::new(options)?;
    prepare(&mut run, &bed, options, &progress)?;
    measure(&mut run, &bed, options, &progress)?;
    drop(progress);
    Ok(run.end())
}

/// Reads in every order, on the array and on one raw member.
pub(crate) fn measure(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    run.report.notes.push(
        "spool: a raw file map, not a file system: no block device of the kernel is used; files \
         are in the order of their names, metadata is not read"
            .to_owned(),
    );
    progress.expect(6);
    for name in ["ours", "member"] {
        let target = match name {
            "ours" => Target::Array(bed.open(None)?),
            _ => bed.raw(&[0], bed.part_bytes)?,
        };
        let level = if name == "ours" { bed.shape.choice.name() } else { "member".to_owned() };
        let files = map_of(target.size_bytes());
        let mut shuffled = files.clone();
        shuffle(&mut shuffled);
        let large = pieces(target.size_bytes().min(1 << 30));
        let orders: [(&str, &[File], usize); 3] = [
            ("directory order", &shuffled, 1),
            ("name order", &files, 1),
            ("one large file", &large, AHEAD_DEPTH),
        ];
        for (order, extents, depth) in orders {
            progress.step(format!("spool {name} {order}"));
            let mut results = Vec::new();
            for round in 0..options.repeats as usize {
                // Each round begins elsewhere, so that no cache has what it asks for.
                let start = extents.len() / options.repeats as usize * round;
                let time = Duration::from_secs_f64(options.seconds);
                let mut port = target.port()?;
                results.push(read(port.as_mut(), &extents[start..], depth, time)?);
            }
            let is_large = order == "one large file";
            let bytes = Summary::of(results.iter().map(|r| rate(r.bytes, r.seconds)));
            let files = Summary::of(results.iter().map(|r| rate(r.files, r.seconds)));
            let zeroes: u64 = results.iter().map(|result| result.zeroes).sum();
            let mut flags = Vec::new();
            if zeroes > 0 && bed.kind != crate::cli::MemberKind::Null {
                flags.push(format!("unwritten: {zeroes} files begin with zeroes"));
            }
            if bed.kind == crate::cli::MemberKind::File && !bed.is_direct() {
                flags.push("cached: the page cache answers, not a device".to_owned());
            }
            run.report.spool.push(SpoolRow {
                target: name.to_owned(),
                level: level.clone(),
                order,
                how: "raw file map",
                files: if is_large { 1 } else { extents.len() as u64 },
                files_a_second: if is_large { 0.0 } else { files.median },
                bytes_a_second: bytes.median,
                spread: bytes.spread,
                samples: results.len(),
                flags,
            });
        }
        target.stop()?;
    }
    Ok(())
}

/// Files one behind the other, each from a block on.
fn map_of(size: u64) -> Vec<File> {
    let mut random = Random::new(0x5900);
    let mut files = Vec::new();
    let mut offset = 0;
    while files.len() < FILES_MAX {
        let bytes = FILE_BYTES.0 + random.below(FILE_BYTES.1 - FILE_BYTES.0);
        let room = bytes.next_multiple_of(BLOCK_BYTES);
        if offset + room > size {
            break;
        }
        files.push(File { offset, bytes });
        offset += room;
    }
    files
}

/// The order of a hash: any, and the same in each run.
fn shuffle(files: &mut [File]) {
    let mut random = Random::new(0x0dd5);
    for index in (1..files.len()).rev() {
        files.swap(index, random.below(index as u64 + 1) as usize);
    }
}

/// One large file, as read-ahead asks for it.
fn pieces(len: u64) -> Vec<File> {
    let count = len / AHEAD_BYTES;
    (0..count).map(|n| File { offset: n * AHEAD_BYTES, bytes: AHEAD_BYTES }).collect()
}

/// What was read.
#[derive(Debug, Default)]
struct Read {
    files: u64,
    bytes: u64,
    seconds: f64,
    zeroes: u64,
}

/// Reads files in order, with so many under way, for a time at most.
fn read(
    port: &mut dyn Port,
    files: &[File],
    depth: usize,
    time: Duration,
) -> Result<Read, Failure> {
    let begun = port.now();
    let longest = files.iter().map(|file| file.bytes.next_multiple_of(BLOCK_BYTES)).max();
    let len = longest.unwrap_or(BLOCK_BYTES) as usize;
    let mut idle: Vec<Buffer> = (0..depth).map(|_| port.buffer(len)).collect();
    let mut result = Read::default();
    let (mut next, mut out) = (files.iter().enumerate(), 0);
    loop {
        let is_over = port.now().saturating_sub(begun) >= time;
        while !is_over && let Some(mut buffer) = idle.pop() {
            let Some((index, file)) = next.next() else {
                idle.push(buffer);
                break;
            };
            buffer.resize(file.bytes.next_multiple_of(BLOCK_BYTES) as usize);
            port.submit(index as u64, Kind::Read, file.offset, Some(buffer))?;
            out += 1;
        }
        if out == 0 {
            break;
        }
        let Some(done) = port.poll()? else {
            port.wait()?;
            continue;
        };
        out -= 1;
        done.result?;
        let file = files.get(done.tag as usize).map_or(0, |file| file.bytes);
        (result.files, result.bytes) = (result.files + 1, result.bytes + file);
        if let Some(buffer) = done.buffer {
            result.zeroes += u64::from(noise::look(&buffer) == Look::Zero);
            idle.push(buffer);
        }
    }
    result.seconds = port.now().saturating_sub(begun).as_secs_f64();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_one_behind_the_other_and_are_small() {
        let files = map_of(64 << 20);
        assert!(files.len() > 4000, "{}", files.len());
        let mut end = 0;
        for file in &files {
            assert_eq!((file.offset, file.offset % BLOCK_BYTES), (end, 0));
            end = (file.offset + file.bytes).next_multiple_of(BLOCK_BYTES);
        }
        assert!(end <= 64 << 20);
        let average = files.iter().map(|file| file.bytes).sum::<u64>() / files.len() as u64;
        assert!((7900..8500).contains(&average), "{average}");
    }

    #[test]
    fn directory_order_has_the_same_files_and_no_runs() {
        let files = map_of(64 << 20);
        let mut shuffled = files.clone();
        shuffle(&mut shuffled);
        let runs = shuffled.windows(2).filter(|two| two[0].offset < two[1].offset);
        let runs = runs.filter(|two| two[1].offset - two[0].offset <= 16 << 10).count();
        assert!(runs * 100 < files.len(), "{runs} of {}", files.len());
        shuffled.sort_by_key(|file| file.offset);
        assert_eq!(shuffled, files);
    }
}
