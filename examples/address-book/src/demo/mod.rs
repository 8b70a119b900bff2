//! The stateful form at work, in about a minute: five servers over Postgres
//! under load; a hot key, a row that is changed behind their back, a kill -9, a
//! newcomer, an orderly stop. Nothing is left when it ends.

mod caller;
mod cluster;
mod load;
mod picture;
mod screen;

use crate::books::CORPUS;
use crate::database::Database;
use crate::serve::{ServeError, io_error, stopped};
use address_book_contract::v1::StatsRequest;
use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::{client, endpoint, owner};
use cluster::Process;
use load::{BOOKS_COUNT, Load};
use picture::Picture;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::transport::Channel;
use trefoil_coordination::{View, Watcher};
use trefoil_freshness::throwaway::Throwaway;
use trefoil_router::Router;

const SERVERS_COUNT: usize = 5;
const PUBLICATION: &str = "books";
const LOOK_EVERY: Duration = Duration::from_millis(500);
const ASSIGNED_WITHIN: Duration = Duration::from_secs(20);
/// Between two lines where there is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(2);

/// Settings of the demonstration.
#[derive(clap::Args, Debug, Clone)]
pub struct DemoArgs {
    /// Requests a second
    #[arg(long, default_value_t = 400.0)]
    pub rate: f64,
    /// Plain lines even on a terminal
    #[arg(long)]
    pub plain: bool,
}

