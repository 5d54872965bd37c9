# Task names only.  PRESET=cpu | cpu-shared | cpu-asan | cpu-tsan; SECONDS of each fuzzer; FRAMEWORKS
# that the Python package is tested with
PRESET ?= cpu
SECONDS ?= 60
export FRAMEWORKS ?= torch transformers jax
BUILD := build/$(PRESET)
FLASHWOK := $(BUILD)/cli/flashwok
CUDA_BIN := $(CURDIR)/build/cuda-toolkit/nvidia/cu13/bin
CUDA_OBJECTS := build/cuda/src/CMakeFiles/flashwok.dir build/cuda/src/CMakeFiles/flashwok_hopper.dir
CUDA_TABLE := tests/cuda/resources.txt

.PHONY: run test bench support tables lint build packages python-packages ci ci-packages asan tsan \
        fuzz wasm-check neon-check python python-test python-lint wheel cuda cuda-trace cuda-toolkit \
        cuda-check cuda-resources

run: packages
	cmake --preset $(PRESET) >/dev/null
	cmake --build --preset $(PRESET) --target flashwok_cli
	$(FLASHWOK) compare --input examples/data/minilm_layer0.safetensors --backward
	$(FLASHWOK) compare --input examples/data/minilm_layer3.safetensors
	$(FLASHWOK) compare --batch 1 --seqlen 2048 --num-heads 8 --head-dim 64 --causal bottom_right

test: build
	ctest --preset $(PRESET) -j 2

bench: build
	$(FLASHWOK) bench --output bench/results/cpu_local.json $(if $(filter torch,$(PEERS)),--peer-torch $$(tools/torch_venv.sh))
	python3 tools/readme_tables.py --record-compare $(FLASHWOK)

support: build
	python3 tools/readme_tables.py --record-support $(FLASHWOK)

tables:
	python3 tools/readme_tables.py --write

lint:
	python3 tools/house_check.py
	python3 tools/check_excerpts.py
	python3 tools/readme_tables.py --check

build: packages
	cmake --preset $(PRESET) >/dev/null
	cmake --build --preset $(PRESET)

packages:
	@tools/install_packages.sh

python-packages:
	@tools/install_packages.sh python

# What continuous integration runs; each line alone is a target too.
ci: ci-packages
	$(MAKE) lint
	$(MAKE) test
	$(MAKE) asan
	$(MAKE) tsan
	$(MAKE) fuzz
	$(MAKE) wasm-check
	$(MAKE) neon-check
	$(MAKE) python-test wheel
	$(MAKE) cuda-check

asan:
	$(MAKE) test PRESET=cpu-asan

# The threads of the kernels alone; all tests: make test PRESET=cpu-tsan.
tsan: packages
	cmake --preset cpu-tsan >/dev/null
	cmake --build --preset cpu-tsan --target kernels_check
	ctest --preset cpu-tsan -R kernels_check

fuzz: ci-packages
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz --target npy_fuzz npz_fuzz safetensors_fuzz problem_fuzz
	tools/fuzz.sh $(SECONDS)

wasm-check neon-check: %-check: ci-packages
	cmake --preset $* >/dev/null
	cmake --build --preset $*
	ctest --preset $*

# The Python package, in an environment of its own (build/venv) with all that it works with.
python: python-packages
	$$(tools/python_venv.sh) -m pip install -q --no-build-isolation --no-deps \
	  -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache \
	  -C cmake.define.CMAKE_CUDA_COMPILER_LAUNCHER=ccache .

python-test: python python-lint
	$$(tools/python_venv.sh) -m pytest -q

python-lint:
	$$(tools/python_venv.sh) -m ruff check
	$$(tools/python_venv.sh) -m ruff format --check
	$(if $(filter torch,$(FRAMEWORKS)),$$(tools/python_venv.sh) -m mypy)

# A wheel that stands alone, tried where there is no compiler.
wheel: python-packages
	$$(tools/python_venv.sh) tools/build_wheel.py --ccache

# The CUDA kernels, with the system's nvcc or, without one, PyPI's.
cuda: packages cuda-toolkit
	cmake --preset cuda >/dev/null
	cmake --build --preset cuda

# The command line with time stamps in V3, and what it needs on the machine with the GPU.
cuda-trace: packages cuda-toolkit
	cmake --preset cuda-trace >/dev/null
	cmake --build --preset cuda-trace --target flashwok_cli
	tools/bundle.sh build/cuda-trace/cli/flashwok build/cuda-trace/bundle

cuda-toolkit:
	@command -v nvcc >/dev/null || tools/cuda_toolkit.sh >/dev/null

# Without a GPU: they compile, and to what the table says.
cuda-check: ci-packages
	tools/cuda_toolkit.sh >/dev/null
	cmake --preset cuda -DCMAKE_CUDA_COMPILER=$(CUDA_BIN)/nvcc >/dev/null
	cmake --build --preset cuda --target flashwok
	python3 tools/cuda_resources.py $(CUDA_BIN)/cuobjdump $(CUDA_OBJECTS) --check $(CUDA_TABLE)

cuda-resources:
	python3 tools/cuda_resources.py $(CUDA_BIN)/cuobjdump $(CUDA_OBJECTS) --write $(CUDA_TABLE)

ci-packages:
	@tools/install_packages.sh ci
