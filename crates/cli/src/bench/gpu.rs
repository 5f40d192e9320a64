//! `fucina bench gpu-dispatch` and `gpu-formats`: single calls on a device, against the CPU.
//!
//! Both sides run what a program calls, an eager product: the CPU in a runtime without providers,
//! the device in one that offers it every call. A call that the device declines, a result that is
//! wrong, and a chain that is not bit for bit what its calls give one by one fail the row.

pub(crate) mod args;
mod data;
mod measure;
mod report;
pub(in crate::bench) mod row;
pub(in crate::bench) mod shapes;
mod site;

use fucina::accel::DeviceInfo;
use fucina::{Config, Found, Offload, default_providers};

use crate::exit::{Exit, Failure};
use crate::output;
use args::{CommonArgs, GpuBench};
use report::Report;
use site::Site;

pub(crate) fn run(bench: &GpuBench) -> anyhow::Result<Exit> {
    let (name, common, cases) = match bench {
        GpuBench::GpuDispatch(args) => ("gpu-dispatch", &args.common, shapes::dispatch(args)?),
        GpuBench::GpuFormats(args) => ("gpu-formats", &args.common, shapes::formats(args)?),
    };
    let site = Site::open(common.threads)?;
    if site.simulated && !common.allow_simulated {
        let message = format!(
            "{} is simulated, so its times say nothing; --allow-simulated compares results only",
            site.device.name
        );
        return Err(Failure::new(Exit::Failed, message).into());
    }
    head(name, &site, common);
    let mut report = Report::new(common);
    let mut wrong = 0;
    for case in &cases {
        let row = measure::row(name, &site, case, common.queue)?;
        wrong += usize::from(!row.ok);
        report.add(row)?;
    }
    let rows = cases.len();
    report.finish()?;
    if wrong == 0 {
        return Ok(Exit::Ok);
    }
    let message = format!("{wrong} of {}", output::plural(rows, "row"));
    Err(Failure::new(Exit::Failed, format!("{message} failed: the table says why")).into())
}

/// What runs, in one line for people.
fn head(name: &str, site: &Site, args: &CommonArgs) {
    if args.quiet {
        return;
    }
    let DeviceInfo { name: device, .. } = &site.device;
    let simulated = if site.simulated { " · simulated: no times" } else { "" };
    let (isa, threads) = (site.cpu.isa().name(), site.cpu.threads());
    let threads = output::plural(threads, "thread");
    output::line(&format!(
        "{name} · {} · {}{simulated} · cpu {isa}, {threads} · queue {}",
        site.provider.name(),
        output::plain(device),
        args.queue
    ));
}

/// The first device of this machine, or why there is none.
fn first_device(config: &Config) -> anyhow::Result<Found> {
    if config.offload == Offload::Off {
        let message = "FUCINA_GPU=0 keeps every device away; unset it to measure one";
        return Err(Failure::new(Exit::Failed, message).into());
    }
    let found = default_providers(config)?;
    let mut reasons = Vec::new();
    for found in found {
        match &found.provider {
            Ok(_) => return Ok(found),
            Err(why) => reasons.push(format!("{}: {why}", found.name)),
        }
    }
    if reasons.is_empty() {
        reasons.push("this build knows no provider for this system".to_owned());
    }
    let message = format!("there is no device to measure; {}", reasons.join("; "));
    Err(Failure::new(Exit::Failed, message).into())
}
