//! The write-intent bitmap of a group: read when it is opened, kept on its members while it runs.
//!
//! ```text
//! open    each current member's bitmap -> believed or not -> union -> the engine's words
//! run     the engine's words -> changed blocks -> every member in sync, flushed -> superblocks
//! stop    the same: nothing is left set
//! ```
//!
//! Invariant: before the first write the bitmaps of all members in sync are equal, so that each one
//! alone has every region that is being written.

use std::ops::Range;

use raid_core::geometry::Geometry;
use raid_core::intent::{IntentConfig, IntentImage};
use raid_core::md::bitmap::{
    BitmapContext, BitmapError, BitmapHead, BitmapImage, BitmapWishes, HEAD_BYTES, MemberBitmap,
    believe, choose,
};
use raid_core::md::regions::{DirtyRegions, sync_bytes};
use raid_core::md::{SECTOR_BYTES, Superblock};

use crate::Error;
use crate::member::Member;
use crate::metadata::Script;

/// The least region that the engine keeps; smaller ones of a bitmap are set and cleared together.
const GRANULE_MIN: u64 = 4096;

/// The bitmap of a group that is open, as it is or shall be on its members.
#[derive(Clone)]
pub(crate) struct Bitmap {
    image: BitmapImage,
    /// Sync bytes of one bit of the engine.
    granule: u64,
    sync_bytes: u64,
    /// The members do not say the same yet.
    is_unequal: bool,
    /// The last words taken over have fewer bits somewhere.
    takes_back: bool,
}

/// What is known of a group when its bitmap is read.
pub(crate) struct Found<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The members in sync.
    pub(crate) members: Vec<(&'a Member, &'a Superblock)>,
    pub(crate) events: u64,
    /// Every slot has a member in sync.
    pub(crate) is_whole: bool,
    /// See [`raid_core::md::Assembly::resynced_bytes`].
    pub(crate) resynced_bytes: Option<u64>,
}

impl Bitmap {
    /// Reads the bitmaps of a group. Returns what the engine goes on with.
    ///
    /// # Errors
    /// Returns an error if the bitmap belongs to a cluster, or has no place on the members.
    pub(crate) fn load(found: &Found<'_>) -> Result<(Self, IntentConfig), Error> {
        let sync_bytes = sync_bytes(found.geometry);
        let blocks = found.members.iter().map(|(member, _)| member.device().block_bytes());
        let block_bytes = blocks.max().unwrap_or(512).max(512);
        let read: Vec<Result<BitmapImage, BitmapError>> = found
            .members
            .iter()
            .map(|(member, superblock)| read(member, superblock, sync_bytes, block_bytes))
            .collect();
        if read.iter().any(|one| matches!(one, Err(BitmapError::Cluster))) {
            return Err(Error::Assemble(BitmapError::Cluster.to_string()));
        }
        let names: Vec<String> =
            found.members.iter().map(|(member, _)| member.name().display().to_string()).collect();
        let each = names.iter().zip(&read);
        let each: Vec<MemberBitmap<'_>> =
            each.map(|(name, one)| MemberBitmap { name, bitmap: one.as_ref() }).collect();
        let belief = believe(&each, found.events, sync_bytes);
        belief.notes.iter().for_each(|note| tracing::warn!("{note}"));
        let base = belief.base.and_then(|index| read[index].as_ref().ok());
        let is_equal =
            base.is_some_and(|base| read.iter().all(|one| one.as_ref().is_ok_and(|o| o == base)));
        let mut image = match base {
            Some(base) => base.clone(),
            None => anew(found, sync_bytes, block_bytes)?,
        };
        let granule = image.granule_bytes().max(GRANULE_MIN);
        let mut regions = DirtyRegions::clean(sync_bytes, granule);
        regions.join(&belief.dirty);
        // A resync got this far. While a member is missing, bits also say what it missed.
        if let Some(position) = found.resynced_bytes.filter(|_| found.is_whole) {
            regions.clear(0..position);
        }
        image.set_regions(&regions);
        if !is_equal {
            image.set_events(found.events, found.is_whole);
            image.change_all();
        }
        let config = IntentConfig { granule_bytes: granule, words: words_of(&regions) };
        Ok((Self { image, granule, sync_bytes, is_unequal: !is_equal, takes_back: false }, config))
    }

    /// Returns the header as it is or will be on the members.
    pub(crate) fn head(&self) -> &BitmapHead {
        self.image.head()
    }

    /// Returns the sync bytes of one bit of the engine.
    pub(crate) fn granule_bytes(&self) -> u64 {
        self.granule
    }

