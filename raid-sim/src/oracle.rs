//! What a read may return: each sector is a register, and this is the list of the values it may
//! have.
//!
//! Rules (reference: the fault model's oracles O1, O2, O4, O6):
//! - a value may be read if a write of it began before the read ended, unless another write for
//!   certain came later: began after it had ended, and ended before the read began;
//! - after a crash every value is possible that no *durable* later write stands over. A write is
//!   durable when it was acknowledged with FUA, or before a flush was sent that succeeded;
//! - a write that failed, or was under way when the crash came, took effect or not;
//! - two reads between which nobody wrote agree;
//! - a check of the whole array at rest, after recovery and a flush, fixes one value for each
//!   sector.

use std::collections::BTreeSet;

use crate::workload::describe;

/// Not yet.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    value: u64,
    began: u64,
    ended: u64,
    /// It took effect for certain: later reads do not see anything before it.
    sure: bool,
    /// It was acknowledged: the next flush makes it durable.
    acknowledged: bool,
    durable: bool,
    /// No crash can bring it back; a read that is under way may still return it.
    dead: bool,
}

#[derive(Clone, Debug)]
struct Register {
    entries: Vec<Entry>,
    /// A read that nobody wrote beside: its value, and when it began.
    quiet: Option<(u64, u64)>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    registers: Vec<Register>,
    /// Sectors that have more than one value, or one that is not durable.
    unsettled: BTreeSet<u64>,
    /// Sectors with dead entries.
    littered: BTreeSet<u64>,
}

impl Register {
    /// Finds what no crash can bring back.
    fn prune(&mut self) {
        let standing: Vec<Entry> =
            self.entries.iter().copied().filter(|entry| entry.sure && entry.durable).collect();
        let quiet = self.quiet;
        // Of several writes of one value (zeroes) it is not known which was seen.
        let kept = quiet.is_some_and(|(value, _)| {
            self.alive().filter(|entry| entry.value == value).all(|entry| entry.durable)
        });
        for entry in &mut self.entries {
            let overwritten = standing.iter().any(|later| later.began > entry.ended);
            let before = quiet.is_some_and(|(value, at)| entry.value != value && entry.ended < at);
            entry.dead |= overwritten || kept && before;
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.dead)
    }

    fn is_settled(&self) -> bool {
        self.alive().count() == 1 && self.alive().all(|entry| entry.durable)
    }

    fn may_return(&self, value: u64, began: u64) -> bool {
        let hidden = |entry: &Entry| {
            self.quiet
                .is_some_and(|(quiet, at)| began >= at && entry.value != quiet && entry.ended < at)
        };
        let overwritten = |entry: &Entry| {
            self.entries
                .iter()
                .any(|later| later.sure && later.began > entry.ended && later.ended < began)
        };
        self.entries
            .iter()
            .any(|entry| entry.value == value && !hidden(entry) && !overwritten(entry))
    }
}

impl Oracle {
    /// Every sector has one of the values given for it; durably, if it is one.
    pub(crate) fn new(values: impl Iterator<Item = Vec<u64>>) -> Self {
        let register = |values: Vec<u64>| {
            let durable = values.len() == 1;
            let entry = |value| Entry {
                value,
                began: 0,
                ended: 0,
                sure: false,
                acknowledged: false,
                durable,
                dead: false,
            };
            Register { entries: values.into_iter().map(entry).collect(), quiet: None }
        };
        let registers: Vec<Register> = values.map(register).collect();
        let open = |(sector, register): (usize, &Register)| {
            (!register.is_settled()).then_some(sector as u64)
        };
        let unsettled = registers.iter().enumerate().filter_map(open).collect();
        Self { registers, unsettled, littered: BTreeSet::new() }
    }

    pub(crate) fn sector_count(&self) -> u64 {
        self.registers.len() as u64
    }

    /// A write of `value` begins.
    pub(crate) fn write_begins(&mut self, sector: u64, value: u64, clock: u64) {
        self.registers[sector as usize].entries.push(Entry {
            value,
            began: clock,
            ended: NEVER,
            sure: false,
            acknowledged: false,
            durable: false,
            dead: false,
        });
        self.unsettled.insert(sector);
    }

