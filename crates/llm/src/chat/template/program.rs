//! Compiles a template to the engine's instructions, and puts our own operations in the place of
//! those whose work the engine does not bound.
//!
//! The engine takes fuel for instructions and for the bytes that they make. It takes none for
//! what a short program can make of shared values: a list that is doubled forty times is forty
//! pairs, and printing, comparing or copying it never ends. `ops` has the replacements.

use std::collections::BTreeMap;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, machinery};

use super::{NAME, ops};

/// The instructions of `source`.
pub(super) fn compile(source: &str) -> Result<Instructions<'_>, Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("the delimiters are the usual ones");
    let tree = parse(source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, _) = generator.finish();
    bounded(&instructions)
}

/// Runs what [`compile`] returned.
pub(super) fn run<'env>(
    env: &'env Environment<'env>,
    instructions: &Instructions<'env>,
    variables: Value,
) -> Result<String, Error> {
    let mut text = String::new();
    // Other templates and blocks do not exist: the engine is built without them.
    let blocks = BTreeMap::new();
    let mut out = make_string_output(&mut text);
    machinery::eval(env, instructions, variables, &blocks, &mut out, AutoEscape::None)?;
    drop(out);
    Ok(text)
}

/// The same program with bounded operations.
fn bounded<'s>(program: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut places = Vec::new();
    let mut out = Instructions::new(program.name(), program.source());
    let mut index = 0;
    while let Some(instruction) = program.get(index) {
        let line = program.get_line(index).unwrap_or(1);
        let line = u16::try_from(line).unwrap_or(u16::MAX);
        // A jump to an instruction is one to what was put before it.
        places.push(out.add_with_line(Instruction::Jump(0), line));
        let mut steps = before(instruction);
        steps.push(replaced(instruction)?);
        let mut steps = steps.into_iter();
        if let (Some(first), Some(place)) = (steps.next(), out.get_mut(places[index as usize])) {
            *place = first;
        }
        for step in steps {
            out.add_with_line(step, line);
        }
        index += 1;
    }
    // A jump to the end needs something there; this one does nothing.
    places.push(out.add(Instruction::LoadConst(Value::from(()))));
    for index in 0..places[index as usize] {
        use Instruction::{
            BuildMacro, Iterate, Jump, JumpIfFalse, JumpIfFalseOrPop, JumpIfTrueOrPop,
        };
        if let Some(
            Iterate(to)
            | Jump(to)
            | JumpIfFalse(to)
            | JumpIfFalseOrPop(to)
            | JumpIfTrueOrPop(to)
            | BuildMacro(_, to, _),
        ) = out.get_mut(index)
        {
            *to = places.get(*to as usize).copied().unwrap_or(*to);
        }
    }
    Ok(out)
}

/// What stands in the place of an instruction. Operands and results lie on the stack in the same
/// order for both.
fn replaced<'s>(instruction: &Instruction<'s>) -> Result<Instruction<'s>, Error> {
    let call = |name, count| Ok(Instruction::CallFunction(name, Some(count)));
    match *instruction {
        Instruction::Add => call(ops::ADD, 2),
        Instruction::Mul => call(ops::MUL, 2),
        Instruction::StringConcat => call(ops::CONCAT, 2),
        Instruction::Eq => call(ops::EQ, 2),
        Instruction::Ne => call(ops::NE, 2),
        Instruction::Lt => call(ops::LT, 2),
        Instruction::Lte => call(ops::LE, 2),
        Instruction::Gt => call(ops::GT, 2),
        Instruction::Gte => call(ops::GE, 2),
        Instruction::In => call(ops::IN, 2),
        Instruction::GetItem => call(ops::ITEM, 2),
        Instruction::Slice => call(ops::SLICE, 4),
        Instruction::BuildList(count) => {
            Ok(Instruction::CallFunction(ops::LIST, count.map(narrow).transpose()?))
        }
        Instruction::BuildTuple(count) => {
            Ok(Instruction::CallFunction(ops::TUPLE, count.map(narrow).transpose()?))
        }
        Instruction::BuildMap(pairs) => call(ops::MAP, narrow(2 * pairs)?),
        Instruction::MergeKwargs(count) => call(ops::KWARGS, narrow(count)?),
        // `loop.changed` and `loop.cycle`, which trust their arguments.
        Instruction::CallMethod("changed", count) => {
            Ok(Instruction::CallMethod(ops::CHANGED, count))
        }
        Instruction::CallMethod("cycle", count) => Ok(Instruction::CallMethod(ops::CYCLE, count)),
        _ => Ok(instruction.clone()),
    }
}

fn narrow(count: usize) -> Result<u16, Error> {
    u16::try_from(count)
        .map_err(|_| Error::new(ErrorKind::SyntaxError, "a list or call has too many items"))
}

/// What comes before an instruction: a look at its operands, which stay on the stack.
fn before<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    let look = |name| {
        [Instruction::DupTop, Instruction::CallFunction(name, Some(1)), Instruction::DiscardTop]
    };
    match instruction {
        Instruction::SetAttr(_) => {
            // The namespace lies above the value.
            let mut steps = vec![Instruction::Swap];
            steps.extend(look(ops::KEEP));
            steps.push(Instruction::Swap);
            steps
        }
        Instruction::PushLoop(_) | Instruction::UnpackList(_) => look(ops::VISIT).into(),
        Instruction::CompareAndPreserve(_) => {
            let mut steps: Vec<_> = look(ops::WEIGH).into();
            steps.push(Instruction::Swap);
            steps.extend(look(ops::WEIGH));
            steps.push(Instruction::Swap);
            steps
        }
        _ => Vec::new(),
    }
}
