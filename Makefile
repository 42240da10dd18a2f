.PHONY: test lint types bench sanitize fuzz release-check docs

test:
	python -m pytest

lint: types
	ruff check .
	ruff format --check .
	mypy
	mypy --platform darwin --cache-dir .mypy_cache/darwin src
	mypy --platform win32 --cache-dir .mypy_cache/win32 src
	lint-imports
	python tools/words.py

# The page's modules are plain JavaScript; TypeScript reads the types in their comments.
types:
	@if command -v npx >/dev/null; then npx --yes --package typescript@5.9.3 --package @webgpu/types@0.1.64 -c \
	'tsc -p tsconfig.json --typeRoots "$$(dirname "$$(command -v tsc)")/.." --types @webgpu/types'; \
	else echo "no npx: the types of the page are not checked"; fi

# Speed beside the machine's limit, what the KV cache buys, many texts at once, in process and
# through HTTP. Beside other engines:
# python bench/compare.py --help
bench:
	python -m cutaway bench
	python bench/kv_cache.py
	python bench/serving.py
	python bench/soak.py
	python bench/server_soak.py

# Wheels as users get them: tags, stable ABI, contents, fresh venvs, and the bits that each writes.
# PYTHONS="python3.11 python3.12 python3.13" names more than this one; docs/install.md has the rest.
release-check:
	python tools/release_check.py build/release --json build/release.json --python $(or $(PYTHONS),python) \
	  $(if $(ARM_ROOT),--arm-root $(ARM_ROOT)) $(if $(ONLY),--only $(ONLY))

# The native code without Python, under the sanitizers: memory and undefined behaviour, then races.
sanitize:
	mkdir -p build/sanitize
	native/tests/build.sh build/sanitize/memory -g1 \
	  -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
	build/sanitize/memory
	native/tests/build.sh build/sanitize/races -g1 -fsanitize=thread
	TSAN_OPTIONS=halt_on_error=1 build/sanitize/races

# Damaged files and odd requests of all formats, for an hour: first with the kernels as they are, then all instruction
# sets of this machine under sanitizers. GCC takes a quarter of an hour to compile for those. MINUTES of each half, whose
# inputs are others: they are numbered from 0 and from a million.
MINUTES ?= 30
fuzz:
	python tools/fuzz.py --minutes $(MINUTES) --json build/fuzz.json
	python -m pip install --no-deps --upgrade --target build/sanitized -Cbuild-dir=build/sanitize -Cinstall.strip=false \
	  -Ccmake.build-type=Debug -Ccmake.define.CUTAWAY_SANITIZE=ON .
	python tools/fuzz.py gguf family-gguf quantise folder family prefix --minutes $(MINUTES) --seed 1000000 --json build/fuzz-sanitized.json \
	  --native build/sanitized/cutaway/base/_native*.so

# The site, in build/site: pip install '.[docs]' has what it needs. Notebooks are run, a warning is an error; all is read
# again, since much of it follows from the package. With ziglang it has the page that runs a model, too.
docs:
	@if python -c "import ziglang" 2>/dev/null; then PYTHON=python native/web/build.sh src/cutaway/trace/web/cores; fi
	python -m sphinx -E -W --keep-going -c docs/site -d build/doctrees docs build/site
