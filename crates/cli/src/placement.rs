//! Where the weights of a model are after a run, and why calls ran where they ran: the table of
//! `--placement`, and the array of `--json`.

use std::collections::BTreeMap;

use clap::Args;
use fucina::accel::{Outcome, Reading};
use fucina::llm::{Model, WeightPlace};
use serde::Serialize;

use crate::output;
use crate::trace::place_and_why;

#[derive(Args, Debug, Default)]
pub(crate) struct PlacementArgs {
    /// End with a table of where the weights are, where the calls ran that read them, and why
    #[arg(long)]
    pub(crate) placement: bool,
}

/// A weight, in `--json`.
#[derive(Serialize)]
pub(crate) struct Weight {
    name: String,
    #[serde(rename = "type")]
    dtype: &'static str,
    bytes: usize,
    /// What the CPU kernels read, if that is not the tensor's own bytes.
    packed_bytes: usize,
    /// The f32 copy of a 16-bit weight that products of many rows read.
    f32_shadow_bytes: usize,
    devices: Vec<Device>,
    calls: Vec<Calls>,
}

#[derive(Serialize)]
struct Device {
    provider: &'static str,
    resident_bytes: usize,
    uploads: u64,
}

#[derive(Serialize)]
struct Calls {
    op: &'static str,
    ran_on: &'static str,
    why: String,
    calls: u64,
}

/// Every weight of a model.
pub(crate) fn weights(model: &Model) -> Vec<Weight> {
    let calls = |reading: &Reading| {
        let (ran_on, why) = place_and_why(reading.outcome);
        Calls { op: reading.op, ran_on, why, calls: reading.calls }
    };
    let weight = |weight: WeightPlace| Weight {
        name: weight.name,
        dtype: weight.dtype.name(),
        bytes: weight.place.bytes,
        packed_bytes: weight.packed_bytes,
        f32_shadow_bytes: weight.f32_shadow_bytes,
        devices: weight
            .place
            .devices
            .iter()
            .map(|device| Device {
                provider: device.provider,
                resident_bytes: device.resident_bytes,
                uploads: device.uploads,
            })
            .collect(),
        calls: weight.place.readings.iter().map(calls).collect(),
    };
    model.placement().map(weight).collect()
}

/// Writes the table to standard error, if it was asked for or the trace is on.
pub(crate) fn report(model: &Model, args: Option<&PlacementArgs>) {
    let rt = model.runtime();
    if !(rt.config().trace || args.is_some_and(|args| args.placement)) {
        return;
    }
    let shadows: u64 = model.placement().map(|weight| weight.f32_shadow_bytes as u64).sum();
    if shadows > 0 {
        let bytes = output::bytes(shadows);
        output::line(&format!("placement: {bytes} are f32 copies of 16-bit weights"));
    }
    if rt.providers().is_empty() {
        output::line("placement: no device is in use; `fucina doctor` says why");
        return;
    }
    output::line(&table(model.placement()));
    for provider in rt.providers() {
        let counters = provider.counters();
        output::line(&format!(
            "{}, {}: {} of device memory in use; {} copies dropped to make room",
            provider.name(),
            output::plain(&provider.device().name),
            output::bytes(counters.device_bytes),
            counters.evictions,
        ));
    }
}

/// The weights of one kind and format, of all layers.
#[derive(Default)]
struct Kind {
    tensors: usize,
    bytes: u64,
    /// By provider: what it has of them.
    devices: BTreeMap<&'static str, Held>,
    /// By outcome.
    calls: BTreeMap<Outcome, u64>,
}

/// What a device has of the weights of a kind.
#[derive(Default)]
struct Held {
    resident: usize,
    in_part: usize,
    dropped: usize,
    resident_bytes: u64,
    /// Uploads beyond the first of each weight.
    streamed: u64,
}

