//! The tables of commands in the documentation, made from the parser's own: a test
//! holds the text against them.

use super::absent;
use super::table::{Id, SPECS, Spec};
use std::fmt::Write;

/// What is changed or read as one.
fn atomic(spec: &Spec) -> &'static str {
    match spec.id {
        Id::Exec => "see [transactions](#transactions)",
        _ if spec.is_script() => "its key, with all that it calls",
        Id::FlushAll | Id::FlushDb => "all keys",
        Id::Watch => "each key",
        Id::MSetNx => "all its keys; several on `serve` only, elsewhere refused",
        _ if spec.is_together() => "both keys, on `serve`; elsewhere refused",
        _ if spec.keys.0 == 0 => "–",
        _ if spec.is_many() => "each key",
        _ => "its key",
    }
}

/// What becomes of it if the cell cannot say whether it was done.
fn unknown(spec: &Spec) -> &'static str {
    let is_write = spec.flags.contains(&"write");
    match spec.id {
        Id::Exec => "an error in the place of all answers: all or nothing of one key",
        Id::Eval | Id::EvalSha | Id::FCall => "error; what it stored may hold, whole",
        Id::FlushAll | Id::FlushDb => "error; may be in force",
        Id::MSet => "error; each pair may hold or not",
        Id::Del | Id::Unlink => "error; each key may be gone or not",
        Id::MSetNx => "error; one pair may be stored, once",
        // Where there are several copies they are refused.
        _ if spec.is_together() => "–",
        _ if is_write => "error; may be done, once",
        _ => "–",
    }
}

/// The tables, in Markdown.
pub fn command_tables() -> String {
    let mut text = String::from(
        "| command | arguments | since | what it does | atomic over | fate unknown |\n\
         |---|---|---|---|---|---|\n",
    );
    for spec in SPECS {
        // The name does not count.
        let arguments = match spec.arity.unsigned_abs() - 1 {
            least if spec.arity < 0 => format!("{least} or more"),
            exact => exact.to_string(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {arguments} | {} | {} | {} | {} |",
            spec.name.to_ascii_uppercase(),
            spec.since,
            spec.summary,
            atomic(spec),
            unknown(spec),
        );
    }
    text.push_str(
        "\nRefused: `-ERR unknown command 'hset': this is a cache of strings, without …`\n\n",
    );
    text.push_str("| without | commands |\n|---|---|\n");
    for (kind, names) in absent::kinds() {
        let names: Vec<String> = names
            .split_ascii_whitespace()
            .map(|name| format!("`{}`", name.to_ascii_uppercase()))
            .collect();
        let _ = writeln!(text, "| {kind} | {} |", names.join(" "));
    }
    text
}
