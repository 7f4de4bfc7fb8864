# The single entry point: the same commands here, in the README and in continuous integration.
# Everything that is built or fetched goes to a cache outside the checkout.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export INTERLOCK_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/interlock
export CARGO_TARGET_DIR ?= $(INTERLOCK_CACHE)/target
export CARGO_TERM_COLOR ?= never
TOOLS := $(INTERLOCK_CACHE)/tools
DENY := $(TOOLS)/bin/cargo-deny
DENY_VERSION := 0.20.2
# Clusters are heavy: tests of one program share one, and two at a time suit two cores.
THREADS ?= 4
# Where the enumerating tests leave what they went through.
export INTERLOCK_TALLY ?= $(CARGO_TARGET_DIR)/tally.tsv
say = @printf '==> %s\n' "$(1)"

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: tools-check cluster-binaries build ## Show the main job on a real control plane (ARGS=--keep leaves it running)
	$(call say,demo)
	@"$(CARGO_TARGET_DIR)/debug/demo" $(ARGS)

.PHONY: bench
bench: tools-check cluster-binaries ## Measure updates and rest on a real control plane (ARGS="--pods 100 --repeat 3", --quick, --check)
	$(call say,building the release)
	@cargo build --release --locked --package interlock --package bench --bins
	$(call say,bench: what is measured and how stands in docs/performance.md)
	@"$(CARGO_TARGET_DIR)/release/bench" $(ARGS)

.PHONY: test
test: tools-check tally-clear lint test-core test-planted test-unit test-inproc cluster-binaries node-binaries test-cluster tally ## Run everything that continuous integration runs
	$(call say,all tests passed)

.PHONY: build
build: tools-check ## Build the binaries
	$(call say,building)
	@cargo build --locked --workspace --bins

.PHONY: lint
lint: tools-check $(DENY) ## Formatting, lints, licences
	$(call say,formatting)
	@cargo fmt --all --check
	$(call say,lints)
	@cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
	$(call say,licences and duplicates of dependencies)
	@"$(DENY)" --log-level error check bans licenses sources

.PHONY: test-core
test-core: tools-check ## The pure planner: rules, properties, simulated clusters
	$(call say,core)
	@cargo test --locked --package interlock-core --features schema

.PHONY: test-planted
test-planted: tools-check ## Faults that are planted on purpose, each to be caught by a test of its name
	$(call say,planted faults)
	@cargo test --locked --package interlock-core --features planted --test planted
	@! cargo tree --locked --package interlock --edges normal,features --invert interlock-core | grep planted

.PHONY: test-unit
test-unit: tools-check ## The shell, in process
	$(call say,unit tests)
	@cargo test --locked --package interlock --lib --bins

.PHONY: test-inproc
test-inproc: tools-check ## The whole controller against an API server in the same process, under paused time
	$(call say,in process)
	@cargo test --locked --package inproc

.PHONY: test-cluster
test-cluster: tools-check cluster-binaries node-binaries ## On real control planes, and on a real node where the machine allows it
	$(call say,development cluster)
	@cargo test --locked --package devcluster
	$(call say,on a real control plane)
	@cargo build --locked --workspace --bins
	@cargo test --locked --package interlock --test '*' -- --test-threads=$(THREADS)

.PHONY: test-long
test-long: tools-check tally-clear cluster-binaries test-long-all tally ## The long forms: 10,000 simulated stories, the models walked 80 times as far; on a real control plane 300 random users, every pair of write and trouble, death of the process at every write, 20 runs per late watch

.PHONY: test-long-all
test-long-all:
	$(call say,simulated stories)
	@STORIES=10000 cargo test --locked --release --package interlock-core --features schema --test fuzz -- --nocapture
	$(call say,in process)
	@INTERLOCK_LONG=1 cargo test --locked --package inproc -- --nocapture
	$(call say,models)
	@INTERLOCK_LONG=1 cargo test --locked --package interlock-core --features schema --test model -- --nocapture --test-threads=1
	$(call say,on a real control plane)
	@INTERLOCK_LONG=1 SEEDS=1..301 cargo test --locked --package interlock --test e2e -- --nocapture random:: crashes:: killed:: watches:: two:: restart::death

.PHONY: tally-clear
tally-clear:
	@rm -f "$(INTERLOCK_TALLY)"

.PHONY: tally
tally: ## Show what the enumerating tests went through the last time
	$(call say,what was enumerated)
	@awk -F '\t' 'BEGIN { line = "%-52s %9s %7s %9s %9s %9s\n"; printf line, "test", "points", "seeds", "checks", "failures", "seconds" } \
		{ printf line, $$1, $$2, $$3, $$4, $$5, $$6; failures += $$5 } END { exit failures > 0 }' "$(INTERLOCK_TALLY)"

.PHONY: cluster-binaries
cluster-binaries: tools-check
	$(call say,the development cluster's own program)
	@cargo build --locked --package devcluster
	$(call say,Kubernetes binaries (built once per machine; about ten minutes the first time))
	@"$(CARGO_TARGET_DIR)/debug/devcluster" build

.PHONY: node-binaries
node-binaries: cluster-binaries
	$(call say,binaries of a real node (built once per machine; about four minutes the first time))
	@"$(CARGO_TARGET_DIR)/debug/devcluster" build --real-node > /dev/null

.PHONY: generate
generate: tools-check ## Write crds/ anew from the code
	@UPDATE_GENERATED=1 cargo test --locked --package interlock --test crds

.PHONY: fmt
fmt: ## Format the code
	@cargo fmt --all

$(DENY):
	$(call say,building cargo-deny $(DENY_VERSION) (once per machine))
	@CARGO_TARGET_DIR="$(INTERLOCK_CACHE)/target-tools" cargo install --quiet --locked --root "$(TOOLS)" cargo-deny --version $(DENY_VERSION)

.PHONY: tools-check
tools-check:
	@for tool in cargo go cc; do command -v $$tool > /dev/null || { echo "make: $$tool is missing: install Rust 1.95, Go 1.26 and a C compiler, then try again" >&2; exit 1; }; done
