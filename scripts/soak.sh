#!/usr/bin/env bash
# The longer checks: lints, memory model, interpreter, fuzzing, many more seeds.
# FUZZ_SECONDS per target, SOAK_SEEDS, SOAK_WHOLE_SEEDS, SOAK_MOVE_SEEDS,
# SOAK_RESIZE_SEEDS, SOAK_REPLACE_SEEDS, SOAK_SCRIPT_SEEDS, SOAK_LINKED_SEEDS,
# SOAK_DURABLE_KILLS, SOAK_JOURNAL_SEEDS, SOAK_CUTS_SEEDS, SOAK_ORDERED_SEEDS, SOAK_VERBS_REQUESTS,
# SOAK_OPERATIONS, SOAK_CHAOS_S, SOAK_LOCKS_S and SOAK_LINKED_S can be set from outside; what scripts/upgrade.sh
# takes, too.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh
fuzz_seconds=${FUZZ_SECONDS:-120}
seeds=${SOAK_SEEDS:-5000000}
whole_seeds=${SOAK_WHOLE_SEEDS:-5000000}
move_seeds=${SOAK_MOVE_SEEDS:-200000}
resize_seeds=${SOAK_RESIZE_SEEDS:-100000}
replace_seeds=${SOAK_REPLACE_SEEDS:-200000}
script_seeds=${SOAK_SCRIPT_SEEDS:-5000}
linked_seeds=${SOAK_LINKED_SEEDS:-50000}
operations=${SOAK_OPERATIONS:-20000000}
chaos_s=${SOAK_CHAOS_S:-1800}
locks_s=${SOAK_LOCKS_S:-300}
linked_s=${SOAK_LINKED_S:-600}
durable_kills=${SOAK_DURABLE_KILLS:-1000}
journal_seeds=${SOAK_JOURNAL_SEEDS:-1000000}
cuts_seeds=${SOAK_CUTS_SEEDS:-100000}
ordered_seeds=${SOAK_ORDERED_SEEDS:-2000000}
verbs_requests=${SOAK_VERBS_REQUESTS:-10000}

nightly() {
  rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
  rustup component add --toolchain nightly miri rust-src
  command -v cargo-fuzz >/dev/null || cargo install --locked --quiet cargo-fuzz
}
linked_store() {
  TREFOIL_SOAK_RUNS=200 cargo test --release --locked -p trefoil-linklet --test chaos
  cargo test --release --locked -p trefoil-coordination --test outages
  FRESHNESS_CHANGES=100000 cargo test --release --locked -p trefoil-freshness --test fresh
}
# One test of a crate, by its whole name: no test of that name is a failure, too.
one_test() {
  local name=$1
  shift
  cargo test --release --locked "$@" --test all -- --exact "$name" --nocapture | tee target/one-test.txt
  grep -q '^test result: ok. 1 passed' target/one-test.txt
}
moves() {
  TREFOIL_TEST_MOVE_SEEDS=$move_seeds one_test whole::backends_move_while_others_are_killed -p trefoil-sim
}
resizes() {
  TREFOIL_TEST_RESIZE_SEEDS=$resize_seeds \
    one_test whole::a_cell_gets_another_size_while_its_backends_are_killed_and_hang -p trefoil-sim
}
replaces() {
  TREFOIL_TEST_REPLACE_SEEDS=$replace_seeds \
    one_test whole::places_are_given_away_while_those_that_had_them_live -p trefoil-sim
}
etcd_outage() {
  TREFOIL_TEST_OUTAGE_S=60 \
    one_test etcd::without_etcd_nothing_fails_and_nothing_waits -p trefoil --features full
}
durable_kills() {
  TREFOIL_TEST_ORDERED_KILLS=$durable_kills \
    one_test durable::acknowledged_increments_and_appends_are_there_once_after_kill_9_at_random_moments \
    -p trefoil-ordered
}
queue_kills() {
  local service
  for service in a_cache rocksdb; do
    TREFOIL_TEST_QUEUE_KILLS=$durable_kills \
      one_test "kills::${service}_has_what_was_acknowledged_once_after_kill_9_at_random_moments" \
      -p trefoil-queue
  done
}
queue_cuts() {
  TREFOIL_TEST_CUTS_SEEDS=1000000..$((1000000 + cuts_seeds)) \
    one_test cuts::what_was_acknowledged_is_there_once_after_power_cuts -p trefoil-ordered
}
queue_order() {
  TREFOIL_TEST_ORDERED_SEEDS=1000000..$((1000000 + ordered_seeds)) \
    one_test promise::order_once_and_nothing_that_was_refused -p trefoil-ordered
}
# By a virtual machine, over a cable that loses frames.
verbs() {
  local in_machine="$PWD/scripts/rdma-vm.sh --or-skip --loss 1 --timeout 3000 --"
  export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$in_machine
  TREFOIL_TEST_VERBS_REQUESTS=$verbs_requests \
    cargo test --release --locked -p trefoil-ordered-verbs --test all -- --ignored
  cargo test --release --locked -p trefoil-ordered --test all -- --ignored conformance::verbs::
  unset CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER
}
power_cuts() {
  TREFOIL_TEST_JOURNAL_SEEDS=1000000..$((1000000 + journal_seeds)) \
    one_test power::what_was_acknowledged_has_its_effect_once -p trefoil-journal
}
loom() {
  RUSTFLAGS="--cfg loom" cargo test --release --locked -p trefoil-layout --test loom --target-dir target/loom
  RUSTFLAGS="--cfg loom" cargo test --release --locked -p trefoil-ordered --test loom --target-dir target/loom
}
miri() {
  # An interpreter is some thousand times slower: few cases of each property. A
  # ring's 34,000 words are looked at one by one at every borrow: hours; it is
  # safe code, whose memory order loom looks at.
  MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=16 \
    cargo +nightly miri test --locked -p trefoil-layout -p trefoil-region --target-dir target/miri \
    -- --skip ring::tests
}
fuzz() {
  # What is found new is kept in target/corpus, for the next time; seeds and
  # dictionaries are the repository's.
  local target targets options folders
  targets=$(cd fuzz && cargo +nightly fuzz list)
  [[ -n $targets ]]
  for target in $targets; do
    options=(-max_total_time="$fuzz_seconds" -max_len=4096)
    folders=("../target/corpus/$target")
    [[ -f fuzz/dictionaries/$target.dict ]] && options+=(-dict="dictionaries/$target.dict")
    [[ -d fuzz/seeds/$target ]] && folders+=("seeds/$target")
    mkdir -p "target/corpus/$target"
    (cd fuzz && cargo +nightly fuzz run --target-dir ../target/fuzz "$target" "${folders[@]}" -- "${options[@]}")
  done
}

