#!/bin/sh
# fuzz.sh: run every fuzz target for $1 (30s), two targets at a time with one worker each.
# fuzz.sh PACKAGE TARGET TIME: run one of them.
set -eu

one() {
	for try in 1 2 3; do
		# Without a bound on minimizing, the fuzzer spends most of a short run on it.
		if out=$(go test -run '^$' -fuzz "^$2\$" -fuzztime "$3" -fuzzminimizetime 10x -parallel 1 "$1" 2>&1); then
			echo "$1 $2:$(echo "$out" | grep execs: | tail -n 1 | cut -d: -f2-)"
			return
		fi
		# When the time is over while a worker is busy, go test at times calls the deadline itself a failure
		# (golang/go#75804). A failure of the target always comes with its input.
		case $out in
		*"Failing input"* | *"testdata/fuzz"*) break ;;
		*"context deadline exceeded"*) ;;
		*) break ;;
		esac
	done
	echo "$out"
	echo "$1 $2: failed at try $try"
	return 1
}

if [ $# -eq 3 ]; then
	one "$@"
	exit
fi
grep -roE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' internal nodeagent fleet |
	sed -E "s#^(.*)/[^/]+:func (.*)#./\\1 \\2 ${1:-30s}#" | sort | xargs -P 2 -L 1 "$0"
