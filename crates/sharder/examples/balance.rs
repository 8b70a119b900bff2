//! Looks at the balancer at work: a service in virtual time, the load of every
//! server second by second.
//!
//! ```text
//! cargo run --release -p trefoil-sharder --example balance -- [SEED]
//! ```
//!
//! Three things happen to six servers: one key suddenly takes half of the
//! load, popularity is dealt anew, a seventh server joins.

#[path = "../tests/all/world/mod.rs"]
mod world;

use std::process::ExitCode;
use trefoil_sharder::{Action, Capacity, Plan};
use world::load::Keys;
use world::rng::Rng;
use world::server::{Server, utilisation};
use world::shift::{Setting, World};

/// Characters for a load of twice the mean.
const BAR: f64 = 12.0;

fn main() -> ExitCode {
    let seed = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 1,
        Some(Ok(seed)) => seed,
        Some(Err(_)) => {
            eprintln!("usage: balance [SEED], where SEED is a number");
            return ExitCode::from(2);
        }
    };
    let setting = Setting {
        servers: 6,
        keys: 5_000,
        replicas_max: 6,
        utilisation: 0.45,
        uneven: false,
    };
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, setting);
    let mut ranked: Vec<usize> = (0..world.keys.len()).collect();
    rng.shuffle(&mut ranked);
    println!("load of each server by the mean of all (| is the mean), max/mean, what was done");

    title("A Zipf law over keys that were dealt out evenly");
    let zipf = Keys::zipf(world.rate, 0.9, &ranked);
    world.shift(zipf.clone());
    watch(&mut world, 6);

    title("One key takes half of the load");
    let hot = rng.below(world.keys.len());
    let mut rates: Vec<f64> = zipf.iter().map(|rate| rate / 2.0).collect();
    rates[hot] += world.rate / 2.0;
    world.shift(rates);
    watch(&mut world, 6);

    title("All keys change their popularity");
    rng.shuffle(&mut ranked);
    let zipf = Keys::zipf(world.rate, 0.9, &ranked);
    world.shift(zipf);
    watch(&mut world, 8);

    title("A seventh server joins");
    let capacity = Capacity {
        cpu: 4.0,
        bytes: 64 << 20,
    };
    let mut server = Server::new(7, capacity);
    server.known.offer(world.balancer.assignment().clone());
    world.servers.push(server);
    watch(&mut world, 8);

    println!("\nWhat the last plan says of itself:\n");
    if let Some(plan) = &world.last_plan {
        print!("{plan}");
    }
    let figures = &world.figures;
    println!(
        "\n{} s, {} pieces of slices moved, {:.2} % of the key space at most in one round, {} slices at most; keys that moved A→B→A: {}",
        figures.rounds,
        figures.moves,
        100.0 * figures.churn_max,
        figures.slices_max,
        figures.returned_by_move,
    );
    ExitCode::SUCCESS
}

fn title(text: &str) {
    println!("\n{text}");
}

/// Runs some seconds; a line for each: loads before what is done in it.
fn watch(world: &mut World, seconds: usize) {
    for _ in 0..seconds {
        let assignment = world.balancer.assignment().clone();
        let second = world.second + 1;
        world.tick();
        // The popularity of the end of the second, by what was in force in it.
        let loads = utilisation(&world.servers, &assignment, &world.keys);
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        let bars: Vec<String> = loads.iter().map(|load| bar(load / mean)).collect();
        let worst = loads.iter().copied().fold(0.0, f64::max) / mean;
        let done = world.last_plan.as_ref().map(summary).unwrap_or_default();
        println!("{second:>3} s {} {worst:>5.2}  {done}", bars.join(" "));
    }
}

/// A load by the mean, as a bar with the mean marked.
fn bar(load: f64) -> String {
    let width = BAR as usize;
    let filled = (load / 2.0 * BAR).round() as usize;
    (0..width)
        .map(|at| match (at < filled, at == width / 2) {
            (true, _) if at + 1 == width && filled > width => '>',
            (true, _) => '#',
            (false, true) => '|',
            (false, false) => '.',
        })
        .collect()
}

fn summary(plan: &Plan) -> String {
    let count = |of: fn(&Action) -> bool| plan.changes.iter().filter(|c| of(&c.action)).count();
    let parts = [
        (count(|a| matches!(a, Action::Move { .. })), "moved"),
        (count(|a| matches!(a, Action::AddReplica { .. })), "copied"),
        (
            count(|a| matches!(a, Action::DropReplica { .. })),
            "dropped",
        ),
        (count(|a| matches!(a, Action::Split { .. })), "split"),
        (count(|a| matches!(a, Action::Isolate { .. })), "isolated"),
        (count(|a| matches!(a, Action::Merge { .. })), "merged"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if parts.is_empty() {
        return "-".to_owned();
    }
    format!(
        "{} ({:.1} % of the keys)",
        parts.join(", "),
        100.0 * plan.churn.keys
    )
}
