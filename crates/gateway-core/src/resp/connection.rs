//! Commands about the connection: HELLO, AUTH, CLIENT, SELECT, PING, RESET.

use super::execute::Call;
use super::parse::number;
use super::server::REDIS_VERSION;
use super::subcommands::{help, subcommand};
use crate::keyspace::Keyspace;
use crate::world::{Client, Introduction, NAME_LEN_MAX, Role, Settings, printable};

/// What is kept of the name of a client's library, and of its version.
const LIBRARY_LEN_MAX: usize = 64;
/// What a look at one connection of a list counts as, with its line: see
/// [`Keyspace::work`].
const CLIENT_WORK: u64 = 2 << 10;
/// Who one is without a name.
const DEFAULT_USER: &str = "default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// What a connection has said of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    /// Of the user, once authenticated.
    role: Option<Role>,
    said: Introduction,
    pub(super) mute: Mute,
    /// It has ended its own connection: nothing more of it is executed.
    pub(super) is_over: bool,
}

/// Whether answers are left out: CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mute {
    is_off: bool,
    /// That of the command that was begun last.
    is_skipping: bool,
    skips_next: bool,
}

impl Mute {
    /// Whether answers are left out now.
    pub(super) fn is_on(self) -> bool {
        self.is_off || self.is_skipping
    }

    /// Whether they are until the client wants them again.
    pub(super) fn is_for_good(self) -> bool {
        self.is_off
    }

    /// A command begins.
    pub(super) fn begin(&mut self) {
        self.is_skipping = std::mem::take(&mut self.skips_next);
    }

    /// That command will begin once more.
    pub(super) fn begin_again(&mut self) {
        self.skips_next |= self.is_skipping;
    }

    /// CLIENT REPLY; whether that is answered.
    fn choose(&mut self, choice: &[u8]) -> Option<bool> {
        if choice.eq_ignore_ascii_case(b"on") {
            *self = Mute::default();
            Some(true)
        } else if choice.eq_ignore_ascii_case(b"off") {
            self.is_off = true;
            Some(false)
        } else if choice.eq_ignore_ascii_case(b"skip") {
            self.skips_next = !self.is_off;
            Some(false)
        } else {
            None
        }
    }
}

impl Identity {
    /// Whether answers are those of the third version.
    pub(super) fn is_resp3(&self) -> bool {
        self.said.is_resp3
    }

    /// Whether its commands are executed.
    pub(super) fn is_known(&self, settings: &Settings) -> bool {
        !settings.authentication || self.role.is_some()
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.role.is_some()
    }

    /// The same client, whose answers are all wanted: for commands over a draft.
    pub(super) fn for_draft(&self) -> Self {
        Identity {
            mute: Mute::default(),
            ..self.clone()
        }
    }

    /// The same, with answers of the second version.
    pub(super) fn for_scripts(&self) -> Self {
        let mut identity = self.for_draft();
        identity.said.is_resp3 = false;
        identity
    }

    /// What it may do.
    pub(super) fn role(&self, settings: &Settings) -> Role {
        settings.role(self.role)
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
            return name == DEFAULT_USER.as_bytes();
        }
        let role = call.world.observer.authenticate(name, password);
        if role.is_some() {
            self.role = role;
            self.said.user = printable(name, NAME_LEN_MAX);
            // Whatever comes of the rest of the command.
            call.world.observer.introduce(&self.said);
        }
        role.is_some()
    }

    /// Takes a name unless it would spoil lists of clients.
    fn set_name(&mut self, name: &[u8]) -> Result<(), &'static str> {
        if !is_word(name) {
            return Err("ERR Client names cannot contain spaces, newlines or special characters.");
        }
        self.said.name = printable(name, NAME_LEN_MAX);
        Ok(())
    }
}

/// Whether a name, of a client or its library, may be taken note of.
fn is_word(word: &[u8]) -> bool {
    word.len() <= NAME_LEN_MAX && word.iter().all(u8::is_ascii_graphic)
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
        2 => (DEFAULT_USER.as_bytes(), call.arguments.get(1)),
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
            call.world.observer.introduce(&identity.said);
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
    identity.said.is_resp3 = version.unwrap_or(identity.said.is_resp3);
    call.world.observer.introduce(&identity.said);
    let reply = &mut call.reply;
    reply.is_resp3 = identity.said.is_resp3;
    reply.map(7);
    reply.bulk("server");
    reply.bulk("redis");
    reply.bulk("version");
    reply.bulk(REDIS_VERSION);
    reply.bulk("proto");
    reply.integer(if identity.said.is_resp3 { 3 } else { 2 });
    reply.bulk("id");
    reply.integer(call.world.connection as i64);
    reply.bulk("mode");
    reply.bulk("standalone");
    reply.bulk("role");
    reply.bulk("master");
    reply.bulk("modules");
    reply.array(0);
}

