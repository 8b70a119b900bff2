//! Executes one script, in a Lua state of its own: bounded in processor time and
//! memory, and without anything that reaches beyond it (`prelude.lua`).

use super::{bits, json::Json};
use mlua::{
    ChunkMode, Error, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value,
    VmState,
};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_gateway_core::resp::{
    Function as LibraryFunction, JobKind, SCRIPT_MEMORY_MAX as MEMORY_MAX, SCRIPT_TIME_MS_MAX,
    ScriptJob, ScriptValue, sha1_hex,
};
use trefoil_gateway_core::world::Now;

/// Processor time of one script, in nanoseconds.
const TIME_NS_MAX: u64 = SCRIPT_TIME_MS_MAX * 1_000_000;
/// Instructions between two looks at that: one of them may copy megabytes.
const INSTRUCTIONS: u32 = 200;
/// Values within values that an answer may have, and values in all.
const DEPTH_MAX: usize = 32;
const VALUES_MAX: usize = 1 << 17;
/// Values of Lua's that are held here at a time, beside the words of a command: some for
/// each level of JSON, or of an answer. As many words need nothing more, in `prelude.lua`.
const REFERENCES: usize = 1024;
/// Flags of a function that are looked at: there are fewer.
const FLAGS_MAX: usize = 16;

/// What a script is told that must not go on.
const TOO_LONG: &str = "the script ran for too long";
const KILLED: &str = "Script killed by user with SCRIPT KILL.";
/// How the error of a script begins that is no program, and that of a library.
const NOT_COMPILED: &str = "ERR Error compiling script (new function)";
const LIBRARY_NOT_COMPILED: &str = "ERR Error compiling function";
/// The error of a library that registers nothing.
const NO_FUNCTIONS: &[u8] = b"ERR No functions registered";
/// What Lua says itself where protected calls are told.
const NOT_ENOUGH_MEMORY: &[u8] = b"not enough memory";

const PRELUDE: &str = include_str!("prelude.lua");

/// Executes the job's script, and leaves its answer there. It ends early once it
/// `is_unwanted`.
pub(super) fn execute(mut job: Box<ScriptJob>, is_unwanted: &Arc<AtomicBool>) -> Box<ScriptJob> {
    job.begin_at(now());
    if job.execute_queued() {
        return job;
    }
    if job.kind == JobKind::Load {
        let compiled = compile(&job);
        job.is_compiled = compiled.is_ok();
        job.answer = Some(compiled.map(|()| ScriptValue::Bulk(job.hash.clone().into_bytes())));
        return job;
    }
    let shared = Rc::new(RefCell::new(Some(job)));
    let answer = run(&shared, is_unwanted);
    let returned = shared.borrow_mut().take();
    // Nothing keeps it but the borrow that has ended.
    job = returned.expect("the job is lent for the time of the script only");
    job.answer = Some(answer.map_err(|words| words_of(&words, &job)));
    job
}

/// What Lua calls a program in errors.
fn chunk_of(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Script | JobKind::Load => "user_script",
        JobKind::Library | JobKind::Function => "user_function",
    }
}

/// Redis's form of a script's error.
fn words_of(words: &[u8], job: &ScriptJob) -> Vec<u8> {
    let (chunk, hash) = (chunk_of(job.kind), &job.hash);
    if words.starts_with(b"ERR Error compiling") {
        return words.to_vec();
    }
    if job.kind == JobKind::Library {
        if words == NO_FUNCTIONS {
            return words.to_vec();
        }
        let code = if starts_with_code(words) { "" } else { "ERR " };
        let head = format!("ERR Error registering functions: {code}");
        return [head.as_bytes(), words].concat();
    }
    let text = String::from_utf8_lossy(words);
    let line = text
        .strip_prefix("ERR ")
        .unwrap_or(&text)
        .strip_prefix(chunk)
        .and_then(|rest| rest.strip_prefix(':'))
        .and_then(|rest| rest.split(':').next())
        .filter(|line| line.bytes().all(|byte| byte.is_ascii_digit()))
        .unwrap_or("1");
    let mut all = Vec::new();
    if !starts_with_code(words) {
        all.extend_from_slice(b"ERR ");
    }
    all.extend_from_slice(words);
    all.extend_from_slice(format!(" script: {hash}, on @{chunk}:{line}.").as_bytes());
    all
}

/// Whether an error begins with a word in capitals.
fn starts_with_code(words: &[u8]) -> bool {
    let code = words.split(|byte| *byte == b' ').next().unwrap_or_default();
    !code.is_empty() && code.iter().all(u8::is_ascii_uppercase)
}

