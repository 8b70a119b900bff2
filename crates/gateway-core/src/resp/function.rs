//! FUNCTION and FCALL: libraries of functions that clients have loaded, executed as
//! scripts are (`eval`): over one item, in a Lua state of their own.
//!
//! A library's program is executed for each call, and then the function: nothing that it
//! keeps in variables is there for the next call, as one may be executed again. Libraries
//! are in the memory of this process, for all of its event loops and connections, and end
//! with it. Unlike scripts none is ever forgotten for another: who calls a function cannot
//! send it along.

use super::eval::{NOT_HERE, SOURCE_LEN_MAX, keys_of};
use super::execute::Call;
use super::glob;
use super::reply::Reply;
use super::script_run::{Run, Task};
use super::shebang::FLAGS;
use super::subcommands::{help, subcommand};
use super::table::Id;
use crate::keyspace::Keyspace;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most libraries, and bytes of all of them.
const LIBRARIES_MAX: usize = 256;
const LIBRARIES_LEN_MAX: usize = 8 << 20;
/// Most functions of one library.
const FUNCTIONS_MAX: usize = 1024;
/// Longest name of either.
const NAME_LEN_MAX: usize = 256;
/// What is said of a name with other letters, of a function, too.
const BAD_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and \
    must be at least one character long";
/// What a library, or a function, has in a list beside its words; and each line.
const LISTED_LEN: usize = 96;
const LINE_LEN: usize = 3;
/// Longest pattern of names.
const PATTERN_LEN_MAX: usize = 128;

/// A function that a library has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it is said to do.
    pub description: Option<Vec<u8>>,
    /// Its flags, by Redis's names.
    pub flags: Vec<&'static str>,
}

impl Function {
    /// Longest description, in bytes.
    pub const DESCRIPTION_LEN_MAX: usize = SOURCE_LEN_MAX;
    /// No flag that is known is longer, in bytes.
    pub const FLAG_LEN_MAX: usize = 32;

    /// One of these words, or what is wrong with them, as Redis says it.
    pub fn new(
        name: &[u8],
        description: Option<Vec<u8>>,
        flags: &[Vec<u8>],
    ) -> Result<Self, &'static str> {
        let Some(name) = legal_name(name) else {
            return Err(BAD_NAME);
        };
        let is_known = |flag: &Vec<u8>| FLAGS.iter().any(|known| known.as_bytes() == flag);
        if !flags.iter().all(is_known) {
            return Err("unknown flag given");
        }
        // Each once, however often it was given.
        let is_given = |known: &&str| flags.iter().any(|flag| known.as_bytes() == flag);
        let flags = FLAGS.into_iter().filter(is_given).collect();
        Ok(Function {
            name,
            description,
            flags,
        })
    }

    fn is_read_only(&self) -> bool {
        self.flags.contains(&"no-writes")
    }

    fn len(&self) -> usize {
        let described = self.description.as_ref().map_or(0, Vec::len);
        let flags = self.flags.capacity() * size_of::<&str>();
        self.name.len() + described + flags + size_of::<Self>()
    }

    /// What it comes to in a list, about.
    fn listed_len(&self) -> usize {
        let flags: usize = self.flags.iter().map(|flag| flag.len() + LINE_LEN).sum();
        let described = self.description.as_ref().map_or(0, Vec::len);
        self.name.len() + described + flags + LISTED_LEN
    }
}

/// Takes note of a function, or says what is wrong with it.
pub(super) fn register(
    functions: &mut Vec<Function>,
    function: Function,
) -> Result<(), &'static str> {
    let is_known = |known: &Function| known.name.eq_ignore_ascii_case(&function.name);
    if functions.iter().any(is_known) {
        return Err("Function already exists in the library");
    }
    let len: usize = functions.iter().map(Function::len).sum();
    if functions.len() >= FUNCTIONS_MAX || len + function.len() > SOURCE_LEN_MAX {
        return Err("too many functions in the library");
    }
    functions.push(function);
    Ok(())
}

