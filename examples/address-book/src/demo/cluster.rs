//! The demonstration's processes: an assigner, a relay and the servers.

use crate::serve::{ServeError, io_error};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// One of our own processes; killed with its value.
pub(super) struct Process {
    child: Child,
    /// Where it serves.
    pub(super) address: String,
}

#[derive(serde::Deserialize)]
struct Ready {
    #[serde(alias = "listen")]
    address: String,
}

impl Process {
    async fn start(
        program: PathBuf,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, ServeError> {
        let mut command = Command::new(&program);
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // The view has the screen; losses are counted.
        command.stderr(Stdio::null()).kill_on_drop(true);
        let name = format!("{} {}", program.display(), arguments.join(" "));
        let fail = |source| io_error(format!("start `{name}`"), source);
        let mut child = command.spawn().map_err(fail)?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut line)
                .await
                .map_err(fail)?;
        }
        let ready = line.strip_prefix("ready ");
        match ready.and_then(|json| serde_json::from_str::<Ready>(json).ok()) {
            Some(ready) => Ok(Process {
                child,
                address: ready.address,
            }),
            None => Err(fail(std::io::Error::other(format!("it said {line:?}")))),
        }
    }

    /// `trefoil assigner`, whose program is beside this one.
    pub(super) async fn assigner() -> Result<Self, ServeError> {
        let program = this_program()?.with_file_name("trefoil");
        Process::start(program, &["assigner", "--listen", "127.0.0.1:0"], &[]).await
    }

    /// `trefoil relay`, which sends the versions of the books that have changed.
    pub(super) async fn relay(postgres: &str, publication: &str) -> Result<Self, ServeError> {
        let program = this_program()?.with_file_name("trefoil");
        let arguments = [
            "relay",
            "--listen",
            "127.0.0.1:0",
            "--temporary",
            "--publication",
            publication,
            "--map",
            "books={owner}",
            "--refresh",
            "books=version",
        ];
        Process::start(program, &arguments, &[("TREFOIL_POSTGRES", postgres)]).await
    }

    pub(super) async fn server(
        assigner: &str,
        relay: &str,
        postgres: &str,
    ) -> Result<Self, ServeError> {
        // So little CPU that the demonstration's load is worth balancing.
        let arguments = [
            "serve",
            "--mode",
            "linked",
            "--assigner",
            assigner,
            "--relay",
            relay,
            "--cpu",
            "0.2",
        ];
        let postgres = [("ADDRESS_BOOK_POSTGRES", postgres)];
        Process::start(this_program()?, &arguments, &postgres).await
    }

    /// kill -9.
    pub(super) async fn kill(&mut self) {
        // It fails only if it is gone already.
        let _ = self.child.kill().await;
    }

    /// SIGTERM, and waits until it has given its books away and ended.
    pub(super) async fn drain(&mut self) {
        if let Some(pid) = self
            .child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id as i32))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait().await;
    }
}

fn this_program() -> Result<PathBuf, ServeError> {
    std::env::current_exe().map_err(|source| io_error("find this program", source))
}
