//! The demonstration on a terminal.

use super::picture::Picture;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table};

const COLORS: [Color; 7] = [
    Color::Cyan,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::Blue,
    Color::LightRed,
    Color::White,
];

fn style(letter: char) -> Style {
    match letter {
        'A'..='Z' => Style::new().fg(COLORS[(letter as usize - 'A' as usize) % COLORS.len()]),
        _ => Style::new().add_modifier(Modifier::DIM),
    }
}

/// Draws the whole view.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture) {
    let rows = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(3),
        Constraint::Length(picture.servers.len() as u16 + 3),
        Constraint::Min(3),
    ])
    .split(frame.area());
    let head = format!(
        "{:>3} s   {}   p50 {} µs  p99 {} µs   hits {:.2} %   answered {}  failed {}{}",
        picture.elapsed().as_secs(),
        picture.act,
        picture.p50_us,
        picture.p99_us,
        picture.hit_percent(),
        picture.answered,
        picture.failed,
        if picture.is_hot { "   HOT KEY" } else { "" },
    );
    frame.render_widget(
        Paragraph::new(head).block(Block::bordered().title("address book")),
        rows[0],
    );
    let map = picture
        .map
        .iter()
        .map(|&letter| Span::styled(letter.to_string(), style(letter)));
    let title = format!(
        "key space: {} slices, version {}, moved {:.2} of it",
        picture.slices, picture.version, picture.moved
    );
    let map = Paragraph::new(Line::from_iter(map)).block(Block::bordered().title(title));
    frame.render_widget(map, rows[1]);
    let servers = picture.servers.iter().map(|server| {
        let stats = &server.stats;
        Row::new([
            format!("{} {}", server.letter, server.address),
            if server.is_up { "up" } else { "gone" }.to_owned(),
            format!("{:.0} %", server.share),
            format!("{:.0}/s", server.rate),
            stats.books.to_string(),
            format!("{} KiB", stats.book_bytes >> 10),
            stats.losses.to_string(),
        ])
        .style(style(server.letter))
    });
    let widths = [24, 6, 10, 10, 8, 12, 8].map(Constraint::Length);
    let heads = [
        "server", "", "keys", "requests", "books", "memory", "losses",
    ];
    let table = Table::new(servers, widths)
        .header(Row::new(heads))
        .block(Block::bordered());
    frame.render_widget(table, rows[2]);
    let shown = rows[3].height.saturating_sub(2) as usize;
    let events = picture
        .events
        .iter()
        .skip(picture.events.len().saturating_sub(shown));
    let events = events.map(|(second, what)| Line::from(format!("{second:>3} s  {what}")));
    let events = Paragraph::new(events.collect::<Vec<_>>());
    frame.render_widget(
        events.block(Block::bordered().title("what happened")),
        rows[3],
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn everything_fits_on_a_terminal() {
        let mut picture = Picture::new();
        for port in 1..6 {
            picture.add_server(&format!("127.0.0.1:{port}"));
        }
        picture.event("a server was killed");
        for (width, height) in [(120, 40), (80, 24), (10, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &picture)).unwrap();
            let text = terminal.backend().to_string();
            assert!(
                height < 20 || text.contains("a server was killed"),
                "{text}"
            );
        }
    }
}
