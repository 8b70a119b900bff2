#!/usr/bin/env bash
# Measures every figure that the documentation quotes, into out/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cargo build --release --locked --quiet -p trefoil
target/release/trefoil bench all --out out/bench
target/release/trefoil bench gateway | tee out/bench/gateway.txt
target/release/trefoil bench gateway --peer redis --no-cell | tee out/bench/gateway-redis.txt