/// The line of CLIENT INFO: the names that clients look for. What this server does not
/// have, or does not know here, is 0. A library is told of as by Redis 7.2, if the client
/// has named one.
fn describe(client: &Client<'_>, command: &str) -> String {
    let said = client.said;
    let user = user_of(client);
    let mut line = format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags=N db=0 sub=0 psub=0 \
         ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
         omem=0 tot-mem=0 events=r cmd={command} user={user} redir=-1 resp={}",
        client.number,
        client.address,
        client.own_address,
        client.fd,
        said.name,
        client.age_s,
        client.idle_s,
        if said.is_resp3 { 3 } else { 2 },
    );
    for (name, value) in [("lib-name", &said.library.0), ("lib-ver", &said.library.1)] {
        if !value.is_empty() {
            line += &format!(" {name}={value}");
        }
    }
    line.push('\n');
    line
}

/// Whether CLIENT, with these arguments behind its name, looks at all connections.
pub(super) fn is_about_all(words: &[&[u8]]) -> bool {
    let is = |name: &[u8]| {
        words
            .get(1)
            .is_some_and(|word| word.eq_ignore_ascii_case(name))
    };
    is(b"list") || is(b"kill")
}

/// Which connections CLIENT LIST and KILL are about.
#[derive(Default)]
struct Filter<'a> {
    numbers: Vec<u64>,
    address: Option<&'a [u8]>,
    own_address: Option<&'a [u8]>,
    /// As it is in lists.
    user: Option<String>,
    /// There are none of this kind.
    is_empty: bool,
    /// The one that asks, too.
    has_own: bool,
}

impl<'a> Filter<'a> {
    /// Parses options from this argument on, or answers what is wrong.
    fn parse<K: Keyspace>(
        call: &mut Call<'a, '_, '_, K>,
        first: usize,
        is_list: bool,
    ) -> Option<Self> {
        let arguments = call.arguments;
        let mut filter = Filter::default();
        let mut at = first;
        while at < arguments.len() {
            let value = arguments.get(at + 1);
            let is_last = at + 1 >= arguments.len();
            let is_word = |word: &str| value.eq_ignore_ascii_case(word.as_bytes());
            if is_last {
                call.reply.syntax_error();
                return None;
            } else if arguments.is(at, "id") {
                if !filter.parse_numbers(call, at + 1, is_list) {
                    return None;
                }
                if is_list {
                    return Some(filter);
                }
            } else if arguments.is(at, "addr") {
                filter.address = Some(value);
            } else if arguments.is(at, "laddr") {
                filter.own_address = Some(value);
            } else if arguments.is(at, "type") {
                let known = ["normal", "master", "replica", "slave", "pubsub"];
                if !known.into_iter().any(is_word) {
                    let error = [b"ERR Unknown client type '", value, b"'"].concat();
                    call.reply.error(error);
                    return None;
                }
                filter.is_empty |= !is_word("normal");
            } else if arguments.is(at, "user") {
                let user = printable(value, NAME_LEN_MAX);
                if !has_user(call, value, &user) {
                    let error = [b"ERR No such user '", value, b"'"].concat();
                    call.reply.error(error);
                    return None;
                }
                filter.user = Some(user);
            } else if arguments.is(at, "skipme") && (is_word("yes") || is_word("no")) {
                filter.has_own = is_word("no");
            } else {
                call.reply.syntax_error();
                return None;
            }
            at += 2;
        }
        Some(filter)
    }

    /// The numbers from this argument on: LIST has any number of them, to the end, and
    /// KILL one, of which the last one counts. `false`: it was answered what is wrong.
    fn parse_numbers<K: Keyspace>(
        &mut self,
        call: &mut Call<'a, '_, '_, K>,
        first: usize,
        is_list: bool,
    ) -> bool {
        self.numbers.clear();
        let count = if is_list { usize::MAX } else { 1 };
        for text in call.arguments.from(first).take(count) {
            let id = number(text);
            match (is_list, id.map(u64::try_from)) {
                (true, None) => call.reply.error("ERR Invalid client ID"),
                (false, None | Some(Err(_) | Ok(0))) => {
                    call.reply.error("ERR client-id should be greater than 0");
                }
                (_, Some(id)) => {
                    // Nobody has that number.
                    self.numbers.push(id.unwrap_or(0));
                    continue;
                }
            }
            return false;
        }
        true
    }

