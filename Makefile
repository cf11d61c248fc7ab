# Thin: the work is in cargo and in deploy/dev.
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help up down test test-slow bench fmt lint check-tools

help: ## Lists what there is to make.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: check-tools ## Builds and starts collector and daemon, prints the UI's address; Ctrl-C stops both.
	@CARGO='$(CARGO)' deploy/dev announce
	$(CARGO) build --profile quick -p fleetprof-daemon -p fleetprof-collector -p agent-ctl
	@CARGO='$(CARGO)' deploy/dev up

down: ## Stops what `make up` started, from elsewhere.
	@CARGO='$(CARGO)' deploy/dev down

test: check-tools ## Runs all tests. As root also those that sample the machine; others report skips.
	@CARGO='$(CARGO)' tests/run

test-slow: check-tools ## Runs the tests that take long (about twenty minutes).
	@# What is skipped is a measurement that prints.
	@CARGO='$(CARGO)' tests/run --ignored --skip collection_of_a_large_machine
	@# Not where time is bounded: these are not given up in the middle, and most of the second is
	@# compiled again.
	@[ -n "$$TEST_STARTS_S" ] || CARGO='$(CARGO)' tests/two-hosts
	@[ -n "$$TEST_STARTS_S" ] || CARGO='$(CARGO)' tests/arm64.sh

bench: check-tools ## Measures cost and accuracy beside other profilers (about 40 minutes; as root).
	$(CARGO) build --release -p fleetprof-daemon -p fleetprof-collector -p agent-ctl -p fleetprof-benches
	$(CARGO) run --release -p fleetprof-benches -- micro
	$(CARGO) run --release -p fleetprof-benches -- accuracy
	$(CARGO) run --release -p fleetprof-benches -- overhead
	$(CARGO) run --release -p fleetprof-benches -- offcpu
	$(CARGO) run --release -p fleetprof-benches -- fleet
	$(CARGO) run --release -p fleetprof-benches -- queries

fmt: ## Formats the code.
	$(CARGO) fmt

lint: check-tools ## Checks formatting, lints and documentation.
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

check-tools:
	@command -v $(CARGO) >/dev/null || { \
	  echo "make: needs cargo: install Rust with rustup" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  echo "make: needs a C linker (cc). On Debian: apt-get install gcc libc6-dev" >&2; exit 1; }
