//! The live view. Readings are taken beside it, because a backend that is down
//! may take seconds to be found so, and keys should be answered meanwhile.

use super::reading::Reading;
use super::report::Report;
use super::table;
use crate::failure::{Failure, Outcome};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell as TableCell, Paragraph, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Frame};
use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use trefoil_client::Cell;

/// Reports that the curve goes back.
const HISTORY_MAX: usize = 200;
/// How long a key may go unanswered at most.
const KEY_PERIOD: Duration = Duration::from_millis(50);

/// What tables are sorted by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyOrder {
    Ops,
    Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BackendOrder {
    Number,
    Items,
    Memory,
}

struct Screen {
    report: Option<Report>,
    history: VecDeque<u64>,
    keys: KeyOrder,
    backends: BackendOrder,
    is_paused: bool,
}

/// Shows the cell until somebody quits.
pub(super) fn run(cell: Cell, interval: Duration, key_count: usize) -> Outcome {
    let (sender, reports) = sync_channel(1);
    let reader = std::thread::Builder::new().name("trefoil-top".into());
    reader
        .spawn(move || read(&cell, interval, key_count, &sender))
        .map_err(|e| Failure::doing("cannot start reading", e))?;
    let terminal = ratatui::try_init().map_err(|e| Failure::doing("cannot use the terminal", e))?;
    let shown = show(terminal, &reports);
    ratatui::restore();
    shown.map_err(|e| Failure::doing("cannot draw", e))?;
    Ok(ExitCode::SUCCESS)
}

fn read(cell: &Cell, interval: Duration, key_count: usize, reports: &SyncSender<Report>) {
    let mut before = Reading::take(cell, key_count);
    // At once, so that something is there: rates come with the next.
    let mut report = Report::between(&before, &before);
    loop {
        match reports.try_send(report) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => return,
        }
        std::thread::sleep(interval);
        let now = Reading::take(cell, key_count);
        report = Report::between(&before, &now);
        before = now;
    }
}

fn show(mut terminal: DefaultTerminal, reports: &Receiver<Report>) -> std::io::Result<()> {
    let mut screen = Screen {
        report: None,
        history: VecDeque::new(),
        keys: KeyOrder::Ops,
        backends: BackendOrder::Number,
        is_paused: false,
    };
    let mut is_changed = true;
    loop {
        for report in reports.try_iter() {
            if !screen.is_paused {
                screen.take(report);
                is_changed = true;
            }
        }
        if is_changed {
            terminal.draw(|frame| screen.draw(frame))?;
            is_changed = false;
        }
        if !event::poll(KEY_PERIOD)? {
            continue;
        }
        is_changed = true;
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if control => return Ok(()),
                KeyCode::Char('o') => screen.keys = KeyOrder::Ops,
                KeyCode::Char('b') => screen.keys = KeyOrder::Bytes,
                KeyCode::Char('n') => screen.backends = BackendOrder::Number,
                KeyCode::Char('i') => screen.backends = BackendOrder::Items,
                KeyCode::Char('m') => screen.backends = BackendOrder::Memory,
                KeyCode::Char('p') => screen.is_paused = !screen.is_paused,
                _ => {}
            }
        }
    }
}

impl Screen {
    fn take(&mut self, report: Report) {
        let seen = &report.operations;
        let by_backends = seen.reported_reads_per_s + seen.lookups_per_s + seen.mutations_per_s;
        let by_gateway = report.gateway.as_ref().map_or(0.0, |g| g.commands_per_s);
        self.history.push_back(by_backends.max(by_gateway) as u64);
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        self.report = Some(report);
    }

