//! What is done beside a load, and takes nothing of its core.

use trefoil_client::Cell;

use super::{ScenarioError, ScenarioOptions};

/// Does something in a thread on the servers' core: what it starts stays there.
pub(super) fn aside<T: Send>(
    options: &ScenarioOptions,
    start: impl FnOnce() -> Result<T, ScenarioError> + Send,
) -> Result<T, ScenarioError> {
    let started = std::thread::scope(|scope| {
        let start = scope.spawn(|| {
            options.pin_aside()?;
            start()
        });
        start.join()
    });
    let panicked = || ScenarioError::Course("what was done aside has panicked".to_owned());
    started.map_err(|_| panicked())?
}

/// The cell as somebody sees it who looks on while a load goes on. A thread carries a cell's
/// calls, whoever makes them. The first call starts it, on the core of whoever makes that
/// one: so it is made here.
pub(super) fn onlooker(options: &ScenarioOptions, address: &str) -> Result<Cell, ScenarioError> {
    aside(options, || {
        let cell = Cell::connect(address)?;
        // Whatever comes of it.
        let _ = cell.ping(0);
        Ok(cell)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity};
    use std::path::Path;
    use trefoil_cell::{BackendConfig, CellConfig, ConfigStore as _, DirectoryStore, Mode};
    use trefoil_layout::{KeyHasher, Version};

    /// A cell of one backend, which does not run.
    fn cell_at(directory: &Path) {
        let backend = BackendConfig {
            number: 0,
            addresses: vec![format!("unix:{}/rpc", directory.display()).parse().unwrap()],
            fabric_socket: None,
            place: None,
        };
        let config = CellConfig {
            life: 1,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R1,
            backends: vec![backend],
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        let store = DirectoryStore::create(directory).unwrap();
        store.compare_and_swap(None, &config).unwrap();
    }

    /// The cores of each thread that carries calls; no other test has any.
    fn cores_of_callers() -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            let name = std::fs::read_to_string(task.path().join("comm"));
            if name.is_ok_and(|name| name.trim() == "trefoil-rpc") {
                let tid = task.file_name().to_string_lossy().parse().unwrap();
                let cores = sched_getaffinity(Pid::from_raw(tid)).unwrap();
                let is_set = |core: &usize| cores.is_set(*core);
                all.push((0..CpuSet::MAX_CPU).filter(is_set).collect());
            }
        }
        all
    }

    #[test]
    fn the_calls_of_who_looks_on_are_not_carried_on_the_core_of_the_load() {
        let options = ScenarioOptions::new(Path::new("unused"), true);
        let (Some(server_core), Some(_)) = (options.server_core, options.client_core) else {
            println!("SKIPPED: there is one core");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cell");
        cell_at(&path);
        // As a scenario does it, in a thread of its own: others' stay where they are.
        let load = std::thread::spawn(move || {
            options.pin().unwrap();
            let cell = onlooker(&options, &format!("unix:{}", path.display())).unwrap();
            assert!(cell.stats()[0].stats.is_err(), "it does not run");
            cores_of_callers()
        });
        assert_eq!(load.join().unwrap(), [[server_core]]);
    }
}
