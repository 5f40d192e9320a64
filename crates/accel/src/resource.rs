//! Provider objects that belong to an allocation: page wrappers, page registrations.
//!
//! They live as long as the allocation, through every reuse by the pool, and are destroyed before
//! the memory is freed. A failed creation is remembered, so that it is not tried at every call.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::id::ProviderId;
use crate::sync::{Mutex, lock};

type Object = Arc<dyn Any + Send + Sync>;

/// One object, or one remembered failure, for each provider.
#[derive(Default)]
pub(crate) struct Resources(Mutex<Vec<(ProviderId, Option<Object>)>>);

impl Resources {
    /// Returns the object of `provider`, which `create` makes at the first call.
    pub(crate) fn get_or_create(
        &self,
        provider: ProviderId,
        create: impl FnOnce() -> Option<Object>,
    ) -> Option<Object> {
        let mut entries = lock(&self.0);
        if let Some((_, object)) = entries.iter().find(|(id, _)| *id == provider) {
            return object.clone();
        }
        let object = create();
        entries.push((provider, object.clone()));
        object
    }

    /// Destroys the object of `provider` and forgets its failure.
    pub(crate) fn remove(&self, provider: ProviderId) {
        let mut entries = lock(&self.0);
        let found = entries.iter().position(|(id, _)| *id == provider);
        let removed = found.map(|i| entries.swap_remove(i));
        drop(entries);
        drop(removed);
    }

    /// Destroys every object.
    pub(crate) fn clear(&self) {
        let removed = std::mem::take(&mut *lock(&self.0));
        drop(removed);
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resources")
    }
}
