//! SCRIPT: scripts that are kept.

use super::eval::{NOT_HERE, SOURCE_LEN_MAX, given_script};
use super::execute::Call;
use super::script_run::Run;
use super::sha1::{from_hex, hex};
use super::shebang::Shebang;
use super::subcommands::{help, subcommand};
use crate::keyspace::Keyspace;

const HELP: &[&str] = &[
    "EXISTS <sha1> [<sha1> ...]",
    "    Which of them are kept.",
    "FLUSH [ASYNC|SYNC]",
    "    Forgets all.",
    "KILL",
    "    Ends what is being executed: nothing of it is stored.",
    "LOAD <script>",
    "    Compiles and keeps one.",
];

/// SCRIPT LOAD, EXISTS, FLUSH, KILL. One that is to be loaded is compiled first.
pub(super) fn script<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<Box<Run>> {
    let name = subcommand(call)?;
    if name == "help" {
        help(call, HELP);
        return None;
    }
    let arguments = call.arguments;
    let now = call.world.now;
    let Some(scripts) = call.world.observer.scripts() else {
        call.reply.error(NOT_HERE);
        return None;
    };
    match name {
        "load" if arguments.get(2).len() > SOURCE_LEN_MAX => call
            .reply
            .error(format!("ERR a script has at most {SOURCE_LEN_MAX} bytes")),
        "load" => {
            let (digest, source, is_kept) = given_script(scripts, arguments.get(2));
            match Shebang::of(&source) {
                Err(words) => call.reply.error(words),
                Ok(_) if is_kept => call.reply.bulk(hex(&digest)),
                Ok(shebang) => {
                    return Some(Box::new(Run::of_load(source, digest, shebang.len, now)));
                }
            }
        }
        "exists" => {
            call.reply.array(arguments.len() - 2);
            for text in arguments.from(2) {
                let found = from_hex(text).and_then(|hash| scripts.find(&hash));
                call.reply.integer(i64::from(found.is_some()));
            }
        }
        "kill" => match scripts.kill() {
            true => call.reply.simple("OK"),
            false => call
                .reply
                .error("NOTBUSY No scripts in execution right now."),
        },
        _ if arguments.len() == 2 || arguments.is(2, "sync") || arguments.is(2, "async") => {
            scripts.forget();
            call.reply.simple("OK");
        }
        _ => call
            .reply
            .error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
    }
    None
}
