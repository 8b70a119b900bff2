//! The live view. Readings are taken beside it: an assigner that is down may take
//! seconds to be found so, and keys should be answered meanwhile.

use super::reading::Reading;
use super::report::Report;
use super::table;
use crate::args::AssignerAddressArgs;
use crate::failure::{Failure, Outcome};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long a key may go unanswered at most.
const KEY_PERIOD: Duration = Duration::from_millis(50);

/// A report, or why there is none.
type News = Result<Report, String>;

/// Shows the store until somebody quits.
pub(super) fn run(address: AssignerAddressArgs, interval: Duration) -> Outcome {
    let runtime = Runtime::new().map_err(|e| Failure::doing("cannot start the runtime", e))?;
    // Whoever has mistyped the address learns it at once.
    let first = runtime.block_on(Reading::take(&address))?;
    let (sender, news) = sync_channel(1);
    let reader = std::thread::Builder::new().name("trefoil-top".into());
    reader
        .spawn(move || read(&runtime, &address, interval, first, &sender))
        .map_err(|e| Failure::doing("cannot start reading", e))?;
    let terminal = ratatui::try_init().map_err(|e| Failure::doing("cannot use the terminal", e))?;
    let shown = show(terminal, &news);
    ratatui::restore();
    shown.map_err(|e| Failure::doing("cannot draw", e))?;
    Ok(ExitCode::SUCCESS)
}

fn read(
    runtime: &Runtime,
    address: &AssignerAddressArgs,
    interval: Duration,
    mut before: Reading,
    news: &SyncSender<News>,
) {
    // At once, so that something is there: rates come with the next.
    let mut told = Ok(Report::of(&before));
    loop {
        match news.try_send(told) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => return,
        }
        std::thread::sleep(interval);
        told = match runtime.block_on(Reading::take(address)) {
            Ok(now) => {
                let report = Report::between(&before, &now);
                before = now;
                Ok(report)
            }
            Err(failure) => Err(failure.to_string()),
        };
    }
}

fn show(mut terminal: DefaultTerminal, news: &Receiver<News>) -> std::io::Result<()> {
    let mut shown: Option<Report> = None;
    let mut trouble: Option<String> = None;
    let (mut is_paused, mut is_changed) = (false, true);
    loop {
        for told in news.try_iter() {
            match told {
                Ok(report) if !is_paused => (shown, trouble) = (Some(report), None),
                Ok(_) => {}
                Err(error) => trouble = Some(error),
            }
            is_changed = true;
        }
        if is_changed {
            terminal.draw(|frame| draw(frame, shown.as_ref(), trouble.as_deref(), is_paused))?;
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
                KeyCode::Char('p') => is_paused = !is_paused,
                _ => {}
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, report: Option<&Report>, trouble: Option<&str>, is_paused: bool) {
    let [body, foot] =
        Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    let red = Style::new().fg(Color::Red);
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(trouble) = trouble {
        lines.push(Line::styled(format!("! {trouble}"), red));
    }
    match report {
        None => lines.push(Line::from("reading …")),
        Some(report) => {
            lines.extend(
                table::top(report)
                    .into_iter()
                    .map(|line| match line.starts_with("! ") {
                        true => Line::styled(line, red),
                        false => Line::from(line),
                    }),
            )
        }
    }
    frame.render_widget(Paragraph::new(Text::from(lines)), body);
    let pause = if is_paused { "paused  " } else { "" };
    let dim = Style::new().add_modifier(Modifier::DIM);
    let help = format!("{pause}q quit  p pause");
    frame.render_widget(Paragraph::new(help).style(dim), foot);
}
