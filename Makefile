# Rondo's targets. `make help` lists them; what they need beyond Go is installed by scripts/deps.sh,
# which says so first.

.DEFAULT_GOAL := help

# A job that takes at most two minutes on two cores and ends with readable text. The pure-Go build
# trains a smaller model.
DEMO_FLAGS = --workers 2 --cell lstm --layers 1 --dropout 0 --batch 32 --bptt 64 \
	--validation-fraction 0 --optimizer adam --lr 0.004 --lr-schedule cosine \
	--sample-prefix "The Rays of Light " --sample-tokens 400 --sample-temperature 0.5 \
	--checkpoint-dir bin/demo $(DEMO_SIZE_$(CGO))
DEMO_SIZE_1 = --hidden 256 --steps 2000
DEMO_SIZE_0 = --hidden 128 --steps 1200

LINT_VERSION = v2.15.0
VULN_VERSION = v1.9.0
GRPC_PLUGIN_VERSION = v1.6.0
TOOLS = bin/tools
LINT = $(TOOLS)/golangci-lint-$(LINT_VERSION)/golangci-lint
VULN = $(TOOLS)/govulncheck-$(VULN_VERSION)/govulncheck

COMMANDS = ./cmd/rondo ./cmd/worker ./cmd/coordinator

# 1, or 0 where there is no C compiler. Asked for when a recipe runs, after deps.
CGO = $(shell scripts/native.sh)

# These tags leave out parts of other modules that Rondo does not use: gRPC's trace pages, the xDS
# protocol of Google's storage client, and kustomize's Go plugins, for which the linker would keep
# all unused code. A build without them works too; its programs are larger. Programs that are not
# built here name the same: k8s/image and the Dockerfiles.
export TAGS := grpcnotrace,disable_grpc_modules,kustomize_disable_go_plugin_support

# The build must not depend on who owns the working tree.
export GOFLAGS := $(shell go env GOFLAGS) -buildvcs=false -tags=$(TAGS)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 18

.PHONY: demo
demo: deps ## install what is missing, build, and train two workers for two minutes
	@echo 'make demo: 1. downloads 230 MB of modules and compiles 1,350 packages, which takes'
	@echo '              minutes the first time;'
	@echo '           2. trains two workers on a book, at most two minutes on two cores.'
	@CGO_ENABLED=$(CGO) scripts/build.sh ./cmd/rondo
	rm -rf bin/demo
	./bin/rondo train $(DEMO_FLAGS)
	@echo 'More of this text:  ./bin/rondo generate --checkpoint bin/demo --prefix "Light is "'
	@echo 'Train on your own:  ./bin/rondo train --corpus FILE'
	@echo 'On a cluster:       docs/kubernetes.md'

.PHONY: build
build: ## build the commands into ./bin
	@CGO_ENABLED=$(CGO) scripts/build.sh $(COMMANDS)

.PHONY: cuda
cuda: deps ## build the commands for NVIDIA GPUs into ./bin/cuda; no GPU is needed
	scripts/test-cuda.sh required build

.PHONY: gpu
gpu: deps ## pack bin/gpu: three commands for a machine with a GPU; run them if one is here
	scripts/gpu.sh

.PHONY: image
image: deps ## build the container image, without a Docker engine: bin/rondo-image.tar
	CGO_ENABLED=$(CGO) go run ./k8s/image $(IMAGE_FLAGS)

.PHONY: deps
deps: ## install what a build needs and this machine lacks
	@scripts/deps.sh

.PHONY: test
test: deps ## run every test once, also in the pure-Go build and the one for GPUs: minutes
	@scripts/deps.sh test
	scripts/test.sh

.PHONY: race
race: deps ## the same under the race detector; more seeds and shapes: half an hour to an hour
	@scripts/deps.sh test
	scripts/test.sh race

.PHONY: test-cuda
test-cuda: deps ## test the build for GPUs, on an emulated driver where there is no GPU
	scripts/test-cuda.sh build test

.PHONY: soak
soak: deps ## train under a rain of at least 500 faults, and compare
	CGO_ENABLED=$(CGO) RONDO_SOAK_FAULTS=500 go test -count 1 -v -timeout 30m -run TestSoak \
		./integration

.PHONY: storm
storm: deps ## lose any two hosts of workers at once, 500 times; print the times to the next step
	CGO_ENABLED=$(CGO) RONDO_TEST_LONG=1 go test -count 1 -v -timeout 30m -run SimulatedStorm \
		./worker
	CGO_ENABLED=$(CGO) RONDO_STORM_ROUNDS=500 go test -count 1 -v -timeout 240m -run TestStorm \
		./integration

