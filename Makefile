# Two commands are enough: `make demo` and `make test`. Both make the environment first. `make help` lists the others.

PYTHON ?= python3
# Processes that run tests at the same time. Tests wait about as much as they compute: four keep two cores busy.
WORKERS ?= 4
VENV   := .venv
BIN    := $(VENV)/bin
TOOLS  := $(VENV)/.tools
STAMP  := $(VENV)/.installed
REST   := $(VENV)/.rest
# torch is installed while native/ is compiled.
MAKEFLAGS += --jobs=2

# What compiles native/. Without a compiler everything here works as well, in pure Python.
COMPILER := $(shell command -v $${CXX:-c++} || command -v g++ || command -v clang++)
PIP      = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Without make's flags: ninja would look for a server of jobs there, and complain that it finds none.
CMAKE    := MAKEFLAGS= PATH="$(CURDIR)/$(BIN):$$PATH" cmake
CTEST    := PATH="$(CURDIR)/$(BIN):$$PATH" ctest
PYTHON_OF_NATIVE = -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"
# What runs the compiled module from Python.
CONTRACTS ?= tests/contract

CPP = $$(git ls-files '*.cpp' '*.hpp')
PYTEST := $(BIN)/python -m pytest
PARALLEL = -n $(WORKERS) --dist worksteal
# Where PYTHONDONTWRITEBYTECODE is set, as in many containers, every process would compile the package anew, and every
# rank the test that it runs.
BYTECODE = $(BIN)/python -m compileall -q src tests

.PHONY: help demo test test-thorough store fast room coverage lint format docs native native-test native-asan native-tsan model bench kills faults gpu-day \
        test-pretend test-torches test-torch test-peers test-nodes nodes wheels try-wheels release constraints clean

# What `make demo` trains with where it can.
PORTABLE = $(shell [ -e src/samebits/_portable.so ] && grep -qw avx2 /proc/cpuinfo && echo --numerics portable)
README_BITS = $(shell sed -n 's/^bits  *\([0-9a-f]\{12\}\) .*any x86-64.*/\1/p' README.md)

# Every target with a text after two hashes.
help:  ## these lines
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: trained proven  ## train on two ranks, and prove that 1, 2 and 4 give the same bits