    /// The write of `value` that began at `began` was acknowledged. A discard is not `sure`.
    pub(crate) fn write_succeeds(
        &mut self,
        sector: u64,
        (value, began): (u64, u64),
        (sure, fua): (bool, bool),
        clock: u64,
    ) {
        self.end(sector, value, began, |entry| {
            entry.ended = clock;
            entry.sure = sure;
            entry.acknowledged = true;
            entry.durable = fua;
        });
        if fua {
            self.settle(sector);
        }
    }

    /// It failed: it took effect or not.
    pub(crate) fn write_fails(&mut self, sector: u64, (value, began): (u64, u64), clock: u64) {
        self.end(sector, value, began, |entry| entry.ended = clock);
    }

    fn end(&mut self, sector: u64, value: u64, began: u64, change: impl FnOnce(&mut Entry)) {
        let entries = &mut self.registers[sector as usize].entries;
        let entry = entries.iter_mut().find(|entry| (entry.value, entry.began) == (value, began));
        change(entry.expect("a write under way"));
    }

    fn settle(&mut self, sector: u64) {
        let register = &mut self.registers[sector as usize];
        register.prune();
        if register.is_settled() {
            self.unsettled.remove(&sector);
        }
        if register.alive().count() < register.entries.len() {
            self.littered.insert(sector);
        }
    }

    /// No read is under way: forgets what no crash can bring back.
    pub(crate) fn tidy(&mut self) {
        for sector in std::mem::take(&mut self.littered) {
            self.registers[sector as usize].entries.retain(|entry| !entry.dead);
        }
    }

    /// A flush that was sent at `sent` succeeded.
    pub(crate) fn flush_succeeds(&mut self, sent: u64) {
        for sector in self.unsettled.clone() {
            for entry in &mut self.registers[sector as usize].entries {
                entry.durable |= entry.acknowledged && entry.ended < sent;
            }
            self.settle(sector);
        }
    }

    /// A read that began at `began` returned `value`. With `holds`, later reads must agree as long
    /// as nobody writes.
    pub(crate) fn read_returns(
        &mut self,
        sector: u64,
        value: u64,
        began: u64,
        holds: bool,
    ) -> Result<(), String> {
        let register = &mut self.registers[sector as usize];
        if !register.may_return(value, began) {
            return Err(self.complain(sector, value));
        }
        if holds
            && register.entries.iter().all(|entry| entry.ended < began)
            && register.quiet.is_none_or(|(_, at)| at < began)
        {
            register.quiet = Some((value, began));
            self.settle(sector);
        }
        Ok(())
    }

    /// True if a read that begins now may return `value`.
    #[cfg(test)]
    pub(crate) fn may_return(&self, sector: u64, value: u64, clock: u64) -> bool {
        self.registers[sector as usize].may_return(value, clock)
    }

    /// Says what was read and what might have been.
    pub(crate) fn complain(&self, sector: u64, value: u64) -> String {
        let register = &self.registers[sector as usize];
        let list: Vec<String> = register
            .entries
            .iter()
            .map(|entry| {
                let durable = match (entry.dead, entry.durable) {
                    (true, _) => ", over",
                    (false, true) => ", durable",
                    (false, false) => "",
                };
                format!("{} ({}..{}{durable})", describe(entry.value), entry.began, {
                    if entry.ended == NEVER { "under way".into() } else { entry.ended.to_string() }
                })
            })
            .collect();
        format!(
            "sector {sector} reads {}; possible: {}; quiet: {:?}",
            describe(value),
            list.join(", "),
            register.quiet
        )
    }

    /// Everything stops: what is not durable may be there or not. A process that is killed leaves
    /// what was acknowledged (`keeps`).
    pub(crate) fn crash(&mut self, clock: u64, keeps: bool) {
        self.tidy();
        for sector in self.unsettled.clone() {
            self.settle(sector);
            let register = &mut self.registers[sector as usize];
            register.entries.retain(|entry| !entry.dead);
            register.quiet = None;
            if register.is_settled() {
                continue;
            }
            // A write that was cut, or failed, may be on some copies alone.
            if keeps && register.entries.iter().all(|entry| entry.acknowledged || entry.durable) {
                continue;
            }
            for entry in &mut register.entries {
                entry.began = clock;
                entry.ended = clock;
                entry.sure = false;
                entry.acknowledged = false;
                entry.durable = false;
            }
        }
    }

