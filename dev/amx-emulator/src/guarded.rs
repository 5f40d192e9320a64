//! Memory that ends where a page without access begins: a read or write beyond it faults.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A copy of a slice whose last element is the last before a page that nobody may touch.
pub struct Guarded<T: Copy> {
    elements: NonNull<T>,
    len: usize,
    mapping: *mut libc::c_void,
    mapped: usize,
}

const PAGE: usize = 4096;

impl<T: Copy> Guarded<T> {
    /// Copies `elements`.
    ///
    /// # Panics
    ///
    /// Panics if the system has no memory for it.
    pub fn new(elements: &[T]) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        let bytes = size_of_val(elements);
        let mapped = bytes.next_multiple_of(PAGE) + PAGE;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping disturbs nothing.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0) };
        assert_ne!(mapping, libc::MAP_FAILED, "no memory for {mapped} bytes");
        // SAFETY: the last page is inside the mapping.
        let last = unsafe { mapping.byte_add(mapped - PAGE) };
        // SAFETY: the last page is this mapping's own.
        let rc = unsafe { libc::mprotect(last, PAGE, libc::PROT_NONE) };
        assert_eq!(rc, 0, "a page can be protected");
        // SAFETY: the elements fit before the last page.
        let first = unsafe { last.byte_sub(bytes) }.cast::<T>();
        let first = NonNull::new(first).expect("a mapping is not at null");
        // SAFETY: room for `elements.len()` elements from `first` on; the end is page-aligned and
        // so a multiple of the alignment of `T`, as its size is.
        unsafe { first.copy_from_nonoverlapping(NonNull::from(elements).cast(), elements.len()) };
        Self { elements: first, len: elements.len(), mapping, mapped }
    }
}

impl<T: Copy> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written at construction; the mapping lives as long as this.
        unsafe { NonNull::slice_from_raw_parts(self.elements, self.len).as_ref() }
    }
}

impl<T: Copy> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and this is borrowed mutably.
        unsafe { NonNull::slice_from_raw_parts(self.elements, self.len).as_mut() }
    }
}

impl<T: Copy> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and unused from here on.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}
