//! Runs seeds of a scene on two threads, or one with every event; or says after how many
//! seeds each broken rule of a scene shows.
//!
//! `cargo run --profile tested -p trefoil-sim --example scene SCENE FIRST [COUNT|mutants]`

use std::process::ExitCode;
use std::time::Instant;
use trefoil_sim::mutants::WHOLE;
use trefoil_sim::whole::{Count, Scene, run_scene, tell_scene};

const SCENES: [Scene; 6] = [
    Scene::SmallerCell,
    Scene::FullRings,
    Scene::GrowingIndexes,
    Scene::Moves,
    Scene::Resizes,
    Scene::Replaces,
];
/// Where a broken rule is given up.
const SEEDS_MAX: u64 = 5_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let named = |scene: &&Scene| {
        args.first()
            .is_some_and(|name| *name == format!("{scene:?}"))
    };
    let scene = SCENES.iter().find(named).copied();
    let first = args.get(1).and_then(|first| first.parse().ok());
    let (Some(scene), Some(first)) = (scene, first) else {
        eprintln!("scene SCENE FIRST [COUNT|mutants]; scenes: {SCENES:?}");
        return ExitCode::from(2);
    };
    match args.get(2).map(String::as_str) {
        None => match tell_scene(scene, first, &mut |line| println!("{line}")) {
            Ok(_) => return ExitCode::SUCCESS,
            Err(violation) => println!("{}: {}", violation.property, violation.message),
        },
        Some("mutants") => {
            for case in WHOLE.iter().filter(|case| case.scene == Some(scene)) {
                let began = Instant::now();
                let noticed = case.seeds_until_noticed(first, SEEDS_MAX);
                let noticed = noticed.map(|(seeds, found)| (seeds, found.property, found.message));
                println!("{:?} {noticed:?} {:?}", case.rule, began.elapsed());
            }
            return ExitCode::SUCCESS;
        }
        Some(count) => {
            let report = run_scene(scene, first, count.parse().unwrap_or(1), 2);
            for (count, name) in Count::ALL {
                println!("{name:>20} {}", report.stats.get(*count));
            }
            for found in &report.violations {
                println!("seed {}: {}: {}", found.seed, found.property, found.message);
            }
            if report.is_clean() {
                return ExitCode::SUCCESS;
            }
        }
    }
    ExitCode::FAILURE
}
