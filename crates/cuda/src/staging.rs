//! Page-locked memory for bytes whose own pages cannot be locked. Bounded, and reused.

use std::sync::{Arc, Mutex};

use crate::driver::{Context, HostMemory, held};

/// Largest piece: longer copies go in several.
pub(crate) const MAX_BYTES: usize = 16 << 20;
const MIN_BYTES: usize = 64 << 10;
/// All pieces together.
const LIMIT_BYTES: usize = 256 << 20;

/// The staging memory of one provider.
pub(crate) struct Staging {
    context: Arc<Context>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    free: Vec<HostMemory>,
    allocated_bytes: usize,
}

/// A piece of staging memory. Its user keeps it until no command uses it.
pub(crate) struct Piece {
    staging: Arc<Staging>,
    memory: Option<HostMemory>,
}

impl Piece {
    pub(crate) fn memory(&self) -> &HostMemory {
        self.memory.as_ref().expect("taken only by drop")
    }

    pub(crate) fn memory_mut(&mut self) -> &mut HostMemory {
        self.memory.as_mut().expect("taken only by drop")
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            held(&self.staging.book).free.push(memory);
        }
    }
}

impl Staging {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), book: Mutex::default() })
    }

    /// A piece for `len_bytes`, at most [`MAX_BYTES`]. `None` at the bound, or if the system locks
    /// no more memory.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Piece> {
        let size = len_bytes.clamp(MIN_BYTES, MAX_BYTES).next_power_of_two();
        let mut book = held(&self.book);
        let fits = book.free.iter().position(|memory| memory.len_bytes() == size);
        if let Some(at) = fits {
            let memory = book.free.swap_remove(at);
            return Some(self.piece(memory));
        }
        if book.allocated_bytes + size > LIMIT_BYTES {
            // Pieces of other sizes make room.
            let old = std::mem::take(&mut book.free);
            book.allocated_bytes -= old.iter().map(HostMemory::len_bytes).sum::<usize>();
            if book.allocated_bytes + size > LIMIT_BYTES {
                return None;
            }
        }
        let memory = self.context.enter().ok()?.alloc_host(size).ok()?;
        book.allocated_bytes += size;
        drop(book);
        Some(self.piece(memory))
    }

    fn piece(self: &Arc<Self>, memory: HostMemory) -> Piece {
        Piece { staging: Arc::clone(self), memory: Some(memory) }
    }
}
