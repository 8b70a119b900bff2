//! The fallback where logical replication is not to be had: triggers and
//! LISTEN/NOTIFY.
//!
//! | | relay | this |
//! |---|---|---|
//! | an interruption | goes on where it was | is a gap: all that is kept is dropped |
//! | writers pay | for what the log holds anyway | a trigger for each row, and one lock for all commits that notify |
//! | refreshes | yes | no, invalidations only |
//! | changes by sessions that skip triggers | told | **missed**: `session_replication_role = replica`, disabled triggers |
//!
//! A heartbeat asks where the log is, and notifies that position. Notifications
//! arrive in commit order, each only when its transaction is visible, so when the
//! heartbeat arrives, every commit up to its position has been told. A change is
//! told with the first position after the progress so far, which may lie before its
//! commit's. So positions can be compared within a session of one relay only: each
//! session is a history of its own.
//!
//! Triggers that are missing, disabled, or made of another map would be changes
//! that nobody is told of. They are looked for before each beginning and every few
//! seconds while it goes on; the listener ends with the error.

use crate::database::{Database, DatabaseError};
use crate::event::{Gap, GapReason, Progress, Scope, Sink};
use crate::keymap::{KeyMap, TableMap};
use crate::position::{History, Place, parse_position};
use crate::setup;
use crate::template::{quote_literal, quote_name};
use bytes::Bytes;
use hdrhistogram::Histogram;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client};

/// Notifications between the connection and the relay; when they are full, the
/// server keeps the rest.
const BUFFER: usize = 1024;

/// Bytes of a key beyond which its whole table is declared out of date:
/// notifications have a limit of 8000.
const KEY_BYTES_MAX: usize = 7900;

/// Longest name that a Postgres server does not cut off.
const NAME_BYTES_MAX: usize = 63;

/// How the triggers write values, whatever the session that fires them has set, and
/// where they look for functions. As `pg_proc.proconfig` has it.
const SETTINGS: [(&str, &str); 6] = [
    ("search_path", "pg_catalog, pg_temp"),
    ("DateStyle", "ISO, MDY"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
];

const RETRY_MIN: Duration = Duration::from_millis(50);

/// How long a heartbeat, or a new session, may take before the connection counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How to listen to a database.
#[derive(Clone, Debug)]
pub struct NotifyOptions {
    /// Where it is.
    pub database: Database,
    /// What changes mean: templates only.
    pub map: KeyMap,
    /// The channel, the same as in [`notify_sql`].
    pub channel: String,
    /// How often progress is asked for.
    pub heartbeat: Duration,
    /// Longest wait before connecting again.
    pub retry_max: Duration,
    /// How often it is looked whether every mapped table still has its triggers. If
    /// not, the relay ends with the error.
    pub check_every: Duration,
}

impl NotifyOptions {
    /// The usual settings.
    pub fn new(database: Database, map: KeyMap) -> Self {
        NotifyOptions {
            database,
            map,
            channel: "trefoil".into(),
            heartbeat: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            check_every: Duration::from_secs(5),
        }
    }
}

/// Why listening does not work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotifyError {
    /// The database is not there, or refuses.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A table's keys are made by a function, which a trigger cannot call.
    #[error("keys of table {0} are not made by a template: triggers need one")]
    NoTemplate(String),
    /// A table has no triggers, or they are disabled.
    #[error(
        "table {table} has no triggers that notify channel {channel}, so its changes would go \
         missing: run, as the table's owner, what trefoil relay --notify {channel} --print-sql \
         prints"
    )]
    NoTrigger {
        /// Which table.
        table: String,
        /// Where they are to notify.
        channel: String,
    },
    /// A table's triggers give other keys than the map does.
    #[error(
        "the triggers of table {table} that notify channel {channel} were made for another --map, \
         by another version, or were changed: \
         run, as the table's owner, what trefoil relay --notify {channel} --print-sql prints now"
    )]
    OtherTrigger {
        /// Which table.
        table: String,
        /// Where they notify.
        channel: String,
    },
    /// A table has parts whose own changes would be missed.
    #[error(
        "table {table} has partitions, or tables that inherit from it: who empties, attaches or \
         detaches one of them would be told to nobody. Follow it by the log (--publication)"
    )]
    Parts {
        /// Which table.
        table: String,
    },
    /// Names that are made of it would be cut off.
    #[error(
        "channel {channel:?}: with it a name of table {table} has {bytes} bytes, and may have \
         {NAME_BYTES_MAX}: choose a shorter one"
    )]
    Channel {
        /// The channel.
        channel: String,
        /// Of which table.
        table: String,
        /// Bytes of the name.
        bytes: usize,
    },
    /// A channel has a name.
    #[error("a channel has a name of at least one byte")]
    NoChannel,
}

