#!/usr/bin/env bash
# Measures the figures of README.md anew, and most others, into out/bench. Takes root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh memcached redis postgres etcd valkey-8.1.1 rocksdb
cargo build --release --locked -p trefoil -p address-book --features trefoil/full
target/release/trefoil bench all --out out/bench
target/release/trefoil bench gateway | tee out/bench/gateway.txt
target/release/trefoil bench gateway --peer redis --no-cell | tee out/bench/gateway-redis.txt
PATH=$PWD/target/peers/valkey-8.1.1/src:$PATH \
  target/release/trefoil bench gateway --peer valkey --no-cell | tee out/bench/gateway-valkey.txt
target/release/trefoil bench gateway --no-cell --only "one at a time" --runs 11 |
  tee out/bench/gateway-one-at-a-time.txt
# What did not hold in one of these is told in the end; what did not run at all ends this.
not_held=()
judged() {
  local name=$1 code=0
  shift
  target/release/trefoil bench "$@" | tee "out/bench/$name.txt" || code=$?
  [[ $(tail -n 1 "out/bench/$name.txt") = verdict:* ]] || return $((code ? code : 1))
  ((code == 0)) || not_held+=("$name")
}
for scenario in alike full-kill kills planned recovery resize repair etcd neighbours \
  away stop-stop large load restarts crowd cpu; do
  judged "$scenario" scenario "$scenario"
done
judged maintenance maintenance --out out/bench/maintenance
# Both say of each row whether it is met; only the first one's exit code says so of all.
target/release/trefoil bench network --out out/bench/network | tee out/bench/network.txt ||
  not_held+=(network)
target/release/trefoil bench ordered --folder out/bench --out out/bench/ordered | tee out/bench/ordered.txt
for protocol in frames grpc; do
  target/release/trefoil bench linked --protocol "$protocol" --out "out/bench/linked-$protocol" |
    tee "out/bench/linked-$protocol.txt"
done
cargo run --release --locked --quiet -p trefoil-linklet --example move-under-load |
  tee out/bench/move-under-load.txt
cargo build --release --locked --quiet -p sessions
cargo run --release --locked --quiet -p sessions --example load | tee out/bench/sessions.txt
if ((${#not_held[@]})); then
  echo "not everything holds, says its last line, in out/bench: ${not_held[*]}" >&2
  exit 1
fi