/// A name in letters, digits and underscores.
fn legal_name(name: &[u8]) -> Option<String> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let is_legal = (1..=NAME_LEN_MAX).contains(&name.len()) && name.iter().all(is_letter);
    let name = str::from_utf8(name).ok()?;
    is_legal.then(|| name.to_owned())
}

/// A library.
#[derive(Debug)]
pub(super) struct Library {
    name: String,
    source: Arc<[u8]>,
    program_at: usize,
    functions: Vec<Function>,
}

impl Library {
    fn len(&self) -> usize {
        self.source.len() + self.functions.iter().map(Function::len).sum::<usize>()
    }

    /// What it comes to in a list, about.
    fn listed_len(&self, with_code: bool) -> usize {
        let code = if with_code { self.source.len() } else { 0 };
        let functions: usize = self.functions.iter().map(Function::listed_len).sum();
        self.name.len() + LISTED_LEN + code + functions
    }
}

/// Libraries, and their functions by name, of which small and capital letters are one.
#[derive(Debug, Default)]
pub struct Libraries {
    by_name: BTreeMap<String, Arc<Library>>,
    functions: HashMap<String, (Arc<Library>, usize)>,
    len: usize,
}

impl Libraries {
    /// The library of a function, and which one of it that is: nothing is copied while
    /// others wait.
    fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        // The longest that one has.
        let name = name.get(..name.len().min(NAME_LEN_MAX + 1))?;
        let name = str::from_utf8(name).ok()?.to_ascii_lowercase();
        let (library, index) = self.functions.get(&name)?;
        Some((Arc::clone(library), *index))
    }

    /// Libraries and functions.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.by_name.len(), self.functions.len())
    }

    /// What stands against a library of this name.
    fn refusal(&self, name: &str, replaces: bool) -> Option<String> {
        (!replaces && self.by_name.contains_key(name))
            .then(|| format!("ERR Library '{name}' already exists"))
    }

    /// Takes a library in, or says why not: the one before it stays then.
    pub(super) fn add(&mut self, library: Library, replaces: bool) -> Result<(), Vec<u8>> {
        if let Some(refusal) = self.refusal(&library.name, replaces) {
            return Err(refusal.into_bytes());
        }
        let before = self.by_name.get(&library.name);
        for function in &library.functions {
            let of = self.functions.get(&function.name.to_ascii_lowercase());
            if of.is_some_and(|(of, _)| of.name != library.name) {
                let words = format!("ERR Function {} already exists", function.name);
                return Err(words.into_bytes());
            }
        }
        let len = self.len - before.map_or(0, |before| before.len()) + library.len();
        let count = self.by_name.len() + usize::from(before.is_none());
        if count > LIBRARIES_MAX || len > LIBRARIES_LEN_MAX {
            let words = format!(
                "ERR there are at most {LIBRARIES_MAX} libraries, of {LIBRARIES_LEN_MAX} bytes"
            );
            return Err(words.into_bytes());
        }
        self.remove(&library.name);
        let library = Arc::new(library);
        for (index, function) in library.functions.iter().enumerate() {
            let place = (Arc::clone(&library), index);
            self.functions
                .insert(function.name.to_ascii_lowercase(), place);
        }
        self.len += library.len();
        self.by_name.insert(library.name.clone(), library);
        Ok(())
    }

    /// Takes one out; whether it was there.
    fn remove(&mut self, name: &str) -> bool {
        let Some(gone) = self.by_name.remove(name) else {
            return false;
        };
        self.functions.retain(|_, (of, _)| !Arc::ptr_eq(of, &gone));
        self.len -= gone.len();
        true
    }
}

/// What the first line of a library says.
struct Head<'a> {
    name: &'a [u8],
    len: usize,
}

