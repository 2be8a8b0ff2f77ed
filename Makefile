# make demo   train on the bundled sample, evaluate, raise a threshold, evaluate (about 3 minutes)
# make test   the test suite
# make test-slow   the tests that take longer, and those that need GLUE data, TensorFlow or ONNX
# make docs   the documentation site, in out/site; a dead link or a missing docstring fails
# make venv   a virtual environment in .venv; all others make it first

PYTHON ?= python3
BIN := .venv/bin
# One thread a test process: the models are tiny, and two processes share two cores.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: venv demo test test-slow docs lint clean

.venv/run: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	touch $@

.venv/dev: .venv/run requirements/dev.txt
	$(BIN)/python -m pip install --quiet --requirement requirements/dev.txt
	touch $@

EXTRAS := $(foreach name,tf bench serve lora ray,requirements/$(name).txt)
.venv/tf: .venv/dev $(EXTRAS)
	$(BIN)/python -m pip install --quiet $(EXTRAS:%=--requirement %)
	touch $@

.venv/docs: .venv/run requirements/docs.txt
	$(BIN)/python -m pip install --quiet --requirement requirements/docs.txt
	touch $@

venv: .venv/run

demo: .venv/run
	PYTHON=$(BIN)/python bash examples/demo.sh

test: .venv/dev
	$(PYTEST) -m "not slow and not realdata and not tf"

test-slow: .venv/tf
	$(PYTEST) --durations 15 -m "slow or realdata or tf or onnx"

# The demo page's two JavaScript libraries, from npm; visitors of the built site need no npm.
PACKAGES := out/demo_packages
docs/demo/lib: docs/demo/package.json
	mkdir -p $(PACKAGES)
	cp $< $(PACKAGES)
	npm install --prefix $(PACKAGES) --silent --no-audit --no-fund
	mkdir -p $@
	cp $(PACKAGES)/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs \
		$(PACKAGES)/node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm \
		$(PACKAGES)/node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs $@
	cp $(PACKAGES)/node_modules/@huggingface/tokenizers/LICENSE $@/tokenizers-LICENSE.txt
	touch $@

docs: .venv/docs
	$(MAKE) docs/demo/lib || echo "Without npm, the site's demo page lacks its two libraries"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --output-format min-text

clean:
	rm -rf .venv out