impl Kind {
    fn add(&mut self, weight: &WeightPlace) {
        let place = &weight.place;
        self.tensors += 1;
        self.bytes += place.bytes as u64;
        for device in &place.devices {
            let held = self.devices.entry(device.provider).or_default();
            match device.resident_bytes {
                0 => held.dropped += usize::from(device.uploads > 0),
                bytes if bytes < place.bytes => held.in_part += 1,
                _ => held.resident += 1,
            }
            held.resident_bytes += device.resident_bytes as u64;
            held.streamed += device.uploads.saturating_sub(1);
        }
        for reading in &place.readings {
            *self.calls.entry(reading.outcome).or_default() += reading.calls;
        }
    }

    fn cells(&self, (name, dtype): (&str, &str)) -> Vec<String> {
        let places = self.devices.iter().map(|(provider, held)| held.text(provider, self.tensors));
        let calls = self.calls.iter().map(|(&outcome, calls)| match outcome {
            Outcome::Offloaded { provider } => format!("{calls} on {provider}"),
            outcome => format!("{calls} on the CPU ({})", place_and_why(outcome).1),
        });
        vec![
            output::plain(name).into_owned(),
            dtype.to_owned(),
            self.tensors.to_string(),
            output::bytes(self.bytes),
            places.collect::<Vec<_>>().join("; "),
            calls.collect::<Vec<_>>().join("; "),
        ]
    }
}

impl Held {
    fn text(&self, provider: &str, tensors: usize) -> String {
        let on_host = tensors - self.resident - self.in_part - self.dropped;
        if on_host == tensors {
            return "host".to_owned();
        }
        let mut parts = Vec::new();
        if self.resident == tensors {
            parts.push(provider.to_owned());
        } else if self.resident > 0 {
            parts.push(format!("{provider} {}", self.resident));
        }
        if self.in_part > 0 {
            let size = output::bytes(self.resident_bytes);
            parts.push(format!("{provider} {} in part ({size} in all)", self.in_part));
        }
        for (count, what) in [(self.dropped, "dropped"), (on_host, "host")] {
            if count > 0 {
                parts.push(format!("{what} {count}"));
            }
        }
        if self.streamed > 0 {
            parts.push(format!("uploaded {} times more", self.streamed));
        }
        parts.join(", ")
    }
}

/// A row for each kind of weight and format, in the order of the file.
fn table(weights: impl Iterator<Item = WeightPlace>) -> String {
    let mut kinds: Vec<((String, &'static str), Kind)> = Vec::new();
    for weight in weights {
        let key = (kind_of(&weight.name), weight.dtype.name());
        let at = kinds.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            kinds.push((key, Kind::default()));
            kinds.len() - 1
        });
        kinds[at].1.add(&weight);
    }
    let heads = ["weight", "type", "tensors", "size", "is on", "calls that read it"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(kinds.iter().map(|((name, dtype), kind)| kind.cells((name, dtype))));
    let mut text = output::columns(&rows, &[false, false, true, true, false, false]);
    text.truncate(text.trim_end().len());
    text
}

/// The name without the number of its layer.
fn kind_of(name: &str) -> String {
    let parts = name.split('.').map(|part| match part.parse::<u32>() {
        Ok(_) => "*",
        Err(_) => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(resident: usize, in_part: usize, dropped: usize, streamed: u64) -> Held {
        Held { resident, in_part, dropped, resident_bytes: 1024, streamed }
    }

    #[test]
    fn layers_of_a_kind_share_a_row() {
        assert_eq!(kind_of("blk.12.attn_q.weight"), "blk.*.attn_q.weight");
        assert_eq!(kind_of("output_norm.weight"), "output_norm.weight");
    }

    #[test]
    fn a_place_says_what_differs() {
        assert_eq!(held(3, 0, 0, 0).text("cuda", 3), "cuda");
        assert_eq!(held(0, 0, 0, 0).text("cuda", 3), "host");
        let mixed = "cuda 1, cuda 1 in part (1.00 KiB in all), dropped 1, host 1";
        assert_eq!(held(1, 1, 1, 0).text("cuda", 4), mixed);
        assert_eq!(held(2, 0, 1, 5).text("cuda", 3), "cuda 2, dropped 1, uploaded 5 times more");
    }
}
