#!/usr/bin/env bash
# Builds what is needed and shows the product at work.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh memcached
cargo build --release --locked -p trefoil --features bench
exec target/release/trefoil demo
