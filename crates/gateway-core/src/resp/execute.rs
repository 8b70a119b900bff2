//! From a whole command to its function.

use super::gather::{ARGUMENTS_MAX, Arguments, Refusal};
use super::many::ending_of;
use super::reply::{Reply, TOO_LONG};
use super::table::{Id, Spec, lookup};
use super::{
    RespSession, Step, absent, config, connection, count, decimal, describe, eval, expire,
    function, info, keys, memory, object, read, scan, script, server, slow_log, together, write,
};
use crate::keyspace::{Fault, Keyspace, Pending};
use crate::world::{Command, Done, Ending, Role, World};
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::Rejection;

/// What taking a command into a transaction counts as, beside its bytes: see
/// [`Keyspace::work`].
const QUEUED_WORK: u64 = 512;

/// A command of one key or none, and everything that it needs.
pub(super) struct Call<'a, 'r, 'w, K: Keyspace> {
    /// What was asked; the name first.
    pub(super) arguments: Arguments<'a>,
    /// What is known of the command.
    pub(super) spec: &'static Spec,
    /// What the client may do.
    pub(super) role: Role,
    pub(super) reply: Reply<'r>,
    pub(super) world: &'r mut World<'w, K>,
}

impl<'a, K: Keyspace> Call<'a, '_, '_, K> {
    /// The first key, or else the first argument after the name.
    pub(super) fn key(&self) -> &'a [u8] {
        self.arguments.get(self.spec.keys.0.max(1) as usize)
    }

    /// Whether there may be an item of this key at all.
    pub(super) fn key_fits(&self) -> bool {
        (1..=KEY_LEN_MAX).contains(&self.key().len())
    }

    /// What storing under a key that does not fit comes to.
    pub(super) fn key_fault(&self) -> Fault {
        let rejection = if self.key().is_empty() {
            Rejection::KeyEmpty
        } else {
            Rejection::KeyTooLong
        };
        Fault::Rejected(rejection)
    }

    /// Tells the observer how a command on the key ended.
    pub(super) fn done(&mut self, command: Command, ending: Ending, value_len: usize) {
        let done = Done {
            command,
            ending,
            key: self.key(),
            value_len,
        };
        self.world.observer.done(&done);
    }

    /// Answers a fault and tells the observer.
    pub(super) fn fault(&mut self, command: Command, fault: &Fault) {
        self.reply.fault(fault);
        self.done(command, ending_of(fault), 0);
    }
}

/// Redis's words for a command that it does not know, with the beginning of
/// its arguments.
fn put_unknown(arguments: &Arguments<'_>, reply: &mut Reply<'_>) {
    if let Some(kind) = absent::kind_of(arguments.name()) {
        return reply.error(absent::words(arguments.name(), kind));
    }
    const SHOWN_LEN: usize = 128;
    // What it shows of a word ends with a zero byte.
    let shown = |word: &[u8], len_max: usize| {
        let len = word.iter().take(len_max).take_while(|&&b| b != 0).count();
        word[..len].to_vec()
    };
    let mut words = Vec::new();
    for argument in arguments.from(1) {
        if words.len() >= SHOWN_LEN {
            break;
        }
        let rest = SHOWN_LEN - words.len();
        words.push(b'\'');
        words.extend(shown(argument, rest));
        words.extend_from_slice(b"' ");
    }
    let mut error = b"ERR unknown command '".to_vec();
    error.extend(shown(arguments.name(), SHOWN_LEN));
    error.extend_from_slice(b"', with args beginning with: ");
    error.extend(words);
    reply.error(error);
}

/// Whether this is what a browser says that was led here.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

impl RespSession {
    /// Answers a command for which there is no room.
    pub(super) fn refuse<K: Keyspace>(
        &mut self,
        input: &[u8],
        refusal: Refusal,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) {
        let gathering = self.gathering.take();
        let arguments = gathering.arguments(input);
        let mut reply = self.reply(out);
        match (lookup(arguments.name()), refusal) {
            (None, _) if arguments.len() > 0 => put_unknown(&arguments, &mut reply),
            (Some(spec), _) if !spec.takes(gathering.count()) => reply.wrong_arity(spec.name),
            (_, Refusal::TooMany) => reply.error(format!(
                "ERR more than {ARGUMENTS_MAX} arguments to a command that does not take many keys"
            )),
            (_, Refusal::TooLong) => {
                reply.error(TOO_LONG);
                world.observer.done(&Done {
                    command: Command::Other,
                    ending: Ending::ClientError,
                    key: b"",
                    value_len: 0,
                });
            }
        }
        self.gathering = gathering.done();
    }