    /// Takes over what the engine wants on the members.
    pub(crate) fn apply(&mut self, intent: &IntentImage) {
        self.takes_back = false;
        for &index in &intent.changed {
            let start = index as u64 * 64 * self.granule;
            self.takes_back |=
                (0..64).filter(|bit| intent.words[index] >> bit & 1 == 0).any(|bit| {
                    let first = start + bit * self.granule;
                    self.image.is_dirty(first..first + self.granule)
                });
            self.image.clear(start..start.saturating_add(64 * self.granule));
            let word = intent.words[index];
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                let first = start + bit * self.granule;
                if first < self.sync_bytes {
                    self.image.mark(first..first + self.granule);
                }
            }
        }
    }

    /// Takes over the event count of a superblock update.
    pub(crate) fn set_events(&mut self, events: u64, is_whole: bool) {
        self.image.set_events(events, is_whole);
    }

    /// Returns the ranges that are to be written, from the bitmap's start; they count as written.
    pub(crate) fn take_changed(&mut self) -> Vec<Range<u64>> {
        self.image.take_changed()
    }

    /// Returns what writes ranges to one member.
    ///
    /// # Errors
    /// Returns an error if the bitmap has no room there.
    pub(crate) fn changes_for(
        &self,
        member: &Member,
        superblock: &Superblock,
        ranges: &[Range<u64>],
    ) -> Result<Script, Error> {
        let place = place(&self.image, member, superblock)?;
        let part = |range: &Range<u64>| {
            let bytes = &self.image.bytes()[range.start as usize..range.end as usize];
            (place.start + range.start, bytes.to_vec())
        };
        // What was written to a region is stable here before the bitmap stops naming it.
        let flush_first = self.takes_back;
        Ok(Script { flush_first, parts: ranges.iter().map(part).collect(), superblock: None })
    }

    /// Returns what writes all of it to a member that has none yet.
    ///
    /// # Errors
    /// Returns an error if the bitmap has no room there.
    pub(crate) fn whole_for(
        &self,
        member: &Member,
        superblock: &Superblock,
    ) -> Result<Script, Error> {
        let all = 0..self.image.bytes().len() as u64;
        let script = self.changes_for(member, superblock, std::slice::from_ref(&all))?;
        Ok(Script { flush_first: false, ..script })
    }

    /// Makes the members' bitmaps equal, as far as they are not, before anything relies on them.
    ///
    /// # Errors
    /// Returns an error if a bitmap cannot be written, or must not be.
    pub(crate) fn settle(&mut self, members: &[(&Member, &Superblock)]) -> Result<(), Error> {
        for (member, superblock) in members {
            place(&self.image, member, superblock)?;
        }
        if !self.is_unequal {
            return Ok(());
        }
        let ranges = self.image.take_changed();
        for (member, superblock) in members {
            self.changes_for(member, superblock, &ranges)?.play(member)?;
        }
        self.is_unequal = false;
        Ok(())
    }
}

/// Reads the bitmap of one member.
fn read(
    member: &Member,
    superblock: &Superblock,
    sync_bytes: u64,
    block_bytes: u32,
) -> Result<BitmapImage, BitmapError> {
    let size = member.device().size_bytes();
    let room = superblock.bitmap_room(size).ok_or(BitmapError::None)?;
    let context = BitmapContext::new(superblock, size, sync_bytes).ok_or(BitmapError::None)?;
    let unreadable = |error: Error| {
        tracing::warn!("{error}");
        BitmapError::Unreadable
    };
    let head = member.read_range(room.start, HEAD_BYTES).map_err(unreadable)?;
    let head = BitmapHead::decode(&head, &context)?;
    // The header's check has bounded this.
    let len = BitmapImage::padded_bytes(&head, block_bytes).min(room.end - room.start);
    let bytes = member.read_range(room.start, len as usize).map_err(unreadable)?;
    BitmapImage::decode(&bytes, &context, block_bytes)
}

/// Makes a bitmap in which everything is dirty, where none can be believed.
fn anew(found: &Found<'_>, sync_bytes: u64, block_bytes: u32) -> Result<BitmapImage, Error> {
    let rooms = found.members.iter().map(|(member, superblock)| {
        let room = superblock.bitmap_room(member.device().size_bytes());
        room.map_or(0, |room| room.end - room.start)
    });
    let room = rooms.min().unwrap_or(0);
    let uuid = found.members.first().map_or([0; 16], |(_, sb)| sb.array_uuid_bytes());
    let head = choose(uuid, sync_bytes / SECTOR_BYTES, room, BitmapWishes::default());
    let head = head.map_err(|error| Error::Assemble(format!("no bitmap can be made: {error}")))?;
    Ok(BitmapImage::new(head, true, block_bytes))
}

/// Returns where the bitmap lies on a member.
fn place(
    image: &BitmapImage,
    member: &Member,
    superblock: &Superblock,
) -> Result<Range<u64>, Error> {
    let room = superblock.bitmap_room(member.device().size_bytes());
    let room = room.ok_or_else(|| member.unsuited("its superblock has no room for the bitmap"))?;
    let place = image.place(room.start, room.end - room.start);
    place.map_err(|error| member.unsuited(format!("its bitmap cannot be written: {error}")))
}

/// Returns one bit for each region, as the engine keeps them.
fn words_of(regions: &DirtyRegions) -> Vec<u64> {
    let granule = regions.granule_bytes();
    let mut words = vec![0_u64; regions.count().div_ceil(64) as usize];
    for run in regions.runs() {
        for bit in run.start / granule..run.end.div_ceil(granule) {
            words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_regions_bits() {
        let mut regions = DirtyRegions::clean(100 * 4096 + 1, 4096);
        regions.mark(0..1);
        regions.mark(63 * 4096..65 * 4096);
        regions.mark(100 * 4096..101 * 4096);
        assert_eq!(words_of(&regions), [1 << 63 | 1, 1 | 1 << 36]);
    }
}
