//! stub
use crate::{args::InspectArgs, exit::Exit};
pub(crate) fn run(_: &InspectArgs) -> anyhow::Result<Exit> {
    Ok(Exit::Ok)
}
