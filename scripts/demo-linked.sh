#!/usr/bin/env bash
# Builds the example service and shows the linked store at work.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cargo build --release --locked --quiet -p address-book -p trefoil
exec target/release/address-book demo "$@"
