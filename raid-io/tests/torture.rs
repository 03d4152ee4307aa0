//! Members come, go, fail and are replaced at random while an array of files is written to, and
//! again and again the process "dies": the array is dropped without a stop, and opened from what is
//! on the members. What was flushed is there, nothing is made up, and in the end redundancy is
//! right. One seed decides the order of events, but not the timing of threads.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "options cannot be built outside their crate"
)]

use std::path::PathBuf;
use std::time::Duration;

use raid_io::{Added, Array, BitmapChoice, Error, Level, OpenOptions};

mod common;

use common::*;

const PIECE: usize = 24 << 10;

/// What the array may hold: for each piece, the bytes that were flushed and those written since.
struct Model {
    pieces: Vec<Vec<u64>>,
}

impl Model {
    fn new(count: usize) -> Self {
        Self { pieces: vec![vec![0]; count] }
    }

    fn flushed(&mut self) {
        self.pieces.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
    }
}

fn bytes_of(value: u64) -> Vec<u8> {
    if value == 0 { vec![0; PIECE] } else { content(value, PIECE) }
}

struct Torture {
    lab: Lab,
    level: Level,
    slots: usize,
    seed: u64,
    /// Every file that is a member, or was one.
    files: Vec<PathBuf>,
    model: Model,
    stamp: u64,
    log: Vec<String>,
}

impl Torture {
    fn below(&mut self, end: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % end
    }

    fn write(&mut self, array: &Array) {
        let piece = self.below(self.model.pieces.len() as u64) as usize;
        self.stamp += 1;
        let value = self.stamp;
        array
            .write_at(&bytes_of(value), (piece * PIECE) as u64)
            .unwrap_or_else(|error| panic!("{error}: {:#?}", self.log));
        self.model.pieces[piece].push(value);
    }

