//! Commands about the connection: HELLO, AUTH, CLIENT, SELECT, PING, RESET.

use super::execute::Call;
use super::parse::number;
use super::server::REDIS_VERSION;
use crate::keyspace::Keyspace;
use crate::world::{Role, Settings};

/// Longest name of a connection.
const NAME_LEN_MAX: usize = 1024;
/// Who one is without a name.
const DEFAULT_USER: &[u8] = b"default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// What a connection has said of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) is_resp3: bool,
    /// Of the user, once authenticated.
    user: Option<Role>,
    name: Box<[u8]>,
}

impl Identity {
    /// Whether its commands are executed.
    pub(super) fn is_known(&self, settings: &Settings) -> bool {
        !settings.authentication || self.user.is_some()
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }

    /// The same client, whose answers are those of the second version.
    pub(super) fn for_scripts(&self) -> Self {
        Identity {
            is_resp3: false,
            ..self.clone()
        }
    }

    /// What it may do.
    pub(super) fn role(&self, settings: &Settings) -> Role {
        settings.role(self.user)
    }

    /// Checks name and password; a wrong pair leaves things as they are.
    fn authenticate<K: Keyspace>(
        &mut self,
        name: &[u8],
        password: &[u8],
        call: &mut Call<'_, '_, '_, K>,
    ) -> bool {
        if !call.world.settings.authentication {
            // Without users everybody is the default one.
            return name == DEFAULT_USER;
        }
        let user = call.world.observer.authenticate(name, password);
        if user.is_some() {
            self.user = user;
        }
        user.is_some()
    }

    /// Takes a name unless it would spoil lists of clients.
    fn set_name(&mut self, name: &[u8]) -> Result<(), &'static str> {
        if name.len() > NAME_LEN_MAX || !name.iter().all(u8::is_ascii_graphic) {
            return Err("ERR Client names cannot contain spaces, newlines or special characters.");
        }
        self.name = name.into();
        Ok(())
    }
}

/// AUTH.
pub(super) fn auth<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    let (name, password) = match call.arguments.len() {
        2 if !call.world.settings.authentication => {
            return call.reply.error(
                "ERR AUTH <password> called without any password configured for the \
                 default user. Are you sure your configuration is correct?",
            );
        }
        2 => (DEFAULT_USER, call.arguments.get(1)),
        3 => (call.arguments.get(1), call.arguments.get(2)),
        _ => return call.reply.syntax_error(),
    };
    if identity.authenticate(name, password, call) {
        call.reply.simple("OK");
    } else {
        call.reply.error(WRONG_PASSWORD);
    }
}

/// HELLO: version of the protocol, authentication, name.
pub(super) fn hello<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    let mut version = None;
    if call.arguments.len() > 1 {
        version = match number(call.arguments.get(1)) {
            None => {
                return call
                    .reply
                    .error("ERR Protocol version is not an integer or out of range");
            }
            Some(2) => Some(false),
            Some(3) => Some(true),
            Some(_) => return call.reply.error("NOPROTO unsupported protocol version"),
        };
    }
    let mut at = 2;
    while at < call.arguments.len() {
        let more = call.arguments.len() - at - 1;
        if call.arguments.is(at, "auth") && more >= 2 {
            let (name, password) = (call.arguments.get(at + 1), call.arguments.get(at + 2));
            if !identity.authenticate(name, password, call) {
                return call.reply.error(WRONG_PASSWORD);
            }
            at += 3;
        } else if call.arguments.is(at, "setname") && more >= 1 {
            if let Err(error) = identity.set_name(call.arguments.get(at + 1)) {
                return call.reply.error(error);
            }
            at += 2;
        } else {
            let option = call.arguments.get(at);
            let shown = option.split(|&byte| byte == 0).next().unwrap_or_default();
            let error = [b"ERR Syntax error in HELLO option '", shown, b"'"].concat();
            return call.reply.error(error);
        }
    }
    if !identity.is_known(call.world.settings) {
        return call.reply.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and select \
             the RESP protocol version at the same time",
        );
    }
    identity.is_resp3 = version.unwrap_or(identity.is_resp3);
    let reply = &mut call.reply;
    reply.is_resp3 = identity.is_resp3;
    reply.map(7);
    reply.bulk("server");
    reply.bulk("redis");
    reply.bulk("version");
    reply.bulk(REDIS_VERSION);
    reply.bulk("proto");
    reply.integer(if identity.is_resp3 { 3 } else { 2 });
    reply.bulk("id");
    reply.integer(call.world.connection as i64);
    reply.bulk("mode");
    reply.bulk("standalone");
    reply.bulk("role");
    reply.bulk("master");
    reply.bulk("modules");
    reply.array(0);
}

/// The line of CLIENT INFO: the names that clients look for. What this server
/// does not have, or does not know here, is 0.
fn describe<K: Keyspace>(call: &Call<'_, '_, '_, K>, identity: &Identity, command: &str) -> String {
    format!(
        "id={} addr=0.0.0.0:0 laddr=0.0.0.0:0 fd=0 name={} age=0 idle=0 flags=N db=0 sub=0 \
         psub=0 ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 \
         oll=0 omem=0 tot-mem=0 events=r cmd=client|{command} user=default redir=-1 resp={}\n",
        call.world.connection,
        String::from_utf8_lossy(&identity.name),
        if identity.is_resp3 { 3 } else { 2 },
    )
}

