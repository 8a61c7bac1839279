#!/bin/sh
# vuln.sh: known vulnerabilities in what the programs call.
#
# The database is a Go module like any other, pinned in tools/go.mod, so that the answer is the same everywhere and needs
# no other host. A vulnerability of a module we require is a failure. One of the standard library is a warning: only
# whoever builds can take a newer Go.
set -eu
cd "$(dirname "$0")/.."
top=$PWD

version=$(go -C tools list -m -f '{{.Version}}' golang.org/x/vulndb)
db=$top/bin/vulndb-$version
if [ ! -d "$db" ]; then
	mkdir -p bin
	new=$(mktemp -d bin/vulndb.XXXXXX)
	go -C tools mod download golang.org/x/vulndb
	go -C tools tool indexdb -vulns "$(go -C tools list -m -f '{{.Dir}}' golang.org/x/vulndb)/data/osv" -out "$top/$new"
	mv "$new" "$db"
fi
go build -C tools -o "$top/bin/govulncheck" golang.org/x/vuln/cmd/govulncheck

status=0
out=$(bin/govulncheck -db "file://$db" ./...) || status=$?
case $status in
0) echo "no known vulnerability is called (database $version)" ;;
3)
	if echo "$out" | grep 'Found in:' | grep -qv '@go[0-9]'; then
		echo "$out"
		exit 1
	fi
	echo "warning: $(go env GOVERSION) has known vulnerabilities in its standard library that are called; build with a newer one:"
	echo "$out" | sed -nE 's/^Vulnerability #[0-9]+: (.*)/\1/p; s/^ *(Found|Fixed) in: /  \1 in /p' | paste -sd ' ' | sed 's/ GO-/\nGO-/g'
	echo "no known vulnerability of a required module is called (database $version)"
	;;
*)
	echo "$out"
	exit "$status"
	;;
esac