impl NotifyError {
    /// Whether it may pass by itself.
    pub fn passes(&self) -> bool {
        match self {
            NotifyError::Database(error) => error.passes(),
            _ => false,
        }
    }
}

/// The statements that make a database notify changes of the mapped tables: to
/// be run once, and again when the map changes, by the tables' owner.
///
/// # Errors
/// A table's keys are not made by a template, or a name would be too long.
pub fn notify_sql(map: &KeyMap, channel: &str) -> Result<String, NotifyError> {
    let settings = SETTINGS.map(|(name, value)| match name {
        // A list of names.
        "search_path" => format!("SET {name} = {value}"),
        _ => format!("SET {name} = {}", quote_literal(value)),
    });
    let settings = settings.join(" ");
    let mut sql = String::from("BEGIN;\n");
    for (table, maps) in map.tables() {
        // No fixed tag of dollars: the map's texts might contain it.
        let body = quote_literal(&body(table, maps, channel)?);
        let (schema, name) = table.split_once('.').unwrap_or(("public", table));
        let on = format!("{}.{}", quote_name(schema), quote_name(name));
        let function = function_name(channel, table)?;
        let function = format!("{}.{}", quote_name(schema), quote_name(&function));
        let [row, all] = trigger_names(channel).map(|name| quote_name(&name));
        // Writing to a String cannot fail.
        let _ = write!(
            sql,
            "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {settings} AS {body};\n\
             DROP TRIGGER IF EXISTS {row} ON {on};\n\
             DROP TRIGGER IF EXISTS {all} ON {on};\n\
             CREATE TRIGGER {row} AFTER INSERT OR UPDATE OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION {function}();\n\
             CREATE TRIGGER {all} AFTER TRUNCATE ON {on} FOR EACH STATEMENT EXECUTE FUNCTION {function}();\n",
        );
    }
    sql.push_str("COMMIT;\n");
    Ok(sql)
}

/// What the triggers of a table do.
fn body(table: &str, maps: &[TableMap], channel: &str) -> Result<String, NotifyError> {
    let templates: Option<Vec<_>> = maps.iter().map(|map| map.key_template()).collect();
    let templates = templates.ok_or_else(|| NotifyError::NoTemplate(table.into()))?;
    let keys = |row: &str| {
        let keys: Vec<String> = templates.iter().map(|keys| keys.sql(row)).collect();
        keys.join(", ")
    };
    let (old, new) = (keys("OLD"), keys("NEW"));
    let channel = quote_literal(channel);
    let gap = quote_literal(&format!("g{table}"));
    Ok(format!(
        "\n\
         DECLARE\n  keys text[] := '{{}}';\n  key text;\n\
         BEGIN\n\
         \x20 IF TG_OP = 'TRUNCATE' THEN\n    PERFORM pg_catalog.pg_notify({channel}, {gap});\n    RETURN NULL;\n  END IF;\n\
         \x20 IF TG_OP <> 'INSERT' THEN keys := keys || ARRAY[{old}]; END IF;\n\
         \x20 IF TG_OP <> 'DELETE' THEN keys := keys || ARRAY[{new}]; END IF;\n\
         \x20 FOREACH key IN ARRAY keys LOOP\n\
         \x20   IF pg_catalog.octet_length(key) > {KEY_BYTES_MAX} THEN PERFORM pg_catalog.pg_notify({channel}, {gap});\n\
         \x20   ELSIF key IS NOT NULL THEN PERFORM pg_catalog.pg_notify({channel}, 'k' || key);\n    END IF;\n\
         \x20 END LOOP;\n  RETURN NULL;\nEND "
    ))
}

