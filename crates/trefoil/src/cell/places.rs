//! Who stands by and who decides, for `cell status` and `doctor`: of cells over etcd.

use crate::cell::home;
use serde::Serialize;
use trefoil_cell::CellAddress;
use trefoil_cell::control::{Leader, Replacement, Spare, View};

/// The last moment with a year of four digits, in milliseconds since 1970.
const LAST_MS: u64 = 253_402_300_799_999;

/// What etcd says of a cell's places.
#[derive(Serialize)]
pub(crate) struct Places {
    /// The process that gives dead backends' places to spares.
    pub(crate) controller: Option<Leader>,
    /// Processes that stand by.
    pub(crate) spares: Vec<Spare>,
    /// The latest last.
    pub(crate) replacements: Vec<Replacement>,
    /// Backends that nobody is.
    pub(crate) unregistered: Vec<u32>,
}

impl Places {
    fn of(view: View) -> Self {
        let numbers = view.config.backends.iter().map(|backend| backend.number);
        let is_there = |number: &u32| view.backends.contains_key(number);
        let unregistered = numbers.filter(|number| !is_there(number)).collect();
        let has_place = |spare: &Spare| {
            let mut backends = view.config.backends.iter();
            backends.any(|backend| spare.is(backend))
        };
        let mut spares = view.spares;
        spares.retain(|spare| !has_place(spare));
        Places {
            controller: view.leader,
            spares,
            replacements: view.replacements,
            unregistered,
        }
    }
}

/// What etcd says, if the cell is there and its address says so; or why it does not.
pub(crate) fn of(address: &str) -> Option<Result<Places, String>> {
    let Ok(CellAddress::Etcd(_)) = address.parse() else {
        return None;
    };
    let store = match home::etcd(address) {
        Ok(store) => store,
        Err(failure) => return Some(Err(failure.to_string())),
    };
    match store.view() {
        Ok(view) => view.map(|view| Ok(Places::of(view))),
        Err(error) => Some(Err(error.to_string())),
    }
}

/// What is to be said of them, a line each.
pub(crate) fn lines(places: &Places) -> Vec<String> {
    let mut lines = Vec::new();
    if !places.spares.is_empty() {
        let spares = places.spares.iter();
        let spares: Vec<String> = spares
            .map(|s| format!("{} on {}", s.process, s.host))
            .collect();
        lines.push(format!("spares: process {}", spares.join(", process ")));
    }
    if let Some(leader) = &places.controller {
        let (process, host) = (leader.process, &leader.host);
        lines.push(format!("controller: process {process} on {host} decides"));
    }
    for replacement in places.replacements.iter().rev().take(3) {
        let (backend, process) = (replacement.backend, replacement.process);
        let host = &replacement.host;
        let at = moment(replacement.at_ms);
        let loss = if replacement.is_loss {
            ", WHAT IT HELD WAS LOST"
        } else {
            ""
        };
        lines.push(format!(
            "{at}: the place of backend {backend} was given to process {process} on {host}{loss}"
        ));
    }
    lines.extend(troubles(places));
    lines
}

/// In words. Whoever may write to etcd may have written any number.
fn moment(at_ms: u64) -> String {
    if at_ms > LAST_MS {
        return format!("at no time that can be ({at_ms} ms)");
    }
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at_ms);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// What keeps dead backends dead.
pub(crate) fn troubles(places: &Places) -> Vec<String> {
    let gone = &places.unregistered;
    // A cell that has never had a spare goes without.
    let has_spares = !places.spares.is_empty() || !places.replacements.is_empty();
    if gone.is_empty() || !has_spares && places.controller.is_none() {
        return Vec::new();
    }
    let numbers: Vec<String> = gone.iter().map(u32::to_string).collect();
    let numbers = numbers.join(", ");
    let mut troubles = Vec::new();
    if places.spares.is_empty() {
        troubles.push(format!(
            "NO SPARE: nobody is backend {numbers}, and no process stands by to take its place"
        ));
    }
    if places.controller.is_none() {
        troubles.push(format!(
            "NO CONTROLLER: nobody is backend {numbers}, and nobody decides that a spare takes its place"
        ));
    }
    troubles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_is_told_as_one() {
        let at = |at_ms| Replacement {
            backend: 1,
            config_id: 2,
            at_ms,
            from: Vec::new(),
            to: Vec::new(),
            process: 3,
            host: "b".to_owned(),
            is_loss: false,
        };
        let told = |at_ms| {
            lines(&Places {
                controller: None,
                spares: Vec::new(),
                replacements: vec![at(at_ms)],
                unregistered: Vec::new(),
            })
        };
        let said = "the place of backend 1 was given to process 3 on b";
        for (at_ms, time) in [
            (0, "1970-01-01T00:00:00Z"),
            (LAST_MS, "9999-12-31T23:59:59Z"),
            (LAST_MS + 1, "at no time that can be (253402300800000 ms)"),
            (u64::MAX, "at no time that can be (18446744073709551615 ms)"),
        ] {
            assert_eq!(told(at_ms), [format!("{time}: {said}")]);
        }
    }
}
