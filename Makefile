# The commands of this project; CI runs the same ones (.ci/run).

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
TESTFLAGS ?=

.PHONY: build test unit lab lint vuln fuzz demo deps docs clean help

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

lint: ## formatting, vet, staticcheck, tidy modules, known vulnerabilities
	@fmt=$$($$($(GO) env GOROOT)/bin/gofmt -l .) && test -z "$$fmt" || { echo "gofmt would change:"; echo "$$fmt"; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags lab ./...
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C internal/lab/etcd mod tidy -diff
	$(GO) build -C tools -o $(CURDIR)/bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck -tags lab ./...
	bash -n .ci/run && if command -v shellcheck >/dev/null; then shellcheck .ci/run internal/lab/*.sh tools/*.sh; fi
	$(MAKE) --no-print-directory vuln

# The vulnerability database is a Go module like any other, pinned in
# tools/go.mod, so that the check gives the same answer everywhere.
VULNDB = $(shell $(GO) -C tools list -m -f '{{.Version}}' golang.org/x/vulndb)
vuln: ## known vulnerabilities in what is called
	@test -d bin/vulndb-$(VULNDB) || { rm -rf bin/vulndb.new && mkdir -p bin/vulndb.new && $(GO) -C tools mod download golang.org/x/vulndb && \
	  $(GO) -C tools tool indexdb -vulns $$($(GO) -C tools list -m -f '{{.Dir}}' golang.org/x/vulndb)/data/osv -out $(CURDIR)/bin/vulndb.new && \
	  mv bin/vulndb.new bin/vulndb-$(VULNDB); }
	$(GO) build -C tools -o $(CURDIR)/bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	bin/govulncheck -db file://$(CURDIR)/bin/vulndb-$(VULNDB) ./...

fuzz: ## every fuzz target for FUZZTIME (30s)
	@tools/fuzz.sh $(FUZZTIME)

demo: deps build ## three real hosts become an etcd cluster; a fourth says why not
	$(GO) run -tags lab ./internal/lab/demo -agent bin/etcd-nodeagent -fleet bin/etcd-fleet

deps: ## install what tests and demo need (apt, as root)
	@internal/lab/deps.sh

docs: ## write the generated pages of docs/
	$(GO) test ./internal/reason -run TestDocs -update

clean: ## remove what was built here
	rm -rf bin
