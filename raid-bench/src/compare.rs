//! `raid-bench compare`: a short version of every profile, on the same members.

use crate::atto;
use crate::bed::Bed;
use crate::build;
use crate::cli::{Bench, MemberKind};
use crate::engine;
use crate::failure::Failure;
use crate::hdtune;
use crate::parity;
use crate::progress::Progress;
use crate::report::{Report, Run};
use crate::shape::LevelChoice;
use crate::spool;

/// A part of the usual time of a sample.
const ATTO_PART: f64 = 0.5;
/// Transfer sizes of the short ATTO: a quarter of them all.
const ATTO_SIZES: [u64; 5] = [512, 4 << 10, 64 << 10, 1 << 20, 8 << 20];
/// Points of the short curve, and dots.
const CURVE: (u64, u64) = (32, 150);

/// Measures, and tells everything.
pub(crate) fn run(options: &Bench) -> Result<Report, Failure> {
    let mut run = Run::begin("compare", options);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let mut bed = Bed::new(options)?;
    engine::prepare(&mut run, &bed, options, &progress)?;
    engine::measure(&mut run, &bed, options, &progress)?;
    if bed.has_superblocks() && bed.shape.is_redundant() {
        build::measure_rest(&mut run, &bed, options, &progress)?;
    }
    if options.member_kind == MemberKind::Null {
        let note = "members that keep nothing: no atto, hdtune or spool";
        run.report.notes.push(note.to_owned());
    } else {
        let mut short = options.clone();
        (short.repeats, short.seconds) = (3.min(options.repeats), options.seconds * ATTO_PART);
        hdtune::measure(&mut run, &bed, &short, CURVE, &progress)?;
        spool::measure(&mut run, &bed, &short, &progress)?;
        let levels = levels(options);
        atto::measure(&mut run, &mut bed, &short, &levels, &ATTO_SIZES, true, &progress)?;
    }
    progress.step("parity kernels");
    run.report.parity = parity::short()?;
    match crate::md::missing() {
        Some(reason) => run.report.notes.push(format!("md was not measured: {reason}")),
        None => {
            let note = "md was not measured: compare leaves the kernel's arrays alone";
            run.report.notes.push(note.to_owned());
        }
    }
    drop(progress);
    Ok(run.end())
}

/// The level that was asked for, with a striped set beside it as the yardstick without parity.
fn levels(options: &Bench) -> Vec<LevelChoice> {
    let mut levels = vec![options.level];
    if let Ok(stripes) = LevelChoice::parse("0")
        && stripes != options.level
    {
        levels.push(stripes);
    }
    levels
}
