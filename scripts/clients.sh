#!/usr/bin/env bash
# Real clients' tests: scripts/clients.sh [--only SUITE]… [memcached|serve|gateway|trefoil]…
# Against memcached and redis they prove the tests; against trefoil, the product.
# Without a target: all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/clients/setup.sh
exec python3 -B tests/clients/run.py "$@"
