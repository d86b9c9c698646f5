# The two commands of the README are `make demo` and `make test`; the rest serves them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -q --disable-pip-version-check
STAMP  := $(VENV)/.installed

.PHONY: coverage fuzz matrix setup build test lint native asan demo references clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements-build.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements-build.txt
	$(PIP) install --no-build-isolation -e '.[test]'
	@touch $(STAMP)

build: setup  ## rebuild what changed in csrc
	$(PIP) install --no-build-isolation --no-deps -e .

COVERED = tests/test_gguf.py tests/test_hostile_gguf.py tests/test_hostile_checkpoint.py tests/test_checkpoint.py tests/test_output.py \
          tests/test_convert.py tests/test_outtypes.py tests/test_layouts.py tests/test_dialects.py tests/test_beside.py tests/test_fuzz.py

test: build lint native coverage
	$(BIN)/python -m pytest -rs $(addprefix --ignore=,$(COVERED))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build/types/dflash_gguf && cd build/types/dflash_gguf && ln -sfn ../../../convert ../../../quantize ../../../runtime ../../../manifests . && ln -sf "$$(ls -t ../../cp*/_native.pyi | head -1)" .
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p dflash_gguf

CMAKE_NATIVE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DDFLASH_MODULE=OFF -DDFLASH_NATIVE_TESTS=ON

native: setup  ## the native tests
	$(CMAKE_NATIVE) -S . -B build/native -DCMAKE_BUILD_TYPE=Release >/dev/null
	$(BIN)/cmake --build build/native
	$(BIN)/ctest --test-dir build/native --output-on-failure --no-tests=error

asan: setup  ## the native tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CMAKE_NATIVE) -S . -B build/asan -DCMAKE_BUILD_TYPE=Debug -DDFLASH_SANITIZE=ON >/dev/null
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure --no-tests=error

matrix: setup  ## csrc/kquant with gcc and clang, -O0 to -O3, with and without vector kernels, and for aarch64: the golden bytes
	$(BIN)/python -m pytest -rs tests/test_compilers.py

FUZZ_SECONDS ?= 60

fuzz: build  ## every reader for a minute each, then the C library; needs the extra fuzz, see CONTRIBUTING.md
	for reader in $$($(BIN)/python fuzz/readers.py 2>/dev/null); do \
	  $(BIN)/python fuzz/readers.py $$reader -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=1024 -close_fd_mask=0 || exit 1; done
	fuzz/kquant.sh $(FUZZ_SECONDS)

coverage: build  ## their tests, and that these see every branch of the readers of strangers' files and of the writer's failure paths
	$(BIN)/python -m pytest $(COVERED) --cov --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

demo: build
	$(BIN)/python tools/demo.py

references: build  ## the recorded references of the example pair, from PyTorch
	$(BIN)/python -m dflash_gguf.runtime.oracle --target-hf examples/pair/target \
		--target-gguf examples/pair/Pair-Target-BF16.gguf --prompts pair \
		--draft examples/pair/draft-v1 --out manifests/references/pair-v1.json \
		--draft examples/pair/draft-v2 --out manifests/references/pair-v2.json

clean:
	rm -rf build out $(VENV)
