//! Memory for numbered places that are as large as each other.

use ::backend::{Error, Result};

use crate::aligned::{Aligned, LARGE};

/// Memory comes in segments of at most so many bytes, or of one place.
const SEGMENT: usize = 16 << 20;

/// Places in segments: none moves when there are more. Segments grow with what there is, so that little is taken for
/// little; those of large pages are full of places.
pub(crate) struct Segments {
    /// Bytes of a place: whole cache lines.
    bytes: usize,
    segments: Vec<Aligned<u8>>,
    /// For each place, its segment and the byte there at which it begins.
    places: Vec<(u32, usize)>,
    /// The first so many places have their large pages.
    touched: usize,
}

impl Segments {
    /// Bytes of a place that holds so many.
    pub fn place_bytes(bytes: usize) -> usize {
        bytes.max(1).next_multiple_of(64)
    }

    /// No place yet, of so many bytes each.
    pub fn new(bytes: usize) -> Self {
        let bytes = Self::place_bytes(bytes);
        Self { bytes, segments: Vec::new(), places: Vec::new(), touched: 0 }
    }

    /// Makes room for at least so many places, which are zeros at first. The large pages of all these are ready then,
    /// and those of `ahead` more.
    pub fn grow(&mut self, places: usize, ahead: usize) -> Result<()> {
        let ready = if places > 0 { places + ahead } else { 0 };
        while self.places.len() < ready {
            let present = self.places.len();
            let wanted = present.max(ready - present).min((SEGMENT / self.bytes).max(1)) * self.bytes;
            let bytes = if wanted < LARGE { wanted } else { wanted.next_multiple_of(LARGE) };
            let refused = |_| Error::OutOfMemory(format!("{bytes} bytes for caches were refused"));
            let segment = self.segments.len() as u32;
            self.segments.push(Aligned::try_zeros(bytes).map_err(refused)?);
            self.places.extend((0..bytes / self.bytes).map(|i| (segment, i * self.bytes)));
        }
        for (segment, at) in self.places.iter().take(ready).skip(self.touched) {
            self.segments[*segment as usize].touch(*at..at + self.bytes);
        }
        self.touched = self.touched.max(ready);
        Ok(())
    }

    /// What a place holds.
    pub fn place(&self, place: u32) -> &[u8] {
        let (segment, at) = self.places[place as usize];
        &self.segments[segment as usize][at..at + self.bytes]
    }

    /// The same, to be written.
    pub fn place_mut(&mut self, place: u32) -> &mut [u8] {
        let (segment, at) = self.places[place as usize];
        &mut self.segments[segment as usize][at..at + self.bytes]
    }

    /// Several places, to be written by several threads.
    pub fn several(&mut self, places: &[u32]) -> Result<Vec<&mut [u8]>> {
        let mut sorted = places.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let place = twice[0];
            return Err(Error::Unsupported(format!(
                "two sequences of a step write to place {place} of a cache"
            )));
        }
        let bytes = self.bytes;
        let one = |place: &u32| {
            let (segment, at) = self.places[*place as usize];
            let segment = &mut self.segments[segment as usize];
            // SAFETY: a place lies in its segment. No two have a byte in common, none comes twice, and all are borrowed
            // exclusively for as long as what is returned.
            unsafe { std::slice::from_raw_parts_mut(segment.start_mut().add(at), bytes) }
        };
        Ok(places.iter().map(one).collect())
    }

    /// Copies one place over another.
    pub fn copy(&mut self, from: u32, to: u32) {
        let ((from, start), (to, at)) = (self.places[from as usize], self.places[to as usize]);
        match self.segments.get_disjoint_mut([from as usize, to as usize]) {
            Ok([from, to]) => to[at..at + self.bytes].copy_from_slice(&from[start..start + self.bytes]),
            Err(_) => self.segments[from as usize].copy_within(start..start + self.bytes, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_where_they_are_and_new_ones_are_zeros() {
        // Small ones, those that large pages do not hold a whole number of, and one that is larger than a segment.
        for (bytes, most) in [(1, 9), (100, 200), (133_000, 160), (3 << 20, 9), (SEGMENT + 1, 2)] {
            let mut memory = Segments::new(bytes);
            let mut starts = Vec::new();
            for places in (0..=most).step_by(1 + most / 20) {
                memory.grow(places, 1).unwrap();
                for place in starts.len()..places {
                    let place = memory.place_mut(place as u32);
                    assert!(
                        place.len() == Segments::place_bytes(bytes) && place.iter().all(|byte| *byte == 0)
                    );
                    assert!(place.as_ptr().addr().is_multiple_of(64));
                    let number = starts.len() as u8 + 1;
                    place.iter_mut().step_by(61).for_each(|byte| *byte = number);
                    starts.push(place.as_ptr());
                }
            }
            for (i, start) in starts.iter().enumerate() {
                let place = memory.place(i as u32);
                assert!(
                    place.as_ptr() == *start && place.iter().step_by(61).all(|byte| *byte == i as u8 + 1)
                );
            }
        }
    }

    #[test]
    fn little_more_memory_is_taken_than_places_need() {
        let taken = |memory: &Segments| memory.segments.iter().map(|s| s.len()).sum::<usize>();
        for bytes in [64, 8 << 10, 133_120, 1 << 20] {
            let mut memory = Segments::new(bytes);
            for places in 1..500 {
                memory.grow(places, 1).unwrap();
                let (room, least) = (memory.places.len() * bytes, (places + 1) * bytes);
                assert!(room <= 2 * least + LARGE && room <= least + SEGMENT, "{room} for {least}");
                let unused = taken(&memory) - room;
                assert!(unused < memory.segments.len() * bytes, "{unused} bytes are in no place");
            }
        }
    }

    #[test]
    fn several_places_are_written_at_once_but_none_twice() {
        let mut memory = Segments::new(64);
        memory.grow(40, 1).unwrap();
        let numbers: Vec<u32> = (0..40).rev().step_by(3).collect();
        for (place, number) in memory.several(&numbers).unwrap().into_iter().zip(&numbers) {
            place.fill(*number as u8);
        }
        for place in 0..40 {
            let expected = if numbers.contains(&place) { place as u8 } else { 0 };
            assert!(memory.place(place).iter().all(|byte| *byte == expected));
        }
        assert!(memory.several(&[3, 7, 3]).is_err());
        // Within a segment, between two, and over itself.
        for (from, to) in [(39, 38), (39, 0), (36, 36)] {
            memory.copy(from, to);
            assert!(memory.place(to).iter().all(|byte| *byte == from as u8), "{from} to {to}");
        }
    }
}
