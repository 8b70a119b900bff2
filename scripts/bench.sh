#!/usr/bin/env bash
# Measures every figure that the documentation quotes, into out/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cargo build --release --locked --quiet -p trefoil
exec target/release/trefoil bench all --out out/bench
