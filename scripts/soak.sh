#!/usr/bin/env bash
# The longer checks: lints, memory model, interpreter, fuzzing, many more seeds.
# FUZZ_SECONDS per target, SOAK_SEEDS and SOAK_LINKED_SEEDS can be set from outside.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh
fuzz_seconds=${FUZZ_SECONDS:-120}
seeds=${SOAK_SEEDS:-2000000}
linked_seeds=${SOAK_LINKED_SEEDS:-50000}

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
loom() {
  RUSTFLAGS="--cfg loom" cargo test --release --locked -p trefoil-layout --test loom --target-dir target/loom
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
  local target
  for target in $(cd fuzz && cargo +nightly fuzz list); do
    (cd fuzz && cargo +nightly fuzz run --target-dir ../target/fuzz "$target" -- -max_total_time="$fuzz_seconds" -max_len=4096)
  done
}

stage "tools and peers" scripts/setup.sh
stage "nightly tools" nightly
stage "lints" cargo clippy --release --workspace --all-targets --locked -- -D warnings
stage "linked store: kills, 200 pauses past the lease, an etcd that is killed and restored, 100,000 changes" linked_store
stage "linked store, $linked_seeds seeds" \
  cargo run --release --locked --quiet -p trefoil-linked-sim -- --seeds "$linked_seeds"
stage "linked store, $linked_seeds seeds, maps that change all the time" \
  cargo run --release --locked --quiet -p trefoil-linked-sim -- --rush --seeds "$linked_seeds"
stage "linked store, a mutant for each safety rule" \
  cargo test --release --locked --quiet -p trefoil-linklet-core -p trefoil-linked-sim \
  --features trefoil-linked-sim/mutants --test mutants --test scenarios
stage "loom" loom
stage "Miri" miri
stage "fuzzing, $fuzz_seconds s a target" fuzz
stage "simulator, $seeds seeds" cargo run --release --locked --quiet -p trefoil -- sim --seed 1000000 --seeds "$seeds"
stages_report
