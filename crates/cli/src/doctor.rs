//! stub
use crate::{args::DoctorArgs, exit::Exit};
pub(crate) fn run(_: &DoctorArgs) -> anyhow::Result<Exit> {
    Ok(Exit::Ok)
}
