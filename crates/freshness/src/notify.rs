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
//! Positions mean the same. A heartbeat asks where the log is, and notifies
//! that position. Notifications arrive in commit order, each only when its
//! transaction is visible, so when the heartbeat arrives, every commit up to
//! its position has been told. A change is told with the first position after
//! the progress so far: it is no earlier than that.

use crate::database::{Database, DatabaseError};
use crate::event::{Gap, GapReason, Progress, Scope, Sink};
use crate::keymap::KeyMap;
use crate::position::{History, Place, parse_position};
use crate::setup;
use crate::template::{quote_literal, quote_name};
use bytes::Bytes;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::{AsyncMessage, Client};

/// Notifications between the connection and the relay; when they are full, the
/// server keeps the rest.
const BUFFER: usize = 1024;

/// Bytes of a key beyond which its whole table is declared out of date:
/// notifications have a limit of 8000.
const KEY_BYTES_MAX: usize = 7900;

const RETRY_MIN: Duration = Duration::from_millis(50);

/// How long a heartbeat may take before the connection counts as dead.
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
    /// A table has no triggers.
    #[error("table {0} has no triggers of this channel: run what notify_sql gives")]
    NoTrigger(String),
}

/// The statements that make a database notify changes of the mapped tables: to
/// be run once, and again when the map changes, by the tables' owner.
///
/// # Errors
/// A table's keys are not made by a template.
pub fn notify_sql(map: &KeyMap, channel: &str) -> Result<String, NotifyError> {
    let mut sql = String::from("BEGIN;\n");
    for (table, maps) in map.tables() {
        let templates: Option<Vec<_>> = maps.iter().map(|map| map.key_template()).collect();
        let templates = templates.ok_or_else(|| NotifyError::NoTemplate(table.into()))?;
        let keys = |row: &str| {
            let keys: Vec<String> = templates.iter().map(|keys| keys.sql(row)).collect();
            keys.join(", ")
        };
        let (schema, name) = table.split_once('.').unwrap_or(("public", table));
        let on = format!("{}.{}", quote_name(schema), quote_name(name));
        let function = function_name(channel, name);
        let function = format!("{}.{}", quote_name(schema), quote_name(&function));
        let row = quote_name(&format!("trefoil_{channel}_row"));
        let all = quote_name(&format!("trefoil_{channel}_all"));
        let (old, new) = (keys("OLD"), keys("NEW"));
        let channel = quote_literal(channel);
        let gap = quote_literal(&format!("g{table}"));
        // Writing to a String cannot fail.
        let _ = write!(
            sql,
            "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $trefoil$\n\
             DECLARE\n  keys text[] := '{{}}';\n  key text;\n\
             BEGIN\n\
             \x20 IF TG_OP = 'TRUNCATE' THEN\n    PERFORM pg_notify({channel}, {gap});\n    RETURN NULL;\n  END IF;\n\
             \x20 IF TG_OP <> 'INSERT' THEN keys := keys || ARRAY[{old}]; END IF;\n\
             \x20 IF TG_OP <> 'DELETE' THEN keys := keys || ARRAY[{new}]; END IF;\n\
             \x20 FOREACH key IN ARRAY keys LOOP\n\
             \x20   IF octet_length(key) > {KEY_BYTES_MAX} THEN PERFORM pg_notify({channel}, {gap});\n\
             \x20   ELSIF key IS NOT NULL THEN PERFORM pg_notify({channel}, 'k' || key);\n    END IF;\n\
             \x20 END LOOP;\n  RETURN NULL;\nEND $trefoil$;\n\
             DROP TRIGGER IF EXISTS {row} ON {on};\n\
             DROP TRIGGER IF EXISTS {all} ON {on};\n\
             CREATE TRIGGER {row} AFTER INSERT OR UPDATE OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION {function}();\n\
             CREATE TRIGGER {all} AFTER TRUNCATE ON {on} FOR EACH STATEMENT EXECUTE FUNCTION {function}();\n",
        );
    }
    sql.push_str("COMMIT;\n");
    Ok(sql)
}

fn function_name(channel: &str, table: &str) -> String {
    format!("trefoil_{channel}_{table}")
}

/// A listener at work. Dropping it ends it.
#[derive(Debug)]
pub struct NotifyRelay {
    task: JoinHandle<()>,
    status: watch::Sender<NotifyStatus>,
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
    /// Why the last connection ended.
    pub trouble: Option<String>,
}

impl NotifyRelay {
    /// Checks that the triggers are there, connects, and listens from then on.
    ///
    /// # Errors
    /// The database is not there, or a mapped table has no triggers. Later
    /// trouble is retried.
    pub async fn start<S: Sink + 'static>(
        options: NotifyOptions,
        mut sink: S,
    ) -> Result<Self, NotifyError> {
        let status = watch::Sender::new(NotifyStatus::default());
        let mut listener = Listener {
            options,
            status: status.clone(),
            sessions: 0,
            position: 0,
        };
        let session = listener.open(&mut sink).await?;
        let task = tokio::spawn(async move { listener.run(session, &mut sink).await });
        Ok(NotifyRelay { task, status })
    }

    /// How it is.
    pub fn status(&self) -> NotifyStatus {
        self.status.borrow().clone()
    }
}

impl Drop for NotifyRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Listener {
    options: NotifyOptions,
    status: watch::Sender<NotifyStatus>,
    sessions: u64,
    position: u64,
}