    /// Forgets which value was seen where several are possible: what it was read from is lost.
    pub(crate) fn forget_reads(&mut self) {
        for &sector in &self.unsettled {
            self.registers[sector as usize].quiet = None;
        }
    }

    /// From now on the sector has this value and no other, durably.
    pub(crate) fn fix(&mut self, sector: u64, value: u64, clock: u64) {
        let entry = Entry {
            value,
            began: clock,
            ended: clock,
            sure: true,
            acknowledged: true,
            durable: true,
            dead: false,
        };
        self.registers[sector as usize] = Register { entries: vec![entry], quiet: None };
        self.unsettled.remove(&sector);
    }

    /// The one value of a settled sector.
    pub(crate) fn value(&self, sector: u64) -> Option<u64> {
        let register = &self.registers[sector as usize];
        register.alive().next().filter(|_| register.is_settled()).map(|entry| entry.value)
    }

    /// Sectors with more than one possible value, or one that is not durable.
    pub(crate) fn unsettled(&self) -> &BTreeSet<u64> {
        &self.unsettled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ZERO;

    fn one() -> Oracle {
        Oracle::new(std::iter::once(vec![ZERO]))
    }

    /// Old and new while a write is under way, only new afterwards, both after a crash, only new
    /// after a crash behind a flush.
    #[test]
    fn a_write_and_a_flush() {
        let mut oracle = one();
        oracle.write_begins(0, 7, 1);
        assert!(oracle.may_return(0, ZERO, 2) && oracle.may_return(0, 7, 2));
        oracle.write_succeeds(0, (7, 1), (true, false), 3);
        assert!(!oracle.may_return(0, ZERO, 4) && oracle.may_return(0, 7, 4));
        let mut crashed = oracle.clone();
        crashed.crash(5, false);
        assert!(crashed.may_return(0, ZERO, 6) && crashed.may_return(0, 7, 6));
        assert!(!crashed.may_return(0, 8, 6));
        oracle.flush_succeeds(4);
        oracle.crash(5, false);
        assert!(!oracle.may_return(0, ZERO, 6) && oracle.may_return(0, 7, 6));
    }

    /// A flush does not cover what was acknowledged after it had been sent.
    #[test]
    fn a_flush_sent_before_the_end() {
        let mut oracle = one();
        oracle.write_begins(0, 7, 1);
        oracle.write_succeeds(0, (7, 1), (true, false), 3);
        oracle.flush_succeeds(2);
        oracle.crash(5, false);
        assert!(oracle.may_return(0, ZERO, 6));
    }

    /// Reads without a write between them agree; a crash makes both possible again.
    #[test]
    fn no_flapping() {
        let mut oracle = one();
        oracle.write_begins(0, 7, 1);
        oracle.crash(2, false);
        assert_eq!(oracle.read_returns(0, 7, 3, true), Ok(()));
        assert!(oracle.read_returns(0, ZERO, 4, true).is_err());
        oracle.crash(5, false);
        assert_eq!(oracle.read_returns(0, ZERO, 6, true), Ok(()));
        assert!(oracle.read_returns(0, 7, 7, true).is_err());
    }

    /// Of two writes side by side either may be last; a later one stands over both.
    #[test]
    fn overlapping_writes() {
        let mut oracle = one();
        oracle.write_begins(0, 7, 1);
        oracle.write_begins(0, 8, 2);
        oracle.write_succeeds(0, (7, 1), (true, false), 3);
        oracle.write_succeeds(0, (8, 2), (true, false), 4);
        assert!(oracle.may_return(0, 7, 5) && oracle.may_return(0, 8, 5));
        oracle.write_begins(0, 9, 6);
        oracle.write_succeeds(0, (9, 6), (true, true), 7);
        assert!(!oracle.may_return(0, 7, 8) && oracle.value(0) == Some(9));
    }
}
