//! Runs seeds of a scene, or tells all of one.
use trefoil_sim::whole::{Count, Scene, run_scene};
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let scene = match args[0].as_str() {
        "resizes" => Scene::Resizes,
        "replaces" => Scene::Replaces,
        "moves" => Scene::Moves,
        _ => panic!(),
    };
    let first: u64 = args[1].parse().unwrap();
    let count: u64 = args[2].parse().unwrap();
    if count == 1 {
        let r = trefoil_sim::whole::tell_scene(scene, first, &mut |line| println!("{line}"));
        if let Err(v) = r {
            println!("{}: {}", v.property, v.message);
        }
        return;
    }
    let began = std::time::Instant::now();
    let report = run_scene(scene, first, count, 2);
    for v in &report.violations {
        println!("seed {}: {} {}", v.seed, v.property, v.message);
    }
    println!("{:?}", began.elapsed());
    for (count, name) in Count::ALL {
        print!("{name}={} ", report.stats.get(*count));
    }
    println!();
}