impl<'a> Head<'a> {
    /// That of a library; what Redis answers if it cannot be understood.
    fn of(source: &'a [u8]) -> Result<Self, Vec<u8>> {
        if !source.starts_with(b"#!") {
            return Err(b"ERR Missing library metadata".to_vec());
        }
        let Some(len) = memchr::memchr(b'\n', source) else {
            return Err(b"ERR Invalid library metadata".to_vec());
        };
        let mut words = source[2..len]
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let engine = words.next().unwrap_or_default();
        let mut name = None;
        for word in words {
            let given = match word.split_at_checked(5) {
                Some((option, given)) if option.eq_ignore_ascii_case(b"name=") => given,
                _ => return Err([b"ERR Invalid metadata value given: ", word].concat()),
            };
            if name.replace(given).is_some() {
                let words = b"ERR Invalid metadata value, name argument was given multiple times";
                return Err(words.to_vec());
            }
        }
        let Some(name) = name else {
            return Err(b"ERR Library name was not given".to_vec());
        };
        if legal_name(name).is_none() {
            return Err(format!("ERR {BAD_NAME}").into_bytes());
        }
        if !engine.eq_ignore_ascii_case(b"lua") {
            return Err([b"ERR Engine '", engine, b"' not found"].concat());
        }
        Ok(Head { name, len })
    }
}

/// The library that a program has made, by what it has registered.
pub(super) fn library_of(run: &LoadedLibrary, functions: Vec<Function>) -> Library {
    Library {
        name: run.name.clone(),
        source: Arc::clone(&run.source),
        program_at: run.program_at,
        functions,
    }
}

/// A library on its way.
#[derive(Debug)]
pub(super) struct LoadedLibrary {
    pub(super) name: String,
    source: Arc<[u8]>,
    program_at: usize,
    pub(super) replaces: bool,
}

/// FCALL, FCALL_RO: begins one, or answers what is wrong.
pub(super) fn call<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let name = call.arguments.get(1);
    let mut found = None;
    match call.world.observer.scripts() {
        Some(scripts) => scripts.libraries(&mut |libraries| found = libraries.function(name)),
        None => {
            call.reply.error(NOT_HERE);
            return None;
        }
    }
    let of = found.as_ref();
    let function = of.and_then(|(library, index)| Some((library, library.functions.get(*index)?)));
    let Some((library, function)) = function else {
        call.reply.error("ERR Function not found");
        return None;
    };
    let (keys, arguments) = keys_of(call, "ERR Bad number of keys provided")?;
    let is_read_only = function.is_read_only();
    if call.spec.id == Id::FCallRo && !is_read_only {
        call.reply
            .error("ERR Can not execute a script with write flag using *_ro command.");
        return None;
    }
    let run = Run::of_task(
        Arc::clone(&library.source),
        library.program_at,
        Task::Function(function.name.clone()),
        call.world.now,
    );
    Some(Box::new(run.over(keys, arguments, is_read_only)))
}

const HELP: &[&str] = &[
    "DELETE <library>",
    "    Forgets a library.",
    "FLUSH [ASYNC|SYNC]",
    "    Forgets all libraries.",
    "KILL",
    "    Ends all scripts and functions that are being executed.",
    "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
    "    Libraries and their functions.",
    "LOAD [REPLACE] <program>",
    "    Loads a library into this process's memory: it ends with the process.",
    "STATS",
    "    How many there are.",
];

/// FUNCTION and its subcommands. One that is to be loaded is executed first.
pub(super) fn function<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let name = subcommand(call)?;
    match name {
        "load" => return load(call),
        "help" => help(call, HELP),
        "dump" | "restore" => call.reply.error(format!(
            "ERR FUNCTION {} is not here: load libraries from their programs",
            name.to_ascii_uppercase()
        )),
        "list" => list(call),
        _ => change(call, name),
    }
    None
}