# What must be shown of a running cell, latencies included: on a machine that others use,
# these may be the machine's (docs/testing.md, *latency beside a noisy host*). So one of which
# not everything holds does not keep the next ones from being run: the soak fails in the end.
not_held=()
scenario() {
  local name=$1 code=0
  mkdir -p target/scenarios
  cargo run --release --locked --quiet -p trefoil --features full -- bench scenario "$@" |
    tee "target/scenarios/$name.txt" || code=$?
  [[ $(tail -n 1 "target/scenarios/$name.txt") = verdict:* ]] || return $((code ? code : 1))
  ((code == 0)) || not_held+=("$name")
}

# The same of the linked store: NAME COMMAND….
linked_trial() {
  local name=$1 code=0
  shift
  mkdir -p target/scenarios
  "$@" 2>&1 | tee "target/scenarios/$name.txt" || code=$?
  grep -q 'verdict:' "target/scenarios/$name.txt" || return $((code ? code : 1))
  ((code == 0)) || not_held+=("$name")
}
linked_trials() {
  cargo build --release --locked -p sessions -p trefoil-linked-trials
  cargo build --release --locked -p sessions -p trefoil-linklet --examples
  local trials=target/release/linked-trials
  "$trials" histories --seconds "$linked_s" --seed 1000
  "$trials" outages --rounds 3
  "$trials" fresh --changes 100000
  linked_trial linked-copies "$trials" copies
  linked_trial linked-move target/release/examples/move-under-load
  linked_trial linked-sessions target/release/examples/load
}

# Without losing anything, at R=1 either.
kept() {
  cargo run --release --locked --quiet -p trefoil --features full -- histories --seed 1000 --seconds 120 \
    --keys 2000 --value-len 100..1000 --memory 64MiB "$@"
}

# Prometheus' own words on the alert rules and on what a server answers. Its
# package is taken apart, not installed: it would bring a server.
promtool() {
  local folder=target/promtool tool server code=0
  tool=$folder/usr/bin/promtool
  [[ -x $tool ]] || (
    mkdir -p "$folder" && cd "$folder" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .
  )
  "$tool" check rules dashboards/alerts.yml dashboards/linked-alerts.yml
  target/release/trefoil serve --listen 127.0.0.1:0 --socket "$PWD/$folder/socket" --memcached 127.0.0.1:0 \
    --metrics 127.0.0.1:19411 --memory 64MiB >"$folder/ready" &
  server=$!
  until [[ -s $folder/ready ]] || ! kill -0 "$server" 2>/dev/null; do sleep 0.1; done
  curl --silent --fail --header 'Accept: text/plain' http://127.0.0.1:19411/metrics |
    "$tool" check metrics || code=$?
  kill "$server"
  wait "$server" || true
  return "$code"
}