.PHONY: replay
replay: deps ## run a simulation of workers twice with the same history: SEED=1449 FAULT=40s
	CGO_ENABLED=0 go build -o bin/replay ./internal/replay
	CGO_ENABLED=0 GOOS=wasip1 GOARCH=wasm go test -c -ldflags -s -o bin/worker.wasm ./worker
	for run in 1 2; do (cd worker && ../bin/replay ../bin/worker.wasm \
		-test.run 'TestSimulation$$' -seed $(SEED) -fault $(FAULT)) \
		>bin/history-$$run.txt 2>&1; echo "exit $$?" >>bin/history-$$run.txt; done
	cat bin/history-1.txt
	cmp bin/history-1.txt bin/history-2.txt
	tail -n 1 bin/history-1.txt | grep -q '^exit 0$$'

SEED = 1
FAULT = 5s

.PHONY: integration-k8s
integration-k8s: deps ## jobs on the Kubernetes cluster that integration/k8s/README.md asks for
	CGO_ENABLED=$(CGO) go test -count 1 -v -timeout 120m ./integration/k8s

.PHONY: nightly
nightly: deps soak storm ## soak, storm, jumping clocks, thousands of histories, fuzzing, systems
	CGO_ENABLED=$(CGO) go test -count 1 -timeout 60m -run Simulation ./cluster -seeds 20000
	CGO_ENABLED=$(CGO) RONDO_TEST_LONG=1 go test -count 1 -timeout 60m \
		-run 'WallClock|LeaderUnderReports|RingUnderStrangers' ./integration
	CGO_ENABLED=$(CGO) RONDO_TEST_LONG=1 go test -count 1 -timeout 60m -run MutatedCheckpoints ./job
	CGO_ENABLED=$(CGO) RONDO_TEST_LONG=1 go test -count 1 -run ManyMembers ./cluster/etcdstore
	CGO_ENABLED=$(CGO) RONDO_TEST_LONG=1 go test -count 1 -timeout 60m -run Sanitizers ./compute/cpu
	scripts/test-cuda.sh test
	scripts/test-arm64.sh -run 'Conformance|Head|FlatBits'
	for longest in 5s 40s; do CGO_ENABLED=$(CGO) go test -count 1 -timeout 60m \
		-run Simulation ./worker -seeds 3000 -fault $$longest || exit 1; done
	$(MAKE) --no-print-directory replay SEED=1449 FAULT=40s
	CGO_ENABLED=$(CGO) scripts/fuzz.sh 10m
	for system in windows darwin freebsd; do \
		CGO_ENABLED=0 GOOS=$$system go build ./... || exit 1; done
	$(MAKE) --no-print-directory vulncheck DATABASE=required

.PHONY: check
check: format vet lint vulncheck generated test ## what to run before a commit

.PHONY: format
format: ## fail if a Go file is not gofmt-ed
	scripts/format.sh

.PHONY: vet
vet: ## go vet
	CGO_ENABLED=$(CGO) go vet ./...
	scripts/test-cuda.sh vet

.PHONY: lint
lint: $(LINT) ## golangci-lint
	CGO_ENABLED=$(CGO) $(LINT) run --allow-parallel-runners
	CGO_ENABLED=0 $(LINT) run --allow-parallel-runners --build-tags race,$(TAGS) \
		./allreduce/shm ./compute/cpu
	@# What only other builds have, as far as no types are needed.
	CGO_ENABLED=0 GOOS=windows GOARCH=arm64 $(LINT) run --allow-parallel-runners \
		--build-tags race,cuda,$(TAGS) --enable-only funlen,gochecknoinits,revive ./...
	LINT=$(LINT) scripts/test-cuda.sh lint

.PHONY: vulncheck
vulncheck: $(VULN) ## known vulnerabilities, by the database at vuln.go.dev
	CGO_ENABLED=$(CGO) scripts/vulncheck.sh $(VULN) $(DATABASE)

.PHONY: generate
generate: plugins ## generate the Go code of the protocol buffers
	PATH="$(abspath $(TOOLS)):$$PATH" scripts/generate.sh

.PHONY: generated
generated: plugins ## fail if the generated code is not what the .proto files give
	PATH="$(abspath $(TOOLS)):$$PATH" scripts/generate.sh check

.PHONY: kernels
kernels: ## compile the CUDA kernels to PTX, which is committed
	scripts/kernels.sh

.PHONY: kernels-check
kernels-check: ## fail if the PTX is not what the kernels give, or if they spill registers
	scripts/kernels.sh check

.PHONY: plugins
plugins:
	@scripts/deps.sh check
	@GOBIN=$(abspath $(TOOLS)) go install google.golang.org/protobuf/cmd/protoc-gen-go
	@GOBIN=$(abspath $(TOOLS)) go install \
		google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(GRPC_PLUGIN_VERSION)

$(LINT):
	GOBIN=$(abspath $(@D)) go install \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

$(VULN):
	GOBIN=$(abspath $(@D)) go install golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)

.PHONY: bench
bench: deps ## run the Go benchmarks, without the tests
	CGO_ENABLED=$(CGO) go test -run '^$$' -bench . -benchmem ./...

.PHONY: clean
clean: ## remove what the targets made
	rm -rf bin