/// Of the triggers of rows, and of statements that empty a table.
fn trigger_names(channel: &str) -> [String; 2] {
    ["row", "all"].map(|kind| format!("trefoil_{channel}_{kind}"))
}

/// Of what the triggers of a table call. No name is cut off: two tables would share
/// a function.
fn function_name(channel: &str, table: &str) -> Result<String, NotifyError> {
    if channel.is_empty() {
        return Err(NotifyError::NoChannel);
    }
    let name = table.split_once('.').map_or(table, |(_, name)| name);
    let function = format!("trefoil_{channel}_{name}");
    let [row, _] = trigger_names(channel);
    let bytes = function.len().max(row.len());
    if bytes > NAME_BYTES_MAX {
        return Err(NotifyError::Channel {
            channel: channel.into(),
            table: table.into(),
            bytes,
        });
    }
    Ok(function)
}

/// A listener at work. Dropping it ends it.
#[derive(Debug)]
pub struct NotifyRelay {
    task: JoinHandle<Result<(), NotifyError>>,
    shared: Arc<Shared>,
}

/// What the task and its owner share.
#[derive(Debug)]
struct Shared {
    status: watch::Sender<NotifyStatus>,
    /// Microseconds from the beginning of a heartbeat until it was told.
    delays: Mutex<Histogram<u64>>,
}

/// How a listener is.
#[derive(Clone, Debug, Default)]
pub struct NotifyStatus {
    /// Whether it listens at the moment.
    pub connected: bool,
    /// Everything up to here has been told.
    pub position: u64,
    /// Times that it began to listen.
    pub begun: u64,
    /// Notifications of changes that were told.
    pub notifications: u64,
    /// Those of them that were gaps: a truncate, or a key that is too long.
    pub gaps: u64,
    /// Why the last connection ended.
    pub trouble: Option<String>,
}

impl NotifyRelay {
    /// Checks that the triggers are there, connects, and listens from then on.
    ///
    /// # Errors
    /// The database is not there, or a mapped table has no triggers. Later
    /// trouble that may pass is retried; see [`ended`](Self::ended).
    pub async fn start<S: Sink + 'static>(
        options: NotifyOptions,
        mut sink: S,
    ) -> Result<Self, NotifyError> {
        let shared = Arc::new(Shared {
            status: watch::Sender::new(NotifyStatus::default()),
            delays: Mutex::new(crate::relay::delays()),
        });
        let mut listener = Listener {
            options,
            shared: Arc::clone(&shared),
            sessions: 0,
            position: 0,
        };
        let session = listener.open(&mut sink).await?;
        let task = tokio::spawn(async move { listener.run(session, &mut sink).await });
        Ok(NotifyRelay { task, shared })
    }

    /// How it is.
    pub fn status(&self) -> NotifyStatus {
        self.look().status()
    }

    /// Looks at it from elsewhere.
    pub(crate) fn look(&self) -> NotifyWatch {
        NotifyWatch(Arc::clone(&self.shared))
    }

    /// Returns when listening has ended for good: after trouble that does not pass by
    /// itself.
    ///
    /// # Errors
    /// The trouble.
    pub async fn ended(&mut self) -> Result<(), NotifyError> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(cause) => Err(NotifyError::Database(DatabaseError::Nonsense {
                database: "the relay's task".into(),
                cause: cause.to_string(),
            })),
        }
    }
}

/// How a listener is, for somebody else than its owner.
pub(crate) struct NotifyWatch(Arc<Shared>);