/// Whether a client's library or its version may be taken note of.
fn is_library_word(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_graphic)
}

const HELP: &[&str] = &[
    "GETNAME",
    "    The name of this connection.",
    "GETREDIR",
    "    -1: nothing is tracked.",
    "ID",
    "    The number of this connection.",
    "INFO",
    "    What is known of this connection.",
    "LIST",
    "    The same.",
    "NO-EVICT (ON|OFF)",
    "    Taken, without effect.",
    "NO-TOUCH (ON|OFF)",
    "    Taken, without effect.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Taken, without effect.",
    "SETNAME <name>",
    "    Names this connection.",
    "TRACKINGINFO",
    "    That nothing is tracked.",
];

/// CLIENT and its subcommands.
pub(super) fn client<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    /// Names and how many arguments they have in all, at least if negative.
    const SUBCOMMANDS: [(&str, i32); 11] = [
        ("getname", 2),
        ("getredir", 2),
        ("help", 2),
        ("id", 2),
        ("info", 2),
        ("list", -2),
        ("no-evict", 3),
        ("no-touch", 3),
        ("setinfo", 4),
        ("setname", 3),
        ("trackinginfo", 2),
    ];
    let Some(name) = subcommand(call, &SUBCOMMANDS) else {
        return;
    };
    match name {
        "getname" if identity.name.is_empty() => call.reply.null(),
        "getname" => call.reply.bulk(&identity.name),
        // Nothing is tracked.
        "getredir" => call.reply.integer(-1),
        "trackinginfo" => {
            call.reply.map(3);
            call.reply.bulk("flags");
            call.reply.set(1);
            call.reply.bulk("off");
            call.reply.bulk("redirect");
            call.reply.integer(-1);
            call.reply.bulk("prefixes");
            call.reply.array(0);
        }
        "help" => help(call, HELP),
        "id" => call.reply.integer(call.world.connection as i64),
        "info" | "list" => {
            let line = describe(call, identity, name);
            call.reply.text(&line);
        }
        "setname" => match identity.set_name(call.arguments.get(2)) {
            Ok(()) => call.reply.simple("OK"),
            Err(error) => call.reply.error(error),
        },
        "setinfo" => {
            let option = call.arguments.get(2);
            let is_known = [b"lib-name".as_slice(), b"lib-ver"]
                .iter()
                .any(|known| option.eq_ignore_ascii_case(known));
            if !is_known {
                let error = [b"ERR Unrecognized option '", option, b"'"].concat();
                call.reply.error(error);
            } else if !is_library_word(call.arguments.get(3)) {
                call.reply.error(format!(
                    "ERR {} cannot contain spaces, newlines or special characters.",
                    String::from_utf8_lossy(option).to_lowercase()
                ));
            } else {
                call.reply.simple("OK");
            }
        }
        // Connections are not closed for memory, and reads count as uses.
        _ if call.arguments.is(2, "on") || call.arguments.is(2, "off") => call.reply.simple("OK"),
        _ => call.reply.syntax_error(),
    }
}

/// The subcommand, if there is such a one with so many arguments; answers what
/// is wrong otherwise.
pub(super) fn subcommand<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    known: &[(&'static str, i32)],
) -> Option<&'static str> {
    let Some(&(name, arity)) = known.iter().find(|(name, _)| call.arguments.is(1, name)) else {
        let word = call.arguments.get(1);
        let shown = word.split(|&byte| byte == 0).next().unwrap_or_default();
        let shown = &shown[..shown.len().min(128)];
        let command = call.spec.name.to_ascii_uppercase();
        let hint = format!("'. Try {command} HELP.");
        let error = [b"ERR unknown subcommand '", shown, hint.as_bytes()].concat();
        call.reply.error(error);
        return None;
    };
    let count = call.arguments.len();
    let least = arity.unsigned_abs() as usize;
    if count < least || (arity > 0 && count != least) {
        let full_name = format!("{}|{name}", call.spec.name);
        call.reply.wrong_arity(&full_name);
        return None;
    }
    Some(name)
}

/// HELP of a command with subcommands.
pub(super) fn help<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, lines: &[&str]) {
    let name = call.spec.name.to_ascii_uppercase();
    call.reply.array(lines.len() + 1);
    call.reply.simple(&format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for line in lines {
        call.reply.simple(line);
    }
}

/// SELECT.
pub(super) fn select<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    match number(call.arguments.get(1)).map(i32::try_from) {
        Some(Ok(0)) => call.reply.simple("OK"),
        Some(Ok(_)) => call.reply.error("ERR DB index is out of range"),
        Some(Err(_)) => call.reply.error(format!(
            "ERR value is out of range, value must between {} and {}",
            i32::MIN,
            i32::MAX
        )),
        None => call.reply.not_an_integer(),
    }
}

/// PING.
pub(super) fn ping<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    match call.arguments.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.bulk(call.arguments.get(1)),
        _ => call.reply.wrong_arity(call.spec.name),
    }
}

/// RESET: as if newly connected.
pub(super) fn reset<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    *identity = Identity::default();
    call.reply.simple("RESET");
}
