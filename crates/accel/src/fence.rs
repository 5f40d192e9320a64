//! The submissions that stand between the host and some bytes.

use std::ops::Range;

use crate::submission::Ticket;

/// A command that reads bytes of a storage.
#[derive(Debug)]
struct Reader {
    ticket: Ticket,
    range: Range<usize>,
}

/// The commands that read a storage: the newest one of each lane.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    readers: Vec<Reader>,
    /// A reader failed in a way that leaves it open whether the device still reads.
    tainted: bool,
}

impl Readers {
    /// Adds a command that reads `range`.
    ///
    /// A later command of a lane finishes after the earlier ones, so it stands for them, and for
    /// what they read. Later means its place in the queue: threads that submit at the same time
    /// may arrive here in another order.
    pub(crate) fn add(&mut self, ticket: Ticket, range: Range<usize>) {
        self.sweep();
        let known = self.readers.iter_mut().find(|known| known.ticket.lane() == ticket.lane());
        let Some(known) = known else { return self.readers.push(Reader { ticket, range }) };
        known.range = known.range.start.min(range.start)..known.range.end.max(range.end);
        if known.ticket.place() < ticket.place() {
            known.ticket = ticket;
        }
    }

    /// Forgets the commands that have finished.
    fn sweep(&mut self) {
        let tainted = &mut self.tainted;
        self.readers.retain(|reader| {
            *tainted |= reader.ticket.is_tainted();
            !reader.ticket.is_finished()
        });
    }

    /// Blocks until no command reads a byte of `range`.
    pub(crate) fn retire(&mut self, range: &Range<usize>) {
        for reader in &self.readers {
            if reader.range.start < range.end && range.start < reader.range.end {
                // A failed reader does not spoil what it read; `sweep` notes it.
                let _ = reader.ticket.retire();
            }
        }
        self.sweep();
    }

    /// Reports whether a failed command may read the bytes for ever.
    pub(crate) fn is_tainted(&self) -> bool {
        self.tainted
    }

    /// Reports whether no command was added since the last wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.readers.is_empty() && !self.tainted
    }

    /// Number of lanes with a reader, after forgetting the finished ones.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn len(&mut self) -> usize {
        self.sweep();
        self.readers.len()
    }
}

/// What a closed fence still waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FenceState {
    /// No command touches the memory.
    Open,
    /// A command may still touch the memory, and will finish.
    Closed,
    /// A command failed, so nobody will ever say that the device has let go.
    Tainted,
}

/// What travels with memory whose storage is gone.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    pub(crate) writer: Option<Ticket>,
    pub(crate) readers: Readers,
    /// The writer's error has reached nobody.
    pub(crate) unseen_fault: bool,
}

impl Fence {
    /// Reports whether nothing needs to be asked.
    pub(crate) fn is_trivial(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty()
    }

    /// Asks the devices, without blocking.
    pub(crate) fn state(&mut self) -> FenceState {
        self.readers.sweep();
        let writer = self.writer.as_ref();
        let open = self.readers.readers.is_empty() && writer.is_none_or(Ticket::is_finished);
        if !open {
            FenceState::Closed
        } else if self.readers.tainted || writer.is_some_and(Ticket::is_tainted) {
            FenceState::Tainted
        } else {
            FenceState::Open
        }
    }
}
