//! A timeline in the Chrome trace-event format, which Perfetto and `chrome://tracing` open.
//!
//! Process 1 is the host, with its threads. Each device is a process of its own, with a track for
//! each kind of work. Times are microseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use fucina::accel::{
    CommandId, Decision, DeviceId, Input, OffloadReason, Outcome, Record, Span, Timeline,
};
use serde_json::{Map, Value, json};

/// The host.
const HOST: u64 = 1;
/// Tracks of a device.
const QUEUE: (u64, &str) = (1, "queue");
const UPLOAD: (u64, &str) = (2, "upload");
const COMPUTE: (u64, &str) = (3, "compute");
const DOWNLOAD: (u64, &str) = (4, "download");

/// What is known of a command from all its records.
#[derive(Default)]
struct Command {
    call: Option<Decision>,
    submit: Option<Span>,
    inputs: Vec<Input>,
    device: Option<Span>,
    uploads: Phase,
    downloads: Phase,
    /// Times that the host waited.
    wait_ns: u64,
}

/// Copies of a command.
#[derive(Default)]
struct Phase {
    bytes: u64,
    ns: u64,
}

impl Phase {
    fn add(&mut self, len_bytes: usize, span: Span) {
        self.bytes += len_bytes as u64;
        self.ns += span.len_ns();
    }
}

/// Writes the events, one a line.
pub(super) fn write(timeline: &Timeline, out: &mut impl Write) -> io::Result<()> {
    let records = timeline.records();
    let writer = Writer { commands: gather(&records), devices: timeline.devices() };
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\n\"traceEvents\":[\n")?;
    let mut first = true;
    let mut put = |event: &Value| -> io::Result<()> {
        if !std::mem::take(&mut first) {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *out, event).map_err(io::Error::from)
    };
    for event in writer.names(&records) {
        put(&event)?;
    }
    for record in &records {
        for event in writer.events(record) {
            put(&event)?;
        }
    }
    let about = json!({
        "program": "fucina",
        "version": env!("CARGO_PKG_VERSION"),
        "records": records.len(),
        "dropped_records": timeline.dropped(),
        "devices": writer.devices.iter().map(|(_, name)| name).collect::<Vec<_>>(),
    });
    writeln!(out, "\n],\n\"otherData\":{about}}}")?;
    out.flush()
}

fn gather(records: &[Record]) -> BTreeMap<CommandId, Command> {
    let mut commands: BTreeMap<CommandId, Command> = BTreeMap::new();
    for record in records {
        match *record {
            Record::Call { decision, command: Some(id), .. } => {
                commands.entry(id).or_default().call = Some(decision);
            }
            Record::Submit { span, result: Ok(id), .. } => {
                commands.entry(id).or_default().submit = Some(span);
            }
            Record::Wait { span, command, .. } => {
                commands.entry(command).or_default().wait_ns += span.len_ns();
            }
            Record::Inputs { command, inputs } => {
                commands.entry(command).or_default().inputs =
                    inputs.into_iter().flatten().collect();
            }
            Record::Upload { command, span, len_bytes, .. } => {
                commands.entry(command).or_default().uploads.add(len_bytes, span);
            }
            Record::Download { command, span, len_bytes } => {
                commands.entry(command).or_default().downloads.add(len_bytes, span);
            }
            Record::Device { command, span } => {
                commands.entry(command).or_default().device = Some(span);
            }
            _ => {}
        }
    }
    commands
}

struct Writer {
    commands: BTreeMap<CommandId, Command>,
    devices: Vec<(DeviceId, String)>,
}

impl Writer {
    /// Names of processes and tracks.
    fn names(&self, records: &[Record]) -> Vec<Value> {
        let name = |pid: u64, tid: u64, kind: &str, name: &str| {
            json!({"name": kind, "ph": "M", "ts": 0, "dur": 0, "pid": pid, "tid": tid,
                "args": {"name": name}})
        };
        let threads: BTreeSet<u64> = records
            .iter()
            .filter_map(|record| match record {
                Record::Call { thread, .. }
                | Record::Submit { thread, .. }
                | Record::Wait { thread, .. } => Some(*thread),
                _ => None,
            })
            .collect();
        let mut names = vec![name(HOST, 0, "process_name", "host")];
        for thread in threads {
            names.push(name(HOST, thread, "thread_name", &format!("thread {thread}")));
        }
        for (at, (_, device)) in self.devices.iter().enumerate() {
            let pid = HOST + 1 + at as u64;
            names.push(name(pid, 0, "process_name", device));
            for (tid, track) in [QUEUE, UPLOAD, COMPUTE, DOWNLOAD] {
                names.push(name(pid, tid, "thread_name", track));
            }
        }
        names
    }

