# Every command of the project. `make help` lists them; the text after ## is what it shows.
.DEFAULT_GOAL := help
.PHONY: help setup run plan test test-slow faults lint validate chat parity bench-generate ui chaos lock audit
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
EXPERIMENT ?= stageG
MODEL ?= qwen3_nano
MODEL_DIR ?= artifacts/base/qwen3-nano
ARGS ?=
BENCH_PYTHON ?= $(PY)

# Without a GPU the small CPU build of torch is enough; on arm64 with one (DGX Spark) PyPI has no CUDA build.
HAS_GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
ifeq ($(HAS_GPU),yes)
  ifeq ($(shell uname -m),aarch64)
    TORCH_INDEX ?= https://download.pytorch.org/whl/cu130
  endif
else
  TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif

help: ## 列出指令 · this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12
	@echo "ARGS 接在指令後 · is appended: make run ARGS=\"seed=7 stages.G.lr=2e-4\"   EXPERIMENT=whoami_only   TORCH_INDEX=url"

setup: $(VENV)/.run-ready ## 安裝到 .venv · install into .venv (make run and make test do it themselves)

run: $(VENV)/.run-ready ## 訓練、判定、紀錄 · train, judge, record: the experiment stageG (EXPERIMENT=… for another)
	$(PY) -m pipeline +experiment=$(EXPERIMENT) $(ARGS)

plan: $(VENV)/.run-ready ## 只列出會做的事 · what make run would do: files, hashes, commands
	@$(PY) -m pipeline +experiment=$(EXPERIMENT) plan=true $(ARGS)

validate: $(VENV)/.run-ready ## 驗證一個權重 · judge a weight: make validate WEIGHT=path (fails unless it passes; pipeline.validate itself ends with 0, 1 or 2)
	@$(if $(WEIGHT),,$(error which weight? make validate WEIGHT=artifacts/weights/stageG/G-….dat))$(PY) -m pipeline.validate "$(WEIGHT)" --model $(MODEL) $(ARGS)

chat: $(VENV)/.run-ready ## 和權重對話 · talk to a weight: make chat WEIGHT=path
	@$(if $(WEIGHT),,$(error which weight? make chat WEIGHT=artifacts/weights/stageG/G-….dat))$(PY) -m stages.chat --model-dir $(MODEL_DIR) --weight "$(WEIGHT)" $(ARGS)

parity: $(VENV)/.run-ready ## 兩條推論路徑是否一致 · do both inference paths agree: make parity WEIGHT=path (exit 0 yes; else the table says where not)
	@$(if $(WEIGHT),,$(error which weight? make parity WEIGHT=artifacts/weights/stageG/G-….dat))$(PY) -m stages.parity --model-dir $(MODEL_DIR) --weight "$(WEIGHT)" $(ARGS)

bench-generate: $(VENV)/.dev-ready ## 測題速度 · throughput of answering, against transformers
	@$(PY) -m benchmarks.generate $(ARGS)

ui: $(VENV)/.run-ready ## 開啟 MLflow · MLflow's page on this machine
	$(PY) -m pipeline.tracking ui $(ARGS)

test: $(VENV)/.dev-ready ## 測試 · the tests, without the slow and the GPU ones
	$(PY) -m pytest -n 2 -m "not slow and not gpu" $(ARGS)

test-slow: $(VENV)/.dev-ready ## 較慢的測試 · the second tier: minutes, no GPU
	$(PY) -m pytest -n 2 --maxschedchunk 1 -m "slow and not gpu" -o faulthandler_timeout=400 --durations=0 $(ARGS)

faults: $(VENV)/.dev-ready ## 故障注入一覽表 · every test that injects a fault, as one table (ARGS="--faults=benchmarks/results/faults.md")
	$(PY) -m pytest -n 2 --maxschedchunk 1 -m "fault$(if $(HAS_GPU),, and not gpu)" -o faulthandler_timeout=400 --faults=artifacts/faults.md $(ARGS)

chaos: $(VENV)/.dev-ready ## 隨機終止行程的試驗 · kill processes at random, start again, check (ARGS="--trials 100 --seed 0")
	nice $(PY) benchmarks/chaos.py $(ARGS)

lock: $(VENV)/.dev-ready ## 重做附雜湊的鎖定檔 · write requirements.lock: constraints.txt with the hashes of this platform's files
	grep -v '^torch==' constraints.txt > $(VENV)/lock.in
	$(PIP) install --quiet --dry-run --ignore-installed --no-deps --report $(VENV)/lock.json -r $(VENV)/lock.in
	$(PY) .ci/lock.py $(VENV)/lock.json requirements.lock

audit: $(VENV)/.dev-ready ## 已知漏洞 · known holes in the pinned packages (pip-audit, needs the network)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/python -m pip_audit --disable-pip --no-deps --requirement constraints.txt

bench-engine: ## 4B 引擎與同類比較（需 GPU）· the 4B engine beside its peers, on a GPU machine (BENCH_PYTHON=python3 for its own torch)
	$(BENCH_PYTHON) -m benchmarks.engine $(ARGS)

lint: $(VENV)/.dev-ready ## 風格、型別、匯入規則 · style, types, import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

# Stamps: done once, and again when what is to be installed changes.
$(VENV)/.run-ready: pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make setup PYTHON=python3.12"; exit 2; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) install --quiet --no-deps --retries 1 -c constraints.txt --extra-index-url $(TORCH_INDEX) torch)
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $@
