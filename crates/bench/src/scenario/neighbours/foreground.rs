//! The client whose GETs are measured: one connection, requests at fixed times, each
//! waited for.
//!
//! A request that could not be sent in time, because the one before it was not answered,
//! counts from when it was due. One that was due later than that counts from when it is
//! sent: how late a sleep ends says nothing of the server.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Keys that it asks for, in turn.
pub(super) const KEY_COUNT: usize = 500;
pub(super) const VALUE_LEN: usize = 100;
/// Asked of the scheduler, for the thread that measures.
const TURN: Duration = Duration::from_micros(100);
/// Longer than any answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A key that it asks for.
pub(super) fn key(number: usize) -> String {
    format!("foreground:{number:05}")
}

/// What came of GETs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GetFigures {
    /// How many.
    pub count: u64,
    /// Answered without a value. Where keys are flushed, that is as it should be.
    pub misses: u64,
    /// Answered with an error.
    pub failed: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// Half of them were at least so fast.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// The slowest.
    pub max_ms: f64,
}

/// See the module.
pub(super) struct Foreground {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    keys: Vec<String>,
    next: usize,
    period: Duration,
}

impl Foreground {
    /// A client that asks for `keys`, so many times a second.
    pub(super) fn connect(address: SocketAddr, keys: Vec<String>, rate: f64) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Foreground {
            input: BufReader::new(stream.try_clone()?),
            stream,
            keys,
            next: 0,
            period: Duration::from_secs_f64(1.0 / rate),
        })
    }

    /// Asks until `is_over`, which is asked after each answer with the time since the
    /// beginning.
    pub(super) fn run(
        &mut self,
        is_over: &mut dyn FnMut(Duration) -> bool,
    ) -> io::Result<GetFigures> {
        // The neighbour's client computes on the same core: this one is woken at once.
        trefoil_region::take_short_turns(TURN);
        let mut figures = GetFigures::default();
        let histogram = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3);
        let mut latencies = histogram.map_err(io::Error::other)?;
        let begin = Instant::now();
        let mut due = begin;
        let mut answered = begin;
        loop {
            due += self.period;
            let now = Instant::now();
            if due > now {
                std::thread::sleep(due - now);
            }
            let from = if due < answered { due } else { Instant::now() };
            self.get(&mut figures)?;
            answered = Instant::now();
            latencies.saturating_record((answered - from).as_nanos() as u64);
            if is_over(answered - begin) {
                break;
            }
        }
        figures.count = latencies.len();
        figures.p50_us = latencies.value_at_quantile(0.5) as f64 / 1e3;
        figures.p99_us = latencies.value_at_quantile(0.99) as f64 / 1e3;
        figures.max_ms = latencies.max() as f64 / 1e6;
        Ok(figures)
    }

    fn get(&mut self, figures: &mut GetFigures) -> io::Result<()> {
        let key = &self.keys[self.next % self.keys.len()];
        self.next += 1;
        self.stream.write_all(format!("get {key}\r\n").as_bytes())?;
        let mut line = String::new();
        let mut is_hit = false;
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "END" => break,
                text if text.starts_with("VALUE ") => is_hit = true,
                text if text.contains("ERROR") => {
                    figures.failed += 1;
                    figures.first_error.get_or_insert_with(|| text.to_owned());
                    return Ok(());
                }
                _ => {}
            }
        }
        figures.misses += u64::from(!is_hit);
        Ok(())
    }
}
