//! Makes a failing story smaller: boots, requests and faults are left out as long as some promise
//! is still broken.

use std::time::{Duration, Instant};

use crate::options::{Boot, Script};
use crate::report::Violation;
use crate::story::play;

/// Time spent at most: a failure must be seen soon.
const BUDGET: Duration = Duration::from_secs(60);

/// The smallest story found, and what it breaks; `None` if `script` breaks nothing.
pub(crate) fn shrink(script: Script) -> Option<(Script, Violation)> {
    let start = Instant::now();
    let violation = play(&script).violation?;
    let mut best = (script, violation);
    loop {
        let before = size(&best.0);
        shrink_boots(&mut best, start);
        for boot in 0..best.0.boots.len() {
            shrink_list(&mut best, start, boot, |boot| &mut boot.ops);
            shrink_list(&mut best, start, boot, |boot| &mut boot.faults);
        }
        simplify(&mut best, start);
        if size(&best.0) >= before || start.elapsed() > BUDGET {
            return Some(best);
        }
    }
}

fn size(script: &Script) -> usize {
    let of = |boot: &Boot| {
        1 + boot.ops.len()
            + boot.faults.len()
            + boot.absent.len()
            + boot.ops.iter().map(|op| op.count as usize).sum::<usize>()
    };
    script.boots.iter().map(of).sum()
}

/// Keeps a smaller story if it still fails.
fn try_it(best: &mut (Script, Violation), start: Instant, smaller: Script) -> bool {
    if start.elapsed() > BUDGET {
        return false;
    }
    match play(&smaller).violation {
        // Another promise may be broken by a smaller story: that is another story.
        Some(violation) if violation.oracle == best.1.oracle => {
            *best = (smaller, violation);
            true
        }
        _ => false,
    }
}

fn shrink_boots(best: &mut (Script, Violation), start: Instant) {
    let mut at = best.0.boots.len();
    while at > 0 {
        at -= 1;
        if best.0.boots.len() > 1 {
            let mut smaller = best.0.clone();
            smaller.boots.remove(at);
            try_it(best, start, smaller);
        }
    }
}

/// Leaves out halves, quarters, and at last single elements of a list.
fn shrink_list<T>(
    best: &mut (Script, Violation),
    start: Instant,
    boot: usize,
    list: impl Fn(&mut Boot) -> &mut Vec<T>,
) {
    let mut piece = list(&mut best.0.boots[boot]).len();
    while piece > 0 {
        let mut at = 0;
        while at < list(&mut best.0.boots[boot]).len() {
            let mut smaller = best.0.clone();
            let own = list(&mut smaller.boots[boot]);
            let end = (at + piece).min(own.len());
            own.drain(at..end);
            if !try_it(best, start, smaller) {
                at += piece;
            }
        }
        piece /= 2;
    }
}

/// Fewer queues, less depth, shorter requests, nobody absent, nothing checked in between.
fn simplify(best: &mut (Script, Violation), start: Instant) {
    let changes: [fn(&mut Script); 4] = [
        |script| script.options.queues = 1,
        |script| script.options.depth = 1,
        |script| script.options.granule = None,
        |script| script.options.garbage = false,
    ];
    for change in changes {
        let mut smaller = best.0.clone();
        change(&mut smaller);
        try_it(best, start, smaller);
    }
    for boot in 0..best.0.boots.len() {
        for change in [
            (|boot| boot.absent.clear()) as fn(&mut Boot),
            |boot| boot.reads_first = false,
            |boot| boot.settles_first = false,
        ] {
            let mut smaller = best.0.clone();
            change(&mut smaller.boots[boot]);
            try_it(best, start, smaller);
        }
        for op in 0..best.0.boots[boot].ops.len() {
            while best.0.boots[boot].ops[op].count > 1 {
                let mut smaller = best.0.clone();
                smaller.boots[boot].ops[op].count /= 2;
                if !try_it(best, start, smaller) {
                    break;
                }
            }
        }
    }
}
