//! Who is where, looked at between two changes.

use std::collections::HashMap;

use raid_core::slots::SlotSet;
use raid_core::volume::Volume;

/// Who is where in a group, and how far those are filled that joined.
pub(super) struct Seats {
    pub(super) in_sync: SlotSet,
    pub(super) recovering: SlotSet,
    /// By slot, indexes in the table of members.
    pub(super) members: Vec<usize>,
    pub(super) replacements: Vec<Option<usize>>,
    /// By index, group bytes that members hold; missing: none.
    filled: HashMap<usize, u64>,
}

impl Seats {
    /// Looks at a time when nothing changes.
    pub(super) fn look(volume: &Volume, group: usize) -> Self {
        let slots = volume.geometry(group).slot_count();
        loop {
            let generation = volume.membership(group);
            let members: Vec<usize> = (0..slots).map(|s| volume.member_index(group, s)).collect();
            let replacements: Vec<Option<usize>> =
                (0..slots).map(|slot| volume.replacement_index(group, slot)).collect();
            let own = members.iter().enumerate();
            let own = own.map(|(slot, index)| (*index, volume.recovered(group, slot)));
            let others = replacements.iter().enumerate();
            let others =
                others.filter_map(|(slot, index)| Some(((*index)?, volume.replaced(group, slot))));
            let filled = own.chain(others).collect();
            let (in_sync, recovering) = (volume.in_sync(group), volume.recovering(group));
            if volume.membership(group) == generation {
                return Self { in_sync, recovering, members, replacements, filled };
            }
        }
    }

    /// Returns the group bytes from 0 on that a member held.
    pub(super) fn filled(&self, index: usize) -> u64 {
        self.filled.get(&index).copied().unwrap_or(0)
    }
}