impl NotifyWatch {
    pub(crate) fn status(&self) -> NotifyStatus {
        self.0.status.borrow().clone()
    }

    pub(crate) fn delays(&self) -> Histogram<u64> {
        let delays = self.0.delays.lock();
        delays.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for NotifyRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Listener {
    options: NotifyOptions,
    shared: Arc<Shared>,
    sessions: u64,
    position: u64,
}

/// A connection that listens; its second one asks for progress.
struct Session {
    history: History,
    /// Keeps the connection alive.
    _listening: Client,
    /// Each with the server process that sent it.
    notes: mpsc::Receiver<(i32, String)>,
    _driver: Driver,
    beats: crate::database::Connection,
    /// The server process that sends our heartbeats. What another one sends is none,
    /// whatever it says: every role of the database may notify.
    beater: i32,
    /// Begins every one of them, and no other relay's.
    nonce: String,
}

/// Reads what a connection is told; ends with the value.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    async fn open(&mut self, sink: &mut impl Sink) -> Result<Session, NotifyError> {
        let database = self.options.database.clone();
        // The sink is told in one step, at the end: who is broken off has told nothing.
        database.within(SILENCE_MAX, self.begin(sink)).await
    }

    async fn begin(&mut self, sink: &mut impl Sink) -> Result<Session, NotifyError> {
        let database = self.options.database.clone();
        let beats = database.connect().await?;
        check(&self.options, &beats.client).await?;
        let (listening, mut connection) = database.dial().await?;
        let (sender, notes) = mpsc::channel(BUFFER);
        let driver = Driver(tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message
                    && let told = (note.process_id(), note.payload().to_owned())
                    && sender.send(told).await.is_err()
                {
                    return;
                }
            }
        }));
        let listen = format!("LISTEN {}", quote_name(&self.options.channel));
        let listened = listening.batch_execute(&listen).await;
        listened.map_err(|e| database.error(&e))?;
        let query = "SELECT pg_current_wal_insert_lsn()::text, pg_backend_pid()";
        let row = beats.client.query_one(query, &[]).await;
        let row = row.map_err(|e| database.error(&e))?;
        let position = position(&database, row.get(0))?;
        let beater = row.get(1);
        let session = random(&database)?;
        let nonce = format!("h{session}:");
        let started = setup::started(&database, &beats).await?;
        // A change's position is counted from this session's last heartbeat: no other
        // relay, and no later session, can compare it with its own.
        let history = History::notified(&format!("{started}/{session}"));
        let place = Place {
            history: history.clone(),
            position,
        };
        self.sessions += 1;
        if self.sessions > 1 {
            sink.gap(&Gap {
                from: self.position,
                to: place.clone(),
                reason: GapReason::Disconnected,
                tables: Vec::new(),
                scope: Scope::All,
            });
        }
        sink.begun(&place);
        self.position = position;
        self.shared.status.send_modify(|status| {
            status.connected = true;
            status.position = position;
            status.begun += 1;
        });
        tracing::info!(%database, channel = self.options.channel, "listening");
        Ok(Session {
            history,
            _listening: listening,
            notes,
            _driver: driver,
            beats,
            beater,
            nonce,
        })
    }

    async fn run(&mut self, mut session: Session, sink: &mut impl Sink) -> Result<(), NotifyError> {
        loop {
            let begun = Instant::now();
            let trouble = self.follow(&mut session, sink).await;
            self.troubled(trouble)?;
            drop(session);
            let mut wait = RETRY_MIN;
            if begun.elapsed() < RETRY_MIN {
                // One that ends as soon as it begins is not to spin.
                wait = self.options.retry_max.min(Duration::from_millis(500));
            }
            session = loop {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(self.options.retry_max);
                match self.open(sink).await {
                    Ok(session) => break session,
                    Err(trouble) => self.troubled(trouble)?,
                }
            };
        }
    }

    /// Notes trouble; gives it back if it does not pass by itself.
    fn troubled(&self, trouble: NotifyError) -> Result<(), NotifyError> {
        let text = trouble.to_string();
        self.shared.status.send_modify(|status| {
            status.connected = false;
            if status.trouble.as_ref() != Some(&text) {
                tracing::warn!(trouble = text, "not listening to the database");
            }
            status.trouble = Some(text);
        });
        match trouble.passes() {
            true => Ok(()),
            false => Err(trouble),
        }
    }

    async fn follow(&mut self, session: &mut Session, sink: &mut impl Sink) -> NotifyError {
        let options = self.options.clone();
        let database = options.database.clone();
        let lost = |cause: &str| {
            NotifyError::Database(DatabaseError::Unreachable {
                database: database.to_string(),
                cause: cause.into(),
            })
        };
        let mut ticks = tokio::time::interval(self.options.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut begun: Option<Instant> = None;
        let client = &session.beats.client;
        // The last position that a heartbeat was sent with.
        let sent = AtomicU64::new(0);
        let mut beating = std::pin::pin!(None);
        // They have just been looked for.
        let first = tokio::time::Instant::now() + options.check_every;
        let mut checks = tokio::time::interval_at(first, options.check_every);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checking = std::pin::pin!(None);
        loop {
            let beaten = of(beating.as_mut().as_pin_mut());
            let checked = of(checking.as_mut().as_pin_mut());
            tokio::select! {
                note = session.notes.recv() => {
                    let Some((from, note)) = note else {
                        return lost("the server ended the connection");
                    };
                    let beat = note.strip_prefix(&session.nonce);
                    if let Some(text) = beat.filter(|_| from == session.beater) {
                        let told = match position(&database, text) {
                            Ok(told) => told,
                            Err(error) => return error.into(),
                        };
                        if told > sent.load(Ordering::Relaxed) {
                            continue;
                        }
                        self.position = self.position.max(told);
                        let (position, as_of) = (self.position, begun.take());
                        sink.progress(Progress { position, as_of });
                        self.shared.told(position, as_of);
                    } else if let Some(gap) =
                        tell(&options.map, &note, self.position, &session.history, sink)
                    {
                        self.shared.notified(gap);
                    }
                }
                written = beaten => {
                    beating.set(None);
                    if let Err(error) = written {
                        return error;
                    }
                }
                sound = checked => {
                    checking.set(None);
                    if let Err(error) = sound {
                        return error;
                    }
                }
                _ = checks.tick() => if checking.is_none() {
                    checking.set(Some(check(&options, client)));
                },
                _ = ticks.tick() => match begun {
                    Some(begun) if begun.elapsed() > SILENCE_MAX => {
                        return lost("a heartbeat did not come back");
                    }
                    Some(_) => {}
                    None => {
                        begun = Some(Instant::now());
                        beating.set(Some(beat(&options, client, &session.nonce, &sent)));
                    }
                },
            }
        }
    }
}

