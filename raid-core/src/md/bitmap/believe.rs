//! Which bitmap is believed when an array starts.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{BitmapError, BitmapImage};
use crate::md::regions::DirtyRegions;

/// The bitmap of a current member.
#[derive(Clone, Copy, Debug)]
pub struct MemberBitmap<'a> {
    /// How messages call the member.
    pub name: &'a str,
    /// What was read, or why not.
    pub bitmap: Result<&'a BitmapImage, &'a BitmapError>,
}

/// What the bitmaps of an array say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    /// What may be out of sync: the union of all bitmaps that are believed, or everything.
    pub dirty: DirtyRegions,
    /// Index of a bitmap that is believed, which the running array can go on with (after
    /// [`BitmapImage::set_regions`] of `dirty`); `None` when there is none and everything is
    /// dirty.
    pub base: Option<usize>,
    /// Why each of the others is not believed; for people.
    pub notes: Vec<String>,
}

/// Decides from the bitmaps of the *current* members (see [`mod@crate::md::assemble`]); those of
/// others mean nothing.
///
/// A bitmap is believed when its header fits the array, does not call itself stale, and has the
/// array's event count: whoever writes to the array without keeping the bitmap updates the
/// superblocks alone, so the bitmap falls behind. Each bitmap that is believed has every region
/// that was being written, as bits are durable on all members before data is; some may have bits
/// that others have already lost or not yet got, so the union is taken. Without any, everything is
/// dirty.
#[must_use]
pub fn believe(members: &[MemberBitmap<'_>], events: u64, sync_bytes: u64) -> Belief {
    let mut dirty: Option<DirtyRegions> = None;
    let mut base = None;
    let mut notes = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let image = match usable(member, events) {
            Ok(image) => image,
            Err(note) => {
                notes.push(note);
                continue;
            }
        };
        match &mut dirty {
            Some(_) if crate::planted::is(28) => {}
            Some(dirty) => dirty.join(&image.regions()),
            None => {
                dirty = Some(image.regions());
                base = Some(index);
            }
        }
    }
    // One region is enough to say "everything".
    let dirty = dirty.unwrap_or_else(|| DirtyRegions::dirty(sync_bytes, sync_bytes));
    Belief { dirty, base, notes }
}

fn usable<'a>(member: &MemberBitmap<'a>, events: u64) -> Result<&'a BitmapImage, String> {
    let name = member.name;
    let image = member.bitmap.map_err(|error| format!("{name}: bitmap not used: {error}"))?;
    let head = image.head();
    if head.is_stale() {
        return Err(format!("{name}: bitmap not used: it is marked out of date"));
    }
    if head.events < events {
        return Err(format!(
            "{name}: bitmap not used: its event count is {}, the array's {events}",
            head.events
        ));
    }
    Ok(image)
}

/// Whether a member that fell behind at `member_events` needs only the dirty regions to come back,
/// in the slot and with the number that it had. Otherwise it needs everything.
#[must_use]
pub fn can_readd(bitmap: &BitmapImage, member_events: u64) -> bool {
    member_events >= bitmap.head().events_cleared
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::tests_support::head;
    use super::{Belief, MemberBitmap, believe, can_readd};
    use crate::md::bitmap::{BitmapError, BitmapHead, BitmapImage};

    const SYNC: u64 = 1 << 20;

    fn decide(images: &[Result<BitmapImage, BitmapError>], events: u64) -> Belief {
        let member = |bitmap: &'_ Result<BitmapImage, BitmapError>| bitmap.clone();
        let own: Vec<_> = images.iter().map(member).collect();
        let members: Vec<MemberBitmap<'_>> =
            own.iter().map(|one| MemberBitmap { name: "m", bitmap: one.as_ref() }).collect();
        believe(&members, events, SYNC)
    }

    /// The union of those that are as new as the array; everything when none is.
    #[test]
    fn union_or_everything() {
        let image = |events, mark: u64| {
            let mut image = BitmapImage::new(head(SYNC, 4096), false, 512);
            image.set_events(events, true);
            image.mark(mark..mark + 1);
            image
        };
        let belief =
            decide(&[Err(BitmapError::Unreadable), Ok(image(5, 0)), Ok(image(6, 4096))], 5);
        assert_eq!(belief.dirty.runs().collect::<Vec<_>>(), [0..8192]);
        assert_eq!((belief.base, belief.notes.len()), (Some(1), 1));
        let belief = decide(&[Ok(image(4, 0)), Err(BitmapError::Unreadable)], 5);
        assert_eq!(belief.dirty.runs().collect::<Vec<_>>(), [0..SYNC]);
        assert_eq!((belief.base, belief.notes.len()), (None, 2));
        let mut stale = head(SYNC, 4096);
        (stale.events, stale.state) = (5, BitmapHead::STALE);
        let belief = decide(&[Ok(BitmapImage::new(stale, false, 512))], 5);
        assert!(belief.dirty.is_dirty(SYNC - 1..SYNC), "{belief:?}");
        assert!(decide(&[], 5).dirty.is_dirty(0..1));
        let mut image = image(5, 0);
        image.set_events(9, false);
        assert!(can_readd(&image, 5) && can_readd(&image, 9) && !can_readd(&image, 4));
    }
}
