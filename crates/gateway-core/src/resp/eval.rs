//! EVAL, EVALSHA and their forms that only read: from the words of a command to a script on
//! its way (`script_run`).

use super::execute::Call;
use super::parse::number;
use super::reply::NOT_AN_INTEGER;
use super::script_job::Scripts;
use super::script_run::Run;
use super::sha1::{Digest, from_hex, sha1};
use super::shebang::Shebang;
use super::table::Id;
use super::together::key_fault;
use crate::keyspace::Keyspace;
use std::sync::Arc;

/// Longest script, in bytes.
pub(super) const SOURCE_LEN_MAX: usize = 256 << 10;

pub(super) const NOT_HERE: &str = "ERR scripts are not available here";

/// KEYS, or ARGV.
pub(super) type Words = Vec<Vec<u8>>;

/// KEYS and ARGV of a script or a function, or answers what is wrong with them.
pub(super) fn keys_of<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    no_number: &str,
) -> Option<(Words, Words)> {
    let arguments = call.arguments;
    let Some(key_count) = number(arguments.get(2)) else {
        call.reply.error(no_number);
        return None;
    };
    let refusal = match usize::try_from(key_count) {
        Err(_) => Some("ERR Number of keys can't be negative"),
        Ok(count) if count > arguments.len() - 3 => {
            Some("ERR Number of keys can't be greater than number of args")
        }
        Ok(_) => None,
    };
    if let Some(refusal) = refusal {
        call.reply.error(refusal);
        return None;
    }
    let (keys, rest) = (3..3 + key_count as usize, 3 + key_count as usize);
    let keys: Vec<Vec<u8>> = keys.map(|at| arguments.get(at).to_vec()).collect();
    if keys.iter().any(|key| *key != keys[0]) {
        call.reply.error(
            "ERR a script is about one key here: this is a cache, and several keys cannot be \
             changed as one",
        );
        return None;
    }
    if let Some(fault) = keys.first().and_then(|key| key_fault(key)) {
        call.reply.fault(&fault);
        return None;
    }
    Some((keys, arguments.from(rest).map(<[u8]>::to_vec).collect()))
}

/// EVAL, EVALSHA: begins one, or answers what is wrong.
pub(super) fn eval<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let (keys, arguments) = keys_of(call, NOT_AN_INTEGER)?;
    let given = call.arguments.get(1);
    let Some(scripts) = call.world.observer.scripts() else {
        call.reply.error(NOT_HERE);
        return None;
    };
    let is_by_hash = matches!(call.spec.id, Id::EvalSha | Id::EvalShaRo);
    let found = match is_by_hash {
        true => from_hex(given).and_then(|digest| Some((digest, scripts.find(&digest)?, true))),
        false if given.len() > SOURCE_LEN_MAX => {
            call.reply
                .error(format!("ERR a script has at most {SOURCE_LEN_MAX} bytes"));
            return None;
        }
        false => Some(given_script(scripts, given)),
    };
    let Some((digest, source, is_kept)) = found else {
        call.reply
            .error("NOSCRIPT No matching script. Please use EVAL.");
        return None;
    };
    let shebang = match Shebang::of(&source) {
        Ok(shebang) => shebang,
        Err(words) => {
            call.reply.error(words);
            return None;
        }
    };
    let reads_only = matches!(call.spec.id, Id::EvalRo | Id::EvalShaRo);
    if reads_only && shebang.is_there() && !shebang.is_read_only {
        call.reply
            .error("ERR Can not execute a script with write flag using *_ro command.");
        return None;
    }
    let run = Run::of_script(source, digest, shebang.len, !is_kept, call.world.now);
    let is_read_only = reads_only || shebang.is_read_only;
    Some(Box::new(run.over(keys, arguments, is_read_only)))
}

/// A script that was sent, and whether it is kept already.
pub(super) fn given_script(scripts: &mut dyn Scripts, source: &[u8]) -> (Digest, Arc<[u8]>, bool) {
    let digest = sha1(source);
    match scripts.find(&digest) {
        Some(kept) => (digest, kept, true),
        None => (digest, source.into(), false),
    }
}
