//! A server for tests and trials that need real processes: a linklet of numbers behind a
//! port that speaks lines.
//!
//! ```text
//! linklet-node ASSIGNER CORPUS none|eventual|strong
//!   stdout:  ready SERVER-ID PORT          then: loss RANGES KEYS REASON · drained
//!   port:    get KEY    ─► value N | absent
//!            put KEY N  ─► done
//!            add KEY    ─► value N | absent
//!            each also  ─► redirect ID VERSION | uncertain | error TEXT
//! ```
//!
//! A line may begin with `known VERSION` or `again VERSION` (redirected).

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use trefoil_linklet::{Error, Linklet, Listener, Marshal, MarshalError, Replication, StateLoss};
use trefoil_sharder::{AssignmentVersion, ServerId};

struct Numbers;

impl Marshal<u64> for Numbers {
    fn marshal(&self, _: &[u8], value: &u64, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<u64, MarshalError> {
        let bytes = bytes
            .try_into()
            .map_err(|_| MarshalError::new("a number has 8 bytes"))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Prints what the application is told.
#[derive(Default)]
struct Print {
    port: OnceLock<u16>,
}

impl Listener for Print {
    fn rejoined(&self, id: ServerId) {
        println!("ready {} {}", id.0, self.port.get().copied().unwrap_or(0));
    }

    fn state_loss(&self, loss: &StateLoss) {
        let ranges: Vec<String> = loss
            .ranges
            .iter()
            .map(|slice| format!("{}-{}", slice.start(), slice.last()))
            .collect();
        let keys: Vec<String> = loss
            .keys
            .iter()
            .map(|(_, key)| String::from_utf8_lossy(key).into_owned())
            .collect();
        println!(
            "loss [{}] [{}] {}",
            ranges.join(","),
            keys.join(","),
            loss.reason
        );
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [assigner, corpus, replication] = &arguments[..] else {
        eprintln!("usage: linklet-node ASSIGNER CORPUS none|eventual|strong");
        return ExitCode::from(2);
    };
    let replication = match replication.as_str() {
        "strong" => Replication::Strong,
        "eventual" => Replication::Eventual,
        _ => Replication::None,
    };
    match serve(assigner, corpus, replication).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linklet-node: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(
    assigner: &str,
    corpus: &str,
    replication: Replication,
) -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let print = Arc::new(Print {
        port: OnceLock::from(port),
    });
    let linklet = Linklet::builder(corpus, Numbers)
        .replication(replication)
        .listener(Arc::clone(&print) as Arc<dyn Listener>)
        .listen(assigner, "127.0.0.1:0".parse()?)
        .await?;
    let id = linklet.server_id().ok_or("no member")?;
    println!("ready {} {port}", id.0);
    let mut stop = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(converse(linklet.clone(), stream));
            }
            _ = stop.recv() => break,
        }
    }
    let draining = linklet.clone();
    let drained = tokio::spawn(async move { draining.drain().await });
    tokio::pin!(drained);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(converse(linklet.clone(), stream));
            }
            end = &mut drained => {
                println!("drained {:?}", end?);
                break;
            }
        }
    }
    linklet.leave().await;
    Ok(())
}

async fn converse(linklet: Linklet<u64>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (lines, mut answers) = stream.into_split();
    let mut lines = BufReader::new(lines).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match answer(&linklet, &line).await {
            Ok(answer) => answer,
            Err(Error::NotMine(redirect)) => {
                let to = redirect.to.map_or(0, |to| to.0);
                let version = redirect.version.map_or_else(String::new, |v| {
                    format!("{}.{}", v.incarnation, v.generation)
                });
                format!("redirect {to} {version}")
            }
            Err(Error::Indeterminate(_)) => "uncertain".to_owned(),
            Err(error) => format!("error {error}"),
        };
        if answers
            .write_all(format!("{answer}\n").as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn answer(linklet: &Linklet<u64>, line: &str) -> Result<String, Error> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mut linklet = linklet.clone();
    if let [how @ ("known" | "again"), version, ..] = words[..] {
        let version = parse(version);
        linklet = match how {
            "again" => linklet.redirected(version),
            _ => linklet.knowing(version),
        };
        words.drain(..2);
    }
    let value = match words[..] {
        ["get", key] => linklet.read(key.as_bytes(), |value| *value).await?,
        ["add", key] => {
            let add = |value: &mut u64| {
                *value += 1;
                *value
            };
            linklet.update(key.as_bytes(), add).await?
        }
        ["put", key, number] => {
            let number = number.parse().unwrap_or(0);
            linklet.insert(key.as_bytes(), number).await?;
            return Ok("done".to_owned());
        }
        _ => return Ok("error what?".to_owned()),
    };
    Ok(value.map_or_else(|| "absent".to_owned(), |value| format!("value {value}")))
}

fn parse(version: &str) -> Option<AssignmentVersion> {
    let (incarnation, generation) = version.split_once('.')?;
    Some(AssignmentVersion {
        incarnation: incarnation.parse().ok()?,
        generation: generation.parse().ok()?,
    })
}
