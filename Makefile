# Task names only.  PRESET=cpu | cpu-shared | cpu-asan | cpu-tsan
PRESET ?= cpu
BUILD := build/$(PRESET)
FLASHWOK := $(BUILD)/cli/flashwok

.PHONY: run test bench support tables lint build packages

run: build
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
	python3 tools/readme_tables.py --check

build: packages
	cmake --preset $(PRESET) >/dev/null
	cmake --build --preset $(PRESET)

packages:
	@tools/install_packages.sh
