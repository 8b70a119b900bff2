#!/usr/bin/env bash
# Builds what is needed and shows the product at work.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cargo build --release --locked --quiet -p trefoil
exec target/release/trefoil demo