    /// One piece, or all of them, hold what they may hold.
    fn look(&self, array: &Array, after_crash: bool) -> Vec<u64> {
        let mut found = Vec::new();
        for (piece, values) in self.model.pieces.iter().enumerate() {
            let mut bytes = vec![0; PIECE];
            array.read_at(&mut bytes, (piece * PIECE) as u64).unwrap();
            let allowed = if after_crash { &values[..] } else { &values[values.len() - 1..] };
            let value = allowed.iter().rev().find(|value| bytes_of(**value) == bytes);
            let Some(value) = value else { panic!("piece {piece}: {:#?}", self.log) };
            found.push(*value);
        }
        found
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    fn paths_in(array: &Array, state: &str) -> Vec<PathBuf> {
        let status = array.status();
        let members = status.groups[0].members.iter();
        members.filter(|one| one.state == state).map(|one| one.path.clone().into()).collect()
    }

    /// One thing that an administrator or a disk may do.
    fn event(&mut self, array: &Array) {
        let pick = |torture: &mut Self, from: Vec<PathBuf>| {
            let at = torture.below(from.len().max(1) as u64) as usize;
            from.get(at).cloned()
        };
        match self.below(8) {
            0 | 1 => {
                let Some(member) = pick(self, Self::paths_in(array, "in_sync")) else { return };
                // Refused where it is needed.
                let result = array.fail(&member);
                self.note(format!("fail {}: {result:?}", member.display()));
            }
            2 => {
                let from =
                    [Self::paths_in(array, "recovering"), Self::paths_in(array, "replacement")];
                if let Some(member) = pick(self, from.concat()) {
                    let result = array.fail(&member);
                    self.note(format!("fail {}: {result:?}", member.display()));
                }
            }
            3 | 4 => {
                // Whoever failed comes back, or somebody new.
                let back = pick(self, Self::paths_in(array, "faulty"));
                let returns = self.below(2) == 0;
                let member = match back.filter(|_| returns) {
                    Some(member) => member,
                    None => {
                        let fresh = self.lab.blank(&format!("f{}", self.files.len()));
                        self.files.push(fresh.clone());
                        fresh
                    }
                };
                let result: Result<Added, Error> = array.add(&member, false);
                self.note(format!("add {}: {result:?}", member.display()));
            }
            5 => {
                let Some(member) = pick(self, Self::paths_in(array, "in_sync")) else { return };
                let fresh = self.lab.blank(&format!("f{}", self.files.len()));
                self.files.push(fresh.clone());
                let result = array.replace(&member, Some(&fresh));
                self.note(format!("replace {}: {result:?}", member.display()));
            }
            6 => {
                let Some(member) = pick(self, Self::paths_in(array, "faulty")) else { return };
                let result = array.remove(&member);
                self.note(format!("remove {}: {result:?}", member.display()));
            }
            _ => {
                let speed = 1 + self.below(64);
                array.set_speed(None, Some(speed << 20));
            }
        }
    }

    fn open(&mut self) -> Array {
        let mut options = OpenOptions::default();
        // Of a stripe that was being written in a degraded array, what is lost may be wrong: pieces
        // are such that this cannot reach another one (see `new`).
        options.force = true;
        // Files that were removed, or whose slot somebody else has, are told apart by their
        // superblocks; those that never had one are not given.
        let with_superblock =
            |path: &&PathBuf| path.exists() && std::fs::read(path).unwrap()[4096..4100] != [0; 4];
        let given: Vec<PathBuf> = self.files.iter().filter(with_superblock).cloned().collect();
        Array::open(&given, &options).unwrap_or_else(|error| panic!("{error}: {:#?}", self.log))
    }
}

fn torture(level: Level, slots: usize, bitmap: BitmapChoice, seed: u64) {
    let lab = Lab::new(slots);
    let mut options = lab.options(level);
    options.bitmap = bitmap;
    options.bitmap_chunk_bytes = (bitmap == BitmapChoice::Internal).then_some(64 << 10);
    // A piece is a stripe of its own, so that a write cut short in a degraded array damages nothing
    // but itself.
    options.chunk_bytes = 8 << 10;
    let array = Array::create(&options, &lab.members).unwrap();
    let pieces = array.limits().size_bytes as usize / PIECE;
    let files = lab.members.clone();
    let model = Model::new(pieces);
    let seed = seed * 2_654_435_761 + 88_172_645_463_325_252;
    let mut torture = Torture { lab, level, slots, seed, files, model, stamp: 0, log: Vec::new() };
    torture.live(array);
}

impl Torture {
    fn live(&mut self, mut array: Array) {
        for boot in 0..5 {
            self.note(format!("boot {boot} of {} over {}", self.level, self.slots));
            for _ in 0..12 {
                for _ in 0..self.below(12) {
                    self.write(&array);
                }
                self.event(&array);
                if self.below(3) == 0 {
                    array.flush().unwrap();
                    self.model.flushed();
                }
                let pause = self.below(8);
                std::thread::sleep(Duration::from_millis(pause));
            }
            self.look(&array, false);
            if self.below(3) == 0 {
                self.note("stop".into());
                array.stop().unwrap_or_else(|error| panic!("{error}: {:#?}", self.log));
                self.model.flushed();
            } else {
                self.note("dies".into());
                drop(array);
            }
            array = self.open();
            let states = array.status().groups[0].members.clone();
            let states =
                states.iter().map(|one| format!("{:?} {} {}", one.slot, one.state, one.path));
            let states: Vec<String> = states.collect();
            self.note(format!("{states:#?}"));
            let found = self.look(&array, true);
            for (values, value) in self.model.pieces.iter_mut().zip(found) {
                *values = vec![value];
            }
        }
        // Everything is made whole.
        array.set_speed(None, Some(u64::MAX));
        for _ in 0..2 * self.slots {
            let status = array.status();
            if status.degraded == 0 {
                break;
            }
            let spare = self.lab.blank(&format!("f{}", self.files.len()));
            self.files.push(spare.clone());
            array.add(&spare, false).unwrap();
            wait_for(&array, "a recovery", |now| now.degraded < status.degraded);
        }
        let whole = wait_for(&array, "the end", is_whole);
        self.look(&array, false);
        array.stop().unwrap();
        let members: Vec<PathBuf> = whole.groups[0]
            .members
            .iter()
            .filter(|member| member.state == "in_sync")
            .map(|member| member.path.clone().into())
            .collect();
        assert_eq!(members.len(), self.slots);
        let mut expected = vec![0; whole.size_bytes as usize];
        for (piece, values) in self.model.pieces.iter().enumerate() {
            expected[piece * PIECE..][..PIECE].copy_from_slice(&bytes_of(values[values.len() - 1]));
        }
        judge(&members, &expected);
    }
}

/// Stories of each kind: `URAID_TORTURE=50 cargo test -p raid-io --test torture` plays more.
fn stories(level: Level, slots: usize) {
    let count = std::env::var("URAID_TORTURE").map_or(1, |count| count.parse().unwrap());
    for seed in 0..count {
        torture(level, slots, BitmapChoice::None, seed);
        torture(level, slots, BitmapChoice::Internal, seed);
    }
}

#[test]
fn mirrors_bear_it() {
    stories(Level::Raid1, 3);
}

#[test]
fn raid5_bears_it() {
    stories(Level::Raid5, 4);
}

#[test]
fn raid6_bears_it() {
    stories(Level::Raid6, 5);
}

#[test]
fn raid10_bears_it() {
    stories(Level::Raid10, 4);
}
