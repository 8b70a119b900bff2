//! Assigners, store and servers with everything going wrong for a minute, and
//! then half a minute of peace in which everything has to be well again.

use crate::world::cluster::{Cluster, STEP, Tally};
use crate::world::load::Keys;
use crate::world::seeds;
use crate::world::server::imbalance;
use trefoil_sharder::{Freeze, MemberState};

const TROUBLE: f64 = 60.0;
const PEACE: f64 = 40.0;
/// From a death to every slice being served again. The lease takes up to 3 s.
const OWNED_AGAIN: f64 = 5.0;

/// One thing goes wrong.
fn trouble(cluster: &mut Cluster) {
    let servers = cluster.servers.len();
    let any = cluster.rng.below(servers);
    let id = cluster.servers[any].id;
    let seconds = cluster.rng.range(0.5, 12.0);
    let assigner = cluster.rng.below(2);
    match cluster.rng.below(10) {
        0 if servers > 2 => cluster.kill(id),
        1 if servers < 9 => {
            cluster.start_server();
        }
        2 => cluster.cut_assigner(assigner, seconds),
        3 => cluster.cut_store(seconds),
        4 => cluster.cut_reports(id, seconds),
        5 => cluster.pause_assigner(assigner, seconds),
        6 => cluster.set_state(id, MemberState::Draining),
        7 => cluster.set_state(id, MemberState::Frozen),
        8 => {
            let freeze = match cluster.rng.below(3) {
                0 => Freeze::OnlyDead,
                1 => Freeze::All,
                _ => Freeze::Off,
            };
            cluster.freeze(freeze);
        }
        _ => shift(cluster),
    }
}

fn shift(cluster: &mut Cluster) {
    let mut ranked: Vec<usize> = (0..cluster.keys.len()).collect();
    cluster.rng.shuffle(&mut ranked);
    let rate = cluster.keys.rates().iter().sum();
    cluster.keys.set_rates(Keys::zipf(rate, 0.9, &ranked));
}

fn check(cluster: &Cluster) -> Result<(), String> {
    match cluster.violations().first() {
        Some(first) => Err(format!("at {:.1} s: {first}", cluster.now)),
        None => Ok(()),
    }
}

fn run(seed: u64) -> Result<Tally, String> {
    let mut cluster = Cluster::new(seed, 3 + (seed % 5) as usize);
    shift(&mut cluster);
    let mut next = 5.0;
    while cluster.now < TROUBLE {
        if cluster.now >= next {
            next = cluster.now + cluster.rng.range(0.5, 6.0);
            trouble(&mut cluster);
        }
        cluster.step();
        check(&cluster)?;
    }
    cluster.heal();
    cluster.freeze(Freeze::Off);
    let mut stopping = Vec::new();
    for server in cluster.servers.clone() {
        match server.state {
            MemberState::Draining if cluster.servers.len() - stopping.len() > 2 => {
                stopping.push(server.id);
            }
            _ => cluster.set_state(server.id, MemberState::Serving),
        }
    }
    while cluster.now < TROUBLE + PEACE {
        cluster.step();
        check(&cluster)?;
    }
    if let Some(id) = stopping.iter().find(|&&id| cluster.serves(id)) {
        return Err(format!("{id} drained for {PEACE} s and still has slices"));
    }
    for id in stopping {
        cluster.kill(id);
    }
    settle(&mut cluster, 5.0)?;
    let balance = {
        let assignment = cluster.assignment().ok_or("there is no assignment")?;
        imbalance(&cluster.servers, assignment, &cluster.keys)
    };
    if balance > 1.3 {
        return Err(format!("max/mean is {balance:.3} in the end"));
    }
    // A death in peace.
    if cluster.servers.len() > 1 {
        let any = cluster.rng.below(cluster.servers.len());
        let id = cluster.servers[any].id;
        let died = cluster.now;
        cluster.kill(id);
        while cluster.serves(id) {
            cluster.step();
            check(&cluster)?;
            if cluster.now - died > OWNED_AGAIN {
                return Err(format!("slices of {id} have no live server after 5 s"));
            }
        }
    }
    settle(&mut cluster, 3.0)?;
    Ok(cluster.tally)
}

/// Goes on until everybody knows the assignment in force, for at most so long.
fn settle(cluster: &mut Cluster, seconds: f64) -> Result<(), String> {
    let until = cluster.now + seconds;
    loop {
        cluster.step();
        check(cluster)?;
        if cluster.all_know() {
            return Ok(());
        }
        if cluster.now > until + STEP {
            return Err(format!("not everybody knows {:?}", cluster.version()));
        }
    }
}

#[test]
fn trouble_for_a_minute_then_peace() {
    let tallies = seeds::run("trouble_for_a_minute_then_peace", 50, run);
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    println!(
        "{} seeds: {} assignments, {} elections, {} swaps refused, {} answers lost, {} ranges lost by death; at most {:.2} % of the key space in a round of its own accord",
        tallies.len(),
        sum(|tally| tally.published),
        sum(|tally| tally.elections),
        sum(|tally| tally.refused),
        sum(|tally| tally.unanswered),
        sum(|tally| tally.lost_ranges),
        100.0
            * tallies
                .iter()
                .map(|tally| tally.churn_max)
                .fold(0.0, f64::max),
    );
}