/// What is on its way; never, if nothing is.
async fn of<F: Future>(on_its_way: Option<F>) -> F::Output {
    match on_its_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

impl Shared {
    fn told(&self, position: u64, begun: Option<Instant>) {
        self.status.send_modify(|status| status.position = position);
        if let Some(begun) = begun {
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
            delays.saturating_record(micros);
        }
    }

    fn notified(&self, gap: bool) {
        self.status.send_modify(|status| {
            status.notifications += 1;
            status.gaps += u64::from(gap);
        });
    }
}

/// Asks where the log is, and notifies that: `sent` before anybody hears of it.
async fn beat(
    options: &NotifyOptions,
    client: &Client,
    nonce: &str,
    sent: &AtomicU64,
) -> Result<(), NotifyError> {
    let error = |e: tokio_postgres::Error| options.database.error(&e);
    let query = "SELECT pg_current_wal_insert_lsn()::text";
    let row = client.query_one(query, &[]).await.map_err(error)?;
    let text: &str = row.get(0);
    sent.store(position(&options.database, text)?, Ordering::Relaxed);
    let content = format!("{nonce}{text}");
    let query = "SELECT pg_notify($1, $2)";
    let notified = client.execute(query, &[&options.channel, &content]).await;
    notified.map_err(error)?;
    Ok(())
}

/// Whether every mapped table has its triggers, made for this map.
async fn check(options: &NotifyOptions, client: &Client) -> Result<(), NotifyError> {
    let channel = &options.channel;
    for (table, maps) in options.map.tables() {
        let query = "SELECT c.relkind = 'p' OR EXISTS ( \
                       SELECT FROM pg_inherits i WHERE i.inhparent = c.oid) \
                     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname || '.' || c.relname = $1";
        let row = client.query_opt(query, &[&table]).await;
        let row = row.map_err(|e| options.database.error(&e))?;
        if row.is_some_and(|row| row.get(0)) {
            let table = table.to_owned();
            return Err(NotifyError::Parts { table });
        }
        // Those that fire in ordinary sessions. 29 is each row of AFTER INSERT OR
        // UPDATE OR DELETE, 32 each statement of AFTER TRUNCATE.
        let query = "SELECT count(*), count(*) FILTER (WHERE \
                       p.prosrc = $3 AND p.proconfig = $4 AND NOT p.prosecdef \
                       AND t.tgqual IS NULL AND t.tgattr::text = '' AND t.tgtype = \
                         CASE t.tgname WHEN ($2::name[])[1] THEN 29 ELSE 32 END) \
                     FROM pg_trigger t \
                     JOIN pg_class c ON c.oid = t.tgrelid \
                     JOIN pg_namespace n ON n.oid = c.relnamespace \
                     JOIN pg_proc p ON p.oid = t.tgfoid \
                     WHERE n.nspname || '.' || c.relname = $1 \
                       AND t.tgname = ANY ($2::name[]) AND t.tgenabled IN ('O', 'A')";
        function_name(channel, table)?;
        let names = trigger_names(channel).to_vec();
        let body = body(table, maps, channel)?;
        let settings = SETTINGS.map(|(name, value)| format!("{name}={value}"));
        let settings = settings.to_vec();
        let values: [&(dyn ToSql + Sync); 4] = [&table, &names, &body, &settings];
        let row = client.query_one(query, &values).await;
        let row = row.map_err(|e| options.database.error(&e))?;
        let (table, channel) = (table.to_owned(), channel.clone());
        match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
            (2, 2) => {}
            (2, _) => return Err(NotifyError::OtherTrigger { table, channel }),
            _ => return Err(NotifyError::NoTrigger { table, channel }),
        }
    }
    Ok(())
}