# Both at a time: a core is idle while `verify` runs one rank.
trained: native
	@rm -rf $(VENV)/demo
	$(BIN)/samebits run -n 2 $(PORTABLE) --log-dir $(VENV)/demo examples/digits.py --weights $(VENV)/digits.safetensors
	@if [ -z "$(PORTABLE)" ]; then echo "README.md's hash needs an x86-64 CPU with AVX2 and the compiled part."; \
	  elif grep -q "sha256:$(or $(README_BITS),none)" $(VENV)/demo/*/summary.json; then echo "These are README.md's bits: $(README_BITS)"; \
	  else echo "README.md has other bits: $(README_BITS)"; exit 1; fi

proven: native
	$(BIN)/samebits verify --quiet --ranks 1,2,4 --steps 20 examples/digits.py

test: lint native  ## style, types, layers, and the tests but the thorough ones (WORKERS=3 for three at a time)
	$(PYTEST) $(PARALLEL) -m "not thorough"

test-thorough: lint native store  ## all tests
	$(PYTEST) $(PARALLEL)

# 300 MB in a folder of its own, which only these tests have on their path; without it they are skipped.
store: $(STAMP)  ## an S3 server and its driver into build/s3, for the thorough tests of states on S3
	@cmp -s tests/s3/requirements.txt build/s3/installed.txt || { rm -rf build/s3; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --target build/s3 -r tests/s3/requirements.txt \
	  && cp tests/s3/requirements.txt build/s3/installed.txt; } || echo "no S3 server: the tests of states on S3 are skipped"

fast: lint native  ## style, types, layers, and the tests that start no rank: before each commit
	$(PYTEST) $(PARALLEL) -m "not thorough and not ranks" tests/unit tests/architecture

room: native  ## the tests of one room of the package but the thorough ones: make room ROOM=rank/data
	$(PYTEST) $(PARALLEL) -m "not thorough" $(or $(wildcard tests/unit/$(ROOM) tests/ranks/$(ROOM)),$(error no tests of a room $(ROOM): the folders are those of src/samebits))

coverage: $(REST) native  ## which lines of the rooms that decide (pyproject.toml) the unit tests reach
	$(BIN)/coverage run -m pytest -m "not ranks" tests/unit
	$(BIN)/coverage report

# A `cuda` device in host memory, compiled against the installed torch (tests/pretend). The nightly job runs all of them
# (TESTS="tests/cuda" for some).
test-pretend: $(REST) native  ## the device's paths on pretended GPUs: bits, strategies, waits per step, mistakes
	$(BIN)/python -m tests.pretend $(PARALLEL) $(TESTS)

# The suite's core with every torch that samebits claims to work with, each in an environment that is made for it and
# removed (TORCHES="2.14.1 2.15.0" for some of them). A quarter of an hour and up to 6 GB for each.
test-torches: $(REST) native  ## the core with every torch that is supported
	$(BIN)/python -m tests.torches $(TORCHES)

# torch's own tests of torch.distributed, those in its wheel, over Gloo and over samebits's backend
# (TESTS="barrier broadcast" for those with one of the words). Ten minutes on 2 cores. Prints the table of
# docs/guarantees.md.
test-torch: $(REST) native  ## torch's own tests of torch.distributed over samebits's backend
	$(BIN)/python -m tests.torch_own $(TESTS)

# Lightning, Accelerate, Transformers, and the shapes of torch's examples, in an environment of their own, on two ranks
# under torchrun and under samebits (PEERS="HF FSDP2" for some of them). Prints the table of docs/with-other-libraries.md.
test-peers: $(REST) native  ## Lightning, Accelerate, Transformers under torchrun and under samebits
	$(BIN)/python -m tests.peers $(PEERS)

# Hosts in network namespaces, real Slurm, Open MPI and MPICH need root; what is missing is told, and its tests are skipped.
test-nodes: $(REST) native nodes  ## all tests of several nodes, on hosts, clusters and launchers on this machine
	$(PYTEST) $(PARALLEL) -rs tests/nodes

nodes: $(STAMP)  ## what these use: Debian's packages of tests/nodes/packages.txt, and Ray into build/ray
	@packages=$$(grep -v '^#' tests/nodes/packages.txt); dpkg -s $$packages >/dev/null 2>&1 \
	  || { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$packages; } \
	  || echo "not all packages of tests/nodes/packages.txt are installed: some tests are skipped"
	@cmp -s tests/nodes/requirements.txt build/ray/installed.txt || { rm -rf build/ray; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --target build/ray -r tests/nodes/requirements.txt \
	  && cp tests/nodes/requirements.txt build/ray/installed.txt; } || echo "no Ray: its tests are skipped"

lint: $(REST)  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(REST) native  ## the benchmarks against stock PyTorch
	$(BIN)/python -m benchmarks

kills: $(REST) native  ## 300 kills and 100 resumes at random moments: the same bits, samples and logs (half an hour and more)
	$(BIN)/python -m benchmarks.kills

# Blocks of at most ten minutes, about an hour in all (BLOCKS=bits,speed for some of them, OUT=FILE.json for another record).
gpu-day: $(REST) native  ## the first hour on a machine with GPUs: what runs, the same bits, what it costs; a table and a record
	$(BIN)/python -m benchmarks.gpu_day --blocks "$(BLOCKS)" $(if $(OUT),--out "$(OUT)")

# Rows that make mounts, control groups and network namespaces need root (FAULTS="stopped sleep" for rows with such a word).
faults: $(REST) native  ## thirty faults under samebits and under torchrun: what is said, how soon, what is lost and left
	$(BIN)/python -m benchmarks.faults $(FAULTS)

docs: $(REST)  ## builds the documentation into build/site; a dead link fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(REST)  ## fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# Ninja knows which C++ files have changed since the last build. An install beside it removes the module: it is linked again.
native: $(STAMP) compiled  ## compile what has changed in native/
	@$(if $(COMPILER),$(CMAKE) --build build/native >/dev/null)
	@$(BYTECODE)

ifeq ($(COMPILER),)
compiled:
	@echo "no C++ compiler: samebits goes without its compiled part, over Gloo (apt-get install g++)"
else
compiled: build/native/build.ninja
	$(CMAKE) --build build/native
endif

# The C++ tests; and with sanitizers, each in a build folder of its own. Under ThreadSanitizer ranks are threads.
native-test native-asan native-tsan: export CTEST_OUTPUT_ON_FAILURE = 1
native-test native-asan native-tsan: BUILD = $(CMAKE) -S native -B build/$@ -G Ninja --log-level=WARNING \
	  -DSAMEBITS_TESTS=ON -DSAMEBITS_INPLACE=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo $(SETTINGS) && $(CMAKE) --build build/$@
native-test native-tsan: SETTINGS = -DSAMEBITS_BINDINGS=OFF -DSAMEBITS_SANITIZE=$(SANITIZE)
native-tsan: SANITIZE = thread
native-asan: SETTINGS = -DSAMEBITS_SANITIZE=address,undefined $(PYTHON_OF_NATIVE)

native-test: $(STAMP)  ## the C++ tests
	$(BUILD)
	$(CTEST) --test-dir build/$@

native-tsan: $(STAMP)  ## the C++ tests under ThreadSanitizer
	$(BUILD)
	$(CTEST) --test-dir build/$@ --exclude-regex kernels

# Then the contract suite, with a package that is this one except for its compiled module. libstdc++ is preloaded so
# that AddressSanitizer sees the function that throws exceptions before torch brings its own. Python never frees it all.
native-asan: $(REST)  ## the C++ tests and the contract suite under AddressSanitizer and UBSan
	$(BUILD)
	$(CTEST) --test-dir build/$@
	rm -rf build/$@/site && mkdir -p build/$@/site/samebits
	ln -s $(CURDIR)/src/samebits/* build/$@/site/samebits/ && rm -f build/$@/site/samebits/_native*.so
	ln -s $(CURDIR)/build/$@/_native*.so build/$@/site/samebits/
	PYTHONPATH=$(CURDIR)/build/$@/site ASAN_OPTIONS=detect_leaks=0 SAMEBITS_TEST_LIMIT_S=600 \
	  LD_PRELOAD="$$($(COMPILER) -print-file-name=libasan.so) $$($(COMPILER) -print-file-name=libstdc++.so)" \
	  $(PYTEST) $(PARALLEL) $(CONTRACTS)

# The protocol of the ranks, searched exhaustively; apt-get install spin.
model:  ## search all states of the ranks' protocol (needs spin)
	$(PYTHON) native/model/check.py

# Packages for other machines. It says what it needs besides the environment; the extra `release` lists it.
# PYTHONS="python3.11 /opt/python3.13/bin/python3.13" instead of those that are found.
wheels: $(REST)  ## source distribution and wheels for x86-64 and aarch64, in dist/
	$(BIN)/python -m shipping.wheels $(PYTHONS)

# Gigabytes are installed and removed again.
try-wheels: $(REST)  ## install each wheel of this processor into empty environments without a compiler, and use it
	$(BIN)/python -m shipping.try_wheels $(PYTHONS)

release: $(REST)  ## VERSION=x.y.z: changelog, commit, tag, packages; stops before the upload
	$(BIN)/python -m shipping.release "$(VERSION)"

constraints: $(REST)  ## newer versions of everything but torch in constraints.txt (TORCH=2.14.1 for another)
	$(BIN)/python -m shipping.constraints --torch "$(TORCH)"

# Eight sources are compiled as one: their headers are read once. The C++ tests compile each alone.
build/native/build.ninja: native/CMakeLists.txt $(TOOLS)
	$(CMAKE) -S native -B build/native -G Ninja --log-level=WARNING -DCMAKE_UNITY_BUILD=ON $(PYTHON_OF_NATIVE)
	@touch $@

clean:  ## remove everything that was made
	rm -f src/samebits/_native*.so
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage samebits-runs

# What tests, style and documentation need besides. The package itself stays as it is. Many processes import all this, some of
# them where Python may write no bytecode, and pip would compile one file after the other to it.
$(REST): $(STAMP)
	$(PIP) --no-compile "samebits[test]"
	@$(BIN)/python -m compileall -qq -j 2 -x "/tests?/" $(VENV)/lib >/dev/null || true  # templates for other versions are no Python
	@touch $@

# torch goes first and by its exact version, so pip takes the tested build and not the newest one. The last line compiles to
# bytecode what the ranks of the demo import, and not the three times as much that was installed.
$(STAMP): pyproject.toml constraints.txt $(TOOLS)
	$(PIP) --no-compile "$$(grep '^torch==' constraints.txt)"
	$(PIP) --no-compile --no-build-isolation --config-settings=wheel.cmake=false --config-settings=wheel.py-api=py3 \
	  -e ".[examples,portable]"  # `compiled` compiles
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import samebits.rank.run.start, torch._dynamo, sklearn.datasets"
	@touch $@

$(TOOLS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "samebits needs Python 3.11 or newer; say which with: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 2; }
	$(PIP) cmake ninja nanobind scikit-build-core hatch-fancy-pypi-readme
	@touch $@
