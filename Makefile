# Two commands do everything on a fresh Debian machine with Rust: `make up` and `make test`.

DIR   ?= $(CURDIR)/.weft-dev
MNT   ?= $(DIR)-mnt
CARGO ?= cargo
# Seconds that all tests may take, once they are built.
LIMIT ?= 7200

# cargo's own answer knows about CARGO_TARGET_DIR and configuration files.
target = $(shell $(CARGO) metadata --format-version 1 --no-deps 2>/dev/null | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
WEFT   = $(target)/release/weft

# Where `make install` puts everything; DESTDIR comes before it, for who makes packages.
PREFIX ?= /usr/local

# Seeds of the simulation, and how long one planted bug is looked for.
SEEDS   ?= 1000
MINUTES ?= 5

# How long each reader of foreign bytes is fuzzed.
SECONDS ?= 60

.PHONY: help up down status test test-upgrade test-torch sim planted jepsen soak fuzz check fmt bench build setup install wheel deb

help:
	@echo 'make up      build what is missing, start a cluster in DIR, mount it at MNT'
	@echo 'make down    unmount and stop it; the data stays'
	@echo 'make status  show what runs'
	@echo 'make test    run all tests'
	@echo 'make test-upgrade PREVIOUS=TAG   upgrade a cluster of that version under load'
	@echo 'make sim SEEDS=1000   simulate so many clusters under faults (docs/correctness.md)'
	@echo 'make planted MINUTES=5   see that it finds bugs that are planted on purpose'
	@echo 'make jepsen MINUTES=5    real processes and mounts under faults; histories of them are judged'
	@echo 'make soak MINUTES=120    hours of load and faults; fails if a process takes more and more of anything'
	@echo 'make fuzz SECONDS=60     give each reader of foreign bytes what reaches new code in it (tests/fuzz)'
	@echo 'make check   formatting, lints (warnings are errors) and the rules of the house (tidy/)'
	@echo 'make install PREFIX=/usr/local DESTDIR=   binary, C library and header, manual pages, completions, units'
	@echo 'make deb     the Debian packages, into $(target)/deb (docs/packages.md)'
	@echo 'make wheel   the Python package, into $(target)/wheels'
	@echo 'make test-torch   what of the Python package needs torch (gigabytes from PyPI)'
	@echo 'make bench   start the cluster and measure it beside the machine'"'"'s floors'
	@echo
	@echo 'DIR=$(DIR)'
	@echo 'MNT=$(MNT)'
	@echo 'LIMIT=$(LIMIT) (seconds that make test may take, once all is built)'

# Debian packages that the build and the tests need; says so clearly when it may not install them.
setup:
	@scripts/setup

build: setup
	$(CARGO) build --release --locked -p weft

install: build
	$(CARGO) build --release --locked -p weft-c
	@scripts/install '$(target)/release' '$(PREFIX)' '$(DESTDIR)'

deb: build
	$(CARGO) build --release --locked -p weft-c
	@scripts/deb '$(target)/release' '$(target)/deb'

# Needs Python 3.11 or newer with venv, and PyPI.
wheel: setup
	@scripts/wheel '$(target)'

test-torch: wheel
	$(CARGO) test --release --locked --workspace --features weft-python/torch --no-run
	$(CARGO) test --release --locked --workspace --features weft-python/torch --test torch

up: build
	@$(WEFT) dev start --dir '$(DIR)' --mount '$(MNT)'
	@echo
	@echo 'Try next:'
	@echo '  cp -r proto $(MNT)/ && ls -l $(MNT)/proto'
	@echo '  $(WEFT) layout get $(MNT)'
	@echo '  $(WEFT) dev status --dir $(DIR)'
	@echo '  $(WEFT) bench --dir $(DIR) --mount $(MNT)'
	@echo '  $(WEFT) dev stop --dir $(DIR)'

down:
	@$(WEFT) dev stop --dir '$(DIR)'

status:
	@$(WEFT) dev status --dir '$(DIR)'

# One selection of packages for everything that is tested, so that nothing is compiled twice with
# other features. The end-to-end tests find the binary beside themselves. Each test has a limit of its own
# (tests/src/guard.sh, scripts/test-runner); this one is for what they do not see. Building takes its time.
# Without Python (WEFT_NO_PYTHON=1) its package is not tested, which is said.
test: setup
	@test -n "$$WEFT_NO_PYTHON" || scripts/wheel '$(target)'
	@WEFT_NOT_TESTED=$$(mktemp) && export WEFT_NOT_TESTED && \
	if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) nextest run --release --locked --workspace --no-run && scripts/room && \
		scripts/limit $(LIMIT) $(CARGO) nextest run --release --locked --workspace && \
		scripts/with-io-uring scripts/limit $(LIMIT) $(CARGO) nextest run --release --locked \
			--workspace -E 'package(weft-fuse) and binary(channels)' && \
		scripts/limit $(LIMIT) $(CARGO) test --release --locked --workspace --doc; \
	else \
		$(CARGO) test --release --locked --workspace --no-run && scripts/room && \
		scripts/limit $(LIMIT) $(CARGO) test --release --locked --workspace && \
		scripts/with-io-uring scripts/limit $(LIMIT) $(CARGO) test --release --locked --workspace \
			--test channels; \
	fi; code=$$?; scripts/not-tested "$$WEFT_NOT_TESTED" || code=1; exit $$code

# A cluster of the version before (a tag or a commit) is upgraded under load, part after part.
PREVIOUS ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
test-upgrade: setup
	@WEFT_PREVIOUS=$$(scripts/previous '$(PREVIOUS)') && export WEFT_PREVIOUS && \
	$(CARGO) test --release --locked --workspace --no-run && \
	scripts/limit $(LIMIT) $(CARGO) test --release --locked --workspace --test takeover \
		--test replacement -- a_cluster_of_the_version_before everything_is_replaced

# The binary that the tests run, so that nothing is compiled twice with other features.
sim: setup
	$(CARGO) build --release --locked --workspace --bin sim
	'$(target)/release/sim' --count '$(SEEDS)'

planted: setup
	$(CARGO) build --release --locked --workspace --bin sim
	'$(target)/release/sim' --planted all --minutes '$(MINUTES)'

jepsen: setup
	$(CARGO) build --release --locked --workspace --bin weft --bin weft-jepsen --bin weft-jepsen-page
	$(CARGO) build --release --locked --package weft-jepsen-clock
	'$(target)/release/weft-jepsen' --minutes '$(MINUTES)'

# Caches fill for a good part of an hour; less time tells nothing.
soak: MINUTES = 120
soak: setup
	$(CARGO) build --release --locked --workspace --bin weft --bin weft-soak --bin weft-jepsen-page
	'$(target)/release/weft-soak' --minutes '$(MINUTES)'

# All readers, or those in TARGETS. What was found stays, for the next run to begin with.
fuzz: setup
	@scripts/fuzz '$(target)/fuzz' '$(SECONDS)' $(TARGETS)

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(CARGO) run --quiet --release --locked -p weft-tidy

fmt:
	$(CARGO) fmt --all

bench: up
	@$(WEFT) bench --dir '$(DIR)' --mount '$(MNT)'