/// A connection that listens; its second one asks for progress.
struct Session {
    history: History,
    /// Keeps the connection alive.
    _listening: Client,
    notes: mpsc::Receiver<String>,
    driver: JoinHandle<()>,
    beats: crate::database::Connection,
    /// The server process that sends our heartbeats, and begins every one.
    nonce: String,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Listener {
    async fn open(&mut self, sink: &mut impl Sink) -> Result<Session, NotifyError> {
        let database = self.options.database.clone();
        let beats = database.connect().await?;
        self.check(&beats.client).await?;
        let (listening, mut connection) = database.dial().await?;
        let (sender, notes) = mpsc::channel(BUFFER);
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message
                    && sender.send(note.payload().to_owned()).await.is_err()
                {
                    return;
                }
            }
        });
        let listen = format!("LISTEN {}", quote_name(&self.options.channel));
        let listened = listening.batch_execute(&listen).await;
        listened.map_err(|e| database.error(&e))?;
        let query = "SELECT pg_current_wal_insert_lsn()::text, pg_backend_pid()::text";
        let row = beats.client.query_one(query, &[]).await;
        let row = row.map_err(|e| database.error(&e))?;
        let position = position(&database, row.get(0))?;
        self.sessions += 1;
        let nonce = format!("h{}.{}:", row.get::<_, &str>(1), self.sessions);
        let started = setup::started(&database, &beats).await?;
        let history = History(format!("notify/{started}"));
        let place = Place {
            history: history.clone(),
            position,
        };
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
        self.status.send_modify(|status| {
            status.connected = true;
            status.position = position;
            status.begun += 1;
        });
        Ok(Session {
            history,
            _listening: listening,
            notes,
            driver,
            beats,
            nonce,
        })
    }

    async fn check(&self, client: &Client) -> Result<(), NotifyError> {
        for (table, maps) in self.options.map.tables() {
            if maps.iter().any(|map| map.key_template().is_none()) {
                return Err(NotifyError::NoTemplate(table.into()));
            }
            let query = "SELECT count(*) FROM pg_trigger t \
                         JOIN pg_class c ON c.oid = t.tgrelid \
                         JOIN pg_namespace n ON n.oid = c.relnamespace \
                         WHERE n.nspname || '.' || c.relname = $1 \
                           AND t.tgname = ANY ($2) AND t.tgenabled <> 'D'";
            let channel = &self.options.channel;
            let names = vec![
                format!("trefoil_{channel}_row"),
                format!("trefoil_{channel}_all"),
            ];
            let row = client.query_one(query, &[&table, &names]).await;
            let row = row.map_err(|e| self.options.database.error(&e))?;
            if row.get::<_, i64>(0) != 2 {
                return Err(NotifyError::NoTrigger(table.into()));
            }
        }
        Ok(())
    }

    async fn run(&mut self, mut session: Session, sink: &mut impl Sink) {
        loop {
            let trouble = self.follow(&mut session, sink).await;
            self.troubled(trouble.to_string());
            drop(session);
            let mut wait = RETRY_MIN;
            session = loop {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(self.options.retry_max);
                match self.open(sink).await {
                    Ok(session) => break session,
                    Err(trouble) => self.troubled(trouble.to_string()),
                }
            };
        }
    }

    fn troubled(&self, text: String) {
        self.status.send_modify(|status| {
            status.connected = false;
            if status.trouble.as_ref() != Some(&text) {
                tracing::warn!(trouble = text, "not listening to the database");
            }
            status.trouble = Some(text);
        });
    }

    async fn follow(&mut self, session: &mut Session, sink: &mut impl Sink) -> DatabaseError {
        let database = self.options.database.clone();
        let lost = |cause: &str| DatabaseError::Unreachable {
            database: database.to_string(),
            cause: cause.into(),
        };
        let mut ticks = tokio::time::interval(self.options.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut begun: Option<Instant> = None;
        let client = &session.beats.client;
        let beat = async |nonce: &str| {
            let query = "SELECT pg_current_wal_insert_lsn()::text";
            let row = client.query_one(query, &[]).await?;
            let content = format!("{nonce}{}", row.get::<_, &str>(0));
            let query = "SELECT pg_notify($1, $2)";
            let channel = &self.options.channel;
            client.execute(query, &[channel, &content]).await.map(drop)
        };
        let mut beating = std::pin::pin!(None);
        loop {
            let beaten = async {
                match beating.as_mut().as_pin_mut() {
                    Some(beating) => beating.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                note = session.notes.recv() => {
                    let Some(note) = note else {
                        return lost("the server ended the connection");
                    };
                    if let Some(text) = note.strip_prefix(&session.nonce) {
                        let told = match position(&database, text) {
                            Ok(told) => told,
                            Err(error) => return error,
                        };
                        self.position = self.position.max(told);
                        let (position, as_of) = (self.position, begun.take());
                        sink.progress(Progress { position, as_of });
                        self.status.send_modify(|status| status.position = position);
                    } else {
                        tell(&self.options.map, &note, self.position, &session.history, sink);
                    }
                }
                written = beaten => {
                    beating.set(None);
                    if let Err(error) = written {
                        return database.error(&error);
                    }
                }
                _ = ticks.tick() => match begun {
                    Some(begun) if begun.elapsed() > SILENCE_MAX => {
                        return lost("a heartbeat did not come back");
                    }
                    Some(_) => {}
                    None => {
                        begun = Some(Instant::now());
                        beating.set(Some(beat(&session.nonce)));
                    }
                },
            }
        }
    }
}

/// Tells what a notification of a trigger says.
fn tell(map: &KeyMap, note: &str, position: u64, history: &History, sink: &mut impl Sink) {
    let position = position.saturating_add(1);
    if let Some(key) = note.strip_prefix('k') {
        sink.invalidate(&Bytes::copy_from_slice(key.as_bytes()), position);
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
    }
}

fn position(database: &Database, text: &str) -> Result<u64, DatabaseError> {
    parse_position(text).map_err(|e| DatabaseError::Nonsense {
        database: database.to_string(),
        cause: e.to_string(),
    })
}
