#!/usr/bin/env bash
# Measures every figure that the documentation quotes, into out/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh memcached redis postgres etcd
cargo build --release --locked -p trefoil -p address-book --features trefoil/full
target/release/trefoil bench all --out out/bench
target/release/trefoil bench gateway | tee out/bench/gateway.txt
target/release/trefoil bench gateway --peer redis --no-cell | tee out/bench/gateway-redis.txt
target/release/trefoil bench gateway --no-cell --only "one at a time" --runs 11 |
  tee out/bench/gateway-one-at-a-time.txt
# Exit code 1 of these: it ran, and not everything that should hold does.
for scenario in alike full-kill kills planned recovery resize repair etcd; do
  { target/release/trefoil bench scenario "$scenario" || [ $? = 1 ]; } |
    tee "out/bench/$scenario.txt"
done
{ target/release/trefoil bench maintenance --out out/bench/maintenance || [ $? = 1 ]; } |
  tee out/bench/maintenance.txt
for protocol in frames grpc; do
  target/release/trefoil bench linked --protocol "$protocol" --out "out/bench/linked-$protocol" |
    tee "out/bench/linked-$protocol.txt"
done
cargo run --release --locked --quiet -p trefoil-linklet --example move-under-load |
  tee out/bench/move-under-load.txt
