# The commands of this project; CI runs the same ones (.ci/run).

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
TESTFLAGS ?=

.PHONY: build test unit lab lint vuln fuzz demo bench-ssh bench-iso vm dist dist-test deps docs clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

build: ## bin/etcd-nodeagent and bin/etcd-fleet, static
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/etcd-nodeagent ./nodeagent
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/etcd-fleet ./fleet

test: deps ## everything: unit, command line, and the lab where it is root on Linux
	$(GO) test -race -timeout 30m $(TESTFLAGS) -tags lab ./...

unit: ## what needs neither root nor namespaces
	$(GO) test -race $(TESTFLAGS) ./...

lab: deps ## only the tests on real systemd hosts, loop devices and mounts
	$(GO) test -timeout 30m -v $(TESTFLAGS) -tags lab -run 'Lab' ./...

vm: ## a real VM: boot, ISO inserted, etcd, eject, reboot, our package removed
	@internal/lab/deps-vm.sh
	$(GO) test -timeout 20m -v -tags 'lab vm' -run TestVM ./internal/vmlab

lint: ## formatting, vet, staticcheck, tidy modules, shell scripts, known vulnerabilities
	@fmt=$$($$($(GO) env GOROOT)/bin/gofmt -l .) && test -z "$$fmt" || { echo "gofmt would change:"; echo "$$fmt"; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags 'lab vm' ./...
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C internal/lab/etcd mod tidy -diff
	$(GO) -C packaging mod tidy -diff
	$(GO) -C packaging vet -tags dist ./...
	$(GO) build -C tools -o $(CURDIR)/bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck -tags lab,vm ./...
	cd packaging && ../bin/staticcheck -tags dist ./...
	bash -n .ci/run && if command -v shellcheck >/dev/null; then shellcheck .ci/run internal/lab/*.sh tools/*.sh; fi
	$(MAKE) --no-print-directory vuln

vuln: ## known vulnerabilities in what is called
	@tools/vuln.sh

fuzz: ## every fuzz target for FUZZTIME (30s)
	@tools/fuzz.sh $(FUZZTIME)

demo: deps build ## three real hosts become an etcd cluster; a fourth says why not
	$(GO) run -tags lab ./internal/lab/demo -agent bin/etcd-nodeagent -fleet bin/etcd-fleet

bench-ssh: build ## etcd-fleet next to clush, parallel-ssh and ansible on 100 real sshds (installs them as root)
	$(GO) run -tags lab ./fleet/bench -fleet bin/etcd-fleet

bench-iso: build ## etcd-fleet next to isoinfo, xorriso, bsdtar, 7z, tar and igzip (installs them as root)
	$(GO) run -tags lab ./fleet/isobench -fleet bin/etcd-fleet

dist: ## dist/: deb, rpm, tarballs, bill of materials, SHA256SUMS
	$(GO) -C packaging run . -o ../dist

dist-test: dist ## the packages: reproducible, lintian, install, upgrade, remove, purge
	@internal/lab/deps.sh lintian rpm
	$(GO) -C packaging test -tags dist -timeout 10m ./...

deps: ## install what tests and demo need (apt, as root)
	@internal/lab/deps.sh

docs: ## write the generated pages of docs/
	$(GO) test ./internal/reason -run TestDocs -update

clean: ## remove what was built here
	rm -rf bin dist .dist-*