    /// Executes the command that has been gathered, `len` bytes long.
    pub(super) fn execute<K: Keyspace>(
        &mut self,
        input: &[u8],
        len: usize,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<Step, Pending> {
        let gathering = self.gathering.take();
        let arguments = gathering.arguments(input);
        let step = self.call(arguments, &input[..len], out, world);
        self.gathering = match step {
            Ok(_) => gathering.done(),
            // The same command is executed again.
            Err(Pending) => gathering,
        };
        step
    }

    fn call<K: Keyspace>(
        &mut self,
        arguments: Arguments<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Result<Step, Pending> {
        let len = bytes.len();
        let name = arguments.name();
        let mut reply = self.reply(out);
        let Some(spec) = lookup(name) else {
            if is_http(name) {
                return Ok(Step::Close);
            }
            put_unknown(&arguments, &mut reply);
            self.spoil();
            return Ok(Step::Done(len));
        };
        if !spec.takes(arguments.len()) {
            if spec.id == Id::Exec {
                self.exec_wrong_arity(&mut reply);
            } else {
                reply.wrong_arity(spec.name);
                self.spoil();
            }
            return Ok(Step::Done(len));
        }
        if !spec.is_before_auth() && !self.identity.is_known(world.settings) {
            reply.error("NOAUTH Authentication required.");
            self.spoil();
            return Ok(Step::Done(len));
        }
        let role = self.identity.role(world.settings);
        if role < spec.role() {
            reply.no_permission(spec.name);
            self.spoil();
            return Ok(Step::Done(len));
        }
        match spec.id {
            Id::Multi | Id::Discard => {
                match spec.id {
                    Id::Multi => self.multi(&mut reply),
                    _ => self.discard(&mut reply),
                }
                return Ok(Step::Done(len));
            }
            Id::Exec => return self.exec(len, out, world),
            Id::Quit | Id::Reset => {
                self.transaction = None;
                self.watched.clear();
            }
            _ => {}
        }
        if let Some(open) = &mut self.transaction {
            open.queue(bytes, spec, arguments.len(), &mut reply);
            world.keyspace.charge(QUEUED_WORK);
            return Ok(Step::Done(len));
        }
        if spec.id == Id::Unwatch {
            self.unwatch(&mut reply);
            return Ok(Step::Done(len));
        }
        let mut call = Call {
            arguments,
            spec,
            role,
            reply,
            world,
        };
        let (identity, is_alone) = (&mut self.identity, self.is_alone);
        match spec.id {
            Id::Get => read::get(&mut call)?,
            Id::StrLen => read::str_len(&mut call)?,
            Id::GetRange | Id::SubStr => read::get_range(&mut call)?,
            Id::Type => read::kind(&mut call)?,
            Id::Ttl => read::ttl(&mut call, read::Unit::Seconds, false)?,
            Id::PTtl => read::ttl(&mut call, read::Unit::Milliseconds, false)?,
            Id::ExpireTime => read::ttl(&mut call, read::Unit::Seconds, true)?,
            Id::PExpireTime => read::ttl(&mut call, read::Unit::Milliseconds, true)?,
            Id::Set => write::set(&mut call)?,
            Id::SetNx => write::set_nx(&mut call)?,
            Id::SetEx => write::set_ex(&mut call, read::Unit::Seconds)?,
            Id::PSetEx => write::set_ex(&mut call, read::Unit::Milliseconds)?,
            Id::GetSet => write::get_set(&mut call)?,
            Id::Append => write::append(&mut call)?,
            Id::SetRange => write::set_range(&mut call)?,
            Id::GetDel => write::get_del(&mut call)?,
            Id::GetEx => expire::get_ex(&mut call)?,
            Id::Expire => expire::expire(&mut call, read::Unit::Seconds, true)?,
            Id::PExpire => expire::expire(&mut call, read::Unit::Milliseconds, true)?,
            Id::ExpireAt => expire::expire(&mut call, read::Unit::Seconds, false)?,
            Id::PExpireAt => expire::expire(&mut call, read::Unit::Milliseconds, false)?,
            Id::Persist => expire::persist(&mut call)?,
            Id::Incr | Id::IncrBy | Id::Decr | Id::DecrBy => count::count(&mut call)?,
            Id::IncrByFloat => decimal::count(&mut call)?,
            Id::MSetNx => together::mset_nx(&mut call, is_alone)?,
            Id::Rename => together::rename(&mut call, true, is_alone)?,
            Id::RenameNx => together::rename(&mut call, false, is_alone)?,
            Id::Copy => together::copy(&mut call, is_alone)?,
            Id::Object => object::object(&mut call)?,
            Id::Memory => memory::memory(&mut call)?,
            Id::Scan => scan::scan(&mut call)?,
            Id::Keys => self.keys = keys::keys(&mut call),
            Id::Eval | Id::EvalRo | Id::EvalSha | Id::EvalShaRo => self.script = eval::eval(&mut call),
            Id::FCall | Id::FCallRo => self.script = function::call(&mut call),
            Id::Function => self.script = function::function(&mut call),
            Id::Script => self.script = script::script(&mut call),
            Id::Auth => connection::auth(&mut call, identity),
            Id::Hello => connection::hello(&mut call, identity),
            Id::Client => connection::client(&mut call, identity),
            Id::Select => connection::select(&mut call),
            Id::Ping => connection::ping(&mut call),
            Id::Echo => call.reply.bulk(arguments.get(1)),
            Id::Reset => connection::reset(&mut call, identity),
            Id::Quit => {
                call.reply.simple("OK");
                return Ok(Step::Close);
            }
            Id::Info => info::info(&mut call)?,
            Id::Config => config::config(&mut call)?,
            Id::SlowLog => slow_log::slow_log(&mut call),
            Id::DbSize => server::db_size(&mut call)?,
            Id::FlushAll | Id::FlushDb => server::flush(&mut call)?,
            Id::Time => server::time(&mut call),
            Id::Command => describe::command(&mut call),
            // Gathering hands these over unless their arguments are no pairs.
            Id::MGet
            | Id::MSet
            | Id::Del
            | Id::Unlink
            | Id::Exists
            | Id::Touch
            | Id::Watch
            // Done with above.
            | Id::Multi
            | Id::Exec
            | Id::Discard
            | Id::Unwatch => {
                call.reply.wrong_arity(spec.name);
            }
        }
        Ok(Step::Done(len))
    }
}