/// FUNCTION DELETE, FLUSH, KILL, STATS.
fn change<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, name: &str) {
    let arguments = call.arguments;
    let Some(scripts) = call.world.observer.scripts() else {
        return call.reply.error(NOT_HERE);
    };
    match name {
        "delete" => {
            let mut was_there = false;
            if let Ok(name) = str::from_utf8(arguments.get(2)) {
                scripts.libraries(&mut |libraries| was_there = libraries.remove(name));
            }
            match was_there {
                true => call.reply.simple("OK"),
                false => call.reply.error("ERR Library not found"),
            }
        }
        "flush" if arguments.len() > 3 => call.reply.error(
            "ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP.",
        ),
        "flush" if arguments.len() == 2 || arguments.is(2, "sync") || arguments.is(2, "async") => {
            scripts.libraries(&mut |libraries| *libraries = Libraries::default());
            call.reply.simple("OK");
        }
        "flush" => call
            .reply
            .error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        "kill" => match scripts.kill() {
            true => call.reply.simple("OK"),
            false => call
                .reply
                .error("NOTBUSY No scripts in execution right now."),
        },
        _ => {
            let mut counts = (0, 0);
            scripts.libraries(&mut |libraries| counts = libraries.counts());
            let reply = &mut call.reply;
            reply.map(2);
            reply.bulk("running_script");
            // Several may be, and none is known by its name here.
            reply.null();
            reply.bulk("engines");
            reply.map(1);
            reply.bulk("LUA");
            reply.map(2);
            reply.bulk("libraries_count");
            reply.integer(counts.0 as i64);
            reply.bulk("functions_count");
            reply.integer(counts.1 as i64);
        }
    }
}

/// FUNCTION LOAD.
fn load<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let arguments = call.arguments;
    let last = arguments.len() - 1;
    let mut replaces = false;
    for at in 2..last {
        if !arguments.is(at, "replace") {
            let error = [b"ERR Unknown option given: ", arguments.get(at)].concat();
            call.reply.error(error);
            return None;
        }
        replaces = true;
    }
    let source = arguments.get(last);
    if source.len() > SOURCE_LEN_MAX {
        call.reply
            .error(format!("ERR a library has at most {SOURCE_LEN_MAX} bytes"));
        return None;
    }
    let head = match Head::of(source) {
        Ok(head) => head,
        Err(words) => {
            call.reply.error(words);
            return None;
        }
    };
    let name = String::from_utf8_lossy(head.name).into_owned();
    let mut refusal = None;
    match call.world.observer.scripts() {
        Some(scripts) => {
            scripts.libraries(&mut |libraries| refusal = libraries.refusal(&name, replaces));
        }
        None => refusal = Some(NOT_HERE.to_owned()),
    }
    if let Some(refusal) = refusal {
        call.reply.error(refusal);
        return None;
    }
    let source: Arc<[u8]> = source.into();
    let library = LoadedLibrary {
        name,
        source: Arc::clone(&source),
        program_at: head.len,
        replaces,
    };
    let task = Task::Library(library);
    Some(Box::new(Run::of_task(
        source,
        head.len,
        task,
        call.world.now,
    )))
}

/// FUNCTION LIST.
fn list<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let (mut pattern, mut with_code, mut at) = (None, false, 2);
    while at < arguments.len() {
        if arguments.is(at, "withcode") && !with_code {
            with_code = true;
        } else if arguments.is(at, "libraryname") && pattern.is_none() {
            at += 1;
            if at >= arguments.len() {
                let error = "ERR library name argument was not given";
                return call.reply.error(error);
            }
            pattern = Some(arguments.get(at));
        } else {
            let error = [b"ERR Unknown argument ", arguments.get(at)].concat();
            return call.reply.error(error);
        }
        at += 1;
    }
    if pattern.is_some_and(|pattern| pattern.len() > PATTERN_LEN_MAX) {
        return call.reply.error(format!(
            "ERR the pattern is longer than {PATTERN_LEN_MAX} bytes"
        ));
    }
    let mut found = Vec::new();
    match call.world.observer.scripts() {
        None => return call.reply.error(NOT_HERE),
        Some(scripts) => scripts.libraries(&mut |libraries| {
            let is_wanted =
                |name: &str| pattern.is_none_or(|pattern| glob::matches(pattern, name.as_bytes()));
            let all = libraries.by_name.iter();
            found = all
                .filter(|(name, _)| is_wanted(name))
                .map(|(_, library)| Arc::clone(library))
                .collect();
        }),
    }
    let len: usize = found
        .iter()
        .map(|library| library.listed_len(with_code))
        .sum();
    call.world.keyspace.charge(len as u64);
    let len_max = call.world.settings.answer_len_max;
    if len > len_max {
        return call.reply.error(format!(
            "ERR the answer is longer than {len_max} bytes; ask for fewer libraries"
        ));
    }
    call.reply.array(found.len());
    for library in found {
        put(&mut call.reply, &library, with_code);
    }
}