    /// The report in the order that was asked for.
    fn sorted(&self) -> Option<Report> {
        let mut report = self.report.clone()?;
        match self.keys {
            KeyOrder::Ops => report
                .keys
                .sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s)),
            KeyOrder::Bytes => report
                .keys
                .sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s)),
        }
        report.backends.sort_by_key(|backend| match self.backends {
            BackendOrder::Number => (0, backend.number),
            BackendOrder::Items => (u64::MAX - backend.items, backend.number),
            BackendOrder::Memory => (u64::MAX - backend.resident_bytes, backend.number),
        });
        Some(report)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let Some(report) = self.sorted() else {
            frame.render_widget(Paragraph::new("reading …"), frame.area());
            return;
        };
        let head = table::head(&report);
        let commands = table::command_rows(&report);
        let backends = table::backend_rows(&report);
        let engines = table::engine_rows(&report);
        // Title and header, unless there is nothing to show.
        let rows = |count: usize| match count {
            0 => Constraint::Length(0),
            count => Constraint::Length(count as u16 + 2),
        };
        let areas = Layout::vertical([
            Constraint::Length(head.len() as u16),
            Constraint::Length(3),
            rows(commands.len().min(6)),
            Constraint::Min(3),
            rows(backends.len().min(9)),
            rows(engines.len().min(4)),
            Constraint::Length(1),
        ]);
        let [
            head_area,
            curve,
            command_area,
            key_area,
            backend_area,
            engine_area,
            foot,
        ] = areas.areas(frame.area());
        let lines: Vec<Line<'_>> = head.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(Text::from(lines)), head_area);
        self.draw_curve(frame, curve);
        draw_table(
            frame,
            command_area,
            "latency at the gateway",
            &table::COMMAND_COLUMNS,
            commands,
        );
        let order = match self.keys {
            KeyOrder::Ops => "hot keys by operations",
            KeyOrder::Bytes => "hot keys by bytes",
        };
        draw_table(
            frame,
            key_area,
            order,
            &table::KEY_COLUMNS,
            table::key_rows(&report),
        );
        draw_table(
            frame,
            backend_area,
            "backends",
            &table::BACKEND_COLUMNS,
            backends,
        );
        draw_table(
            frame,
            engine_area,
            "engines",
            &table::ENGINE_COLUMNS,
            engines,
        );
        let pause = if self.is_paused { "paused  " } else { "" };
        let help = format!(
            "{pause}q quit  p pause  keys by: o operations, b bytes  backends by: n number, i items, m memory"
        );
        frame.render_widget(Paragraph::new(help).style(dim()), foot);
    }

    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width);
        let skipped = self.history.len().saturating_sub(width);
        let latest: Vec<u64> = self.history.iter().skip(skipped).copied().collect();
        let peak = latest.iter().copied().max().unwrap_or(0);
        let title = format!(
            "operations/s {} (peak {})",
            table::rate(latest.last().copied().unwrap_or(0) as f64),
            table::rate(peak as f64)
        );
        let curve = Sparkline::default().data(latest).max(peak.max(1));
        frame.render_widget(curve.block(Block::new().title(title)), area);
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &'static str,
    columns: &[(&'static str, i8)],
    rows: Vec<Vec<String>>,
) {
    let widths = columns.iter().map(|(name, width)| match (*name, *width) {
        // Keys and errors take what is left.
        ("key", _) => Constraint::Min(10),
        (_, width) => Constraint::Length(u16::from(width.unsigned_abs())),
    });
    let row = |cells: Vec<String>| {
        let is_short = cells.len() < columns.len();
        if is_short {
            // A backend that is down: its error is drawn over the columns.
            return Row::new(Vec::<TableCell<'_>>::new());
        }
        let cells = cells.into_iter().zip(columns).map(|(text, (_, width))| {
            let line = Line::from(text);
            TableCell::from(if *width < 0 {
                line
            } else {
                line.right_aligned()
            })
        });
        Row::new(cells)
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let names = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let downs: Vec<(usize, String)> = rows
        .iter()
        .enumerate()
        .filter(|(_, cells)| cells.len() < columns.len())
        .map(|(place, cells)| (place, table::aligned(columns, cells)))
        .collect();
    let table = Table::new(rows.into_iter().map(row), widths)
        .header(row(names).style(bold))
        .block(Block::new().title(title).title_style(dim()));
    frame.render_widget(table, area);
    for (place, line) in downs {
        let y = area.y + 2 + place as u16;
        if y < area.bottom() {
            let area = Rect {
                y,
                height: 1,
                ..area
            };
            let red = Style::new().fg(ratatui::style::Color::Red);
            frame.render_widget(Paragraph::new(line).style(red), area);
        }
    }
}
