//! Errors that say what to do.

use std::path::PathBuf;

/// Why something cannot be done with the database.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DatabaseError {
    /// The address has another form.
    #[error(
        "not a Postgres address: expected postgres://user:password@host:port/database \
         or key=value pairs with host and user"
    )]
    Address,
    /// Something that the address says of TLS makes no sense.
    #[error("{option} in the Postgres address: {problem}")]
    TlsOption {
        /// Which part of the address.
        option: &'static str,
        /// What is wrong with it, and what to write.
        problem: String,
    },
    /// A file of certificates or of a key cannot be used.
    #[error("{option} in the Postgres address: {problem}")]
    TlsFile {
        /// Which part of the address names it.
        option: &'static str,
        /// Which file, what is wrong with it, and what to do.
        problem: String,
    },
    /// The server speaks no TLS, and nothing is to be sent in the clear.
    #[error(
        "{database}: the server does not speak TLS, and {demand}: set ssl = on there, or, if \
         everything may be sent in the clear, the password too, write sslmode=disable"
    )]
    TlsMissing {
        /// The address, without the password.
        database: String,
        /// What asks for TLS.
        demand: String,
    },
    /// The server's certificate is of an authority that is not believed.
    #[error(
        "{database}: the server's certificate is of another authority than those in {} \
         (sslrootcert): name the file of its own authority, or find out who answers there", .authorities.display()
    )]
    TlsAuthority {
        /// The address, without the password.
        database: String,
        /// Who is believed.
        authorities: PathBuf,
    },
    /// The server's certificate is for another name.
    #[error(
        "{database}: the server's certificate is not for that name or address ({names}): \
         connect by a name that it has, or issue it with that one (subjectAltName)"
    )]
    TlsName {
        /// The address, without the password.
        database: String,
        /// What it is for.
        names: String,
    },
    /// The server's certificate has ended, or begins later.
    #[error(
        "{database}: the server's certificate {problem}: renew it there, or set this machine's \
         clock right"
    )]
    TlsTime {
        /// The address, without the password.
        database: String,
        /// Which of the two.
        problem: String,
    },
    /// The server does not accept our certificate.
    #[error(
        "{database}: the server does not accept the certificate of sslcert ({cause}): issue one \
         by an authority in its ssl_ca_file"
    )]
    TlsRefused {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// There is no TLS for another reason.
    #[error("{database}: no TLS: {cause}")]
    TlsFailed {
        /// The address, without the password.
        database: String,
        /// What happened.
        cause: String,
    },
    /// There is no connection, or it broke.
    #[error("{database}: no connection: {cause}")]
    Unreachable {
        /// The address, without the password.
        database: String,
        /// What the system said.
        cause: String,
    },
    /// The server does not let us in.
    #[error("{database}: the server refused to log in: {cause}")]
    Login {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The server has no logical replication.
    #[error(
        "{database}: wal_level is {found}, logical replication needs wal_level=logical: \
         ALTER SYSTEM SET wal_level = 'logical', then restart the server \
         (or let triggers notify the relay: trefoil relay --notify)"
    )]
    NotLogical {
        /// The address, without the password.
        database: String,
        /// What the setting is.
        found: String,
    },
    /// The role may not do what is needed.
    #[error(
        "{database}: permission denied: {cause}; the role needs the right \
         to replicate: ALTER ROLE … REPLICATION"
    )]
    Permission {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// There is no such publication.
    #[error(
        "{database}: there is no publication {name}: CREATE PUBLICATION {name} FOR TABLE {tables}"
    )]
    NoPublication {
        /// The address, without the password.
        database: String,
        /// What was looked for.
        name: String,
        /// The tables that are mapped.
        tables: String,
    },
    /// The publication leaves changes out.
    #[error(
        "publication {name} does not publish every kind of change: \
         ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
    )]
    PublicationPartial {
        /// Which one.
        name: String,
    },
    /// A mapped table is not published: its changes would be missed.
    #[error(
        "table {table} is mapped, but publication {name} does not publish it: \
         ALTER PUBLICATION {name} ADD TABLE {table} (for a partitioned table also \
         SET (publish_via_partition_root = true))"
    )]
    TableUnpublished {
        /// Which publication.
        name: String,
        /// Which table.
        table: String,
    },
    /// Some rows of a mapped table are not published.
    #[error(
        "publication {name} publishes only some rows of {table} (WHERE {filter}), and changes of \
         the others would go missing: ALTER PUBLICATION {name} SET TABLE without WHERE"
    )]
    TableFiltered {
        /// Which publication.
        name: String,
        /// Which table.
        table: String,
        /// Which rows.
        filter: String,
    },
    /// A key is made of a column that the table has not, or does not publish.
    #[error("table {table} has no published column {column}, which its keys are made of")]
    NoColumn {
        /// Which table.
        table: String,
        /// Which column.
        column: String,
    },
    /// A key is made of a column whose old value the log does not hold.
    #[error(
        "keys of table {table} are made of column {column}, which is not in its replica \
         identity, so that deletes would not tell their keys: \
         ALTER TABLE {table} REPLICA IDENTITY FULL"
    )]
    NotIdentity {
        /// Which table.
        table: String,
        /// Which column.
        column: String,
    },
    /// The slot belongs to something else.
    #[error("replication slot {slot} is not one of pgoutput in this database: choose another name")]
    SlotForeign {
        /// Which slot.
        slot: String,
    },
    /// The slot's name is none.
    #[error("{slot:?} is no name of a slot: 1 to 63 of a-z, 0-9 and _")]
    SlotName {
        /// What was given.
        slot: String,
    },
    /// Somebody else reads from the slot.
    #[error("replication slot {slot} is in use: is another relay running with this name?")]
    SlotBusy {
        /// Which slot.
        slot: String,
    },
    /// The server has no slot or connection left.
    #[error(
        "{database}: {cause}: drop a slot that nobody uses, or raise \
         max_replication_slots and max_wal_senders"
    )]
    TooMany {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The slot cannot be read any more.
    #[error("replication slot {slot} has lost what it should have retained: {cause}")]
    SlotLost {
        /// Which slot.
        slot: String,
        /// What the server said.
        cause: String,
    },
    /// The server answered with an error.
    #[error("{database}: the server answered: {cause}")]
    Server {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The server answered something that cannot be understood.
    #[error("{database}: the server's answer makes no sense: {cause}")]
    Nonsense {
        /// The address, without the password.
        database: String,
        /// What was wrong.
        cause: String,
    },
}

impl DatabaseError {
    /// Whether changes may have gone missing before it was noticed.
    pub(crate) fn loses_changes(&self) -> bool {
        use DatabaseError::{
            NoColumn, NoPublication, NotIdentity, PublicationPartial, TableFiltered,
            TableUnpublished,
        };
        matches!(
            self,
            NoColumn { .. }
                | NoPublication { .. }
                | NotIdentity { .. }
                | PublicationPartial { .. }
                | TableFiltered { .. }
                | TableUnpublished { .. }
        )
    }

    /// Whether trying again later may help without anybody doing anything.
    pub fn passes(&self) -> bool {
        use DatabaseError::{
            Nonsense, Server, SlotBusy, SlotLost, TlsAuthority, TlsFailed, TlsFile, TlsMissing,
            TlsName, TlsRefused, TlsTime, TooMany, Unreachable,
        };
        // Files are renewed one after the other, and on either side.
        matches!(
            self,
            TlsAuthority { .. }
                | TlsFailed { .. }
                | TlsFile { .. }
                | TlsMissing { .. }
                | TlsName { .. }
                | TlsRefused { .. }
                | TlsTime { .. }
                | Unreachable { .. }
                | SlotBusy { .. }
                | SlotLost { .. }
                | TooMany { .. }
                | Server { .. }
                | Nonsense { .. }
        )
    }
}
