//! `fucina pull`, `list` and `rm`: the folder of models.

pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod rm;

use fucina_hub::{Config, Licence, Store};

use crate::output;

/// The folder of models. What only pulling needs is not read: it may be wrong.
pub(crate) fn store() -> anyhow::Result<Store> {
    Ok(Store::new(Config::folder_from_env()?))
}

/// The name of a licence, and that its terms want a decision.
fn terms(licence: &Licence) -> String {
    let name = output::plain(&licence.name);
    if licence.open { name.into_owned() } else { format!("{name} *") }
}