    fn has(&self, client: &Client<'_>) -> bool {
        let is = |wanted: Option<&[u8]>, address: &str| {
            wanted.is_none_or(|wanted| wanted == address.as_bytes())
        };
        !self.is_empty
            && (self.numbers.is_empty() || self.numbers.contains(&client.number))
            && is(self.address, client.address)
            && is(self.own_address, client.own_address)
            && self
                .user
                .as_ref()
                .is_none_or(|user| user_of(client) == user)
    }
}

/// Who a client is, in lists.
fn user_of<'a>(client: &Client<'a>) -> &'a str {
    match client.said.user.as_str() {
        "" => DEFAULT_USER,
        user => user,
    }
}

/// Whether there is such a user, or a connection of one that there was.
fn has_user<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, name: &[u8], listed: &str) -> bool {
    if call.world.observer.has_user(name) {
        return true;
    }
    let (mut is_there, mut count) = (false, 0);
    call.world.observer.clients(&mut |client| {
        count += 1;
        is_there |= user_of(client) == listed;
    });
    call.world.keyspace.charge(count * CLIENT_WORK);
    is_there
}

/// Lines of connections: all that a filter has, or the own one.
fn list<K: Keyspace>(
    call: &mut Call<'_, '_, '_, K>,
    identity: &Identity,
    filter: Option<&Filter<'_>>,
) {
    let own = call.world.connection;
    let (mut text, mut count) = (String::new(), 0);
    let has_own = std::cell::Cell::new(false);
    let mut put = |client: &Client<'_>| {
        let is_own = client.number == own;
        has_own.set(has_own.get() || is_own);
        count += 1;
        if filter.map_or(is_own, |filter| filter.has(client)) {
            let command = match (is_own, filter.is_some()) {
                (false, _) => "NULL",
                (true, true) => "client|list",
                (true, false) => "client|info",
            };
            text += &describe(client, command);
        }
    };
    match filter {
        Some(_) => call.world.observer.clients(&mut put),
        None => call.world.observer.own_client(&mut put),
    }
    if !has_own.get() {
        // Nobody knows of connections here.
        put(&Client {
            number: own,
            fd: 0,
            address: "0.0.0.0:0",
            own_address: "0.0.0.0:0",
            age_s: 0,
            idle_s: 0,
            said: &identity.said,
        });
    }
    call.world.keyspace.charge(count * CLIENT_WORK);
    call.reply.text(&text);
}

/// CLIENT KILL: the one of an address, or all that a filter has.
fn kill<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    if call.role < Role::Admin {
        return call.reply.no_permission("client|kill");
    }
    let is_old = call.arguments.len() == 3;
    let filter = match is_old {
        true => Filter {
            address: Some(call.arguments.get(2)),
            has_own: true,
            ..Filter::default()
        },
        false => match Filter::parse(call, 2, false) {
            Some(filter) => filter,
            None => return,
        },
    };
    let own = call.world.connection;
    let (mut numbers, mut count) = (Vec::new(), 0);
    call.world.observer.clients(&mut |client| {
        count += 1;
        if filter.has(client) && (filter.has_own || client.number != own) {
            numbers.push(client.number);
        }
    });
    call.world.keyspace.charge(count * CLIENT_WORK);
    identity.is_over |= numbers.contains(&own);
    call.world.observer.end_clients(&numbers);
    match (is_old, numbers.is_empty()) {
        (true, true) => call.reply.error("ERR No such client"),
        (true, false) => call.reply.simple("OK"),
        (false, _) => call.reply.integer(numbers.len() as i64),
    }
}

const HELP: &[&str] = &[
    "CACHING (YES|NO)",
    "    An error: nothing is tracked.",
    "GETNAME",
    "    The name of this connection.",
    "GETREDIR",
    "    -1: nothing is tracked.",
    "ID",
    "    The number of this connection.",
    "INFO",
    "    What is known of this connection.",
    "KILL <ip:port>",
    "    Ends that connection.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Ends connections. Options are ID, ADDR, LADDR, TYPE, USER, SKIPME (YES|NO).",
    "LIST [TYPE <type>] [ID <id> [<id>...]]",
    "    What is known of all connections.",
    "NO-EVICT (ON|OFF)",
    "    Taken, without effect.",
    "NO-TOUCH (ON|OFF)",
    "    Taken, without effect.",
    "REPLY (ON|OFF|SKIP)",
    "    Whether commands are answered; of SKIP, the next one is not.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Names the client's library in lists of connections.",
    "SETNAME <name>",
    "    Names this connection.",
    "TRACKING (ON|OFF)",
    "    OFF is taken; ON is an error: nobody tells clients of changes.",
    "TRACKINGINFO",
    "    That nothing is tracked.",
    "UNBLOCK <id> [TIMEOUT|ERROR]",
    "    0: no command blocks.",
    "UNPAUSE",
    "    Taken: nothing is paused.",
];

