//go:build lab && linux

// Command bench compares etcd-fleet with tools that run a command on many
// hosts: the wall and CPU time of two checks of the same nodes, with the same
// key, in one run. Each node is a real sshd of its own on a loopback address,
// with a systemctl that answers as on a node whose etcd is active.
//
// It needs Linux and OpenSSH. As root it installs the other tools; one that is
// missing is said to be. Everything it makes is gone when it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"cks-etcd/internal/reason"
)

func main() {
	var o options
	flag.StringVar(&o.fleet, "fleet", "bin/etcd-fleet", "the etcd-fleet program")
	flag.IntVar(&o.nodes, "nodes", 100, "how many nodes, at most 250")
	flag.IntVar(&o.repetitions, "repetitions", 3, "of each tool; medians are shown")
	flag.Parse()
	if flag.NArg() > 0 || o.nodes < 1 || o.nodes > 250 || o.repetitions < 1 {
		flag.Usage()
		os.Exit(reason.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "bench: interrupted; cleaned up")
		os.Exit(reason.ExitInterrupted)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(reason.ExitNo)
	}
}

// options are the flags.
type options struct {
	fleet       string
	nodes       int
	repetitions int
}

// run measures and prints. The repetitions of the tools alternate, so that
// what else the machine does hits them alike.
func run(ctx context.Context, o options) (err error) {
	if _, err := exec.LookPath(o.fleet); err != nil {
		return fmt.Errorf("cannot find the program to measure: %w; build it with 'make build'", err)
	}
	install(ctx)
	s, err := startSite(ctx, o.nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	m, err := newMeter(s)
	if err != nil {
		return err
	}
	defer m.endStrays()

	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	fmt.Printf("Two checks of %d nodes, a real sshd each, all on this machine (%d CPUs, load %s when this began).\n", o.nodes, runtime.NumCPU(), first)
	fmt.Printf("At most %d connections at once; the same key and known_hosts. Medians of %d alternating repetitions.\n\n", fanout, o.repetitions)
	tools := contenders(s, o.fleet)
	results := make([]result, len(tools))
	for rep := range o.repetitions {
		for i, tool := range tools {
			if tool.once && rep > 0 {
				continue
			}
			if _, err := exec.LookPath(tool.args[0]); err != nil {
				results[i].missing = true
				continue
			}
			fmt.Fprintf(os.Stderr, "repetition %d: %s\n", rep+1, tool.name)
			c, err := m.measure(ctx, tool)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil { // on a machine that is too busy, logins time out
				fmt.Fprintf(os.Stderr, "%s: %v\n", tool.name, err)
				results[i].failed++
				continue
			}
			results[i].costs = append(results[i].costs, c)
		}
	}
	if err := printTable(os.Stdout, tools, results); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r result) bool { return r.failed > 0 }) {
		return errors.New("not every repetition saw all nodes active")
	}
	return nil
}

// install gets the other tools from Debian, as root. What then is still
// missing shows in the table.
func install(ctx context.Context) {
	packages := map[string]string{"clush": "clustershell", "parallel-ssh": "pssh", "ansible": "ansible-core", "ssh": "openssh-client"}
	var want []string
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			want = append(want, pkg)
		}
	}
	if _, err := sshdPath(); err != nil {
		want = append(want, "openssh-server")
	}
	if len(want) == 0 || os.Getuid() != 0 {
		return
	}
	fmt.Fprintln(os.Stderr, "installing", strings.Join(want, " "))
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, want...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "apt-get %s: %v: %s\n", args[0], err, reason.Line(string(out)))
		}
	}
}