    fn events(&self, record: &Record) -> Vec<Value> {
        match *record {
            Record::Call { thread, span, decision, offered, command } => {
                let args = self.call_args(&decision, offered, command);
                vec![complete(decision.op, "call", span, (HOST, thread), args)]
            }
            Record::Submit { thread, span, result } => {
                let args = match result {
                    Ok(id) => json!({"command": id.place}),
                    Err(reason) => json!({"declined": reason.to_string()}),
                };
                vec![complete("submit", "submit", span, (HOST, thread), args)]
            }
            Record::Wait { thread, span, command, len_bytes, reader } => {
                let args = json!({"command": command.place, "op": self.op(command),
                    "downloaded_bytes": len_bytes, "reader": reader.unwrap_or("a read of the host")});
                vec![complete("wait", "wait", span, (HOST, thread), args)]
            }
            Record::Upload { command, span, len_bytes, operand } => {
                let args = self.upload_args(command, len_bytes, operand);
                vec![complete("upload", "copy", span, (self.pid(command), UPLOAD.0), args)]
            }
            Record::Download { command, span, len_bytes } => {
                let args = json!({"command": command.place, "op": self.op(command),
                    "bytes": len_bytes});
                vec![complete("download", "copy", span, (self.pid(command), DOWNLOAD.0), args)]
            }
            Record::Device { command, span } => {
                let (args, pid) = (json!({"command": command.place}), self.pid(command));
                let ran =
                    complete(self.op(command), "device", span, (pid, COMPUTE.0), args.clone());
                let queued = self.queued(command).filter(|span| span.len_ns() > 0);
                let queued =
                    queued.map(|span| complete("queue", "queue", span, (pid, QUEUE.0), args));
                std::iter::once(ran).chain(queued).collect()
            }
            _ => Vec::new(),
        }
    }

    fn call_args(
        &self,
        decision: &Decision,
        offered: Option<OffloadReason>,
        command: Option<CommandId>,
    ) -> Value {
        let shapes: Vec<&[usize]> = decision.shapes.iter().map(|shape| &**shape).collect();
        let mut args = Map::new();
        args.insert("shapes".to_owned(), json!(shapes));
        args.insert("format".to_owned(), json!(decision.format.to_string()));
        let (place, why) = match decision.outcome {
            Outcome::Offloaded { provider } => (provider, String::new()),
            Outcome::Declined { provider, reason } => ("cpu", format!("{provider}: {reason}")),
            Outcome::Cpu { reason } => ("cpu", reason.to_string()),
            _ => ("unknown", String::new()),
        };
        args.insert("ran_on".to_owned(), json!(place));
        let why = if why.is_empty() { offered.map(|why| why.to_string()) } else { Some(why) };
        args.insert("why".to_owned(), json!(why));
        if let Some(kernel) = decision.kernel {
            args.insert("kernel".to_owned(), json!(kernel));
        }
        if let Some(id) = command {
            args.insert("command".to_owned(), json!(id.place));
            if let Some(found) = self.commands.get(&id) {
                self.add_phases(id, found, &mut args);
            }
        }
        Value::Object(args)
    }

    fn add_phases(&self, id: CommandId, found: &Command, args: &mut Map<String, Value>) {
        let us = |ns: u64| json!(micros(ns));
        let len = |span: Option<Span>| json!(span.map(|span| micros(span.len_ns())));
        args.insert("submit_us".to_owned(), len(found.submit));
        args.insert("queue_us".to_owned(), len(self.queued(id)));
        args.insert("upload_us".to_owned(), us(found.uploads.ns));
        args.insert("device_us".to_owned(), len(found.device));
        args.insert("wait_us".to_owned(), us(found.wait_ns));
        args.insert("download_us".to_owned(), us(found.downloads.ns));
        args.insert("uploaded_bytes".to_owned(), json!(found.uploads.bytes));
        args.insert("downloaded_bytes".to_owned(), json!(found.downloads.bytes));
        let inputs: Vec<Value> = found.inputs.iter().map(input).collect();
        args.insert("inputs".to_owned(), json!(inputs));
    }

    fn upload_args(&self, id: CommandId, len_bytes: usize, operand: Option<usize>) -> Value {
        let inputs = self.commands.get(&id).map_or(&[][..], |command| &command.inputs);
        let found = inputs.iter().find(|input| Some(input.operand) == operand);
        let mut args = found.map_or_else(|| json!({"operand": null, "kind": "table"}), input);
        args["command"] = json!(id.place);
        args["op"] = json!(self.op(id));
        args["bytes"] = json!(len_bytes);
        args
    }

    /// From the end of the submission to the start on the device, its uploads included.
    fn queued(&self, id: CommandId) -> Option<Span> {
        let command = self.commands.get(&id)?;
        let (start_ns, end_ns) = (command.submit?.end_ns, command.device?.start_ns);
        Some(Span { start_ns, end_ns: end_ns.max(start_ns) })
    }

    fn op(&self, id: CommandId) -> &'static str {
        self.commands.get(&id).and_then(|command| command.call).map_or("command", |call| call.op)
    }

    fn pid(&self, id: CommandId) -> u64 {
        let at = self.devices.iter().position(|(device, _)| *device == id.lane.device);
        HOST + 1 + at.unwrap_or(self.devices.len()) as u64
    }
}

fn input(input: &Input) -> Value {
    json!({
        "operand": input.operand,
        "kind": if input.is_weight { "weight" } else { "activation" },
        "bytes": input.len_bytes,
        "arrival": input.arrival.name(),
        "content": input.content,
        "offset": input.offset_bytes,
    })
}

/// An event with a beginning and a length.
fn complete(name: &str, cat: &str, span: Span, (pid, tid): (u64, u64), args: Value) -> Value {
    json!({"name": name, "cat": cat, "ph": "X", "ts": micros(span.start_ns),
        "dur": micros(span.len_ns()), "pid": pid, "tid": tid, "args": args})
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
