# Two commands are enough: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What compiles native/. Without a compiler everything here works as well, in pure Python.
COMPILER := $(shell command -v $${CXX:-c++} || command -v g++ || command -v clang++)
CMAKE    := PATH="$(CURDIR)/$(BIN):$$PATH" cmake
CTEST    := PATH="$(CURDIR)/$(BIN):$$PATH" ctest
PYTHON_OF_NATIVE = -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"
# What runs the compiled module from Python.
CONTRACTS ?= tests/contract

.PHONY: demo test test-thorough test-torch test-torches test-peers lint bench format docs native native-test native-asan native-tsan model clean

demo: native
	$(BIN)/lockstep run -n 2 examples/digits.py --weights $(VENV)/digits.safetensors
	$(BIN)/lockstep verify examples/digits.py --ranks 1,2,4 --steps 20

test: lint native
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not thorough"

test-thorough: lint native
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The suite's core with every torch that lockstep says it works with, each in an environment that is made for it and removed
# (TORCHES="2.14.1 2.15.0" for some of them). A quarter of an hour and up to 6 GB for each.
test-torches: native
	$(BIN)/python -m tests.torches $(TORCHES)

# torch's own tests of torch.distributed, those in its wheel, over Gloo and over lockstep's back end (TESTS="barrier broadcast" for
# those with one of the words). Ten minutes on 2 cores. Prints the table of docs/guarantees.md.
test-torch: native
	$(BIN)/python -m tests.torch_own $(TESTS)

# Lightning, Accelerate, Transformers, and the shapes of torch's examples, in an environment of their own, on two ranks under
# torchrun and under lockstep (PEERS="HF FSDP2" for some of them). Prints the table of docs/guarantees.md.
test-peers: native
	$(BIN)/python -m tests.peers $(PEERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: native
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## builds the documentation into build/site; a dead link fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Ninja knows which C++ files have changed since the last build.
ifeq ($(COMPILER),)
native: $(STAMP)
	@echo "no C++ compiler: lockstep goes without its compiled part, over Gloo (apt-get install g++)"
else
native: build/native/build.ninja
	$(CMAKE) --build build/native
endif

# The C++ tests; and with sanitizers, each in a build folder of its own. Under ThreadSanitizer ranks are threads.
native-test native-asan native-tsan: export CTEST_OUTPUT_ON_FAILURE = 1
native-test native-asan native-tsan: BUILD = $(CMAKE) -S native -B build/$@ -G Ninja --log-level=WARNING \
	  -DLOCKSTEP_TESTS=ON -DLOCKSTEP_INPLACE=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo $(SETTINGS) && $(CMAKE) --build build/$@
native-test native-tsan: SETTINGS = -DLOCKSTEP_BINDINGS=OFF -DLOCKSTEP_SANITIZE=$(SANITIZE)
native-tsan: SANITIZE = thread
native-asan: SETTINGS = -DLOCKSTEP_SANITIZE=address,undefined $(PYTHON_OF_NATIVE)

native-test: $(STAMP)
	$(BUILD)
	$(CTEST) --test-dir build/$@

native-tsan: $(STAMP)
	$(BUILD)
	$(CTEST) --test-dir build/$@ --exclude-regex kernels

# Then the contract suite, with a package that is this one but for its compiled module. libstdc++ is preloaded because
# AddressSanitizer must see the function that throws exceptions before torch brings its own. Python never frees all.
native-asan: $(STAMP)
	$(BUILD)
	$(CTEST) --test-dir build/$@
	rm -rf build/$@/site && mkdir -p build/$@/site/lockstep
	ln -s $(CURDIR)/src/lockstep/* build/$@/site/lockstep/ && rm -f build/$@/site/lockstep/_native*.so
	ln -s $(CURDIR)/build/$@/_native*.so build/$@/site/lockstep/
	PYTHONPATH=$(CURDIR)/build/$@/site ASAN_OPTIONS=detect_leaks=0 LOCKSTEP_TEST_LIMIT_S=600 \
	  LD_PRELOAD="$$($(COMPILER) -print-file-name=libasan.so) $$($(COMPILER) -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -n 2 --dist worksteal $(CONTRACTS)

# The protocol of the ranks, searched exhaustively; apt-get install spin.
model:
	$(PYTHON) native/model/check.py

build/native/build.ninja: native/CMakeLists.txt $(STAMP)
	$(CMAKE) -S native -B build/native -G Ninja --log-level=WARNING $(PYTHON_OF_NATIVE)
	@touch $@

clean:
	rm -f src/lockstep/_native*.so
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis lockstep-runs

# torch goes first and by its exact version, so that pip takes the tested build and not the newest one.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lockstep needs Python 3.11 or newer; say which with: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --config-settings=wheel.cmake=false --config-settings=wheel.py-api=py3 -e ".[test]"  # `make native` compiles
	@touch $@
