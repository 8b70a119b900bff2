#!/usr/bin/env bash
# All tests, in one optimised build flavour. Prints the seconds of each stage.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

stage "tools and peers" scripts/setup.sh
stage "formatting" cargo fmt --all --check
stage "build" cargo build --release --workspace --bins --tests --locked --quiet
stage "tests of every crate" cargo test --release --workspace --locked --quiet
stage "simulator, 100,000 seeds" target/release/trefoil sim --seed 1 --seeds 100000
stage "simulator, a mutant for each safety rule" \
  cargo test --release --locked --quiet -p trefoil-sim --features mutants --test mutants
stage "linked store beside caches, quick" \
  target/release/trefoil bench linked --quick --out target/linked-quick
stage "real clients, and memcached's own tests" scripts/clients.sh serve gateway
stages_report