/// Tells what a notification of a trigger says; whether that is a gap. None if it is
/// no trigger's: another relay's heartbeat, for one.
fn tell(
    map: &KeyMap,
    note: &str,
    position: u64,
    history: &History,
    sink: &mut impl Sink,
) -> Option<bool> {
    let position = position.saturating_add(1);
    if let Some(key) = note.strip_prefix('k') {
        sink.invalidate(&Bytes::copy_from_slice(key.as_bytes()), position);
        return Some(false);
    } else if let Some(table) = note.strip_prefix('g') {
        sink.gap(&Gap {
            from: 0,
            to: Place {
                history: history.clone(),
                position,
            },
            reason: GapReason::Truncated,
            tables: vec![table.into()],
            scope: map.scope(std::iter::once(table)),
        });
        return Some(true);
    }
    None
}

fn position(database: &Database, text: &str) -> Result<u64, DatabaseError> {
    parse_position(text).map_err(|e| DatabaseError::Nonsense {
        database: database.to_string(),
        cause: e.to_string(),
    })
}

/// What no other session has, of this relay or another one.
fn random(database: &Database) -> Result<String, DatabaseError> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| DatabaseError::Nonsense {
        database: database.to_string(),
        cause: "this host gives no random numbers to tell sessions apart".into(),
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