fn now() -> Now {
    let time = clock_gettime(ClockId::Realtime);
    let monotonic = clock_gettime(ClockId::Monotonic);
    Now {
        unix_ms: time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000,
        monotonic_ns: monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64,
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The script's time. Whatever may take long looks at it.
pub(super) struct Clock {
    began_ns: u64,
    /// Why it must not go on, once that is so.
    over: Cell<Option<&'static str>>,
    is_unwanted: Arc<AtomicBool>,
}

impl Clock {
    /// An error once the time is over.
    pub(super) fn look(&self) -> mlua::Result<()> {
        if self.is_unwanted.load(Ordering::Relaxed) {
            self.over.set(Some(KILLED));
        } else if cpu_ns() - self.began_ns > TIME_NS_MAX {
            self.over.set(Some(TOO_LONG));
        }
        match self.over.get() {
            Some(why) => Err(Error::runtime(why)),
            None => Ok(()),
        }
    }
}

/// What a script's answer may still come to.
struct Room {
    values: usize,
    bytes: usize,
}

impl Room {
    /// The bytes of a string of Lua's, which the answer has once for each place.
    fn copy(&mut self, text: &mlua::String) -> Result<Vec<u8>, Vec<u8>> {
        let bytes = text.as_bytes();
        self.bytes = self
            .bytes
            .checked_sub(bytes.len())
            .ok_or_else(out_of_memory)?;
        Ok(bytes.to_vec())
    }
}

type Lent = Rc<RefCell<Option<Box<ScriptJob>>>>;

fn new_lua() -> Result<Lua, Vec<u8>> {
    let lua = Lua::new_with(
        StdLib::TABLE | StdLib::STRING | StdLib::MATH,
        LuaOptions::default(),
    );
    lua.map_err(|error| words(&error))
}

/// Looks whether a script is a program.
fn compile(job: &ScriptJob) -> Result<(), Vec<u8>> {
    let lua = new_lua()?;
    lua.set_memory_limit(MEMORY_MAX)
        .map_err(|error| words(&error))?;
    function_of(&lua, job.program(), job.kind).map(drop)
}

fn function_of(lua: &Lua, program: &[u8], kind: JobKind) -> Result<Function, Vec<u8>> {
    let chunk = lua
        .load(program)
        .set_name(format!("@{}", chunk_of(kind)))
        .set_mode(ChunkMode::Text)
        .into_function();
    chunk.map_err(|error| {
        let words = String::from_utf8_lossy(&words(&error)).into_owned();
        let head = match kind {
            JobKind::Script | JobKind::Load => NOT_COMPILED,
            JobKind::Library | JobKind::Function => LIBRARY_NOT_COMPILED,
        };
        format!("{head}: {words}").into_bytes()
    })
}

fn run(job: &Lent, is_unwanted: &Arc<AtomicBool>) -> Result<ScriptValue, Vec<u8>> {
    let clock = Rc::new(Clock {
        began_ns: cpu_ns(),
        over: Cell::new(None),
        is_unwanted: Arc::clone(is_unwanted),
    });
    let lua = new_lua()?;
    let called = prepare(&lua, job, &clock).map_err(|error| words(&error))?;
    let of = |job: &ScriptJob| (job.program().to_vec(), job.kind, job.hash.clone());
    let program = job.borrow().as_deref().map(of);
    let (program, kind, name) = program.ok_or(b"ERR the script was not executed")?;
    let chunk = function_of(&lua, &program, kind)?;
    drop(program);
    if let Some(job) = job.borrow_mut().as_mut() {
        job.is_compiled = true;
    }
    let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
    let hooked = lua.set_hook(triggers, move |_, _| {
        clock.look()?;
        Ok(VmState::Continue)
    });
    hooked.map_err(|error| words(&error))?;
    let function = (kind == JobKind::Function).then_some(name);
    let (is_done, answer): (bool, Value) = called
        .call((chunk, function))
        .map_err(|error| words(&error))?;
    if !is_done {
        return Err(error_words(&answer));
    }
    if kind == JobKind::Library {
        let lent = job.borrow();
        let job = lent.as_deref().filter(|job| job.has_functions());
        let job = job.ok_or(NO_FUNCTIONS)?;
        return Ok(ScriptValue::Bulk(job.hash.clone().into_bytes()));
    }
    let mut room = Room {
        values: VALUES_MAX,
        bytes: job.borrow().as_ref().map_or(0, |job| job.context.room()),
    };
    value_of(answer, 0, &mut room)
}

/// Makes what scripts find; the function that calls one.
fn prepare(lua: &Lua, job: &Lent, clock: &Rc<Clock>) -> mlua::Result<Function> {
    reserve(lua, REFERENCES)?;
    let more = lua.create_function(|lua, count: usize| reserve(lua, count + REFERENCES))?;
    let own = Rc::clone(job);
    let time = Rc::clone(clock);
    let call = lua.create_function(move |lua, words: MultiValue| {
        time.look()?;
        // Each is copied, and a string may be given many times.
        let len: usize = words.iter().map(word_len).sum();
        let room = own.borrow().as_ref().map_or(0, |job| job.context.room());
        if len > room {
            return Err(Error::runtime(String::from_utf8_lossy(&out_of_memory())));
        }
        let words: Option<Vec<Vec<u8>>> = words.iter().map(word_of).collect();
        let answer = match (words, own.borrow_mut().as_mut()) {
            (Some(words), Some(job)) => job.context.call(&words),
            (None, _) => ScriptValue::Error(
                b"ERR Lua redis lib command arguments must be strings or integers".to_vec(),
            ),
            (_, None) => ScriptValue::Error(b"ERR the script has ended".to_vec()),
        };
        to_lua(lua, answer)
    })?;
    let time = Rc::clone(clock);
    let over = lua.create_function(move |_, ()| Ok(time.over.get()))?;
    let time = Rc::clone(clock);
    let look = lua.create_function(move |_, ()| time.look())?;
    let time = Rc::clone(clock);
    let sha1hex = lua.create_function(move |_, bytes: mlua::String| {
        time.look()?;
        Ok(sha1_hex(&bytes.as_bytes()))
    })?;
    let time = Rc::clone(clock);
    let decode = lua.create_function(move |lua, text: mlua::String| {
        time.look()?;
        let decoded = Json::new(lua, &time).decode(&text.as_bytes());
        // Too much memory, or time, is told as such.
        time.look()?;
        Ok(match decoded {
            Ok(value) => (value, None),
            Err(words) => (Value::Nil, Some(words)),
        })
    })?;
    let time = Rc::clone(clock);
    let own = Rc::clone(job);
    let number: Function = lua.globals().get::<Table>("string")?.get("format")?;
    let encode = lua.create_function(move |lua, value: Value| {
        time.look()?;
        let room = own.borrow().as_ref().map_or(0, |job| job.context.room());
        let encoded = Json::new(lua, &time).encode(&value, &number, room);
        time.look()?;
        Ok(match encoded {
            Ok(text) => (Some(lua.create_string(text)?), None),
            Err(words) => (None, Some(words)),
        })
    })?;
    let json = lua.create_table()?;
    json.raw_set("decode", decode)?;
    json.raw_set("encode", encode)?;
    json.raw_set("null", Value::NULL)?;
    let bits = bits::functions(lua)?;
    let time = Rc::clone(clock);
    let own = Rc::clone(job);
    let register = lua.create_function(
        move |_, (name, description, flags): (mlua::String, Option<mlua::String>, Table)| {
            time.look()?;
            // What is copied is outside of the script's memory.
            let bytes = |text: &mlua::String| text.as_bytes().to_vec();
            let flags: Option<Vec<Vec<u8>>> = flags
                .sequence_values::<mlua::String>()
                .take(FLAGS_MAX)
                .map(|flag| {
                    let flag = flag.ok()?;
                    let is_short = flag.as_bytes().len() <= LibraryFunction::FLAG_LEN_MAX;
                    is_short.then(|| bytes(&flag))
                })
                .collect();
            let Some(flags) = flags else {
                return Ok(Some("unknown flag given"));
            };
            let len = description.as_ref().map_or(0, |text| text.as_bytes().len());
            if len > LibraryFunction::DESCRIPTION_LEN_MAX {
                return Ok(Some("the function's description is too long"));
            }
            let made =
                LibraryFunction::new(&name.as_bytes(), description.as_ref().map(bytes), &flags);
            let registered = match (made, own.borrow_mut().as_mut()) {
                (Ok(function), Some(job)) => job.register(function),
                (Err(words), _) => Err(words),
                (_, None) => Err("the script has ended"),
            };
            Ok(registered.err())
        },
    )?;
    let is_library = job
        .borrow()
        .as_ref()
        .is_some_and(|job| matches!(job.kind, JobKind::Library | JobKind::Function));
    let register = is_library.then_some(register);
    let lent = job.borrow();
    // One after the other: see `reserve`.
    let strings = |words: &[Vec<u8>]| -> mlua::Result<Table> {
        let table = lua.create_table()?;
        for word in words {
            table.raw_push(lua.create_string(word)?)?;
        }
        Ok(table)
    };
    let (keys, arguments) = match lent.as_ref() {
        Some(job) => (strings(&job.keys)?, strings(&job.arguments)?),
        None => (strings(&[])?, strings(&[])?),
    };
    let prelude = lua.load(PRELUDE).set_name("@prelude");
    prelude.call((
        call, more, over, look, MEMORY_MAX, sha1hex, keys, arguments, json, bits, register,
    ))
}

/// Makes room for so many values of Lua's that are held here at a time, and bounds the
/// script's memory from then on. That room grows outside of any protected call: where Lua
/// may have no more memory, it ends the process. Once made, it stays.
fn reserve(lua: &Lua, count: usize) -> mlua::Result<()> {
    lua.set_memory_limit(0)?;
    let held: mlua::Result<Vec<_>> = (0..count).map(|_| lua.create_string("")).collect();
    lua.set_memory_limit(MEMORY_MAX)?;
    held.map(drop)
}

/// What an argument of a command takes, about.
fn word_len(value: &Value) -> usize {
    let len = match value {
        Value::String(text) => text.as_bytes().len(),
        _ => 0,
    };
    len + size_of::<Vec<u8>>()
}

/// An argument of a command.
fn word_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        // As Lua writes numbers, of which whole ones are whole.
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            Some(format!("{number:.0}").into_bytes())
        }
        Value::Number(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

/// An answer of a command, for the script.
fn to_lua(lua: &Lua, value: ScriptValue) -> mlua::Result<Value> {
    let one = |name: &str, words: &[u8]| {
        let table = lua.create_table()?;
        table.set(name, lua.create_string(words)?)?;
        Ok(Value::Table(table))
    };
    Ok(match value {
        ScriptValue::Nil => Value::Boolean(false),
        ScriptValue::Integer(number) => Value::Number(number as f64),
        ScriptValue::Bulk(bytes) => Value::String(lua.create_string(&bytes)?),
        ScriptValue::Status(words) => return one("ok", &words),
        ScriptValue::Error(words) => return one("err", &words),
        ScriptValue::Array(values) => {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for (index, value) in values.into_iter().enumerate() {
                table.raw_set(index + 1, to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// What a script has answered.
fn value_of(value: Value, depth: usize, room: &mut Room) -> Result<ScriptValue, Vec<u8>> {
    room.values = room
        .values
        .checked_sub(1)
        .filter(|_| depth <= DEPTH_MAX)
        .ok_or_else(|| b"ERR the script's answer has too many values".to_vec())?;
    Ok(match value {
        Value::String(text) => ScriptValue::Bulk(room.copy(&text)?),
        Value::Integer(number) => ScriptValue::Integer(number),
        Value::Number(number) => ScriptValue::Integer(number as i64),
        Value::Boolean(true) => ScriptValue::Integer(1),
        Value::Table(table) => {
            if let Ok(Value::String(words)) = table.raw_get("err") {
                return Ok(ScriptValue::Error(room.copy(&words)?));
            }
            if let Ok(Value::String(words)) = table.raw_get("ok") {
                return Ok(ScriptValue::Status(room.copy(&words)?));
            }
            let mut values = Vec::new();
            for index in 1.. {
                match table.raw_get(index) {
                    Ok(Value::Nil) | Err(_) => break,
                    Ok(value) => values.push(value_of(value, depth + 1, room)?),
                }
            }
            ScriptValue::Array(values)
        }
        _ => ScriptValue::Nil,
    })
}

/// What a script has failed with.
fn error_words(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) if *text.as_bytes() == *NOT_ENOUGH_MEMORY => out_of_memory(),
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Table(table) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.as_bytes().to_vec(),
            _ => b"ERR the script failed with a table".to_vec(),
        },
        Value::Error(error) => words(error),
        _ => b"ERR the script failed".to_vec(),
    }
}

/// The first line of Lua's own words.
fn words(error: &Error) -> Vec<u8> {
    let text = match error {
        Error::MemoryError(_) => return out_of_memory(),
        Error::RuntimeError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        Error::CallbackError { cause, .. } => return words(cause),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.as_bytes().to_vec()
}

fn out_of_memory() -> Vec<u8> {
    format!("ERR the script needs more than {MEMORY_MAX} bytes").into_bytes()
}
