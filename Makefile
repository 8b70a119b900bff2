# Two commands do all set-up: `make demo` shows the product, `make test` checks it.

.PHONY: help demo demo-linked test bench soak lint clean

help:
	@echo "make demo    build, start a replicated cell, replay a real workload, kill a backend"
	@echo "make demo-linked  the same of the linked store: five servers, a hot key, a kill, moves"
	@echo "make test    all tests"
	@echo "make bench   every figure that the documentation quotes"
	@echo "make soak    the longer checks: lints, loom, Miri, fuzzing, millions of seeds"

demo:
	@scripts/demo.sh

demo-linked:
	@scripts/demo-linked.sh

test:
	@scripts/test.sh

bench:
	@scripts/bench.sh

soak:
	@scripts/soak.sh

lint:
	cargo fmt --all --check
	cargo clippy --release --workspace --features trefoil/full --all-targets --locked -- -D warnings

clean:
	cargo clean