/// CLIENT and its subcommands.
pub(super) fn client<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, identity: &mut Identity) {
    let Some(name) = subcommand(call) else {
        return;
    };
    match name {
        "getname" if identity.said.name.is_empty() => call.reply.null(),
        "getname" => call.reply.bulk(&identity.said.name),
        "reply" => match identity.mute.choose(call.arguments.get(2)) {
            Some(true) => call.reply.simple("OK"),
            Some(false) => {}
            None => call.reply.syntax_error(),
        },
        "tracking" if call.arguments.is(2, "off") && call.arguments.len() == 3 => {
            call.reply.simple("OK");
        }
        "tracking" if call.arguments.is(2, "on") => call
            .reply
            .error("ERR CLIENT TRACKING is not here: nobody tells clients of changes"),
        "caching" => call.reply.error(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
             OPTIN or OPTOUT mode enabled",
        ),
        "unblock" => unblock(call),
        "unpause" => call.reply.simple("OK"),
        "pause" => call
            .reply
            .error("ERR CLIENT PAUSE is not here: clients do not stop one another"),
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
        "info" => list(call, identity, None),
        "list" => {
            if let Some(filter) = Filter::parse(call, 2, true) {
                list(call, identity, Some(&filter));
            }
        }
        "kill" => kill(call, identity),
        "setname" => match identity.set_name(call.arguments.get(2)) {
            Ok(()) => {
                call.world.observer.introduce(&identity.said);
                call.reply.simple("OK");
            }
            Err(error) => call.reply.error(error),
        },
        "setinfo" => {
            let option = call.arguments.get(2);
            let is_name = option.eq_ignore_ascii_case(b"lib-name");
            if !is_name && !option.eq_ignore_ascii_case(b"lib-ver") {
                let error = [b"ERR Unrecognized option '", option, b"'"].concat();
                call.reply.error(error);
            } else if !is_word(call.arguments.get(3)) {
                call.reply.error(format!(
                    "ERR {} cannot contain spaces, newlines or special characters.",
                    String::from_utf8_lossy(option).to_lowercase()
                ));
            } else {
                let (name, version) = &mut identity.said.library;
                let place = if is_name { name } else { version };
                *place = printable(call.arguments.get(3), LIBRARY_LEN_MAX);
                call.world.observer.introduce(&identity.said);
                call.reply.simple("OK");
            }
        }
        // Connections are not closed for memory, and reads count as uses.
        _ if call.arguments.is(2, "on") || call.arguments.is(2, "off") => call.reply.simple("OK"),
        _ => call.reply.syntax_error(),
    }
}

/// CLIENT UNBLOCK: nobody is.
fn unblock<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let is_reason = match call.arguments.len() {
        3 => true,
        4 => call.arguments.is(3, "timeout") || call.arguments.is(3, "error"),
        _ => return call.reply.syntax_error(),
    };
    match number(call.arguments.get(2)) {
        _ if !is_reason => call
            .reply
            .error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        None => call.reply.not_an_integer(),
        Some(_) => call.reply.integer(0),
    }
}

/// SELECT.
pub(super) fn select<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    if database(call, call.arguments.get(1)) {
        call.reply.simple("OK");
    }
}

/// Whether this is the number of the only database; answers what is wrong otherwise.
pub(super) fn database<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, text: &[u8]) -> bool {
    match number(text).map(i32::try_from) {
        Some(Ok(0)) => return true,
        Some(Ok(_)) => call.reply.error("ERR DB index is out of range"),
        Some(Err(_)) => call.reply.error(format!(
            "ERR value is out of range, value must between {} and {}",
            i32::MIN,
            i32::MAX
        )),
        None => call.reply.not_an_integer(),
    }
    false
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
    call.world.observer.introduce(&identity.said);
    call.reply.is_resp3 = false;
    call.reply.simple("RESET");
}