fn put(reply: &mut Reply<'_>, library: &Library, with_code: bool) {
    reply.map(if with_code { 4 } else { 3 });
    reply.bulk("library_name");
    reply.bulk(&library.name);
    reply.bulk("engine");
    reply.bulk("LUA");
    reply.bulk("functions");
    reply.array(library.functions.len());
    for function in &library.functions {
        reply.map(3);
        reply.bulk("name");
        reply.bulk(&function.name);
        reply.bulk("description");
        match &function.description {
            Some(words) => reply.bulk(words),
            None => reply.null(),
        }
        reply.bulk("flags");
        reply.set(function.flags.len());
        for flag in &function.flags {
            reply.simple(flag);
        }
    }
    if with_code {
        reply.bulk("library_code");
        reply.bulk(&library.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str]) -> Library {
        let mut registered = Vec::new();
        for name in functions {
            let function = Function::new(name.as_bytes(), None, &[]).unwrap();
            register(&mut registered, function).unwrap();
        }
        Library {
            name: name.to_owned(),
            source: b"#!lua"[..].into(),
            program_at: 0,
            functions: registered,
        }
    }

    #[test]
    fn names_of_functions_are_those_of_one_library() {
        let mut libraries = Libraries::default();
        libraries.add(library("a", &["f", "g"]), false).unwrap();
        let words = libraries.add(library("a", &["h"]), false).unwrap_err();
        assert_eq!(words, b"ERR Library 'a' already exists");
        let words = libraries.add(library("b", &["x", "G"]), false).unwrap_err();
        assert_eq!(words, b"ERR Function G already exists");
        assert_eq!(libraries.counts(), (1, 2));
        libraries.add(library("a", &["g", "h"]), true).unwrap();
        assert!(libraries.function(b"f").is_none());
        let (of, index) = libraries.function(b"H").unwrap();
        assert_eq!(of.functions[index].name, "h");
        libraries.add(library("b", &["f"]), false).unwrap();
        assert!(libraries.remove("a") && !libraries.remove("a"));
        assert_eq!(libraries.counts(), (1, 1));
        assert!(libraries.remove("b"));
        assert_eq!(libraries.len, 0);
    }

    #[test]
    fn flags_are_kept_once() {
        let flags: Vec<Vec<u8>> = ["allow-oom", "no-writes", "allow-oom"]
            .map(|flag| flag.as_bytes().to_vec())
            .into();
        let function = Function::new(b"f", None, &flags).unwrap();
        assert_eq!(function.flags, ["no-writes", "allow-oom"]);
        let plain = Function::new(b"f", None, &[]).unwrap();
        assert!(function.len() >= plain.len() + 2 * size_of::<&str>());
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut libraries = Libraries::default();
        for number in 0..LIBRARIES_MAX {
            let (name, function) = (format!("l{number}"), format!("f{number}"));
            libraries.add(library(&name, &[&function]), false).unwrap();
        }
        assert!(libraries.add(library("more", &["more"]), false).is_err());
        libraries.add(library("l7", &["seven"]), true).unwrap();
        let mut functions = Vec::new();
        let function = |number: usize| {
            let name = format!("f{number}");
            Function::new(name.as_bytes(), None, &[]).unwrap()
        };
        for number in 0..FUNCTIONS_MAX {
            register(&mut functions, function(number)).unwrap();
        }
        assert!(register(&mut functions, function(FUNCTIONS_MAX)).is_err());
        assert!(register(&mut functions, function(1)).is_err());
        assert!(Function::new(b"a-b", None, &[]).is_err());
        assert!(Function::new(b"a", None, &[b"nosuch".to_vec()]).is_err());
    }
}