/// Runs it.
pub fn run(args: &DemoArgs) -> Result<(), ServeError> {
    if !(args.rate > 0.0 && args.rate <= 100_000.0) {
        return Err(ServeError::Usage(
            "--rate has to be above 0, and below 100000",
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| io_error("start threads", source))?;
    runtime.block_on(demo(args))
}

/// What the acts share.
struct Stage {
    picture: Arc<Mutex<Picture>>,
    view: watch::Receiver<Arc<View>>,
    load: Arc<Load>,
    assigner: Process,
    relay: Process,
    servers: Vec<Process>,
    postgres: String,
}

async fn demo(args: &DemoArgs) -> Result<(), ServeError> {
    println!("starting Postgres, an assigner, a relay and {SERVERS_COUNT} servers");
    let database = Throwaway::start()
        .map_err(|error| io_error("start Postgres", std::io::Error::other(error.to_string())))?;
    let postgres = database.address("postgres");
    // The table that the relay follows.
    Database::connect(&postgres)
        .await?
        .publish(PUBLICATION)
        .await?;
    let assigner = Process::assigner().await?;
    let relay = Process::relay(&postgres, PUBLICATION).await?;
    let mut servers = Vec::new();
    let picture = Arc::new(Mutex::new(Picture::new()));
    for _ in 0..SERVERS_COUNT {
        let server = Process::server(&assigner.address, &relay.address, &postgres).await?;
        lock(&picture).add_server(&server.address);
        servers.push(server);
    }
    let watcher = Watcher::open(&assigner.address, CORPUS).await?;
    let load = Load::new(Router::new(watcher.clone()));
    let mut stage = Stage {
        picture: picture.clone(),
        view: watcher.view(),
        load: load.clone(),
        assigner,
        relay,
        servers,
        postgres,
    };
    stage.assigned().await?;
    println!("storing {BOOKS_COUNT} books");
    load.fill().await;
    let looking = tokio::spawn(look(picture.clone(), watcher.view(), load.clone()));
    let is_terminal = std::io::stdout().is_terminal() && !args.plain;
    let (over, is_over) = std::sync::mpsc::channel();
    let shown = picture.clone();
    let showing = std::thread::spawn(move || match is_terminal {
        true => show_screen(&shown, &is_over),
        false => show_lines(&shown, &is_over),
    });
    let sending = tokio::spawn(load.clone().run(args.rate));
    let stopped = stopped()?;
    let played = tokio::select! {
        played = stage.play() => played,
        () = stopped => Ok(()),
    };
    load.end();
    let _ = sending.await;
    // Those under way get their answers.
    tokio::time::sleep(Duration::from_millis(500)).await;
    looking.abort();
    drop(over);
    let shown = tokio::task::spawn_blocking(move || showing.join()).await;
    if let Ok(Ok(Err(source))) = shown {
        return Err(io_error("draw", source));
    }
    played?;
    stage.summary();
    Ok(())
}

impl Stage {
    async fn play(&mut self) -> Result<(), ServeError> {
        self.act("steady load").await;
        pause(10).await;
        self.load.is_hot.store(true, Ordering::Relaxed);
        self.act("one key takes half of the load").await;
        pause(12).await;
        self.load.is_hot.store(false, Ordering::Relaxed);
        self.act("the hot key is over").await;
        pause(5).await;
        self.change_behind().await?;
        pause(3).await;
        self.kill().await?;
        pause(8).await;
        self.newcomer().await?;
        pause(10).await;
        self.stop_one().await;
        pause(6).await;
        Ok(())
    }

    async fn act(&self, what: &str) {
        let mut picture = lock(&self.picture);
        picture.act = what.to_owned();
        picture.event(what);
    }

    /// A row is changed in the database; how long until the servers serve it.
    async fn change_behind(&self) -> Result<(), ServeError> {
        let database = Database::connect(&self.postgres).await?;
        // One that the load seldom asks for.
        let owner = owner(BOOKS_COUNT - 1);
        self.act("a row is changed in the database, without the servers")
            .await;
        let Some(mut book) = database.load(&owner).await? else {
            return Ok(());
        };
        let of = book.version;
        book.version += 1;
        let version = book.version;
        if !database.save(&book, of).await? {
            lock(&self.picture).event("the load has changed the row at the same moment");
            return Ok(());
        }
        let begin = Instant::now();
        let took = loop {
            if begin.elapsed() > ASSIGNED_WITHIN {
                lock(&self.picture).event("the servers do not serve it");
                return Ok(());
            }
            match self.load.version(&owner).await {
                Some(served) if served >= version => break begin.elapsed().as_secs_f64() * 1e3,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        lock(&self.picture).event(format!("the servers serve it after {took:.0} ms"));
        Ok(())
    }

    /// kill -9 of a server; how long until others have its keys.
    async fn kill(&mut self) -> Result<(), ServeError> {
        let mut killed = self.servers.remove(1);
        self.act(&format!("kill -9 of the server at {}", killed.address))
            .await;
        let begin = Instant::now();
        killed.kill().await;
        lock(&self.picture).set_down(&killed.address);
        let address = killed.address.clone();
        let mut view = self.view.clone();
        let is_free = |view: &Arc<View>| !owns_some(view, &address);
        if tokio::time::timeout(ASSIGNED_WITHIN, view.wait_for(is_free))
            .await
            .is_err()
        {
            lock(&self.picture).event("its keys have found nobody");
            return Ok(());
        }
        let took = begin.elapsed().as_secs_f64();
        lock(&self.picture).event(format!("others have its keys after {took:.1} s"));
        Ok(())
    }

    async fn newcomer(&mut self) -> Result<(), ServeError> {
        let (assigner, relay) = (&self.assigner.address, &self.relay.address);
        let server = Process::server(assigner, relay, &self.postgres).await?;
        let letter = lock(&self.picture).add_server(&server.address);
        self.act(&format!("a new server, {letter}, joins")).await;
        self.servers.push(server);
        Ok(())
    }

    /// SIGTERM: the server gives its books away, then ends.
    async fn stop_one(&mut self) {
        let mut server = self.servers.remove(0);
        self.act(&format!("SIGTERM to the server at {}", server.address))
            .await;
        let begin = Instant::now();
        server.drain().await;
        let mut picture = lock(&self.picture);
        picture.set_down(&server.address);
        let took = begin.elapsed().as_secs_f64();
        picture.event(format!(
            "it has given its books away and ended after {took:.1} s"
        ));
    }

    /// Waits until every server has keys.
    async fn assigned(&self) -> Result<(), ServeError> {
        let mut view = self.view.clone();
        let all = |view: &Arc<View>| {
            view.is_assigned()
                && self
                    .servers
                    .iter()
                    .all(|server| owns_some(view, &server.address))
        };
        match tokio::time::timeout(ASSIGNED_WITHIN, view.wait_for(all)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(io_error(
                "share the keys out",
                std::io::ErrorKind::TimedOut.into(),
            )),
        }
    }

    fn summary(&self) {
        let picture = lock(&self.picture);
        let tally = self.load.tally();
        println!();
        for (second, what) in &picture.events {
            println!("{second:>3} s  {what}");
        }
        println!();
        println!("answered {}, failed {}", tally.answered, tally.failed);
        println!(
            "latency p50 {} µs, p99 {} µs, longest {:.1} s (the kill's; p99 has it, too)",
            tally.all_us.value_at_quantile(0.5),
            tally.all_us.value_at_quantile(0.99),
            tally.longest.as_secs_f64()
        );
        println!(
            "books found in memory {:.2} %; {:.2} of the key space moved; {} requests were sent again",
            picture.hit_percent(),
            picture.moved,
            tally.repeated
        );
        if let Some(error) = &tally.first_error {
            println!("first error: {error}");
        }
    }
}

fn owns_some(view: &View, address: &str) -> bool {
    let mut slices = view.assignment.slices().iter();
    slices.any(|slice| {
        let owner = slice
            .servers
            .first()
            .and_then(|owner| view.servers.get(owner));
        owner.is_some_and(|server| server.address == address)
    })
}

async fn pause(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn lock(picture: &Mutex<Picture>) -> MutexGuard<'_, Picture> {
    picture.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the picture up to date.
async fn look(picture: Arc<Mutex<Picture>>, view: watch::Receiver<Arc<View>>, load: Arc<Load>) {
    let mut clients: HashMap<String, AddressBooksClient<Channel>> = HashMap::new();
    let mut last = Instant::now();
    let mut is_first = true;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let up: Vec<String> = {
            let mut picture = lock(&picture);
            picture.see_map(&view.borrow());
            picture.see_load(&load);
            let up = picture.servers.iter().filter(|server| server.is_up);
            up.map(|server| server.address.clone()).collect()
        };
        let elapsed = last.elapsed();
        last = Instant::now();
        for address in up {
            let Ok(endpoint) = endpoint(&address) else {
                continue;
            };
            let server = clients.entry(address.clone());
            let server = server.or_insert_with(|| client(endpoint.connect_lazy()));
            let asked = tokio::time::timeout(LOOK_EVERY, server.stats(StatsRequest {})).await;
            if let Ok(Ok(stats)) = asked {
                lock(&picture).see_stats(&address, stats.into_inner(), elapsed);
            }
        }
        if std::mem::take(&mut is_first) {
            lock(&picture).count_hits_from_now();
        }
    }
}

fn show_lines(
    picture: &Mutex<Picture>,
    is_over: &std::sync::mpsc::Receiver<()>,
) -> std::io::Result<()> {
    let mut told = 0;
    while waiting(is_over, LINES_EVERY) {
        let picture = lock(picture);
        for (second, what) in &picture.events[told..] {
            println!("{second:>3} s  -- {what}");
        }
        told = picture.events.len();
        println!("{}", picture.line());
    }
    Ok(())
}

fn show_screen(
    picture: &Mutex<Picture>,
    is_over: &std::sync::mpsc::Receiver<()>,
) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut drawn = Ok(());
    while waiting(is_over, Duration::from_millis(100)) {
        let seen = lock(picture).clone();
        drawn = terminal.draw(|frame| screen::draw(frame, &seen)).map(drop);
        if drawn.is_err() || is_asked_to_stop()? {
            // As a Ctrl-C outside of the terminal's raw mode would.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::INT,
            );
            break;
        }
    }
    ratatui::restore();
    drawn
}

fn is_asked_to_stop() -> std::io::Result<bool> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            let is_interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if is_interrupt || key.code == KeyCode::Char('q') {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Waits; false when it is over.
fn waiting(is_over: &std::sync::mpsc::Receiver<()>, pause: Duration) -> bool {
    let heard = is_over.recv_timeout(pause);
    heard == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
}
