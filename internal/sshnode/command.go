package sshnode

import (
	"fmt"
	"strings"
)

// The frame of an answer. Whatever stands outside of it (the message of the
// day, a noisy .bashrc) is not ours.
const (
	frameBegin = "cks-etcd-probe 1"
	frameEnd   = "cks-etcd-probe 1 end"
)

// How much is read of each file on a node.
const (
	maxMarker    = 4 << 10
	maxStateFile = 40 << 10 // the agent writes about 2 KiB; leaves room within maxOutput
	maxCloudInit = 8 << 10
)

// Statuses of a section that was to show a file. Other than 0, what the
// section holds is the cause.
const (
	fileThere      = 0
	fileAbsent     = 40 // for certain: its directory could be searched
	fileOdd        = 41 // not a regular file; reading it could hang
	fileUnsearched = 42 // a directory above it may not be searched
)

// unitProperties are the properties of the unit that are asked for, by their
// names in org.freedesktop.systemd1(5).
func unitProperties() []string {
	return []string{
		"LoadState", "UnitFileState", "ActiveState", "SubState", "Result", "Type",
		"ExecMainCode", "ExecMainStatus", "NRestarts", "MainPID", "InvocationID",
		"ActiveEnterTimestampMonotonic", "RestartUSec",
	}
}

// probeCommand returns the command that is run on every node. unit and paths
// have been checked to need no quoting.
//
// It is one line without single quotes, exclamation marks and backslashed
// quotes, inside one pair of single quotes, so that sh, csh, fish and their
// kin as login shells all pass it to sh unchanged. Lines of content are
// prefixed with '=', so that nothing in a file can look like the frame:
//
//	cks-etcd-probe 1
//	+boot 2c5e...            a value
//	<marker                  a section begins
//	=etcd archive missing    its content, with one line break added
//	=
//	=0                       the exit status of what wrote it
//	>marker                  it ends
//	cks-etcd-probe 1 end
//
// The marker comes first, and systemctl is bounded where timeout(1) exists, so
// that a node whose D-Bus hangs can still say that its setup failed. cloud-init
// is not called, since its start costs a second of CPU time; its status files
// say the same.
func probeCommand(unit, marker, state string) string {
	script := []string{
		`LC_ALL=C; PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"; export LC_ALL PATH; exec </dev/null`,
		`s() { n=$1; shift; echo "<$n"; { "$@" 2>&1; printf "\n%s\n" "$?"; } | sed "s/^/=/"; echo ">$n"; }`,
		// Not there is said only where its directory, or the nearest one that
		// exists, can be searched.
		`a() { d=$1; while d=${d%/*}; do if [ -x "${d:-/}" ]; then return 40; fi; ` +
			`if [ -d "${d:-/}" ] || [ -z "$d" ]; then echo "cannot search ${d:-/}"; return 42; fi; done; }`,
		`g() { if [ -f "$1" ]; then head -c "$2" "$1"; elif [ -e "$1" ]; then echo "not a regular file"; return 41; else a "$1"; fi; }`,
		`f() { if [ -h "$1" ]; then echo "a symbolic link"; return 41; else g "$@"; fi; }`,
		`t() { if command -v timeout >/dev/null; then timeout 8 "$@"; else "$@"; fi; }`,
		`echo "` + frameBegin + `"`,
		`if read -r v </proc/sys/kernel/random/boot_id; then printf "+boot %s\n" "$v"; fi`,
		`if read -r v </proc/sys/kernel/hostname; then printf "+host %s\n" "$v"; fi`,
		`printf "+clock %s\n" "$(date +%s.%N)"`,
		fmt.Sprintf(`s marker f %s %d`, marker, maxMarker),
		fmt.Sprintf(`s state f %s %d`, state, maxStateFile+1),
		fmt.Sprintf(`s unit t systemctl show --no-pager --property=%s -- %s`, strings.Join(unitProperties(), ","), unit),
		fmt.Sprintf(`s ci-status g /run/cloud-init/status.json %d`, maxCloudInit),
		fmt.Sprintf(`s ci-result g /run/cloud-init/result.json %d`, maxCloudInit),
		`if [ -e /run/cloud-init/disabled ]; then echo "+cloud-init disabled"; elif command -v cloud-init >/dev/null; then :; else echo "+cloud-init absent"; fi`,
		`echo "` + frameEnd + `"`,
	}
	return "exec sh -c '" + strings.Join(script, "; ") + "'"
}
