//! Many client processes beside one cell.

use crate::real::Real;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{CarrierInUse, Cell, Client, Lookup, Mutated, Options, SetOptions};

const PROCESSES: usize = 200;
/// Of the processes, those that find rings.
const WITH_RINGS: usize = 190;
const CELL: &str = "TREFOIL_TEST_CROWD_CELL";
/// Private memory of one client's process, most of which is this program's own.
const OWN_KIB_MAX: u64 = 32 << 10;

/// What a process says on a line of its own: its carriers, and its private memory.
const SAYS: &str = "crowd:";

fn work(client: &mut Client, number: u32) {
    for round in 0..5u32 {
        let key = format!("{number}-{round}");
        let stored = client.set(key.as_bytes(), &[7; 100], SetOptions::default());
        assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
        let found = client.get(key.as_bytes());
        assert!(
            matches!(&found, Ok(Lookup::Hit(hit)) if hit.value == [7; 100]),
            "{found:?}"
        );
    }
}

/// One of the processes of the test below; nothing by itself.
#[test]
#[ignore = "a process of another test"]
fn one_of_them() {
    let Ok(address) = std::env::var(CELL) else {
        return;
    };
    let mut client = Cell::connect(&address).unwrap().client(Options {
        deadline: Duration::from_secs(30),
        ..Options::default()
    });
    // Two of three are enough to work; a connection to the third may still be in the
    // making where a machine has much else to do.
    let end = Instant::now() + Duration::from_secs(30);
    let carriers = loop {
        work(&mut client, std::process::id());
        let carriers = client.carriers();
        let reads = [CarrierInUse::Shared, CarrierInUse::SharedReads];
        if carriers.iter().all(|of| reads.contains(&of.carrier)) || Instant::now() > end {
            break carriers;
        }
    };
    let count = |carrier| carriers.iter().filter(|of| of.carrier == carrier).count();
    let unexplained = carriers
        .iter()
        .filter(|of| of.carrier != CarrierInUse::Shared && of.why.is_none())
        .count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let own_kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap();
    let (rings, reads) = (
        count(CarrierInUse::Shared),
        count(CarrierInUse::SharedReads),
    );
    println!("\n{SAYS} {rings} {reads} {unexplained} {own_kib}");
    // Until all are here; then once more, all at once. If the test has failed, its cell
    // has gone with it: then its own words count, and not what 200 processes say of that.
    if std::io::stdin().read(&mut [0]).unwrap() == 0 {
        return;
    }
    work(&mut client, std::process::id());
}

fn start(address: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crowd::one_of_them", "--ignored", "--nocapture"])
        .env(CELL, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (child, said)
}

/// All work, at the same time; those that find no rings read as the others do, and
/// say why they write more slowly.
#[test]
fn two_hundred_processes_work_beside_one_cell() {
    let real = Real::start_for(Mode::R32, 3 * WITH_RINGS);
    let mut children = Vec::new();
    let mut totals = [0; 3];
    // A few at a time until they work: it is not starting programs that is tested.
    while children.len() < PROCESSES {
        let some: Vec<_> = (0..10).map(|_| start(&real.address)).collect();
        for (child, mut said) in some {
            let mut line = String::new();
            while !line.starts_with(SAYS) {
                line.clear();
                assert!(
                    said.read_line(&mut line).unwrap() > 0,
                    "a process has failed"
                );
            }
            let numbers: Vec<u64> = line[SAYS.len()..]
                .split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect();
            for (total, number) in totals.iter_mut().zip(&numbers) {
                *total += number;
            }
            assert!(numbers[3] <= OWN_KIB_MAX, "{line}");
            children.push((child, said));
        }
    }
    // At each of three backends; all that lack rings say why.
    let with_rings = 3 * WITH_RINGS as u64;
    assert_eq!(totals, [with_rings, 3 * PROCESSES as u64 - with_rings, 0]);
    assert_eq!(real.clients(), with_rings);
    for (child, _) in &mut children {
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"x").unwrap();
    }
    for (mut child, mut said) in children {
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success(), "{rest}");
    }
}