stage "tools and peers" scripts/setup.sh memcached redis postgres etcd tlc rocksdb rdma
stage "nightly tools" nightly
stage "lints" cargo clippy --release --workspace --features trefoil/full --all-targets --locked -- -D warnings
stage "commands that a plain build is without" \
  cargo test --release --locked --quiet -p trefoil --test all left_out::
stage "linked store: kills, 200 pauses past the lease, an etcd that is killed and restored, 100,000 changes" linked_store
stage "linked store: histories for $linked_s s, outages, failovers, broken streams, moves, sessions" linked_trials
stage "a cell at work while etcd is dead for 60 s" etcd_outage
stage "linked store, $linked_seeds seeds" \
  cargo run --release --locked --quiet -p trefoil-linked-sim -- --seeds "$linked_seeds"
stage "linked store, $linked_seeds seeds, maps that change all the time" \
  cargo run --release --locked --quiet -p trefoil-linked-sim -- --rush --seeds "$linked_seeds"
stage "linked store, $linked_seeds seeds, windows that are always full" \
  cargo run --release --locked --quiet -p trefoil-linked-sim -- --windows --seeds "$linked_seeds"
stage "durable queue, $durable_kills times kill -9" durable_kills
stage "served queues, $durable_kills times kill -9 of each" queue_kills
stage "journal, power cuts, $journal_seeds seeds" power_cuts
stage "durable queue, power cuts, $cuts_seeds seeds" queue_cuts
stage "ordered queue, $ordered_seeds seeds" queue_order
stage "ordered queue over RDMA, a cable that loses frames" verbs
stage "loom" loom
stage "Miri" miri
stage "fuzzing, $fuzz_seconds s a target" fuzz
stage "scripts and functions of Redis's clients, $script_seeds programs" \
  env TREFOIL_NOISE_SEEDS="$script_seeds" \
  cargo test --release --locked -p trefoil-gateway --test all noise::
stage "simulator, $seeds seeds" \
  cargo run --release --locked --quiet -p trefoil --features full -- sim --seed 1000000 --seeds "$seeds"
stage "simulator, whole client, $whole_seeds seeds" \
  cargo run --release --locked --quiet -p trefoil --features full -- sim --whole --seed 1000000 --seeds "$whole_seeds"
stage "simulator, backends that move, $move_seeds seeds" moves
stage "simulator, a cell that gets another size, $resize_seeds seeds" resizes
stage "simulator, places that are given away, $replace_seeds seeds" replaces
stage "quorum rules, by the model checker" \
  cargo run --release --locked --quiet --manifest-path spec/quorum/Cargo.toml --target-dir target/quorum
stage "specification, by TLC, in larger bounds" spec/check.py --soak --workers 2
stage "histories, $operations operations" \
  cargo run --release --locked --quiet -p trefoil --features full -- histories --seed 1000 --operations "$operations"
stage "chaos at full memory, $chaos_s s" \
  cargo run --release --locked --quiet -p trefoil --features full -- histories --chaos --seed 1000 --seconds "$chaos_s"
stage "two of three away at a time: no value is made up" \
  cargo run --release --locked --quiet -p trefoil --features full -- \
  histories --chaos --overlap 2 --seed 2000 --seconds 120 --faults kill,restart,stop
stage "nothing lost, R=1: moves, drains, upgrades" kept --mode R=1 --faults move,drain,upgrade
stage "nothing lost, R=3.2: kills, moves" kept --mode R=3.2 --faults kill,restart,move,drain
stage "nothing lost, R=3.2: dead backends' places to spares" kept --mode R=3.2 --faults replace,etcd-kill
stage "thirty kills at full memory" scenario kills
stage "every backend moved in turn" scenario planned
stage "a gigabyte recovered, the doctor, another one killed" scenario recovery
stage "resize to 5, 4 and 3" scenario resize
stage "repair of one key in a hundred of a million" scenario repair
stage "a minute without etcd, three times" scenario etcd
for name in away stop-stop large load restarts crowd neighbours; do
  stage "scenario $name" scenario "$name"
done
stage "memcached 1.6.45, built" scripts/setup.sh memcached-1.6.45
stage "memcached 1.6.45 beside its answers here" \
  cargo test --release --locked --quiet -p trefoil-gateway-core --test all memcache_releases:: -- --include-ignored
stage "clients' packages" tests/clients/setup.sh
stage "clients' own tests that take long" scripts/clients.sh --only "dogpile's" --only "redis-py's" --only "phpredis'" trefoil
stage "locks, limiters and transactions while servers die, $locks_s s" tests/clients/locks/run.py gateway --seconds "$locks_s"
stage "rolling upgrade from the previous release, and downgrade" scripts/upgrade.sh
stage "metrics and alert rules, by Prometheus' own tool" promtool
stages_report
if ((${#not_held[@]})); then
  echo "not everything holds, says its last line, in target/scenarios: ${not_held[*]}" >&2
  exit 1
fi
