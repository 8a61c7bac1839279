//go:build lab && linux

// Command isobench compares etcd-fleet with tools that list ISO images or read
// archives: wall and CPU time for the same question about the same files, in one
// run.
//
// It needs Linux, genisoimage and about 3 GB of space for temporary files. As
// root it installs the other tools; one that is missing is said to be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"cks-etcd/internal/reason"
)

func main() {
	var o options
	flag.StringVar(&o.fleet, "fleet", "bin/etcd-fleet", "the etcd-fleet program")
	flag.IntVar(&o.repetitions, "repetitions", 5, "of each tool; medians are shown")
	flag.IntVar(&o.isos, "isos", 1000, "how many small ISOs are asked in one go")
	flag.StringVar(&o.dir, "dir", "", "where the test images are made; a temporary directory if empty")
	flag.Parse()
	if flag.NArg() > 0 || o.repetitions < 1 || o.isos < 1 {
		flag.Usage()
		os.Exit(reason.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "isobench: interrupted; cleaned up")
		os.Exit(reason.ExitInterrupted)
	case err != nil:
		fmt.Fprintln(os.Stderr, "isobench:", err)
		os.Exit(reason.ExitNo)
	}
}

// options are the flags.
type options struct {
	fleet       string
	repetitions int
	isos        int
	dir         string
}

// A contender is one way to answer the question.
type contender struct {
	name string
	args []string
	want string // in its output when it found what it was asked for; "": its exit status says so
}

// A contest is one question, and those who answer it; the first one is ours.
type contest struct {
	title string
	tools []contender
}

// A cost is what one answer took.
type cost struct{ wall, cpu time.Duration }

// run measures and prints. The repetitions of the tools alternate, so that what
// else the machine does hits them alike.
func run(ctx context.Context, o options) (err error) {
	if _, err := exec.LookPath(o.fleet); err != nil {
		return fmt.Errorf("cannot find the program to measure: %w; build it with 'make build'", err)
	}
	if o.fleet, err = filepath.Abs(o.fleet); err != nil {
		return err
	}
	install(ctx)
	dir, err := os.MkdirTemp(o.dir, "isobench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintln(os.Stderr, "making images in", dir)
	contests, err := makeContests(ctx, o, dir)
	if err != nil {
		return err
	}
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	fmt.Printf("All on this machine (%d CPUs, load %s when this began), files in the page cache. Medians of %d alternating repetitions;\n", runtime.NumCPU(), first, o.repetitions)
	fmt.Println("ratios are to etcd-fleet. CPU is user and system time of the tool and all it started.")
	for _, c := range contests {
		costs := make([][]cost, len(c.tools))
		missing := make([]bool, len(c.tools))
		for rep := range o.repetitions + 1 { // the first one only fills the page cache
			for i, t := range c.tools {
				if missing[i] {
					continue
				}
				got, err := measure(ctx, dir, t)
				switch {
				case ctx.Err() != nil:
					return ctx.Err()
				case errors.Is(err, exec.ErrNotFound):
					missing[i] = true
				case err != nil:
					return fmt.Errorf("%s, %s: %w", c.title, t.name, err)
				case rep > 0:
					costs[i] = append(costs[i], got)
				}
			}
		}
		show(c, costs, missing)
	}
	return nil
}

// measure runs one contender once. A wrong answer is an error: the time it
// took would say nothing.
func measure(ctx context.Context, dir string, t contender) (cost, error) {
	name := t.args[0]
	if name == "sh" {
		name = t.name // a loop over the tool of that name
	}
	if _, err := exec.LookPath(strings.Fields(name)[0]); err != nil && !filepath.IsAbs(t.args[0]) {
		return cost{}, fmt.Errorf("%w: %s", exec.ErrNotFound, name)
	}
	cmd := exec.CommandContext(ctx, t.args[0], t.args[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	out, err := cmd.Output()
	wall := time.Since(began)
	if err != nil {
		return cost{}, fmt.Errorf("%w: %s", err, reason.Line(string(out)))
	}
	if !strings.Contains(string(out), t.want) {
		return cost{}, fmt.Errorf("did not find what it was asked for: %s", reason.Line(string(out)))
	}
	return cost{wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

func show(c contest, costs [][]cost, missing []bool) {
	fmt.Printf("\n%-44s %9s %7s %9s %7s\n", c.title, "wall ms", "ratio", "CPU ms", "ratio")
	ms := func(costs []cost, part func(cost) float64) float64 {
		list := make([]float64, len(costs))
		for i, c := range costs {
			list[i] = part(c)
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	wall := func(c cost) float64 { return float64(c.wall.Microseconds()) / 1000 }
	cpu := func(c cost) float64 { return float64(c.cpu.Microseconds()) / 1000 }
	for i, t := range c.tools {
		if missing[i] {
			fmt.Printf("  %-42s not installed\n", t.name)
			continue
		}
		w, p := ms(costs[i], wall), ms(costs[i], cpu)
		fmt.Printf("  %-42s %9.1f %7.2f %9.1f %7.2f\n", t.name, w, w/ms(costs[0], wall), p, p/ms(costs[0], cpu))
	}
}

// install gets the other tools from Debian, as root. What then is still missing
// shows in the tables.
func install(ctx context.Context) {
	var want []string
	for program, pkg := range map[string]string{
		"isoinfo": "genisoimage", "xorriso": "xorriso", "bsdtar": "libarchive-tools", "7z": "p7zip-full", "igzip": "isal",
	} {
		if _, err := exec.LookPath(program); err != nil {
			want = append(want, pkg)
		}
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
